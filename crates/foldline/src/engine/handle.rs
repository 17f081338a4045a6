//! Handles: the content address of an original, as written in a marker.
//!
//! A handle is a prefix of the BLAKE3 hash of the original's bytes. It is a function of the original
//! alone, so every replica writes the same one. It has 60 bits: among a million originals the
//! probability that any two share a handle is below one in two million.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Digits and lower-case letters without i, l, o, u, which are easily confused.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The short content address of an original.
///
/// ```
/// use foldline::Handle;
///
/// let handle = Handle::for_content(b"fn main() {}");
/// assert_eq!(handle.to_string().len(), Handle::LENGTH);
/// assert_eq!(handle.to_string().parse::<Handle>()?, handle);
/// # Ok::<(), foldline::engine::HandleParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle([u8; Handle::LENGTH]);

/// The error for a text that is not a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleParseError;

impl Handle {
    /// Length of a handle in characters.
    pub const LENGTH: usize = 12;
    /// Length of a handle in hexadecimal digits.
    pub const HEX_LENGTH: usize = 15;

    /// Returns the handle of these bytes.
    pub fn for_content(original: &[u8]) -> Self {
        Self::from_hash(blake3::hash(original).as_bytes())
    }

    /// Returns the handle of the original with this BLAKE3 hash.
    pub fn from_hash(hash: &[u8; 32]) -> Self {
        let mut head = [0; 8];
        head.copy_from_slice(&hash[..8]);
        let bits = u64::from_be_bytes(head);
        let mut text = [0; Self::LENGTH];
        for (at, digit) in text.iter_mut().enumerate() {
            *digit = ALPHABET[(bits >> (59 - 5 * at)) as usize & 31];
        }
        Self(text)
    }

    /// Returns the handle as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("the alphabet is ASCII")
    }

    /// Returns the same handle in hexadecimal digits, for programs that accept nothing else.
    ///
    /// ```
    /// use foldline::Handle;
    ///
    /// let handle = Handle::for_content(b"fn main() {}");
    /// assert_eq!(Handle::from_hex(&handle.to_hex())?, handle);
    /// # Ok::<(), foldline::engine::HandleParseError>(())
    /// ```
    pub fn to_hex(&self) -> String {
        let digit = |byte: &u8| ALPHABET.iter().position(|known| known == byte).unwrap_or_default() as u64;
        let bits = self.0.iter().fold(0, |bits, byte| bits << 5 | digit(byte));
        format!("{bits:0width$x}", width = Self::HEX_LENGTH)
    }

    /// Parses a handle in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// If the text does not have [`Handle::HEX_LENGTH`] hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, HandleParseError> {
        if text.len() != Self::HEX_LENGTH || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(HandleParseError);
        }
        let bits = u64::from_str_radix(text, 16).map_err(|_| HandleParseError)?;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(bits << 4).to_be_bytes());
        Ok(Self::from_hash(&hash))
    }
}

impl FromStr for Handle {
    type Err = HandleParseError;

    fn from_str(text: &str) -> Result<Self, HandleParseError> {
        let bytes: [u8; Self::LENGTH] = text.as_bytes().try_into().map_err(|_| HandleParseError)?;
        if bytes.iter().all(|byte| ALPHABET.contains(byte)) { Ok(Self(bytes)) } else { Err(HandleParseError) }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({self})")
    }
}

impl fmt::Display for HandleParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a handle: a handle has {} digits and lower-case letters", Handle::LENGTH)
    }
}

impl std::error::Error for HandleParseError {}

impl Serialize for Handle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_depends_only_on_content() {
        assert_eq!(Handle::for_content(b"a"), Handle::for_content(b"a"));
        assert_ne!(Handle::for_content(b"a"), Handle::for_content(b"b"));
    }

    #[test]
    fn hexadecimal_form_is_the_same_handle() {
        for original in 0..1_000_u32 {
            let hash = blake3::hash(&original.to_le_bytes());
            let handle = Handle::from_hash(hash.as_bytes());
            assert_eq!(handle.to_hex(), hash.to_hex()[..Handle::HEX_LENGTH]);
            assert_eq!(Handle::from_hex(&handle.to_hex().to_uppercase()), Ok(handle));
        }
        for text in ["", "0123456789abcdef", "0123456789abcdg", "+123456789abcde", "0123456789abc\u{e9}"] {
            assert_eq!(Handle::from_hex(text), Err(HandleParseError), "{text:?}");
        }
    }

    #[test]
    fn malformed_handle_is_rejected() {
        for text in ["", "short", "0123456789abc", "0123456789aB", "0123456789é", "01234567 9ab"] {
            assert_eq!(text.parse::<Handle>(), Err(HandleParseError), "{text:?}");
        }
    }
}
