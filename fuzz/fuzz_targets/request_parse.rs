//! Parsing any request body never panics and accepts the same JSON as serde_json; texts decode to the same value whether
//! read directly or through serde.

#![no_main]

use foldline::wire::{Format, Request};
use foldline::{Conversation, ErrorKind};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;

fuzz_target!(|body: &[u8]| {
    let text = std::str::from_utf8(body);
    let is_json = text.is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let mut too_deep = false;
    for format in Format::all() {
        match Request::parse(format, body) {
            Ok(request) => {
                assert!(is_json);
                assert_eq!(request.splice(&[]).expect("splicing without edits cannot fail"), body);
                for at in 0..request.conversation().messages.len() {
                    let raw = request.raw_message(at).expect("every message has a position");
                    assert!(serde_json::from_str::<IgnoredAny>(raw).is_ok());
                }
                request.is_continuation();
                // Texts are decoded on first use: here directly, below by serde.
                let json = serde_json::to_vec(request.conversation()).expect("a conversation can be serialized");
                let again: Conversation<'_> =
                    serde_json::from_slice(&json).expect("a serialized conversation can be parsed");
                assert_eq!(again, request.conversation().clone().into_owned());
            }
            Err(error) => match error.kind() {
                ErrorKind::NotJson { offset } => {
                    assert!(!is_json);
                    assert!(*offset <= body.len());
                }
                // The body may have been rejected before its end was scanned.
                ErrorKind::NotARequest => {}
                ErrorKind::TooDeep { .. } => too_deep = true,
                other => panic!("{other:?} is not an error of parsing a body"),
            },
        }
    }
    let could_be = is_json && matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    assert!(too_deep || Format::detect(body).is_some() == could_be);
});
