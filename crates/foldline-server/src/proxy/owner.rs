//! Whose originals they are: the archive's namespace of a request.
//!
//! On a machine of one's own everything belongs to its user, so that `foldline unfold` finds what the
//! proxy folded. Where others can connect, each credential has a namespace of its own, known by a hash
//! from which the credential can not be had again.

use foldline_archive::{Namespace, Shelf};
use hyper::HeaderMap;

use super::server::Shared;

/// Headers in which credentials of providers travel.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];

/// The namespace of whoever sent these headers.
pub(crate) fn namespace(headers: &HeaderMap, alone: bool) -> Namespace {
    if alone {
        return Namespace::local();
    }
    let mut hash = blake3::Hasher::new_derive_key("foldline namespace of a credential");
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            hash.update(name.as_bytes()).update(&[0]).update(value.as_bytes()).update(&[0]);
        }
    }
    let name = hash.finalize().to_hex();
    Namespace::new(format!("key-{}", &name[..32])).expect("hexadecimal digits are allowed in a namespace")
}

impl Shared {
    /// The part of the archive that belongs to whoever sent these headers.
    pub(crate) fn shelf(&self, headers: &HeaderMap) -> Option<Shelf> {
        let alone = self.settings.listen.ip().is_loopback();
        self.archive.as_ref().map(|archive| archive.shelf(&namespace(headers, alone)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_has_its_own_namespace_and_does_not_stand_in_it() {
        let of = |name: &'static str, value: &'static str| {
            namespace(
                &[(hyper::header::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect(),
                false,
            )
        };
        let mine = of("authorization", "Bearer secret");
        assert_eq!(mine, of("authorization", "Bearer secret"));
        assert_ne!(mine, of("authorization", "Bearer other"));
        assert_ne!(mine, of("x-api-key", "Bearer secret"));
        assert!(!mine.as_str().contains("secret"));
        assert_eq!(namespace(&HeaderMap::new(), true), Namespace::local());
    }
}
