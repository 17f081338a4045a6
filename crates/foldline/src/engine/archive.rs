//! The interface between the engine and an archive.
//!
//! The engine does no IO. It passes each original to an [`OriginalStore`] before the original leaves a request, and
//! sends the fold only if the store returns `Ok`.

use std::fmt;

use crate::Handle;

/// A durable store of originals.
pub trait OriginalStore {
    /// Stores these originals durably. After `Ok`, each of them survives a crash and resolves by its handle.
    ///
    /// # Errors
    ///
    /// If any original could not be stored; then none of them may be assumed to be stored.
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError>;

    /// Stores these originals like [`store`](OriginalStore::store), and returns the indices of those that are refused
    /// while the others are stored: the handle of one may belong to another text. A refused original stays in the
    /// request.
    ///
    /// # Errors
    ///
    /// If nothing could be stored.
    fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
        self.store(originals).map(|()| Vec::new())
    }
}

/// An original that is about to leave a request, with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// Content address.
    pub handle: Handle,
    /// Content.
    pub bytes: &'a [u8],
    /// Tool that produced it, if any.
    pub tool: Option<&'a str>,
    /// Target of the tool call: a path, a command, a query.
    pub arguments: Option<&'a str>,
    /// Index of its message in the conversation.
    pub message: usize,
    /// Tokens by the counter in use.
    pub tokens: u64,
}

/// The error of a store. The request must be sent without these folds, or without handles.
#[derive(Clone, Debug)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "originals could not be kept: {}", self.0)
    }
}

impl std::error::Error for StoreError {}
