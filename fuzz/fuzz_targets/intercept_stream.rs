//! Splicing two rounds of any bytes never panics, and the result does not depend on chunking.
//!
//! The first byte selects the format, the second the chunk size; a zero byte ends the first round.

#![no_main]

use foldline::wire::{ApiError, BodySplicer, Format, RoundOutcome, StreamSplicer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, size, rounds @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let end = rounds.iter().position(|byte| *byte == 0).unwrap_or(rounds.len());
    let (first, second) = (&rounds[..end], rounds.get(end + 1..).unwrap_or_default());
    let unsplit = splice(format, first, second, usize::MAX);
    assert_eq!(unsplit, splice(format, first, second, usize::from(*size).max(1)));

    let mut bodies = BodySplicer::new(format, "unfold");
    let _ = bodies.push_round(first);
    let _ = bodies.push_round(second);
});

fn splice(format: Format, first: &[u8], second: &[u8], size: usize) -> Vec<u8> {
    let mut splicer = StreamSplicer::new(format, "unfold");
    let mut client = Vec::new();
    first.chunks(size).for_each(|chunk| splicer.push(chunk, &mut client));
    if let RoundOutcome::Continue(calls) = splicer.end_round(&mut client) {
        calls.continuation(&["answer"]);
        second.chunks(size).for_each(|chunk| splicer.push(chunk, &mut client));
        splicer.end_round(&mut client);
    }
    splicer.write_error(502, &ApiError::parse(b"failed"), &mut client);
    client
}
