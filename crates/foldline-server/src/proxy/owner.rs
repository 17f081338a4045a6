//! Whose originals they are: the archive's namespace of a request.
//!
//! On a machine of one's own everything belongs to its user, so that `foldline unfold` finds what the
//! proxy folded. Where others can connect, each credential has a namespace of its own, under a name from which the
//! credential can not be had again: the archive gives it.

use foldline_archive::{Namespace, Shelf};
use hyper::HeaderMap;

use super::memory::map_key;
use super::server::Shared;

/// Headers in which credentials of providers travel.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];

/// The key of a tenant in tables that live in memory. It is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TenantKey(pub(crate) u128);

impl Shared {
    /// Returns the tenant that sent these headers: the owner of their part of the archive, or without an archive the
    /// holder of their credentials.
    pub(crate) fn tenant(&self, shelf: Option<&Shelf>, headers: &HeaderMap) -> TenantKey {
        TenantKey(match shelf {
            Some(shelf) => map_key(shelf.namespace().as_str().as_bytes()),
            None if self.settings.listen.ip().is_loopback() => map_key(Namespace::local().as_str().as_bytes()),
            None => map_key(&credentials(headers)),
        })
    }

    /// The part of the archive that belongs to whoever sent these headers.
    pub(crate) fn shelf(&self, headers: &HeaderMap) -> Option<Shelf> {
        let archive = self.archive.as_ref()?;
        let namespace = match self.settings.listen.ip().is_loopback() {
            true => Ok(Namespace::local()),
            false => archive.namespace_of(&credentials(headers)),
        };
        let told = namespace.inspect_err(|error| {
            self.metrics.fault("archive");
            tracing::warn!(%error, "nothing is kept of this request");
        });
        told.ok().map(|namespace| archive.shelf(&namespace))
    }
}

/// All that somebody is known by.
fn credentials(headers: &HeaderMap) -> Vec<u8> {
    let shown = |name: &'static str| headers.get_all(name).iter().map(move |value| (name, value));
    let fields = CREDENTIALS.into_iter().flat_map(shown);
    fields.flat_map(|(name, value)| [name.as_bytes(), &[0], value.as_bytes(), &[0]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_known_by_all_that_is_shown() {
        let of = |name: &'static str, value: &'static str| {
            credentials(&[(hyper::header::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect())
        };
        let mine = of("authorization", "Bearer secret");
        assert_eq!(mine, of("authorization", "Bearer secret"));
        assert_ne!(mine, of("authorization", "Bearer other"));
        assert_ne!(mine, of("x-api-key", "Bearer secret"));
        assert_eq!(of("user-agent", "me"), of("accept", "all"), "nobody");
    }
}
