//! Detects that a prompt was rejected because it exceeds the window, and extracts the limit.
//!
//! Every provider words this error differently. The checks run in this order: a structured code; errors that only
//! resemble an overflow (rate limits, output caps, bodies too large in bytes); sentences with numbers; sentences
//! without; an empty 400 or 413. A number counts only if a known sentence states its meaning, because a wrong window
//! learned from an error code, for example, would break every later request.
//!
//! Servers echo request values in their errors, so a sentence inside a longer text may come from the client. It is
//! enough for a retry; [`OverflowEvidence::is_strict`] states which evidence is enough to learn a window from.

mod classify;
mod patterns;
mod rejection;
#[cfg(test)]
mod tests;

pub use rejection::{ContextOverflow, LearnedLimit, LimitScope, OverflowEvidence, ReportedTokens, RequestRejection};
