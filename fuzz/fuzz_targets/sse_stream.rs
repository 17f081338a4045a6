//! A stream means the same however it is cut, every byte is forwarded, and nothing panics.
//!
//! The first byte chooses the format, the second the limits, the third the size of the pieces.

#![no_main]

use foldline::wire::{Event, Format, Limits, Response, StreamReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, limits, size, stream @ ..] = input else { return };
    let format = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic][usize::from(*format) % 3];
    let limits = match limits % 4 {
        0 => Limits::default(),
        1 => Limits { event: 48, ..Limits::default() },
        2 => Limits { kept: 300, ..Limits::default() },
        _ => Limits { event: 1, kept: 0 },
    };
    let whole = pass(format, limits, stream, stream.len().max(1));
    let cut = pass(format, limits, stream, usize::from(*size).max(1));
    assert_eq!(whole.0, stream);
    assert_eq!(whole, cut);
});

fn pass(format: Format, limits: Limits, stream: &[u8], size: usize) -> (Vec<u8>, Vec<Event>, Response<'static>) {
    let mut reader = StreamReader::with_limits(format, limits);
    let (mut forwarded, mut events) = (Vec::new(), Vec::new());
    for mut piece in stream.chunks(size) {
        while let Some(step) = reader.next(&mut piece) {
            forwarded.extend_from_slice(step.frame.raw);
            events.extend(step.events);
        }
    }
    if let Some(step) = reader.end() {
        forwarded.extend_from_slice(step.frame.raw);
        events.extend(step.events);
    }
    (forwarded, events, reader.finish())
}
