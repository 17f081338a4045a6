//! A summary written ahead of time, bound to its source by a fingerprint.

use foldline::Message;
use serde::{Deserialize, Serialize};

use crate::limits::ModelSpend;

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
    pub(crate) fingerprint: MessageFingerprint,
    pub(crate) until: usize,
    pub(crate) text: String,
    /// Its cost, without the earlier summary that it continues.
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
