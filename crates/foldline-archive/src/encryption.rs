//! Encryption at rest: XChaCha20-Poly1305 with a separate key per namespace.
//!
//! Ciphertext is bound to its namespace and purpose (a pack, a fact, ..), so a row moved elsewhere in the file
//! does not decrypt. Names and hashes by which rows are looked up are keyed hashes: an unkeyed hash would show whether a
//! known text is stored. Nothing here reads a file or the environment: the key is passed in as bytes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use foldline::Handle;

use crate::error::{Error, ErrorKind};
use crate::handle_prefix::{HandlePrefix, MIN_PREFIX_CHARS};
use crate::namespace::Namespace;

/// The secret key of an encrypted archive.
#[derive(Clone)]
#[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "without encryption a key is rejected"))]
pub struct ArchiveKey([u8; 32]);

impl ArchiveKey {
    /// Derives a key from at least 32 bytes of secret material, such as 32 random bytes or their 44 characters of
    /// base64. The material is not stretched, so passwords are rejected by their length.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the material is shorter than 32 bytes.
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

/// The cipher of an archive, for everything that others must not read.
#[derive(Clone, Debug)]
pub(crate) enum ArchiveCipher {
    /// No encryption.
    Plaintext,
    /// Encryption under this key.
    #[cfg(feature = "encryption")]
    Encrypted(ArchiveKey),
}

/// The plaintext of the key check of an encrypted archive. It ends in the version of the encrypted format.
#[cfg(feature = "encryption")]
const KEY_CHECK_PLAINTEXT: &[u8] = b"foldline 2";

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

    /// Returns the cipher of one namespace.
    pub(crate) fn for_namespace(&self, namespace: &Namespace) -> TenantCipher {
        let keys = match self {
            ArchiveCipher::Plaintext => None,
            #[cfg(feature = "encryption")]
            ArchiveCipher::Encrypted(key) => Some(Arc::new(TenantKeys::new(key, namespace))),
        };
        TenantCipher { keys }
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

    /// Returns the key check that marks a new archive: empty in a plaintext archive.
    pub(crate) fn new_key_check(&self) -> Result<Vec<u8>, Error> {
        match self {
            ArchiveCipher::Plaintext => Ok(Vec::new()),
            #[cfg(feature = "encryption")]
            ArchiveCipher::Encrypted(_) => {
                self.for_namespace(&Namespace::local()).encrypt("lock", KEY_CHECK_PLAINTEXT.to_vec())
            }
        }
    }

    /// Rejects a wrong key, a missing key, and a key for a plaintext archive: a caller who passes a key expects
    /// encryption. `location` names the archive in messages.
    pub(crate) fn verify_key_check(&self, key_check: Vec<u8>, location: &str) -> Result<(), Error> {
        let denied = |why: &str| Err(Error::new(ErrorKind::WrongKey, format!("{location} {why}")));
        match (key_check.is_empty(), self.is_plaintext()) {
            (true, true) => Ok(()),
            (true, false) => {
                denied("is not encrypted, but a key was given; open it without the key, or use a new archive")
            }
            (false, true) => denied("is sealed (encrypted); give its key"),
            #[cfg(feature = "encryption")]
            (false, false) => match self.for_namespace(&Namespace::local()).decrypt("lock", key_check) {
                Ok(opened) if opened == KEY_CHECK_PLAINTEXT => Ok(()),
                Ok(_) => denied("was encrypted by an unreleased version of foldline, whose format is not supported"),
                Err(_) => denied("is encrypted with a different key"),
            },
            #[cfg(not(feature = "encryption"))]
            (false, false) => denied("is encrypted, and this build of foldline does not support encryption"),
        }
    }
}

/// A name by which a store looks something up: the handle of an original, or the name of a session. In an encrypted
/// archive the key is a keyed hash, so that a reader of the file cannot test whether a known text or session is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredName {
    /// The text to look up: the name itself, or its keyed hash.
    pub key: String,
    /// The encrypted name; `None` in a plaintext archive.
    pub sealed: Option<Vec<u8>>,
}

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key of the range.
    pub from: String,
    /// The first key after the range.
    pub to: String,
}

/// The cipher of one namespace. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct TenantCipher {
    /// None in a plaintext archive.
    keys: Option<Arc<TenantKeys>>,
}

#[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "without encryption there are no keys"))]
struct TenantKeys {
    content: [u8; 32],
    names: [u8; 32],
}

impl fmt::Debug for TenantKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantKeys(..)")
    }
}

/// Characters of a keyed hash in a key: 80 bits, more than a handle has.
const KEYED_HASH_CHARS: usize = 20;

