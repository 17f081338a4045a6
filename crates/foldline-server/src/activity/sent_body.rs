//! Fingerprints of sent messages: measures how much of them was sent before, without keeping them.
//!
//! A request extends the previous one if its messages begin with the same bytes. Other fields are the client's: Claude
//! Code writes a checksum into its instructions, and the id of the previous response after the tools. A fingerprint is
//! compared in chunks, so a few changed bytes count as one chunk.

use foldline::wire::Request;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are compared as one.
const CHUNK_BYTES: usize = 4_096;
/// Messages below this size are not compared.
const MIN_COMPARED_BYTES: usize = 65_536;
/// Share of the previous messages that must be sent again unchanged. Clients move cache marks in their newest messages.
const MIN_KEPT_SHARE: f64 = 0.75;

/// Hashes of the chunks of a request's messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyFingerprint {
    length: usize,
    chunks: Vec<u64>,
}

impl BodyFingerprint {
    /// Returns the fingerprint of messages.
    pub(crate) fn new(messages: &[u8]) -> Self {
        Self { length: messages.len(), chunks: messages.chunks_exact(CHUNK_BYTES).map(xxh3_64).collect() }
    }

    /// Returns the fingerprint of the messages of a body that was made from a request: what is before and after the
    /// messages is copied from it, except for an injected tool, whose few bytes do not matter.
    pub(crate) fn for_body(body: &[u8], request: &Request<'_>) -> Self {
        let Some(range) = request.messages_range() else { return Self::default() };
        let end = body.len().saturating_sub(request.body_len() - range.end);
        Self::new(body.get(range.start..end).unwrap_or_default())
    }

    /// Returns true if later messages begin with most of these, or if these are too small to compare.
    pub(crate) fn is_extended_by(&self, later: &Self) -> bool {
        let kept = self.chunks.iter().zip(&later.chunks).take_while(|(before, now)| before == now).count();
        self.length < MIN_COMPARED_BYTES || (kept * CHUNK_BYTES) as f64 >= self.length as f64 * MIN_KEPT_SHARE
    }
}

#[cfg(test)]
mod tests {
    use foldline::wire::Format;

    use super::*;

    /// Returns the fingerprint of a body with these messages, a system prompt before them and a field after them.
    fn fingerprint(messages: std::ops::Range<usize>, system: &str, end: &str) -> BodyFingerprint {
        let messages: Vec<String> =
            messages.map(|at| format!(r#"{{"role":"user","content":"message {at} with some text"}}"#)).collect();
        let body = format!(r#"{{"system":"{system}","messages":[{}],"end":"{end}"}}"#, messages.join(","));
        let request = Request::parse(Format::Anthropic, body.as_bytes()).unwrap();
        BodyFingerprint::for_body(body.as_bytes(), &request)
    }

    #[test]
    fn grown_conversation_extends_the_previous_one() {
        let before = fingerprint(0..5_000, "", "tools");
        assert!(before.is_extended_by(&fingerprint(0..5_200, "", "tools")));
        assert!(before.is_extended_by(&fingerprint(0..9_000, "", &"t".repeat(100_000))));
    }

    /// Claude Code sends a checksum in the first block of its system prompt, and the id of the previous response.
    #[test]
    fn fields_of_the_client_are_not_compared() {
        let before = fingerprint(0..5_000, "cch=d6d99; turn=9", "msg_9");
        assert!(before.is_extended_by(&fingerprint(0..5_200, "cch=54535; turn=10", "msg_10")));
    }

    #[test]
    fn changed_history_does_not() {
        let before = fingerprint(0..5_000, "", "tools");
        assert!(!before.is_extended_by(&fingerprint(1_000..6_000, "", "tools")));
        let small = fingerprint(0..10, "", "");
        assert!(small.is_extended_by(&fingerprint(5..15, "", "")), "too small to compare");
    }
}
