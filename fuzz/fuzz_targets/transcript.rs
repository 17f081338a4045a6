//! No input upsets a reader of recordings, and the size of the buffer changes nothing.
//!
//! The first byte chooses the size of the buffer.

#![no_main]

use std::io::BufReader;

use foldline::transcript::{Fault, Reader, Recording};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let [capacity, log @ ..] = input else { return };
    let whole: Vec<Result<Recording, Fault>> = match Reader::with_limit("input", log, LIMIT) {
        Ok(reader) => reader.collect(),
        Err(_) => return,
    };
    let pieces = BufReader::with_capacity(usize::from(*capacity) + 1, log);
    let reader = Reader::with_limit("input", pieces, LIMIT).expect("the head is the same");
    assert!(reader.eq(whole));
});
