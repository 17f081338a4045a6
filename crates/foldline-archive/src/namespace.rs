//! Namespaces: the owners of originals. Every read is inside exactly one.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// The name of a tenant: the local user, or in a proxy a keyed hash of the credential.
///
/// ```
/// use foldline_archive::Namespace;
///
/// assert_eq!(Namespace::local().as_str(), "local");
/// assert!(Namespace::new("team-7").is_ok());
/// assert!(Namespace::new("").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(String);

impl Namespace {
    /// Returns the namespace of the local user.
    pub fn local() -> Self {
        Self("local".into())
    }

    /// Parses a namespace: 1 to 128 letters, digits, and `-_.:@`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the name is empty, too long, or has another character.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        if (1..=128).contains(&name.len()) && name.chars().all(is_allowed) {
            Ok(Self(name))
        } else {
            Err(Error::new(
                ErrorKind::InvalidInput,
                "not a namespace: a namespace is 1 to 128 letters, digits and the characters - _ . : @",
            ))
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
