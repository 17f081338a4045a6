//! Originals as users see them: bytes and metadata.

use std::borrow::Cow;

use foldline::Handle;
use foldline::engine::readable_original;

/// Metadata of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginalInfo {
    /// Its content address.
    pub handle: Handle,
    /// Its length in bytes.
    pub length: u64,
    /// Its tokens by the counter in use when it was stored.
    pub tokens: u64,
    /// The tool that produced it, if any.
    pub tool: Option<String>,
    /// The arguments of the tool call.
    pub arguments: Option<String>,
    /// The session in which it was folded first.
    pub session: Option<String>,
    /// The index of its message in that session.
    pub message: u64,
    /// Time at which it was stored, in milliseconds since 1970.
    pub kept_at: i64,
    /// Time of the last known request with its marker, in milliseconds since 1970.
    pub carried_at: i64,
}

/// A restored original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfoldedOriginal {
    /// Its metadata.
    pub info: OriginalInfo,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

impl UnfoldedOriginal {
    /// Returns the form that models and people get: the bytes of a text; rounds and other JSON of foldline with role,
    /// tool, target and real line breaks, and without signatures.
    pub fn readable(&self) -> Cow<'_, [u8]> {
        readable_original(&self.bytes)
    }
}
