//! What an archive promises to the engine.
//!
//! The engine does no IO. Before an original leaves a request it is handed to a [`OriginalStore`]; only when
//! that returns `Ok` does the fold take place.

use std::fmt;

use crate::Handle;

/// Something that durably holds originals.
pub trait OriginalStore {
    /// Holds these originals. When it returns `Ok`, every one of them survives a crash and resolves
    /// by its handle; when it returns an error, none of them may be assumed to.
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError>;
}

/// A text that is about to leave a request, with what it was.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// Its content address.
    pub handle: Handle,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The tool that produced it, when one did.
    pub tool: Option<&'a str>,
    /// What the tool was asked for: its arguments, shortened or whole.
    pub arguments: Option<&'a str>,
    /// Index of its message in the conversation.
    pub message: usize,
    /// Its tokens by the counter in use.
    pub tokens: u64,
}

/// The originals are not held; the request must go out without these folds, or without handles.
#[derive(Clone, Debug)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "originals could not be kept: {}", self.0)
    }
}

impl std::error::Error for StoreError {}
