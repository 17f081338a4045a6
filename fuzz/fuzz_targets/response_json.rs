//! Parsing any response body never panics, and an owned copy equals the original.

#![no_main]

use foldline::wire::{Format, Response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    for format in Format::all() {
        if let Ok(response) = Response::parse(format, body) {
            let overflow = response.overflow(400);
            let owned = response.clone().into_owned();
            assert_eq!(owned, response);
            assert_eq!(owned.overflow(400), overflow);
        }
    }
});
