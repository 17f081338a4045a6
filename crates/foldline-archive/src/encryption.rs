//! Encryption at rest: XChaCha20-Poly1305 with a separate key per namespace.
//!
//! Ciphertext is bound to its namespace and purpose (a pack, a fact, ..), so a row moved elsewhere in the file
//! does not decrypt. Nothing here reads a file or the environment: the key is passed in as bytes.

use std::fmt;

use crate::{Error, ErrorKind, Namespace};

/// The secret key of an encrypted archive.
#[derive(Clone)]
#[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "without encryption a key is rejected"))]
pub struct ArchiveKey([u8; 32]);

impl ArchiveKey {
    /// Derives a key from at least 32 bytes of secret material, such as 32 random bytes or their 44 characters of
    /// base64. The material is not stretched, so passwords are rejected by their length.
    pub fn new(material: &[u8]) -> Result<Self, Error> {
        if material.len() < 32 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the archive key must have at least 32 bytes; create one with: head -c 32 /dev/urandom | base64",
            ));
        }
        Ok(Self(blake3::derive_key("foldline archive 2026-11 key of the file", material)))
    }
}

impl fmt::Debug for ArchiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArchiveKey(..)")
    }
}

/// The cipher for everything that others must not read.
#[derive(Clone, Debug)]
pub(crate) enum ArchiveCipher {
    /// No encryption.
    Plaintext,
    /// Encryption under this key.
    #[cfg(feature = "encryption")]
    Encrypted(ArchiveKey),
}

impl ArchiveCipher {
    pub(crate) fn new(key: Option<ArchiveKey>) -> Result<Self, Error> {
        match key {
            None => Ok(ArchiveCipher::Plaintext),
            #[cfg(feature = "encryption")]
            Some(key) => Ok(ArchiveCipher::Encrypted(key)),
            #[cfg(not(feature = "encryption"))]
            Some(_) => Err(Error::new(ErrorKind::WrongKey, "this build of foldline does not support encryption")),
        }
    }

    pub(crate) fn is_plaintext(&self) -> bool {
        matches!(self, ArchiveCipher::Plaintext)
    }

    /// Returns the key that hashes credentials to namespace names in the archive with this identity.
    pub(crate) fn credential_key(&self, identity: &[u8]) -> [u8; 32] {
        let mut key = blake3::Hasher::new_derive_key("foldline archive 2026-11 names of credentials");
        key.update(identity);
        #[cfg(feature = "encryption")]
        if let ArchiveCipher::Encrypted(secret) = self {
            key.update(&secret.0);
        }
        *key.finalize().as_bytes()
    }

    /// Encrypts `plain` for a `purpose` in this namespace.
    pub(crate) fn encrypt(&self, namespace: &Namespace, purpose: &str, plain: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            ArchiveCipher::Plaintext => Ok(plain),
            #[cfg(feature = "encryption")]
            ArchiveCipher::Encrypted(key) => aead::encrypt(key, namespace, purpose, &plain),
        }
    }

    /// Decrypts the output of [`ArchiveCipher::encrypt`].
    pub(crate) fn decrypt(&self, namespace: &Namespace, purpose: &str, ciphertext: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            ArchiveCipher::Plaintext => Ok(ciphertext),
            #[cfg(feature = "encryption")]
            ArchiveCipher::Encrypted(key) => aead::decrypt(key, namespace, purpose, &ciphertext),
        }
    }
}

#[cfg(feature = "encryption")]
mod aead {
    use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
    use chacha20poly1305::{XChaCha20Poly1305, XNonce};

    use super::ArchiveKey;
    use crate::{Error, ErrorKind, Namespace};

    const NONCE_BYTES: usize = 24;

    pub(crate) fn encrypt(
        key: &ArchiveKey,
        namespace: &Namespace,
        purpose: &str,
        plain: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let nonce = XNonce::try_generate().map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system returned no randomness for encryption: {error}"))
        })?;
        let ciphertext = namespace_cipher(key, namespace)
            .encrypt(&nonce, Payload { msg: plain, aad: purpose.as_bytes() })
            .map_err(|_| Error::new(ErrorKind::TooLarge, "too large to be encrypted"))?;
        let mut bytes = Vec::with_capacity(NONCE_BYTES + ciphertext.len());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&ciphertext);
        Ok(bytes)
    }

    pub(crate) fn decrypt(
        key: &ArchiveKey,
        namespace: &Namespace,
        purpose: &str,
        ciphertext: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let damaged = || {
            Error::new(
                ErrorKind::Damaged,
                format!("an encrypted {purpose} cannot be decrypted: its bytes were changed"),
            )
        };
        let (nonce, ciphertext) = ciphertext.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
        namespace_cipher(key, namespace)
            .decrypt(&XNonce::from(*nonce), Payload { msg: ciphertext, aad: purpose.as_bytes() })
            .map_err(|_| damaged())
    }

    fn namespace_cipher(key: &ArchiveKey, namespace: &Namespace) -> XChaCha20Poly1305 {
        let mut namespace_key = blake3::Hasher::new_derive_key("foldline archive 2026-11 key of a namespace");
        namespace_key.update(&key.0);
        namespace_key.update(namespace.as_str().as_bytes());
        XChaCha20Poly1305::new(namespace_key.finalize().as_bytes().into())
    }
}

#[cfg(test)]
#[cfg(feature = "encryption")]
mod tests {
    use super::*;

    fn test_cipher(secret: &[u8; 32]) -> ArchiveCipher {
        ArchiveCipher::new(Some(ArchiveKey::new(secret).unwrap())).unwrap()
    }

    #[test]
    fn decrypts_only_with_same_key_namespace_and_purpose() {
        let (local, other) = (Namespace::local(), Namespace::new("other").unwrap());
        let ciphertext = test_cipher(&[7; 32]).encrypt(&local, "pack", b"secret".to_vec()).unwrap();
        assert!(!ciphertext.windows(6).any(|window| window == b"secret"));
        assert_eq!(test_cipher(&[7; 32]).decrypt(&local, "pack", ciphertext.clone()).unwrap(), b"secret");
        assert!(test_cipher(&[8; 32]).decrypt(&local, "pack", ciphertext.clone()).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&other, "pack", ciphertext.clone()).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&local, "fact", ciphertext.clone()).is_err());
        let mut tampered = ciphertext;
        *tampered.last_mut().unwrap() ^= 1;
        assert!(test_cipher(&[7; 32]).decrypt(&local, "pack", tampered).is_err());
        assert!(test_cipher(&[7; 32]).decrypt(&local, "pack", vec![1, 2]).is_err());
    }

    #[test]
    fn key_is_not_printed_and_short_keys_are_rejected() {
        assert_eq!(format!("{:?}", ArchiveKey::new(&[1; 32]).unwrap()), "ArchiveKey(..)");
        assert!(ArchiveKey::new(b"hunter2").is_err());
    }
}
