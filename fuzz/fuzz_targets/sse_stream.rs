//! The meaning of a stream does not depend on chunking, every byte is forwarded, and nothing panics.
//!
//! The first byte selects the format, the second the limits, the third the chunk size.

#![no_main]

use foldline::wire::{Format, Response, StreamEvent, StreamLimits, StreamReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, limits, size, stream @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let limits = match limits % 4 {
        0 => StreamLimits::default(),
        1 => StreamLimits { max_event_bytes: 48, ..StreamLimits::default() },
        2 => StreamLimits { max_kept_bytes: 300, ..StreamLimits::default() },
        _ => StreamLimits { max_event_bytes: 1, max_kept_bytes: 0 },
    };
    let unsplit = read_stream(format, limits, stream, stream.len().max(1));
    let chunked = read_stream(format, limits, stream, usize::from(*size).max(1));
    assert_eq!(unsplit.0, stream);
    assert_eq!(unsplit, chunked);
});

fn read_stream(
    format: Format,
    limits: StreamLimits,
    stream: &[u8],
    size: usize,
) -> (Vec<u8>, Vec<StreamEvent>, Response<'static>) {
    let mut reader = StreamReader::with_limits(format, limits);
    let (mut forwarded, mut events) = (Vec::new(), Vec::new());
    for mut chunk in stream.chunks(size) {
        while let Some(step) = reader.next(&mut chunk) {
            forwarded.extend_from_slice(step.frame.raw);
            events.extend(step.events);
        }
    }
    if let Some(step) = reader.flush() {
        forwarded.extend_from_slice(step.frame.raw);
        events.extend(step.events);
    }
    (forwarded, events, reader.finish())
}
