//! Replacing the access tokens of a running proxy.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::proxy::downstream::auth::AccessToken;
use crate::proxy::fold::tenant::{TenantDirectory, tenant_kind};
use crate::proxy::settings::ProxySettings;
use crate::proxy::state::AppState;

/// A handle with which the tokens of a running proxy are replaced.
#[derive(Clone)]
pub struct TokenReload(Arc<AppState>);

impl fmt::Debug for TokenReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReload").finish_non_exhaustive()
    }
}

impl TokenReload {
    pub(crate) fn new(state: Arc<AppState>) -> Self {
        Self(state)
    }

    /// Replaces all tokens, for requests from now on. Requests that were admitted before go on.
    ///
    /// # Errors
    ///
    /// The tokens do not agree with the other settings, such as names of gateways and tenants, or change the tenancy; then
    /// the previous tokens stay.
    pub fn replace_tokens(&self, tokens: Vec<AccessToken>) -> io::Result<()> {
        let settings = ProxySettings { tokens, ..self.0.settings.clone() };
        let refused = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if settings.is_open() {
            return refused("there is no token; restart the proxy to serve requests without one");
        }
        let checked = TenantDirectory::new(&settings, None, self.0.metrics.clone())?;
        if checked.tenancy() != self.0.tenants.tenancy() {
            return refused("the tokens change the tenancy, because some have no names; set tenancy and restart");
        }
        // The table of tenants' settings is made at the start.
        let changes = |name: &&String| tenant_kind(&settings, name) != tenant_kind(&self.0.settings, name);
        if let Some(name) = settings.tenants.keys().find(changes) {
            return refused(&format!("the settings of the tenant {name} would apply to others; restart the proxy"));
        }
        self.0.auth.replace_tokens(&settings.tokens);
        Ok(())
    }
}
