//! Any text can be counted; a monotone counter never counts a longer text as fewer tokens.
//!
//! The first byte is the split position, as a fraction of the text.

#![no_main]

use std::sync::LazyLock;

use foldline::tokens::{CalibratedCounter, CalibrationFit, TokenCounter, TokenEstimator, Vocabulary};
use libfuzzer_sys::fuzz_target;

static COUNTERS: LazyLock<Vec<Box<dyn TokenCounter>>> = LazyLock::new(|| {
    vec![
        Box::new(TokenEstimator),
        Box::new(CalibratedCounter::new(TokenEstimator, CalibrationFit { ratio: 1.35, overhead: 300, margin: 0.1 })),
        Box::new(Vocabulary::o200k()),
        Box::new(Vocabulary::cl100k()),
    ]
});

fuzz_target!(|input: &[u8]| {
    let [cut, text @ ..] = input else { return };
    let text = String::from_utf8_lossy(text);
    let head = &text[..text.floor_char_boundary(text.len() * usize::from(*cut) / 255)];
    for counter in COUNTERS.iter() {
        let (part, whole) = (counter.count(head), counter.count(&text));
        assert_eq!(whole == 0, text.is_empty());
        if counter.is_monotone() {
            assert!(part <= whole, "{head:?} counts {part}, {text:?} counts {whole}");
        } else {
            // Every token of a vocabulary has at least one byte.
            assert!(whole <= text.len() as u64);
        }
    }
});
