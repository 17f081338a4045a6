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
pub struct ArchiveKey([u8; 32]);

impl ArchiveKey {
    /// A key from at least 32 bytes of secret material, such as 32 random bytes or the 44 letters of
    /// their base64. It is not stretched: a password that a person can remember is refused by its
    /// length for good reason.
    pub fn new(material: &[u8]) -> Result<Self, Error> {
        if material.len() < 32 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the archive's key must have at least 32 bytes; make one with: head -c 32 /dev/urandom | base64",
            ));
        }
        Ok(Self(blake3::derive_key("foldline archive 2026-11 key of the file", material)))
    }
}

impl fmt::Debug for ArchiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How the archive writes what must not be read by others.
#[derive(Clone, Debug)]
pub(crate) enum ArchiveCipher {
    /// As it is.
    Plaintext,
    /// Under this key.
    #[cfg(feature = "seal")]
    Encrypted(ArchiveKey),
}

impl ArchiveCipher {
    pub(crate) fn new(key: Option<ArchiveKey>) -> Result<Self, Error> {
        match key {
            None => Ok(ArchiveCipher::Plaintext),
            #[cfg(feature = "seal")]
            Some(key) => Ok(ArchiveCipher::Encrypted(key)),
            #[cfg(not(feature = "seal"))]
            Some(_) => Err(Error::new(ErrorKind::Denied, "this build of foldline was made without encryption")),
        }
    }

    pub(crate) fn is_plaintext(&self) -> bool {
        matches!(self, ArchiveCipher::Plaintext)
    }

    /// The key under which credentials become names, in the archive with this identity.
    pub(crate) fn credential_key(&self, identity: &[u8]) -> [u8; 32] {
        let mut key = blake3::Hasher::new_derive_key("foldline archive 2026-11 names of credentials");
        key.update(identity);
        #[cfg(feature = "seal")]
        if let ArchiveCipher::Encrypted(secret) = self {
            key.update(&secret.0);
        }
        *key.finalize().as_bytes()
    }

    /// Closes `plain`, which is a `what` of this namespace.
    pub(crate) fn encrypt(&self, namespace: &Namespace, what: &str, plain: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            ArchiveCipher::Plaintext => Ok(plain),
            #[cfg(feature = "seal")]
            ArchiveCipher::Encrypted(key) => sealed::encrypt(key, namespace, what, &plain),
        }
    }

    /// Opens what [`Seal::finish`] closed.
    pub(crate) fn decrypt(&self, namespace: &Namespace, what: &str, closed: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            ArchiveCipher::Plaintext => Ok(closed),
            #[cfg(feature = "seal")]
            ArchiveCipher::Encrypted(key) => sealed::decrypt(key, namespace, what, &closed),
        }
    }
}

#[cfg(feature = "seal")]
mod sealed {
    use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
    use chacha20poly1305::{XChaCha20Poly1305, XNonce};

    use super::ArchiveKey;
    use crate::{Error, ErrorKind, Namespace};

    const NONCE_BYTES: usize = 24;

    pub(crate) fn encrypt(key: &ArchiveKey, namespace: &Namespace, what: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let nonce = XNonce::try_generate().map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system gave no randomness to seal with: {error}"))
        })?;
        let closed = namespace_cipher(key, namespace)
            .encrypt(&nonce, Payload { msg: plain, aad: what.as_bytes() })
            .map_err(|_| Error::new(ErrorKind::TooLarge, "too large to be sealed"))?;
        let mut bytes = Vec::with_capacity(NONCE_BYTES + closed.len());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&closed);
        Ok(bytes)
    }

    pub(crate) fn decrypt(
        key: &ArchiveKey,
        namespace: &Namespace,
        what: &str,
        closed: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let damaged =
            || Error::new(ErrorKind::Damaged, format!("a sealed {what} does not open: its bytes were changed"));
        let (nonce, closed) = closed.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
        namespace_cipher(key, namespace)
            .decrypt(&XNonce::from(*nonce), Payload { msg: closed, aad: what.as_bytes() })
            .map_err(|_| damaged())
    }

    fn namespace_cipher(key: &ArchiveKey, namespace: &Namespace) -> XChaCha20Poly1305 {
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

    fn test_cipher(secret: &[u8; 32]) -> ArchiveCipher {
        ArchiveCipher::new(Some(ArchiveKey::new(secret).unwrap())).unwrap()
    }

    #[test]
    fn decrypts_only_with_same_key_namespace_and_purpose() {
        let (local, other) = (Namespace::local(), Namespace::new("other").unwrap());
        let closed = test_cipher(&[7; 32]).encrypt(&local, "pack", b"secret".to_vec()).unwrap();
        assert!(!closed.windows(6).any(|it| it == b"secret"));
        assert_eq!(test_cipher(&[7; 32]).decrypt(&local, "pack", closed.clone()).unwrap(), b"secret");
        assert!(test_cipher(&[8; 32]).decrypt(&local, "pack", closed.clone()).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&other, "pack", closed.clone()).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&local, "fact", closed.clone()).is_err());
        let mut bent = closed;
        *bent.last_mut().unwrap() ^= 1;
        assert!(test_cipher(&[7; 32]).decrypt(&local, "pack", bent).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&local, "pack", vec![1, 2]).is_err());
    }

    #[test]
    fn key_is_not_printed_and_short_keys_are_rejected() {
        assert_eq!(format!("{:?}", ArchiveKey::new(&[1; 32]).unwrap()), "Key(..)");
        assert!(ArchiveKey::new(b"hunter2").is_err());
    }
}
