//! What users pin in their sessions: tools and targets that are never folded from the next crease on.
//!
//! Pins are facts of a session in the archive's ledger, and cached. A conversation adopts them at its next request, which
//! records the request point from which they apply, so that they move no byte that was sent before.

use std::sync::{Arc, Mutex, PoisonError};

use foldline::engine::PinPatterns;
use foldline_archive::TenantArchive;

use crate::activity::now_millis;
use crate::proxy::fold::prefix_facts::{SESSION_PINS_KIND, newest_pins};
use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::lru_map::{LruMap, map_key};

/// Pins of the sessions in memory.
pub(crate) struct SessionPins {
    by_session: Mutex<LruMap<Arc<PinPatterns>>>,
    capacity: usize,
}

impl SessionPins {
    /// Creates a cache for this many sessions.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { by_session: Mutex::default(), capacity }
    }

    /// Returns the pins of a session; calls `read` if they are not cached.
    pub(crate) fn get(&self, tenant: TenantKey, session: &str, read: impl FnOnce() -> PinPatterns) -> Arc<PinPatterns> {
        let key = session_key(tenant, session);
        if let Some(pins) = self.cached().get(key) {
            return pins;
        }
        let pins = Arc::new(read());
        // A change in the meantime counts.
        self.cached().get_or_insert_with(key, self.capacity, || pins).clone()
    }

    /// Replaces the cached pins of a session by those that were read from the archive.
    pub(crate) fn refresh(&self, tenant: TenantKey, session: &str, pins: PinPatterns) {
        self.cached().insert(session_key(tenant, session), Arc::new(pins), self.capacity);
    }

    /// Sets the pins of a session. They replace the ones before.
    ///
    /// # Errors
    ///
    /// The archive could not be written.
    pub(crate) fn set(
        &self,
        tenant: TenantKey,
        session: &str,
        archive: Option<&TenantArchive>,
        pins: PinPatterns,
    ) -> Result<(), foldline_archive::Error> {
        if let Some(archive) = archive {
            let payload = serde_json::to_vec(&pins).unwrap_or_default();
            archive.write_fact(SESSION_PINS_KIND, &now_millis().to_be_bytes(), &payload)?;
        }
        self.cached().insert(session_key(tenant, session), Arc::new(pins), self.capacity);
        Ok(())
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, LruMap<Arc<PinPatterns>>> {
        self.by_session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn session_key(tenant: TenantKey, session: &str) -> u128 {
    map_key(&[&tenant.0.to_le_bytes(), session.as_bytes()].concat())
}

/// Reads the pins of a session from its part of the archive.
pub(crate) fn read_pins(archive: Option<&TenantArchive>) -> PinPatterns {
    newest_pins(&archive.and_then(|archive| archive.facts().ok()).unwrap_or_default())
}
