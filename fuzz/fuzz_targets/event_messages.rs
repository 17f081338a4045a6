//! Binary messages with any headers and content are read and spliced the same however they are split. Random bytes never
//! have the right checksums, so the messages are written here.
//!
//! The first byte selects the format, the second the chunk size. Then each message has four bytes: what is wrong with it,
//! the length of its headers, and the length of its payload. A message with a wrong length takes the rest of the stream.

#![no_main]

use foldline::wire::{ApiError, Format, RoundOutcome, StreamEvent, StreamReader, StreamSplicer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, size, messages @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let size = usize::from(*size).max(1);
    let stream = write_stream(messages);
    let unsplit = read_stream(format, &stream, usize::MAX);
    assert_eq!(unsplit.0, stream);
    assert_eq!(unsplit, read_stream(format, &stream, size));
    assert_eq!(splice(format, &stream, usize::MAX), splice(format, &stream, size));
});

/// Writes the messages that the input describes.
fn write_stream(mut input: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let [fault, headers, high, low, rest @ ..] = input {
        let (headers, rest) = rest.split_at(usize::from(*headers).min(rest.len()));
        let (payload, rest) = rest.split_at(usize::from(u16::from_be_bytes([high % 8, *low])).min(rest.len()));
        input = rest;
        let start = stream.len();
        let number = |length: usize| u32::try_from(length).expect("a short message");
        let length = number(16 + headers.len() + payload.len());
        stream.extend(if fault % 16 == 1 { length ^ 1 << (fault / 16) } else { length }.to_be_bytes());
        stream.extend(number(headers.len() + usize::from(fault % 16 == 2)).to_be_bytes());
        stream.extend(crc32fast::hash(&stream[start..]).to_be_bytes());
        stream.extend_from_slice(headers);
        stream.extend_from_slice(payload);
        stream.extend((crc32fast::hash(&stream[start..]) ^ u32::from(fault % 16 == 3)).to_be_bytes());
    }
    stream
}

fn read_stream(format: Format, stream: &[u8], size: usize) -> (Vec<u8>, Vec<StreamEvent>) {
    let mut reader = StreamReader::new(format);
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
    (forwarded, events)
}

fn splice(format: Format, stream: &[u8], size: usize) -> Vec<u8> {
    let mut splicer = StreamSplicer::new(format, "unfold");
    let mut client = Vec::new();
    for _ in 0..2 {
        stream.chunks(size).for_each(|chunk| splicer.push(chunk, &mut client));
        let RoundOutcome::Continue(calls) = splicer.end_round(&mut client) else { break };
        calls.continuation(&vec!["answer"; calls.calls.len()]);
    }
    splicer.write_error(502, &ApiError::parse(b"failed"), &mut client);
    client
}
