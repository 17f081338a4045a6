//! What requests did and cost, in numbers: recorded once per request, added up in memory, and shown by the dashboard,
//! the API and the terminal.
//!
//! | module | idea |
//! |---|---|
//! | `bill` | dollars of one request: billed, saved, spent on creases and unfolds |
//! | `cache_break` | why a provider did not read a prompt from its cache |
//! | `record` | one request as the journal stores it |
//! | `totals` | sums of requests |
//! | `summary` | all sessions, days and tools of one tenant, added up from records |
//! | `sent_body` | how much of a body was sent before |
//! | `stored_summary` | a summary as a checkpoint of the journal |
//! | `journal_tail` | a summary with its position in the journal |
//! | `log` | the journal and its summary, per tenant |
//!
//! The journal is the source: a summary is a fold over its records, so every process that reads the same journal shows
//! the same numbers. Must not happen here: a record decides what is sent; a number is computed in two places.

pub(crate) mod bill;
pub(crate) mod cache_break;
pub(crate) mod journal_tail;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod sent_body;
pub(crate) mod stored_summary;
pub(crate) mod summary;
pub(crate) mod totals;

pub use cache_break::BreakCause;
pub use log::{ActivityLog, ActivityLogs};
pub use record::{
    CreaseRecord, FoldRecord, ProviderVerdict, RequestActivity, SessionGroup, ToolWeight, UnfoldRecord, UnlistedCounts,
    WindowParts,
};
pub use summary::{ActivitySummary, FoldEntry, GroupTotals, SessionEntry, ToolEntry};
pub use totals::{ActivityTotals, NanoDollars};

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in milliseconds since 1970.
pub fn now_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
