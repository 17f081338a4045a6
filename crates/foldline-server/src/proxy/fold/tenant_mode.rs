//! The mode of each tenant: that of the settings, or the one that the tenant chose through the API.
//!
//! A choice lasts as long as the proxy. It never changes what another tenant gets.

use std::sync::{Mutex, PoisonError};

use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::lru_map::LruMap;
use crate::proxy::settings::ProxyMode;

/// Maximum number of tenants whose choice is kept.
const MAX_CHOICES: usize = 4_096;

/// Modes by tenant.
pub(crate) struct TenantModes {
    /// Mode of tenants that chose none.
    default: ProxyMode,
    chosen: Mutex<LruMap<ProxyMode>>,
}

impl TenantModes {
    pub(crate) fn new(default: ProxyMode) -> Self {
        Self { default, chosen: Mutex::default() }
    }

    /// Returns the mode of a tenant.
    pub(crate) fn get(&self, tenant: TenantKey) -> ProxyMode {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.get(tenant.0).unwrap_or(self.default)
    }

    /// Sets the mode of a tenant, from its next request on.
    pub(crate) fn set(&self, tenant: TenantKey, mode: ProxyMode) {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        match mode == self.default {
            true => drop(chosen.remove(tenant.0)),
            false => chosen.insert(tenant.0, mode, MAX_CHOICES),
        }
    }
}
