//! What can go wrong with an archive, as a kind that a caller can act on and a sentence that a
//! person can act on. Never an empty success in place of a fault.

use std::fmt;

use foldline::Handle;

/// A fault of the archive.
///
/// It is `Clone`, because one failed commit is told to every caller whose work was in it.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// What kind of fault it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text can not be a handle or the beginning of one.
    InvalidHandle,
    /// No original on this shelf has such a handle. An original of another namespace is unknown too:
    /// whether it exists is not told.
    NotFound,
    /// Several originals begin like this.
    Ambiguous {
        /// Some of them, at most ten.
        candidates: Vec<Handle>,
    },
    /// The original was held once and was given up by retention.
    Expired {
        /// When it was given up, in milliseconds since 1970.
        at: i64,
    },
    /// The archive, or an entry of it, is sealed with a key that was not given.
    WrongKey,
    /// The bytes on disk are not the bytes that were kept.
    Damaged,
    /// The file or its folder can be read by others, or can not be written by us alone.
    InsecurePermissions,
    /// The archive can be read but not written.
    ReadOnly,
    /// There is no room left on the disk.
    DiskFull,
    /// Another process held the archive for too long.
    Busy,
    /// The file was written by a newer version.
    TooNew {
        /// The version of its schema.
        found: i64,
        /// The newest version of the schema that this build knows.
        supported: i64,
    },
    /// The file is something else.
    NotAnArchive,
    /// The original is larger than an archive takes.
    TooLarge,
    /// What was asked for makes no sense: a bad pattern, an impossible range, a bad name.
    InvalidInput,
    /// The operating system said no.
    Io,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What kind of fault it was.
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

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        let kind = match error.sqlite_error_code() {
            Some(Code::DiskFull) => ErrorKind::DiskFull,
            Some(Code::ReadOnly | Code::PermissionDenied) => ErrorKind::ReadOnly,
            Some(Code::DatabaseBusy | Code::DatabaseLocked) => ErrorKind::Busy,
            Some(Code::DatabaseCorrupt) => ErrorKind::Damaged,
            Some(Code::NotADatabase) => ErrorKind::NotAnArchive,
            Some(Code::TooBig) => ErrorKind::TooLarge,
            _ => ErrorKind::Io,
        };
        let advice = match kind {
            ErrorKind::DiskFull => "; make room on the disk, or run `foldline archive prune`",
            ErrorKind::ReadOnly => "; make the archive writable, or choose another with --archive",
            ErrorKind::Busy => "; another process is writing to it, try again",
            ErrorKind::Damaged => "; run `foldline archive verify` to see what is left",
            _ => "",
        };
        Self::new(kind, format!("the archive's database says: {error}{advice}"))
    }
}
