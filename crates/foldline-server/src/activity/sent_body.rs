//! Fingerprints of sent bodies: measures how much of a body was sent before, without keeping it.
//!
//! A request extends the previous one if it begins with the same bytes and ends with the same fields; only new messages
//! are between them. A fingerprint is compared in chunks, so a few changed bytes count as one chunk.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are compared as one.
const CHUNK_BYTES: usize = 4_096;
/// Bodies below this size are not compared.
const MIN_COMPARED_BYTES: usize = 65_536;
/// Share of the previous body that must be sent again unchanged. Clients move cache marks in their newest messages.
const MIN_KEPT_SHARE: f64 = 0.75;

/// Hashes of the chunks of a body, from its start and from its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyFingerprint {
    length: usize,
    from_start: Vec<u64>,
    from_end: Vec<u64>,
}

impl BodyFingerprint {
    /// Returns the fingerprint of a body.
    pub(crate) fn new(body: &[u8]) -> Self {
        Self {
            length: body.len(),
            from_start: body.chunks_exact(CHUNK_BYTES).map(xxh3_64).collect(),
            from_end: body.rchunks_exact(CHUNK_BYTES).map(xxh3_64).collect(),
        }
    }

    /// Returns true if a later body contains most of this one at its start and its end, or if this one is too small to
    /// compare.
    pub(crate) fn is_extended_by(&self, later: &Self) -> bool {
        let same = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count() * CHUNK_BYTES;
        let kept = same(&self.from_start, &later.from_start) + same(&self.from_end, &later.from_end);
        self.length < MIN_COMPARED_BYTES || kept as f64 >= self.length as f64 * MIN_KEPT_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lines: std::ops::Range<usize>, end: &str) -> Vec<u8> {
        let messages: String = lines.map(|at| format!("message {at} with some text in it\n")).collect();
        format!("{{{messages}{end}}}").into_bytes()
    }

    #[test]
    fn grown_conversation_extends_the_previous_one() {
        let before = BodyFingerprint::new(&body(0..5_000, "tools"));
        assert!(before.is_extended_by(&BodyFingerprint::new(&body(0..5_200, "tools"))));
        let large_end = "t".repeat(100_000);
        let before = BodyFingerprint::new(&body(0..5_000, &large_end));
        assert!(before.is_extended_by(&BodyFingerprint::new(&body(0..9_000, &large_end))));
    }

    #[test]
    fn changed_history_does_not() {
        let before = BodyFingerprint::new(&body(0..5_000, "tools"));
        assert!(!before.is_extended_by(&BodyFingerprint::new(&body(1_000..6_000, "tools"))));
        let small = BodyFingerprint::new(&body(0..10, ""));
        assert!(small.is_extended_by(&BodyFingerprint::new(&body(5..15, ""))), "too small to compare");
    }
}
