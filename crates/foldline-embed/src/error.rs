//! The error of this crate: a kind that a binding turns into an exception, and a message.

use std::fmt;

use foldline::ErrorKind;
use foldline::engine::StoreError;

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedError {
    kind: EmbedErrorKind,
    message: String,
}

/// The kind of an [`EmbedError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmbedErrorKind {
    /// The conversation cannot be folded to the budget.
    CannotFit {
        /// Smallest size to which it can be folded, in tokens.
        floor: u64,
        /// Budget in tokens.
        budget: u64,
        /// Largest part of the floor: index of its message, and its tokens.
        largest: Option<(usize, u64)>,
    },
    /// An argument is invalid: not JSON, not a message, an unknown name.
    InvalidInput,
    /// No original has this handle.
    UnknownHandle,
    /// The archive cannot be opened, read or written.
    Archive,
    /// Anything else.
    Failed,
}

impl EmbedError {
    pub(crate) fn new(kind: EmbedErrorKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(EmbedErrorKind::InvalidInput, message)
    }

    /// Returns the kind.
    pub fn kind(&self) -> &EmbedErrorKind {
        &self.kind
    }
}

impl From<foldline::Error> for EmbedError {
    fn from(error: foldline::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::CannotFit { floor, budget, largest } => EmbedErrorKind::CannotFit {
                floor: *floor,
                budget: *budget,
                largest: largest.map(|(at, tokens)| (at.message, tokens)),
            },
            ErrorKind::Cancelled | ErrorKind::BadEdit | ErrorKind::Io => EmbedErrorKind::Failed,
            _ => EmbedErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

impl From<foldline_archive::Error> for EmbedError {
    fn from(error: foldline_archive::Error) -> Self {
        use foldline_archive::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::NotFound | ErrorKind::InvalidHandle | ErrorKind::Ambiguous { .. } => {
                EmbedErrorKind::UnknownHandle
            }
            ErrorKind::InvalidInput => EmbedErrorKind::InvalidInput,
            _ => EmbedErrorKind::Archive,
        };
        Self::new(kind, error)
    }
}

impl From<StoreError> for EmbedError {
    fn from(error: StoreError) -> Self {
        Self::new(EmbedErrorKind::Archive, error)
    }
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EmbedError {}
