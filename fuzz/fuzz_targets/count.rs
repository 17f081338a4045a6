//! Any text is counted; a counter that calls itself monotone never counts more text as fewer tokens.
//!
//! The first byte says where the text is cut in two, as a share of it.

#![no_main]

use std::sync::LazyLock;

use foldline::{Calibrated, Counter, Estimator, Fit, Vocabulary};
use libfuzzer_sys::fuzz_target;

static COUNTERS: LazyLock<Vec<Box<dyn Counter>>> = LazyLock::new(|| {
    vec![
        Box::new(Estimator),
        Box::new(Calibrated::new(Estimator, Fit { ratio: 1.35, overhead: 300, margin: 0.1 })),
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
            // No token of a vocabulary is empty.
            assert!(whole <= text.len() as u64);
        }
    }
});
