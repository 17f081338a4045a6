//! Summaries that are written before they are needed, off the hot path.
//!
//! While an agent works, a summary of its older rounds is written in the background; when its session reaches the budget,
//! the summary is there, and no request waits for a model. It is bound to what it summarises by a fingerprint: if a
//! word of it was changed since, the summary is stale and not used.

use foldline::{Conversation, Message, Tokens};
use serde::{Deserialize, Serialize};

use crate::account::Spent;
use crate::cascade::{Enforce, goal, goes_before};
use crate::progress::{Outcome, ProgressListener};
use crate::summarise::{Author, Task};

/// The hash of some messages, word for word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of these messages.
    pub fn of(messages: &[Message<'_>]) -> Self {
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

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}{:02x}{:02x})", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// A summary of the first messages of a session, which passed the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    fingerprint: Fingerprint,
    until: usize,
    text: String,
    /// What it cost, without the earlier one that it goes on from.
    pub spent: Spent,
}

/// What came of preparing a summary.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Preparation {
    /// The summary; none when nothing could go, when there is no summariser, or when what its model wrote did not pass the
    /// gate: what code can say is said when it is needed.
    pub prepared: Option<Prepared>,
    /// How the writing ended; none when no model was asked.
    pub outcome: Option<Outcome>,
    /// What it cost, summary or not.
    pub spent: Spent,
}

impl Prepared {
    /// Whether these messages still begin with what it summarises.
    pub fn is_fresh(&self, messages: &[Message<'_>]) -> bool {
        messages.get(..self.until).is_some_and(|head| Fingerprint::of(head) == self.fingerprint)
    }

    /// The fingerprint of what it summarises: the key under which a ledger holds it.
    pub fn fingerprint(&self) -> &Fingerprint {
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
pub const NEAR: f64 = 0.75;

impl Enforce<'_> {
    /// Whether a session of so many tokens will need a summary soon.
    pub fn is_near(&self, tokens: Tokens) -> bool {
        tokens as f64 >= self.budget as f64 * NEAR
    }
}

/// Writes a summary of the older rounds of a session, where [`enforce_context_window`](crate::enforce_context_window)
/// would part it; on from an earlier one, if that is still fresh.
///
/// The session is only read. Dropping the future loses nothing but the work.
pub async fn prepare(
    session: &Conversation<'_>,
    with: &Enforce<'_>,
    earlier: Option<&Prepared>,
    listener: ProgressListener<'_>,
) -> Preparation {
    let earlier = earlier.filter(|earlier| earlier.is_fresh(&session.messages));
    let parted = with.summariser.and_then(|summariser| Some((summariser, goes_before(session, with, earlier)?)));
    let Some((summariser, (until, text, before))) = parted else { return Preparation::default() };
    let goal = goal(&session.messages[..until]);
    let task = Task { text: &text, goal: &goal, earlier: before.as_deref(), at_most: with.budget / 8 };
    let summary = summariser.summarise(&task, listener).await;
    let spent = summary.spent;
    let prepared = (summary.author == Author::Model).then(|| Prepared {
        fingerprint: Fingerprint::of(&session.messages[..until]),
        until,
        text: summary.text,
        spent,
    });
    Preparation { prepared, outcome: Some(summary.outcome), spent }
}
