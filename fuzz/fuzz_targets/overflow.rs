//! No error body upsets the recognition of overflows, and only a believable limit is learned.
//!
//! The first byte chooses the status.

#![no_main]

use foldline::wire::{Lesson, Refusal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [status, body @ ..] = input else { return };
    let status = [400, 413, 422, 429, 500][usize::from(*status) % 5];
    let refusal = Refusal::of_body(status, body);
    assert_eq!(refusal, Refusal::of_body(status, body));
    if let Refusal::Overflow(overflow) = refusal
        && let Lesson::Limit { tokens, .. } = overflow.lesson(1)
    {
        assert!((1024..=20_000_000).contains(&tokens));
        assert_eq!(overflow.limit, Some(tokens));
    }
});
