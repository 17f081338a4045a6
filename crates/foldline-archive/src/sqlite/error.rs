//! Errors of SQLite as errors of the archive.

use crate::error::{Error, ErrorKind};

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
            ErrorKind::DiskFull => "; free some disk space, or run `foldline archive prune`",
            ErrorKind::ReadOnly => "; make the archive writable, or choose another with --archive",
            ErrorKind::Busy => "; another process is writing to it, try again",
            ErrorKind::Damaged => "; run `foldline archive verify` to find out what is readable",
            _ => "",
        };
        Self::new(kind, format!("archive database error: {error}{advice}"))
    }
}
