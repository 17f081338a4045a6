//! Summaries that are written ahead of time, off the hot path.
//!
//! While an agent works, a summary of its older rounds is written in the background; when the session reaches its
//! budget, the summary is ready, and no request waits for a model. A fingerprint binds it to its source: if the
//! source has changed since, the summary is stale and not used.

use foldline::{Conversation, Message, Tokens};
use serde::{Deserialize, Serialize};

use crate::cascade::{EnforceOptions, rounds_to_summarize, user_goal};
use crate::limits::ModelSpend;
use crate::progress::{ProgressListener, SummaryOutcome};
use crate::summarizer::{SummaryAuthor, SummaryTask};

/// The hash of a sequence of messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageFingerprint([u8; 32]);

impl MessageFingerprint {
    /// Computes the fingerprint of these messages.
    pub fn from_messages(messages: &[Message<'_>]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for message in messages {
            let json = serde_json::to_vec(message).expect("a message is always JSON");
            hasher.update(&(json.len() as u64).to_le_bytes());
            hasher.update(&json);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Returns the bytes, for storage in a ledger.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for MessageFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}{:02x}{:02x})", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// A summary of the first messages of a session that passed the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreparedSummary {
    fingerprint: MessageFingerprint,
    until: usize,
    text: String,
    /// Its cost, without the earlier summary that it continues.
    pub spent: ModelSpend,
}

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

impl PreparedSummary {
    /// Returns true if these messages still start with the source of the summary.
    pub fn is_fresh(&self, messages: &[Message<'_>]) -> bool {
        messages.get(..self.until).is_some_and(|head| MessageFingerprint::from_messages(head) == self.fingerprint)
    }

    /// Returns the fingerprint of the source: the key of the summary in a ledger.
    pub fn fingerprint(&self) -> &MessageFingerprint {
        &self.fingerprint
    }

    /// Returns the end of the source: the summary covers the messages before this index.
    pub fn until(&self) -> usize {
        self.until
    }

    /// Returns the text of the summary.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Share of the budget from which a summary is prepared.
pub const PREPARE_THRESHOLD: f64 = 0.75;

impl EnforceOptions<'_> {
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
    options: &EnforceOptions<'_>,
    earlier: Option<&PreparedSummary>,
    listener: ProgressListener<'_>,
) -> PrepareResult {
    let earlier = earlier.filter(|earlier| earlier.is_fresh(&session.messages));
    let split =
        options.summarizer.and_then(|summarizer| Some((summarizer, rounds_to_summarize(session, options, earlier)?)));
    let Some((summarizer, (until, text, earlier_summary))) = split else { return PrepareResult::default() };
    let goal = user_goal(&session.messages[..until]);
    let task = SummaryTask {
        text: &text,
        goal: &goal,
        earlier_summary: earlier_summary.as_deref(),
        max_tokens: options.budget / 8,
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
