//! Summaries that are written ahead of time, off the hot path.
//!
//! While an agent works, a summary of its older rounds is written in the background; when the session reaches its
//! budget, the summary is ready, and no request waits for a model. A fingerprint binds it to its source: if the
//! source has changed since, the summary is stale and not used.

use foldline::Conversation;
use foldline::tokens::Tokens;

use crate::cascade::options::EnforceOptions;
use crate::cascade::rounds_to_summarize;
use crate::cascade::split::user_goal;
use crate::limits::ModelSpend;
use crate::prepared_summary::{MessageFingerprint, PreparedSummary};
use crate::progress::{ProgressListener, SummaryAuthor, SummaryOutcome};
use crate::summarizer::SummaryTask;

/// The result of preparing a summary.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PrepareResult {
    /// The summary; none if nothing could be dropped, if there is no summarizer, or if the model's text did not
    /// pass the gate: the fallback by code is computed when it is needed.
    pub prepared: Option<PreparedSummary>,
    /// The outcome of the summarizer; none if no model was called.
    pub outcome: Option<SummaryOutcome>,
    /// The cost, even if there is no summary.
    pub spent: ModelSpend,
}

/// Share of the budget from which a summary is prepared.
pub const PREPARE_THRESHOLD: f64 = 0.75;

impl EnforceOptions {
    /// Returns true if a session of this many tokens will need a summary soon.
    pub fn should_prepare(&self, tokens: Tokens) -> bool {
        tokens as f64 >= self.budget as f64 * PREPARE_THRESHOLD
    }
}

/// Writes a summary of the older rounds of a session, split where
/// [`enforce_context_window`](crate::enforce_context_window) would split it; continues an earlier summary that is still
/// fresh.
///
/// The session is only read. Dropping the future loses nothing but the work.
pub async fn prepare_summary(
    session: &Conversation<'_>,
    options: &EnforceOptions,
    earlier: Option<&PreparedSummary>,
    listener: ProgressListener<'_>,
) -> PrepareResult {
    let earlier = earlier.filter(|earlier| earlier.is_fresh(&session.messages));
    let split = options
        .summarizer
        .as_ref()
        .and_then(|summarizer| Some((summarizer, rounds_to_summarize(session, options, earlier)?)));
    let Some((summarizer, (until, text, earlier_summary))) = split else { return PrepareResult::default() };
    let goal = user_goal(&session.messages[..until]);
    let task = SummaryTask {
        text: &text,
        goal: &goal,
        earlier_summary: earlier_summary.as_deref(),
        max_tokens: options.budget / 8,
        session: Some(&session.messages[..until]),
    };
    let summary = summarizer.summarize(&task, listener).await;
    let spent = summary.spent;
    let prepared = (summary.author == SummaryAuthor::Model).then(|| PreparedSummary {
        fingerprint: MessageFingerprint::from_messages(&session.messages[..until]),
        until,
        text: summary.text,
        spent,
    });
    PrepareResult { prepared, outcome: Some(summary.outcome), spent }
}
