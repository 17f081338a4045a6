//! Retention: removes originals by the age of the last request with their marker.
//!
//! An original whose marker may still be in a live conversation is never removed, whatever the limits: an issued handle
//! must resolve. A removed original leaves a tombstone, so that its handle is answered with "expired" rather than
//! "unknown".
//!
//! The work is split into small commits, so that store calls are never blocked for long.

use std::time::Duration;

use crate::archive::Archive;
use crate::audit::AuditAction;
use crate::clock;
use crate::clock::to_millis;
use crate::error::Error;
use crate::store::{ArchiveScope, ArchiveStore, RemovedCounts};
use crate::tenant::TenantArchive;

/// Originals that one commit expires.
const EXPIRE_BATCH_ROWS: usize = 500;

/// Time after which the tombstone of an expired original is deleted.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// The shortest time after its last request in which a conversation may continue, whatever the policy.
const MIN_IDLE: Duration = Duration::from_secs(24 * 3600);

/// Limits on age and size of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Expires originals that no request has used for this time.
    pub max_age: Option<Duration>,
    /// Expires the least recently used originals until the archive is at most this large on disk.
    pub max_bytes: Option<u64>,
    /// Time after its last request in which a conversation may continue. Originals used within this time are never
    /// expired; at least a day.
    pub min_idle: Duration,
}

impl Default for RetentionPolicy {
    /// Returns a policy without limits, with a week in which a conversation may be resumed.
    fn default() -> Self {
        Self { max_age: None, max_bytes: None, min_idle: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// The results of pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// Originals that expired.
    pub originals: u64,
    /// Their bytes, before compression.
    pub bytes: u64,
    /// Originals above the age limit that were kept because their conversations may continue.
    pub live: u64,
    /// Bytes on disk before.
    pub bytes_before: u64,
    /// Bytes on disk after. It may exceed the limit if the rest may still be live.
    pub bytes_after: u64,
}

impl Archive {
    /// Expires originals according to the policy, and repacks the rest where that saves space.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn prune(&self, retention: &RetentionPolicy) -> Result<PruneReport, Error> {
        self.audit(AuditAction::Prune)?;
        prune_scope(self.store_rows(), ArchiveScope::Everything, retention)
    }
}

impl TenantArchive {
    /// Prunes like [`Archive::prune`], but only this namespace. Sizes are those of its packs.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn prune(&self, retention: &RetentionPolicy) -> Result<PruneReport, Error> {
        self.audit(AuditAction::Prune, |entry| entry)?;
        prune_scope(self.store_rows(), ArchiveScope::Namespace(self.namespace()), retention)
    }
}

fn prune_scope(
    store: &dyn ArchiveStore,
    scope: ArchiveScope<'_>,
    retention: &RetentionPolicy,
) -> Result<PruneReport, Error> {
    let now = clock::now_millis();
    let live = now - to_millis(retention.min_idle.max(MIN_IDLE));
    let mut pruned = PruneReport { bytes_before: store.used_bytes(scope)?, ..PruneReport::default() };
    if let Some(age) = retention.max_age {
        let requested = now - to_millis(age);
        let before = live.min(requested);
        for batch in store.unused_since(scope, before)?.chunks(EXPIRE_BATCH_ROWS) {
            pruned.add(store.expire(batch, before, now)?);
        }
        store.delete_records(scope, before)?;
        // The clock may not have moved since the newest original was stored.
        pruned.live = store.unused_since(scope, requested.saturating_add(1))?.len() as u64;
    }
    // Compaction may fail for one part of the archive; the limits hold for the others.
    let mut compacted = store.compact(scope);
    if let Some(limit) = retention.max_bytes {
        let unused = if store.used_bytes(scope)? > limit { store.unused_since(scope, live)? } else { Vec::new() };
        for batch in unused.chunks(EXPIRE_BATCH_ROWS) {
            if store.used_bytes(scope)? <= limit {
                break;
            }
            pruned.add(store.expire(batch, live, now)?);
        }
        compacted = compacted.and(store.compact(scope));
    }
    store.delete_tombstones(scope, now - to_millis(TOMBSTONE_LIFETIME))?;
    compacted?;
    pruned.bytes_after = store.used_bytes(scope)?;
    Ok(pruned)
}

impl PruneReport {
    fn add(&mut self, removed: RemovedCounts) {
        self.originals += removed.originals;
        self.bytes += removed.bytes;
    }
}
