//! Errors of PostgreSQL as errors of the archive. Messages have no values of rows and no credentials.

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(database) = error.as_db_error() else {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return Self::new(ErrorKind::Unavailable, format!("the database is not reachable: {error}{cause}"));
        };
        let kind = match database.code() {
            &SqlState::DISK_FULL => ErrorKind::DiskFull,
            &SqlState::QUERY_CANCELED | &SqlState::LOCK_NOT_AVAILABLE => ErrorKind::Busy,
            &SqlState::READ_ONLY_SQL_TRANSACTION => ErrorKind::ReadOnly,
            &SqlState::INVALID_PASSWORD
            | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | &SqlState::INSUFFICIENT_PRIVILEGE
            | &SqlState::UNDEFINED_DATABASE => ErrorKind::InvalidInput,
            code if is_outage(code) => ErrorKind::Unavailable,
            _ => ErrorKind::Io,
        };
        let (message, code) = (database.message(), database.code().code());
        Self::new(kind, format!("the database refused: {message} (SQLSTATE {code})"))
    }
}

/// Returns true if the server as a whole cannot answer now: it starts or stops, or has no connection or memory left.
fn is_outage(code: &SqlState) -> bool {
    // Classes: connection exception, insufficient resources, operator intervention.
    ["08", "53", "57P"].iter().any(|class| code.code().starts_with(class))
}

/// Returns true if the same transaction may succeed when it is repeated.
pub(crate) fn is_transient(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
}
