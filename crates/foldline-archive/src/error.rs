//! Errors of the archive: a kind for the calling code and a message for the user. A failure is never reported as
//! an empty success.

use std::fmt;

use foldline::Handle;

/// An error of the archive.
///
/// It is `Clone`, because a failed commit is reported to every caller whose job was in it.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an archive error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not a handle or a valid prefix of one.
    InvalidHandle,
    /// No original in this namespace has this handle. An original of another namespace is reported the same way, so
    /// that its existence is not disclosed.
    NotFound,
    /// Several originals have handles with this prefix.
    Ambiguous {
        /// Their handles, at most ten.
        candidates: Vec<Handle>,
    },
    /// The original was stored once and has been removed by retention.
    Expired {
        /// Time of removal, in milliseconds since 1970.
        at: i64,
    },
    /// The archive is encrypted, and the key is missing or wrong.
    WrongKey,
    /// The bytes on disk differ from the bytes that were stored.
    Damaged,
    /// Other users can access the file or its folder.
    InsecurePermissions,
    /// The archive can be read but not written.
    ReadOnly,
    /// The file was removed or replaced while it was open; what was stored in it may be lost.
    Replaced,
    /// No space is left on the disk.
    DiskFull,
    /// Another process locked the archive for too long.
    Busy,
    /// The database is not reachable, or did not answer in time.
    Unavailable,
    /// A legal hold prevents the deletion.
    Held,
    /// The file was written by a newer version.
    TooNew {
        /// The schema version of the file.
        found: i64,
        /// The newest schema version that this build supports.
        supported: i64,
    },
    /// The file is not an archive.
    NotAnArchive,
    /// The original exceeds the size limit of an archive.
    TooLarge,
    /// An argument is invalid: a bad pattern, an impossible range, a bad name.
    InvalidInput,
    /// The operating system reported an error.
    Io,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    pub(crate) fn io(doing: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
            std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("could not {doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<foldline::Error> for Error {
    /// Converts an error of the engine, which rejects arguments: a range of lines, a pattern.
    fn from(error: foldline::Error) -> Self {
        Self::new(ErrorKind::InvalidInput, error.to_string())
    }
}
