//! The meaning of a stream does not depend on network chunking, and no input causes a panic.

use foldline::wire::{
    ApiError, Format, RequestRejection, Response, SseFramer, StreamEvent, StreamLimits, StreamReader, StreamStep,
};
use proptest::prelude::*;

const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","model":"claude","content":[],"usage":{"input_tokens":3,"cache_read_input_tokens":100,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"grüße 🦀"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t1","name":"read","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"path\": \"日本.rs\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":42}}

event: message_stop
data: {"type":"message_stop"}

"#;

const CHAT: &str = r#": OPENROUTER PROCESSING

data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"hm 🦀"}}]}

data: {"id":"c1","choices":[{"index":0,"delta":{"content":"Grüße"}}]}

data: {"choices":[{"index":0,
data: "delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"read","arguments":""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":\"日本\"}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3}}

data: [DONE]

"#;

const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","model":"gpt-5","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":2,"output_index":0,"delta":"hm 🦀"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":3,"output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm 🦀"}],"encrypted_content":"gAAA"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":4,"output_index":1,"item":{"id":"fc_1","type":"function_call","arguments":"","call_id":"c","name":"read"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":5,"output_index":1,"delta":"{\"p\":\"日本\"}"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":6,"output_index":1,"item":{"id":"fc_1","type":"function_call","arguments":"{\"p\":\"日本\"}","call_id":"c","name":"read"}}

event: response.completed
data: {"type":"response.completed","sequence_number":7,"response":{"id":"resp_1","status":"completed","output":[],"usage":{"input_tokens":50,"output_tokens":9}}}

"#;

const GEMINI: &str = r#"data: {"candidates":[{"content":{"role":"model","parts":[{"text":"hm 🦀","thought":true}]},"index":0}],"usageMetadata":{"promptTokenCount":50},"modelVersion":"gemini-3-pro","responseId":"r1"}

data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Ich lese "}]},"index":0}],"modelVersion":"gemini-3-pro","responseId":"r1"}

data: {"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"read","args":{"p":"日本"}},"thoughtSignature":"c2ln"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":50,"candidatesTokenCount":9,"totalTokenCount":59},"modelVersion":"gemini-3-pro","responseId":"r1"}

"#;

const OLLAMA: &str = r#"{"model":"qwen3:8b","created_at":"2026-11-18T00:00:00Z","message":{"role":"assistant","content":"","thinking":"hm 🦀"},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:00Z","message":{"role":"assistant","content":"Ich lese "},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:00Z","message":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","function":{"index":0,"name":"read","arguments":{"p":"日本"}}}]},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:00Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":4935886791,"prompt_eval_count":50,"eval_count":9}
"#;

const FORMATS: [Format; 5] =
    [Format::Anthropic, Format::OpenAiChat, Format::OpenAiResponses, Format::Gemini, Format::Ollama];

fn sample(format: Format) -> &'static str {
    match format {
        Format::Anthropic => ANTHROPIC,
        Format::OpenAiChat => CHAT,
        Format::OpenAiResponses => RESPONSES,
        Format::Gemini => GEMINI,
        Format::Ollama => OLLAMA,
        Format::Converse => panic!("a binary stream has no lines"),
    }
}

fn any_format() -> impl Strategy<Value = Format> {
    prop::sample::select(FORMATS.to_vec())
}

/// Generates a sample with any line ends, truncated anywhere, with some bytes changed.
fn mutated_streams() -> impl Strategy<Value = (Format, Vec<u8>)> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3u8);
    let ends = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    let cut = prop::option::of(any::<prop::sample::Index>());
    (any_format(), ends, prop::collection::vec(change, 0..6), cut).prop_map(|(format, ends, changes, cut)| {
        let mut bytes = sample(format).replace('\n', ends).into_bytes();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        (format, bytes)
    })
}

struct ForwardedStream {
    forwarded: Vec<u8>,
    events: Vec<(std::ops::Range<u64>, StreamEvent)>,
    response: Response<'static>,
}

fn read_stream(format: Format, limits: StreamLimits, pieces: &[&[u8]]) -> ForwardedStream {
    let mut reader = StreamReader::with_limits(format, limits);
    let (mut forwarded, mut events) = (Vec::new(), Vec::new());
    let mut take = |step: StreamStep<'_>| {
        forwarded.extend_from_slice(step.frame.raw);
        let range = step.frame.range();
        assert!(!step.events.is_empty(), "frame without an event");
        events.extend(step.events.into_iter().map(|event| (range.clone(), event)));
    };
    for mut piece in pieces.iter().copied() {
        while let Some(step) = reader.next(&mut piece) {
            take(step);
        }
    }
    if let Some(step) = reader.flush() {
        take(step);
    }
    ForwardedStream { forwarded, events, response: reader.finish() }
}

