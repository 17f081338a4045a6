//! The error type of this crate: opaque, with a documented kind to match on.

use std::fmt;

/// An error of this crate.
///
/// Match on [`Error::kind`]; the message is for people and may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are not valid JSON.
    NotJson {
        /// Byte offset of the first invalid byte.
        offset: usize,
    },
    /// Valid JSON, but not a request of this format.
    NotARequest,
    /// Valid JSON, but neither a response of this format nor an error.
    NotAResponse,
    /// Not a recorded session in a known format.
    NotARecording,
    /// A line of a recording exceeds the reader's limit, or a request exceeds 4 GB.
    TooLong {
        /// Limit in bytes.
        limit: usize,
    },
    /// The input of a recording could not be read.
    Io,
    /// Nested deeper than [`crate::wire::MAX_JSON_DEPTH`].
    TooDeep {
        /// Byte offset of the bracket that exceeds the limit.
        offset: usize,
    },
    /// An invalid edit of a request: its position does not exist, two edits change the same bytes, or
    /// the format cannot express it.
    BadEdit,
    /// The requested part of an original does not exist, or its pattern is not a regular expression.
    InvalidExcerpt,
    /// The caller set the [`CancelFlag`](crate::engine::CancelFlag) of the options.
    Cancelled,
    /// The conversation cannot be folded to the budget without shortening a part that must stay whole.
    CannotFit {
        /// Smallest size to which it can be folded, in tokens.
        floor: u64,
        /// Budget in tokens.
        budget: u64,
        /// Largest part of the floor: its position and its tokens.
        largest: Option<(crate::conversation::PartId, u64)>,
    },
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn not_json(offset: usize, message: &str) -> Self {
        Self::new(ErrorKind::NotJson { offset }, format!("not JSON: {message} at byte {offset}"))
    }

    pub(crate) fn not_a_request(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::NotARequest, format!("not a request: {message}"))
    }

    pub(crate) fn not_a_recording(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::NotARecording, format!("not a recorded session: {message}"))
    }

    pub(crate) fn too_long(limit: usize) -> Self {
        Self::new(ErrorKind::TooLong { limit }, format!("longer than the limit of {limit} bytes"))
    }

    pub(crate) fn io(error: &std::io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("the input could not be read: {error}"))
    }

    pub(crate) fn bad_edit(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::BadEdit, format!("bad edit: {message}"))
    }

    /// Returns the kind of this error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
