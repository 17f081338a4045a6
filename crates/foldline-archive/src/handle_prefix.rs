//! Handles as users type them: whole, or a prefix.

use std::fmt;

use foldline::Handle;

use crate::error::{Error, ErrorKind};

/// Minimum length of a handle prefix: 40 bits, too many to be guessed.
pub(crate) const MIN_PREFIX_CHARS: usize = 8;

/// A handle or a prefix of one.
#[derive(Debug)]
pub(crate) struct HandlePrefix(String);

impl HandlePrefix {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let invalid = || {
            // The input may be long or unprintable, so the message repeats only its length.
            Error::new(
                ErrorKind::InvalidHandle,
                format!(
                    "not a handle ({} characters): a handle is the {} digits and lower-case letters behind the \
                     word unfold in a marker, or at least the first {MIN_PREFIX_CHARS} of them",
                    text.chars().count(),
                    Handle::LENGTH
                ),
            )
        };
        if !(MIN_PREFIX_CHARS..=Handle::LENGTH).contains(&text.len()) {
            return Err(invalid());
        }
        let text = text.to_ascii_lowercase();
        // Padded to full length, the prefix must be a valid handle.
        format!("{text:0<width$}", width = Handle::LENGTH).parse::<Handle>().map_err(|_| invalid())?;
        Ok(Self(text))
    }

    /// Returns the text of the prefix.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the handle begins with this prefix.
    pub(crate) fn matches(&self, handle: Handle) -> bool {
        handle.as_str().starts_with(&self.0)
    }
}

impl fmt::Display for HandlePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