impl TenantCipher {
    pub(crate) fn is_plaintext(&self) -> bool {
        self.keys.is_none()
    }

    /// Encrypts `plain` for a `purpose`.
    pub(crate) fn encrypt(&self, purpose: &str, plain: Vec<u8>) -> Result<Vec<u8>, Error> {
        match &self.keys {
            #[cfg(feature = "encryption")]
            Some(keys) => aead::encrypt(&keys.content, purpose, &plain),
            _ => Ok(plain),
        }
    }

    /// Decrypts the output of [`TenantCipher::encrypt`].
    pub(crate) fn decrypt(&self, purpose: &str, ciphertext: Vec<u8>) -> Result<Vec<u8>, Error> {
        match &self.keys {
            #[cfg(feature = "encryption")]
            Some(keys) => aead::decrypt(&keys.content, purpose, &ciphertext),
            _ => Ok(ciphertext),
        }
    }

    /// Decrypts without copying the bytes of a plaintext archive.
    pub(crate) fn decrypt_slice<'c>(&self, purpose: &str, ciphertext: &'c [u8]) -> Result<Cow<'c, [u8]>, Error> {
        match &self.keys {
            Some(_) => self.decrypt(purpose, ciphertext.to_vec()).map(Cow::Owned),
            None => Ok(Cow::Borrowed(ciphertext)),
        }
    }

    /// Returns the hash to store for an original with this BLAKE3 hash.
    pub(crate) fn content_hash(&self, hash: &[u8; 32]) -> [u8; 32] {
        match &self.keys {
            Some(keys) => *blake3::keyed_hash(&keys.names, hash).as_bytes(),
            None => *hash,
        }
    }

    /// Returns the stored form of a handle. Its key begins with the hash of the shortest prefix that can be looked up.
    pub(crate) fn handle_name(&self, handle: Handle) -> Result<StoredName, Error> {
        let (text, prefix) = (handle.as_str(), &handle.as_str()[..MIN_PREFIX_CHARS]);
        let key = match self.keyed_hash("handle prefix", prefix.as_bytes()) {
            Some(prefix) => prefix + &self.keyed_hash("handle", text.as_bytes()).unwrap_or_default(),
            None => text.to_owned(),
        };
        Ok(StoredName { key, sealed: self.seal_name("handle", text)? })
    }

    /// Returns the range of keys that contains all handles with this prefix, and in an encrypted archive possibly
    /// others.
    pub(crate) fn handle_range(&self, prefix: &HandlePrefix) -> KeyRange {
        let from = self
            .keyed_hash("handle prefix", &prefix.as_str().as_bytes()[..MIN_PREFIX_CHARS])
            .unwrap_or_else(|| prefix.as_str().to_owned());
        // `{` is the character after `z`.
        KeyRange { to: format!("{from}{{"), from }
    }

    /// Returns the stored form of a session's name.
    pub(crate) fn session_name(&self, name: &str) -> Result<StoredName, Error> {
        let key = self.keyed_hash("session", name.as_bytes()).unwrap_or_else(|| name.to_owned());
        Ok(StoredName { key, sealed: self.seal_name("session", name)? })
    }

    /// Returns the stored form of a fact's fingerprint.
    pub(crate) fn fingerprint_key(&self, fingerprint: &[u8]) -> Vec<u8> {
        self.keyed_hash("fingerprint", fingerprint).map_or_else(|| fingerprint.to_vec(), String::into_bytes)
    }

    /// Returns the handle of a stored name.
    pub(crate) fn open_handle(&self, name: StoredName) -> Result<Handle, Error> {
        let text = self.open_name("handle", name)?;
        text.parse().map_err(|_| Error::new(ErrorKind::Damaged, "invalid handle in the archive"))
    }

    /// Returns the name of a session.
    pub(crate) fn open_session(&self, name: StoredName) -> Result<String, Error> {
        self.open_name("session", name)
    }

    fn seal_name(&self, purpose: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.keys.is_some().then(|| self.encrypt(purpose, name.as_bytes().to_vec())).transpose()
    }

    fn open_name(&self, purpose: &str, name: StoredName) -> Result<String, Error> {
        match name.sealed {
            None => Ok(name.key),
            Some(sealed) => String::from_utf8(self.decrypt(purpose, sealed)?)
                .map_err(|_| Error::new(ErrorKind::Damaged, format!("invalid {purpose} in the archive"))),
        }
    }

    /// Returns the keyed hash of a name; `None` in a plaintext archive.
    fn keyed_hash(&self, purpose: &str, name: &[u8]) -> Option<String> {
        let keys = self.keys.as_ref()?;
        let mut hash = blake3::Hasher::new_keyed(&keys.names);
        hash.update(purpose.as_bytes()).update(&[0]).update(name);
        Some(hash.finalize().to_hex()[..KEYED_HASH_CHARS].to_owned())
    }
}

