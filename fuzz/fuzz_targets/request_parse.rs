//! No bytes upset the reader of requests, and it calls JSON what serde_json calls JSON; its texts are what they are for
//! whoever looks first.

#![no_main]

use foldline::wire::{Format, Request};
use foldline::{Conversation, ErrorKind};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;

fuzz_target!(|body: &[u8]| {
    let text = std::str::from_utf8(body);
    let is_json = text.is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let mut too_deep = false;
    for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
        match Request::parse(format, body) {
            Ok(request) => {
                assert!(is_json);
                assert_eq!(request.splice(&[]).expect("no edit is no bad edit"), body);
                for at in 0..request.conversation().messages.len() {
                    let raw = request.raw_message(at).expect("every message stands somewhere");
                    assert!(serde_json::from_str::<IgnoredAny>(raw).is_ok());
                }
                request.is_continuation();
                // Texts are decoded by whoever looks: here, and there by serde.
                let json = serde_json::to_vec(request.conversation()).expect("a conversation has a JSON form");
                let again: Conversation<'_> = serde_json::from_slice(&json).expect("and is read from it");
                assert_eq!(again, request.conversation().clone().into_owned());
            }
            Err(error) => match error.kind() {
                ErrorKind::NotJson { at } => {
                    assert!(!is_json);
                    assert!(*at <= body.len());
                }
                // It may have been refused before its end was seen.
                ErrorKind::NotARequest => {}
                ErrorKind::TooDeep { .. } => too_deep = true,
                other => panic!("{other:?} is no answer to a body"),
            },
        }
    }
    let could_be = is_json && matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    assert!(too_deep || Format::recognise(body).is_some() == could_be);
});
