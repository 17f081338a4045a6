//! The one error of this crate: opaque, with a documented kind to match on.

use std::fmt;

/// What went wrong, where, and what to do about it.
///
/// Match on [`Error::kind`]; the message is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kinds of failure. New ones may be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are not JSON; `at` is the offset of the first byte that does not fit.
    NotJson {
        /// Byte offset.
        offset: usize,
    },
    /// JSON, but not a request of this format.
    NotARequest,
    /// JSON, but neither a response of this format nor an error.
    NotAResponse,
    /// Not a recorded session of a format that is known.
    NotARecording,
    /// A line of a recording is longer than the reader's limit, or a request longer than 4 GB.
    TooLong {
        /// The most bytes that it may have.
        limit: usize,
    },
    /// The input of a recording could not be read.
    Io,
    /// Nested deeper than [`crate::wire_format::MAX_JSON_DEPTH`].
    TooDeep {
        /// Byte offset of the bracket that is too deep.
        offset: usize,
    },
    /// An edit that does not fit the request: no such place, two edits of the same bytes, or one
    /// that the format can not express.
    BadEdit,
    /// The caller set the [`CancelFlag`](crate::CancelFlag) of the setup.
    Cancelled,
    /// The conversation can not be brought under the budget without breaking a promise.
    CannotFit {
        /// The fewest tokens that it can be folded to.
        floor: u64,
        /// The tokens that were allowed.
        budget: u64,
        /// The largest part of the floor: its place and its tokens.
        largest: Option<(crate::PartId, u64)>,
    },
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn not_json(at: usize, message: &str) -> Self {
        Self::new(ErrorKind::NotJson { offset: at }, format!("not JSON: {message} at byte {at}"))
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

    /// What kind of failure this is.
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