#[cfg(feature = "encryption")]
impl TenantKeys {
    fn new(key: &ArchiveKey, namespace: &Namespace) -> Self {
        let derive = |context: &str| {
            let mut derived = blake3::Hasher::new_derive_key(context);
            derived.update(&key.0).update(namespace.as_str().as_bytes());
            *derived.finalize().as_bytes()
        };
        Self {
            content: derive("foldline archive 2026-11 key of a namespace"),
            names: derive("foldline archive 2026-11 names of a namespace"),
        }
    }
}

#[cfg(feature = "encryption")]
mod aead {
    use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
    use chacha20poly1305::{XChaCha20Poly1305, XNonce};

    use crate::error::{Error, ErrorKind};

    const NONCE_BYTES: usize = 24;

    pub(crate) fn encrypt(key: &[u8; 32], purpose: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let nonce = XNonce::try_generate().map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system returned no randomness for encryption: {error}"))
        })?;
        let ciphertext = XChaCha20Poly1305::new(key.into())
            .encrypt(&nonce, Payload { msg: plain, aad: purpose.as_bytes() })
            .map_err(|_| Error::new(ErrorKind::TooLarge, "too large to be encrypted"))?;
        let mut bytes = Vec::with_capacity(NONCE_BYTES + ciphertext.len());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&ciphertext);
        Ok(bytes)
    }

    pub(crate) fn decrypt(key: &[u8; 32], purpose: &str, ciphertext: &[u8]) -> Result<Vec<u8>, Error> {
        let damaged = || {
            Error::new(
                ErrorKind::Damaged,
                format!("an encrypted {purpose} cannot be decrypted: its bytes were changed"),
            )
        };
        let (nonce, ciphertext) = ciphertext.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
        XChaCha20Poly1305::new(key.into())
            .decrypt(&XNonce::from(*nonce), Payload { msg: ciphertext, aad: purpose.as_bytes() })
            .map_err(|_| damaged())
    }
}

#[cfg(test)]
#[cfg(feature = "encryption")]
mod tests {
    use super::*;

    fn test_cipher(secret: &[u8; 32], namespace: &Namespace) -> TenantCipher {
        ArchiveCipher::new(Some(ArchiveKey::new(secret).unwrap())).unwrap().for_namespace(namespace)
    }

    #[test]
    fn decrypts_only_with_same_key_namespace_and_purpose() {
        let (local, other) = (Namespace::local(), Namespace::new("other").unwrap());
        let cipher = test_cipher(&[7; 32], &local);
        let ciphertext = cipher.encrypt("pack", b"secret".to_vec()).unwrap();
        assert!(!ciphertext.windows(6).any(|window| window == b"secret"));
        assert_eq!(cipher.decrypt("pack", ciphertext.clone()).unwrap(), b"secret");
        assert!(test_cipher(&[8; 32], &local).decrypt("pack", ciphertext.clone()).is_err());
        assert!(test_cipher(&[7; 32], &other).decrypt("pack", ciphertext.clone()).is_err());
        assert!(cipher.decrypt("fact", ciphertext.clone()).is_err());
        let mut tampered = ciphertext;
        *tampered.last_mut().unwrap() ^= 1;
        assert!(cipher.decrypt("pack", tampered).is_err());
        assert!(cipher.decrypt("pack", vec![1, 2]).is_err());
    }

    #[test]
    fn encrypted_names_are_found_by_prefix_and_opened() {
        let (local, other) = (Namespace::local(), Namespace::new("other").unwrap());
        let (cipher, handle) = (test_cipher(&[7; 32], &local), Handle::for_content(b"text"));
        let name = cipher.handle_name(handle).unwrap();
        assert!(!name.key.contains(&handle.as_str()[..4]));
        assert_ne!(name.key, test_cipher(&[7; 32], &other).handle_name(handle).unwrap().key);
        for length in MIN_PREFIX_CHARS..=Handle::LENGTH {
            let range = cipher.handle_range(&HandlePrefix::parse(&handle.as_str()[..length]).unwrap());
            assert!((&range.from..&range.to).contains(&&name.key));
        }
        assert_eq!(cipher.open_handle(name).unwrap(), handle);
    }

    #[test]
    fn key_is_not_printed_and_short_keys_are_rejected() {
        assert_eq!(format!("{:?}", ArchiveKey::new(&[1; 32]).unwrap()), "ArchiveKey(..)");
        assert!(ArchiveKey::new(b"hunter2").is_err());
    }
}
