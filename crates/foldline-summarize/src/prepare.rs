//! Summaries that are written before they are needed, off the hot path.
//!
//! While an agent works, a summary of its older rounds is written in the background; when its session reaches the budget,
//! the summary is there, and no request waits for a model. It is bound to what it summarises by a fingerprint: if a
//! word of it was changed since, the summary is stale and not used.

use foldline::{Conversation, Message, Tokens};
use serde::{Deserialize, Serialize};

use crate::cascade::{EnforceOptions, rounds_to_summarize, user_goal};
use crate::limits::ModelSpend;
use crate::progress::{ProgressListener, SummaryOutcome};
use crate::summarizer::{SummaryAuthor, SummaryTask};

/// The hash of some messages, word for word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageFingerprint([u8; 32]);

impl MessageFingerprint {
    /// The fingerprint of these messages.
    pub fn from_messages(messages: &[Message<'_>]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for message in messages {
            let json = serde_json::to_vec(message).expect("a message is always JSON");
            hasher.update(&(json.len() as u64).to_le_bytes());
            hasher.update(&json);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Its bytes, as a ledger holds them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for MessageFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}{:02x}{:02x})", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// A summary of the first messages of a session, which passed the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreparedSummary {
    fingerprint: MessageFingerprint,
    until: usize,
    text: String,
    /// What it cost, without the earlier one that it goes on from.
    pub spent: ModelSpend,
}

/// What came of preparing a summary.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PrepareResult {
    /// The summary; none when nothing could go, when there is no summariser, or when what its model wrote did not pass the
    /// gate: what code can say is said when it is needed.
    pub prepared: Option<PreparedSummary>,
    /// How the writing ended; none when no model was asked.
    pub outcome: Option<SummaryOutcome>,
    /// What it cost, summary or not.
    pub spent: ModelSpend,
}

impl PreparedSummary {
    /// Whether these messages still begin with what it summarises.
    pub fn is_fresh(&self, messages: &[Message<'_>]) -> bool {
        messages.get(..self.until).is_some_and(|head| MessageFingerprint::from_messages(head) == self.fingerprint)
    }

    /// The fingerprint of what it summarises: the key under which a ledger holds it.
    pub fn fingerprint(&self) -> &MessageFingerprint {
        &self.fingerprint
    }

    /// It summarises the messages before this one.
    pub fn until(&self) -> usize {
        self.until
    }

    /// The summary.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Whether it is time to prepare a summary: the session has this share of its budget.
pub const PREPARE_THRESHOLD: f64 = 0.75;

impl EnforceOptions<'_> {
    /// Whether a session of so many tokens will need a summary soon.
    pub fn should_prepare(&self, tokens: Tokens) -> bool {
        tokens as f64 >= self.budget as f64 * PREPARE_THRESHOLD
    }
}

/// Writes a summary of the older rounds of a session, where [`enforce_context_window`](crate::enforce_context_window)
/// would part it; on from an earlier one, if that is still fresh.
///
/// The session is only read. Dropping the future loses nothing but the work.
pub async fn prepare_summary(
    session: &Conversation<'_>,
    with: &EnforceOptions<'_>,
    earlier: Option<&PreparedSummary>,
    listener: ProgressListener<'_>,
) -> PrepareResult {
    let earlier = earlier.filter(|earlier| earlier.is_fresh(&session.messages));
    let parted =
        with.summarizer.and_then(|summariser| Some((summariser, rounds_to_summarize(session, with, earlier)?)));
    let Some((summariser, (until, text, before))) = parted else { return PrepareResult::default() };
    let goal = user_goal(&session.messages[..until]);
    let task =
        SummaryTask { text: &text, goal: &goal, earlier_summary: before.as_deref(), max_tokens: with.budget / 8 };
    let summary = summariser.summarize(&task, listener).await;
    let spent = summary.spent;
    let prepared = (summary.author == SummaryAuthor::Model).then(|| PreparedSummary {
        fingerprint: MessageFingerprint::from_messages(&session.messages[..until]),
        until,
        text: summary.text,
        spent,
    });
    PrepareResult { prepared, outcome: Some(summary.outcome), spent }
}
