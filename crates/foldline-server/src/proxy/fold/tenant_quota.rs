//! Quotas of each tenant: requests in progress, and bytes in the archive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldline_archive::TenantArchive;

use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::lru_map::LruMap;
use crate::proxy::settings::{ProxyLimits, Timeouts};

/// Parts of the table of open requests, each with a lock of its own.
const SHARDS: usize = 16;

/// Maximum number of tenants whose bytes are kept.
const MAX_USAGES: usize = 4_096;

/// Quotas by tenant.
pub(crate) struct TenantQuotas {
    max_requests: Option<usize>,
    max_bytes: Option<u64>,
    usage_lifetime: Duration,
    open: [Mutex<HashMap<TenantKey, usize>>; SHARDS],
    usages: Mutex<LruMap<StoredUsage>>,
}

/// The bytes of a tenant in the archive.
#[derive(Clone, Copy, Debug)]
struct StoredUsage {
    /// None before the first read has ended.
    bytes: Option<u64>,
    read_at: Instant,
}

/// Error: a tenant has as many requests in progress as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRequests;

/// A request in progress, counted for its tenant until it is dropped.
pub(crate) struct TenantSlot {
    quotas: Arc<TenantQuotas>,
    tenant: TenantKey,
}

impl TenantQuotas {
    pub(crate) fn new(limits: ProxyLimits, timeouts: Timeouts) -> Self {
        let (max_requests, max_bytes) = (limits.tenant_requests, limits.tenant_bytes);
        Self {
            max_requests,
            max_bytes,
            usage_lifetime: timeouts.usage,
            open: Default::default(),
            usages: Mutex::default(),
        }
    }

    /// Counts a request, if requests are limited. One without a tenant is not counted.
    pub(crate) fn open_request(
        self: &Arc<Self>,
        tenant: Option<TenantKey>,
    ) -> Result<Option<TenantSlot>, TooManyRequests> {
        let Some((limit, tenant)) = self.max_requests.zip(tenant) else { return Ok(None) };
        let mut shard = self.shard(tenant);
        let open = shard.entry(tenant).or_default();
        if *open >= limit {
            return Err(TooManyRequests);
        }
        *open += 1;
        Ok(Some(TenantSlot { quotas: self.clone(), tenant }))
    }

    /// Returns the limit if a tenant has reached the quota of stored bytes. Its usage is read in the background, so a
    /// tenant can exceed the quota by what it stores in the meantime.
    pub(crate) fn exceeded_bytes(self: &Arc<Self>, tenant: TenantKey, archive: &TenantArchive) -> Option<u64> {
        let limit = self.max_bytes?;
        let mut usages = self.usages();
        let known = usages.get(tenant.0);
        if known.is_none_or(|usage| usage.read_at.elapsed() >= self.usage_lifetime) {
            let usage = StoredUsage { bytes: known.and_then(|usage| usage.bytes), read_at: Instant::now() };
            usages.insert(tenant.0, usage, MAX_USAGES);
            let (quotas, archive) = (self.clone(), archive.clone());
            tokio::task::spawn_blocking(move || quotas.read_usage(tenant, &archive));
        }
        known?.bytes.filter(|bytes| *bytes >= limit).map(|_| limit)
    }

    /// Forgets the usage of a tenant, whose data was deleted.
    pub(crate) fn forget_usage(&self, tenant: TenantKey) {
        self.usages().remove(tenant.0);
    }

    fn read_usage(&self, tenant: TenantKey, archive: &TenantArchive) {
        match archive.used_bytes() {
            Ok(bytes) => {
                let usage = StoredUsage { bytes: Some(bytes), read_at: Instant::now() };
                self.usages().insert(tenant.0, usage, MAX_USAGES);
            }
            Err(error) => tracing::warn!(%error, "cannot read the stored bytes of a tenant; using the last known"),
        }
    }

    fn shard(&self, tenant: TenantKey) -> MutexGuard<'_, HashMap<TenantKey, usize>> {
        self.open[tenant.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usages(&self) -> MutexGuard<'_, LruMap<StoredUsage>> {
        self.usages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        let mut shard = self.quotas.shard(self.tenant);
        if let Some(open) = shard.get_mut(&self.tenant) {
            *open -= 1;
            if *open == 0 {
                shard.remove(&self.tenant);
            }
        }
    }
}
