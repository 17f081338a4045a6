//! The time, as the archive writes it: milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now.
pub(crate) fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    to_millis(since)
}

/// A span in the archive's unit.
pub(crate) fn to_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
