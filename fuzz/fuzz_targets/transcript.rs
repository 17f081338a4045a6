//! Reading any transcript never panics, and the buffer size does not change the result.
//!
//! The first byte selects the buffer size.

#![no_main]

use std::io::BufReader;

use foldline::transcript::{LineError, RecordedSession, TranscriptReader};
use libfuzzer_sys::fuzz_target;

const MAX_LINE_BYTES: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let [capacity, log @ ..] = input else { return };
    let unbuffered: Vec<Result<RecordedSession, LineError>> =
        match TranscriptReader::with_max_line_bytes("input", log, MAX_LINE_BYTES) {
            Ok(reader) => reader.collect(),
            Err(_) => return,
        };
    let buffered = BufReader::with_capacity(usize::from(*capacity) + 1, log);
    let reader = TranscriptReader::with_max_line_bytes("input", buffered, MAX_LINE_BYTES)
        .expect("the same header must be accepted");
    assert!(reader.eq(unbuffered));
});
