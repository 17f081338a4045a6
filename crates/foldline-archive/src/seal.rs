//! Encryption at rest: XChaCha20-Poly1305 with a key of its own for every namespace.
//!
//! What is sealed is bound to its namespace and to what it is (a pack, a fact, ..), so a row that
//! somebody moved elsewhere in the file does not open. Nothing here touches a file or the environment:
//! the key comes in as bytes.

use std::fmt;

use crate::{Error, ErrorKind, Namespace};

/// The secret with which an archive is sealed.
#[derive(Clone)]
#[cfg_attr(not(feature = "seal"), expect(dead_code, reason = "without encryption a key is refused"))]
pub struct Key([u8; 32]);

impl Key {
    /// A key from at least 32 bytes of secret material, such as 32 random bytes or the 44 letters of
    /// their base64. It is not stretched: a password that a person can remember is refused by its
    /// length for good reason.
    pub fn new(material: &[u8]) -> Result<Self, Error> {
        if material.len() < 32 {
            return Err(Error::new(
                ErrorKind::BadRequest,
                "the archive's key must have at least 32 bytes; make one with: head -c 32 /dev/urandom | base64",
            ));
        }
        Ok(Self(blake3::derive_key("foldline archive 2026-11 key of the file", material)))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How the archive writes what must not be read by others.
#[derive(Clone, Debug)]
pub(crate) enum Seal {
    /// As it is.
    Open,
    /// Under this key.
    #[cfg(feature = "seal")]
    Sealed(Key),
}

impl Seal {
    pub(crate) fn new(key: Option<Key>) -> Result<Self, Error> {
        match key {
            None => Ok(Seal::Open),
            #[cfg(feature = "seal")]
            Some(key) => Ok(Seal::Sealed(key)),
            #[cfg(not(feature = "seal"))]
            Some(_) => Err(Error::new(ErrorKind::Denied, "this build of foldline was made without encryption")),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Seal::Open)
    }

    /// The key under which credentials become names, in the archive with this identity.
    pub(crate) fn name_key(&self, identity: &[u8]) -> [u8; 32] {
        let mut key = blake3::Hasher::new_derive_key("foldline archive 2026-11 names of credentials");
        key.update(identity);
        #[cfg(feature = "seal")]
        if let Seal::Sealed(secret) = self {
            key.update(&secret.0);
        }
        *key.finalize().as_bytes()
    }

    /// Closes `plain`, which is a `what` of this namespace.
    pub(crate) fn close(&self, namespace: &Namespace, what: &str, plain: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            Seal::Open => Ok(plain),
            #[cfg(feature = "seal")]
            Seal::Sealed(key) => sealed::close(key, namespace, what, &plain),
        }
    }

    /// Opens what [`Seal::finish`] closed.
    pub(crate) fn open(&self, namespace: &Namespace, what: &str, closed: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            Seal::Open => Ok(closed),
            #[cfg(feature = "seal")]
            Seal::Sealed(key) => sealed::open(key, namespace, what, &closed),
        }
    }
}

#[cfg(feature = "seal")]
mod sealed {
    use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
    use chacha20poly1305::{XChaCha20Poly1305, XNonce};

    use super::Key;
    use crate::{Error, ErrorKind, Namespace};

    const NONCE: usize = 24;

    pub(super) fn close(key: &Key, namespace: &Namespace, what: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let nonce = XNonce::try_generate().map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system gave no randomness to seal with: {error}"))
        })?;
        let closed = cipher(key, namespace)
            .encrypt(&nonce, Payload { msg: plain, aad: what.as_bytes() })
            .map_err(|_| Error::new(ErrorKind::TooLarge, "too large to be sealed"))?;
        let mut bytes = Vec::with_capacity(NONCE + closed.len());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&closed);
        Ok(bytes)
    }

    pub(super) fn open(key: &Key, namespace: &Namespace, what: &str, closed: &[u8]) -> Result<Vec<u8>, Error> {
        let damaged =
            || Error::new(ErrorKind::Damaged, format!("a sealed {what} does not open: its bytes were changed"));
        let (nonce, closed) = closed.split_first_chunk::<NONCE>().ok_or_else(damaged)?;
        cipher(key, namespace)
            .decrypt(&XNonce::from(*nonce), Payload { msg: closed, aad: what.as_bytes() })
            .map_err(|_| damaged())
    }

    fn cipher(key: &Key, namespace: &Namespace) -> XChaCha20Poly1305 {
        let mut own = blake3::Hasher::new_derive_key("foldline archive 2026-11 key of a namespace");
        own.update(&key.0);
        own.update(namespace.as_str().as_bytes());
        XChaCha20Poly1305::new(own.finalize().as_bytes().into())
    }
}

#[cfg(test)]
#[cfg(feature = "seal")]
mod tests {
    use super::*;

    fn seal(secret: &[u8; 32]) -> Seal {
        Seal::new(Some(Key::new(secret).unwrap())).unwrap()
    }

    #[test]
    fn opens_only_under_the_same_key_namespace_and_purpose() {
        let (local, other) = (Namespace::local(), Namespace::new("other").unwrap());
        let closed = seal(&[7; 32]).close(&local, "pack", b"secret".to_vec()).unwrap();
        assert!(!closed.windows(6).any(|it| it == b"secret"));
        assert_eq!(seal(&[7; 32]).open(&local, "pack", closed.clone()).unwrap(), b"secret");
        assert!(seal(&[8; 32]).open(&local, "pack", closed.clone()).is_err());
        assert!(seal(&[7; 32]).open(&other, "pack", closed.clone()).is_err());
        assert!(seal(&[7; 32]).open(&local, "fact", closed.clone()).is_err());
        let mut bent = closed;
        *bent.last_mut().unwrap() ^= 1;
        assert!(seal(&[7; 32]).open(&local, "pack", bent).is_err());
        assert!(seal(&[7; 32]).open(&local, "pack", vec![1, 2]).is_err());
    }

    #[test]
    fn a_key_neither_prints_nor_is_short() {
        assert_eq!(format!("{:?}", Key::new(&[1; 32]).unwrap()), "Key(..)");
        assert!(Key::new(b"hunter2").is_err());
    }
}