fn chunks<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        pieces.push(chunk);
        rest = after;
    }
    pieces
}

proptest! {
    #[test]
    fn events_and_bytes_do_not_depend_on_chunking(
        (format, bytes) in mutated_streams(),
        sizes in prop::collection::vec(1..40usize, 1..20),
        event in prop::sample::select(vec![usize::MAX, 1 << 20, 200, 64, 3, 1]),
        kept in prop::sample::select(vec![usize::MAX, 2000, 100, 0]),
    ) {
        let limits = StreamLimits { max_event_bytes: event, max_kept_bytes: kept };
        let unsplit = read_stream(format, limits, &[&bytes]);
        let cut = read_stream(format, limits, &chunks(&bytes, &sizes));
        prop_assert_eq!(&unsplit.forwarded, &bytes);
        prop_assert_eq!(&cut.forwarded, &bytes);
        prop_assert_eq!(unsplit.events, cut.events);
        prop_assert_eq!(unsplit.response, cut.response);
    }

    #[test]
    fn frames_cover_the_input_without_gaps(
        bytes in prop::collection::vec(prop::sample::select(b"ad:t \r\n\xc3".to_vec()), 0..200),
        limit in 1..30usize,
    ) {
        let mut framer = SseFramer::with_max_event_bytes(limit);
        let mut input = &bytes[..];
        let mut at = 0;
        while let Some(frame) = framer.next(&mut input) {
            prop_assert_eq!(frame.offset, at);
            prop_assert!(!frame.raw.is_empty() && frame.raw.len() <= limit);
            at += frame.raw.len() as u64;
        }
        if let Some(frame) = framer.finish() {
            prop_assert_eq!(frame.offset, at);
            at += frame.raw.len() as u64;
        }
        prop_assert_eq!(at, bytes.len() as u64);
    }

    #[test]
    fn any_bytes_never_panic(format in any_format(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Response::parse(format, &bytes);
        let _ = RequestRejection::from_body(400, &bytes);
        let _ = ApiError::parse(&bytes);
        read_stream(format, StreamLimits::default(), &[&bytes]);
    }

    #[test]
    fn kept_bytes_are_bounded(format in any_format(), kept in 0..3000usize) {
        let limits = StreamLimits { max_kept_bytes: kept, ..StreamLimits::default() };
        let many = sample(format).repeat(5);
        let passed = read_stream(format, limits, &[many.as_bytes()]);
        let size: usize = passed.response.message.parts.iter().map(|part| format!("{part:?}").len()).sum();
        prop_assert!(size <= 4 * kept + 400, "{size} of {kept}");
    }
}

#[test]
fn samples_have_one_call_and_usage() {
    for format in FORMATS {
        let passed = read_stream(format, StreamLimits::default(), &[sample(format).as_bytes()]);
        let response = &passed.response;
        assert_eq!(response.calls().count(), 1, "{format:?}");
        assert!(response.calls().next().unwrap().arguments.as_str().contains("日本"));
        assert!(response.usage.is_some());
        // A Gemini stream has no end mark.
        let ended = matches!(passed.events.last(), Some((_, StreamEvent::Done)));
        assert_eq!(ended, format != Format::Gemini, "{format:?}");
        assert!(!passed.events.iter().any(|(_, event)| matches!(event, StreamEvent::Unreadable(_))));
    }
}

/// Without memory a stream is still forwarded byte for byte, and small events are still read.
#[test]
fn stopped_reader_holds_little() {
    for format in FORMATS {
        let mut reader = StreamReader::new(format);
        reader.push(sample(format).as_bytes());
        let kept = reader.held_bytes();
        assert!(kept > 0, "{format:?}");
        let endless = vec![b'x'; 1 << 20];
        reader.push(&endless);
        assert_eq!(reader.held_bytes(), kept + endless.len());
        reader.stop_keeping();
        let (mut rest, mut forwarded) = (&endless[..], 0);
        while let Some(step) = reader.next(&mut rest) {
            forwarded += step.frame.raw.len();
        }
        assert!(reader.held_bytes() - kept <= 64 << 10, "{format:?}");
        let usage = reader.finish().usage;
        assert!(forwarded >= 2 * endless.len() - (64 << 10) && usage.is_some(), "{format:?}");
    }
}
