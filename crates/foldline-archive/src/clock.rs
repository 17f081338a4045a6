//! The clock of the archive: milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current time.
pub(crate) fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    to_millis(since)
}

/// Converts a duration to milliseconds.
pub(crate) fn to_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
