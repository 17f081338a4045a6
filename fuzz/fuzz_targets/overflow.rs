//! Classifying any error body never panics, and only a plausible limit is learned.
//!
//! The first byte selects the status.

#![no_main]

use foldline::wire::{LearnedLimit, RequestRejection};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [status, body @ ..] = input else { return };
    let status = [400, 413, 422, 429, 500][usize::from(*status) % 5];
    let rejection = RequestRejection::from_body(status, body);
    assert_eq!(rejection, RequestRejection::from_body(status, body));
    if let RequestRejection::Overflow(overflow) = rejection
        && let LearnedLimit::Stated { tokens, .. } = overflow.learned_limit(1)
    {
        assert!((1024..=20_000_000).contains(&tokens));
        assert_eq!(overflow.limit_tokens, Some(tokens));
    }
});
