//! Two rounds of anything are spliced without a panic, and the same however they are cut.
//!
//! The first byte chooses the format, the second the size of the pieces; a zero byte ends the first
//! round.

#![no_main]

use foldline::wire::{ApiError, BodySplicer, Format, Next, Splicer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, size, rounds @ ..] = input else { return };
    let format = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic][usize::from(*format) % 3];
    let end = rounds.iter().position(|byte| *byte == 0).unwrap_or(rounds.len());
    let (first, second) = (&rounds[..end], rounds.get(end + 1..).unwrap_or_default());
    let whole = splice(format, first, second, usize::MAX);
    assert_eq!(whole, splice(format, first, second, usize::from(*size).max(1)));

    let mut bodies = BodySplicer::new(format, "unfold");
    let _ = bodies.round(first);
    let _ = bodies.round(second);
});

fn splice(format: Format, first: &[u8], second: &[u8], size: usize) -> Vec<u8> {
    let mut splicer = Splicer::new(format, "unfold");
    let mut client = Vec::new();
    first.chunks(size).for_each(|piece| splicer.push(piece, &mut client));
    if let Next::Continue(asked) = splicer.end_round(&mut client) {
        asked.continuation(&["answer"]);
        second.chunks(size).for_each(|piece| splicer.push(piece, &mut client));
        splicer.end_round(&mut client);
    }
    splicer.fail(502, &ApiError::parse(b"failed"), &mut client);
    client
}
