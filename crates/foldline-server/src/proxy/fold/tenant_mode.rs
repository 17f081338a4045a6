//! The mode of each tenant: that of the settings (its own or the proxy's), or the one that the tenant chose through the API.
//!
//! A choice lasts as long as the proxy. It never changes what another tenant gets.

use std::sync::{Mutex, PoisonError};

use crate::proxy::fold::tenant::Tenant;
use crate::proxy::lru_map::LruMap;
use crate::proxy::settings::ProxyMode;

/// Maximum number of tenants whose choice is kept.
const MAX_CHOICES: usize = 4_096;

/// Modes by tenant.
pub(crate) struct TenantModes {
    /// Mode of tenants that chose none and have no settings.
    default: ProxyMode,
    chosen: Mutex<LruMap<ProxyMode>>,
}

impl TenantModes {
    pub(crate) fn new(default: ProxyMode) -> Self {
        Self { default, chosen: Mutex::default() }
    }

    /// Returns the mode of a tenant.
    pub(crate) fn get(&self, tenant: &Tenant) -> ProxyMode {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.get(tenant.key.0).unwrap_or_else(|| self.configured(tenant))
    }

    /// Sets the mode of a tenant, from its next request on.
    pub(crate) fn set(&self, tenant: &Tenant, mode: ProxyMode) {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        match mode == self.configured(tenant) {
            true => drop(chosen.remove(tenant.key.0)),
            false => chosen.insert(tenant.key.0, mode, MAX_CHOICES),
        }
    }

    fn configured(&self, tenant: &Tenant) -> ProxyMode {
        tenant.settings.mode.unwrap_or(self.default)
    }
}
