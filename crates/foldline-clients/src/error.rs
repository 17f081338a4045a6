//! The error type of this crate.

use std::fmt;

/// An error of this crate. Match on [`Error::kind`]; the message is for people and may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A type has no form for a message or a part of it.
    Inexpressible,
    /// The engine reported an error, such as [`CannotFit`](foldline::ErrorKind::CannotFit).
    Engine(foldline::ErrorKind),
}

impl Error {
    /// Creates an error for a part that a type cannot express.
    pub fn inexpressible(message: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Inexpressible, message: format!("the type has no form for {message}") }
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

impl From<foldline::Error> for Error {
    fn from(error: foldline::Error) -> Self {
        Self { kind: ErrorKind::Engine(error.kind().clone()), message: error.to_string() }
    }
}
