//! Properties of every body and every set of edits, in all dialects.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::conversation::{CallArguments, Conversation, Message, Part, PartId, Role, ToolCall, ToolDefinition};
use crate::error::ErrorKind;
use crate::testing::{SampleRequest, sample_text, samples};

/// Returns the conversation expected after the edits, computed without a body.
fn expected_after_edits(
    conversation: &Conversation<'static>,
    format: Format,
    edits: &[RequestEdit],
) -> Conversation<'static> {
    let mut expected = conversation.clone();
    let mut dropped_messages = Vec::new();
    let mut dropped_parts = Vec::new();
    let mut inserted = Vec::new();
    for edit in edits {
        match edit {
            RequestEdit::Text { at, text } => {
                let text = Part::text(text.clone());
                match (&mut expected.messages[at.message].parts[at.part], at.inner) {
                    (Part::ToolResult(result), None) => result.content = vec![text],
                    (Part::ToolResult(result), Some(inner)) => result.content[inner] = text,
                    (part, _) => *part = text,
                }
            }
            RequestEdit::Arguments { at, arguments } => {
                let Part::ToolCall(call) = &mut expected.messages[at.message].parts[at.part] else {
                    panic!("{at} is not a call")
                };
                call.arguments = match call.arguments {
                    CallArguments::Json(_) => CallArguments::Json(arguments.clone().into()),
                    CallArguments::Text(_) => CallArguments::Text(arguments.clone().into()),
                };
            }
            RequestEdit::DropPart(at) => dropped_parts.push((at.message, at.part)),
            RequestEdit::DropMessage(at) => dropped_messages.push(*at),
            RequestEdit::InsertMessage { before, role, text } => {
                inserted.push((*before, Message::text(*role, text.clone())))
            }
            RequestEdit::InsertJson { before, json } => {
                let list = format!("[{json}]");
                let request = Request::parse(format, list.as_bytes()).unwrap();
                inserted.push((*before, request.conversation().messages[0].clone().into_owned()));
            }
            RequestEdit::AppendTool { json } => {
                let name = serde_json::from_str::<serde_json::Value>(json).unwrap()["name"].clone();
                let name = name.as_str().unwrap_or_default().to_owned();
                expected.tools.push(ToolDefinition { name: name.into(), definition: json.clone().into() });
            }
        }
    }
    let messages = std::mem::take(&mut expected.messages);
    let end = messages.len();
    for (at, mut message) in messages.into_iter().enumerate() {
        expected
            .messages
            .extend(inserted.iter().filter(|(before, _)| *before == at).map(|(_, message)| message.clone()));
        let mut part = 0..;
        message.parts.retain(|_| !dropped_parts.contains(&(at, part.next().unwrap())));
        if !dropped_messages.contains(&at) {
            expected.messages.push(message);
        }
    }
    expected.messages.extend(inserted.iter().filter(|(before, _)| *before == end).map(|(_, message)| message.clone()));
    expected
}

/// Generates a body with compatible edits of all kinds.
fn samples_with_edits() -> impl Strategy<Value = (SampleRequest, Vec<RequestEdit>)> {
    let pieces = (vec(any::<Index>(), 64), vec(sample_text(), 8), vec(any::<String>(), 4));
    (samples(), pieces).prop_map(|(sample, (choices, mut texts, odd))| {
        texts.extend(odd);
        let mut choices = choices.into_iter().cycle();
        let mut choose = move |among: usize| choices.next().unwrap().index(among);
        let mut edits = Vec::new();
        let messages = &sample.conversation.messages;
        let request = sample.request();
        for (at, message) in messages.iter().enumerate() {
            match choose(12) {
                0 => {
                    edits.push(RequestEdit::DropMessage(at));
                    continue;
                }
                1 => {
                    let role = [Role::User, Role::Assistant][choose(2)];
                    edits.push(RequestEdit::InsertMessage {
                        before: at,
                        role,
                        text: texts[choose(texts.len())].clone(),
                    });
                }
                2 => {
                    let json = serde_json::json!({"role": "user", "x": [1], "content": texts[choose(texts.len())]});
                    edits.push(RequestEdit::InsertJson { before: at, json: json.to_string() });
                }
                _ => {}
            }
            let mut remaining = message.parts.len();
            for (part, content) in message.parts.iter().enumerate() {
                let id = PartId::new(at, part);
                let text = texts[choose(texts.len())].clone();
                match (choose(5), content) {
                    (0 | 1, Part::Image(_)) if !sample.format.dialect().rules.media_is_editable => {}
                    (0 | 1, Part::Text { .. } | Part::Image(_)) => edits.push(RequestEdit::Text { at: id, text }),
                    (0, Part::ToolResult(_)) => edits.push(RequestEdit::Text { at: id, text }),
                    (1, Part::ToolResult(result)) => {
                        edits.push(RequestEdit::Text { at: id.inner(choose(result.content.len())), text });
                    }
                    (0 | 1, Part::ToolCall(_)) if !sample.format.dialect().rules.arguments_are_editable => {}
                    (0 | 1, Part::ToolCall(ToolCall { arguments: CallArguments::Json(_), .. })) => {
                        let arguments = serde_json::json!({"folded": text}).to_string();
                        edits.push(RequestEdit::Arguments { at: id, arguments });
                    }
                    (0 | 1, Part::ToolCall(_)) => edits.push(RequestEdit::Arguments { at: id, arguments: text }),
                    (2, _) if remaining > 1 && request.splice(&[RequestEdit::DropPart(id)]).is_ok() => {
                        edits.push(RequestEdit::DropPart(id));
                        remaining -= 1;
                    }
                    _ => {}
                }
            }
        }
        for _ in 0..choose(3) {
            let json = serde_json::json!({"role": "user", "content": texts[choose(texts.len())]}).to_string();
            edits.push(RequestEdit::InsertJson { before: messages.len(), json });
        }
        for number in 0..choose(3) {
            edits.push(RequestEdit::AppendTool { json: format!(r#"{{ "name":"ours_{number}","x":[[]]}}"#) });
        }
        (sample, edits)
    })
}

proptest! {
    #[test]
    fn splice_without_edits_returns_the_same_bytes(sample in samples()) {
        let request = sample.request();
        let same = request.splice(&[]).unwrap();
        prop_assert!(std::ptr::eq(&*same, sample.body.as_bytes()), "the bytes must be borrowed, not copied");
    }

    #[test]
    fn edits_produce_exactly_the_edited_conversation((sample, edits) in samples_with_edits()) {
        let body = sample.request().splice(&edits).unwrap();
        let request = Request::parse(sample.format, &body).unwrap();
        prop_assert_eq!(request.conversation(), &expected_after_edits(&sample.conversation, sample.format, &edits));
    }

    #[test]
    fn order_of_independent_edits_does_not_matter((sample, edits) in samples_with_edits()) {
        let inserts = |edit: &RequestEdit| {
            matches!(edit, RequestEdit::InsertMessage { .. } | RequestEdit::InsertJson { .. } | RequestEdit::AppendTool { .. })
        };
        let (stay, mut turn): (Vec<RequestEdit>, Vec<RequestEdit>) = edits.iter().cloned().partition(inserts);
        turn.reverse();
        turn.extend(stay);
        prop_assert_eq!(sample.request().splice(&edits), sample.request().splice(&turn));
    }

    /// Edits write a unique marker text, so that the bytes between the markers can be compared with the body
    /// independently of the edit positions.
    #[test]
    fn bytes_outside_edits_never_change(sample in samples(), chosen in vec(any::<bool>(), 1..24)) {
        const EDIT_MARK: &str = "\u{e000}edited\u{e000}";
        prop_assume!(!sample.body.contains(EDIT_MARK));
        let request = sample.request();
        let mut chosen = chosen.into_iter().cycle();
        let mut edits = Vec::new();
        for (at, message) in sample.conversation.messages.iter().enumerate() {
            for (part, content) in message.parts.iter().enumerate().filter(|_| chosen.next().unwrap()) {
                let at = PartId::new(at, part);
                edits.push(match content {
                    // The items of a list are replaced by a new one; one of them changes nothing else.
                    Part::ToolResult(result) if sample.format == Format::Converse && result.content.len() > 1 => {
                        RequestEdit::Text { at: at.inner(0), text: EDIT_MARK.into() }
                    }
                    Part::Text { .. } | Part::ToolResult(_) => RequestEdit::Text { at, text: EDIT_MARK.into() },
                    Part::ToolCall(_) if sample.format.dialect().rules.arguments_are_editable => {
                        RequestEdit::Arguments { at, arguments: format!("\"{EDIT_MARK}\"") }
                    }
                    _ => continue,
                });
            }
        }
        let out = String::from_utf8(request.splice(&edits).unwrap().into_owned()).unwrap();
        let mut rest = sample.body.as_str();
        // After the marker come the closing quotes of its literal: one or two, escaped or not.
        let mut pieces = out.split(EDIT_MARK).enumerate();
        let (_, first) = pieces.next().unwrap();
        let unquoted = first.trim_end_matches(['"', '\\']);
        prop_assert!(rest.starts_with(unquoted));
        rest = &rest[unquoted.len()..];
        for (_, piece) in pieces {
            let piece = piece.trim_start_matches(['"', '\\']).trim_end_matches(['"', '\\']);
            let at = rest.find(piece);
            prop_assert!(at.is_some(), "{:?} is missing", piece);
            rest = &rest[at.unwrap() + piece.len()..];
        }
        prop_assert_eq!(out.matches(EDIT_MARK).count(), edits.len());
        let last = out.rsplit(EDIT_MARK).next().unwrap().trim_start_matches(['"', '\\']);
        prop_assert!(sample.body.ends_with(last));
    }

    #[test]
    fn unedited_messages_and_fields_keep_their_bytes((sample, edits) in samples_with_edits()) {
        let before = sample.request();
        let body = before.splice(&edits).unwrap();
        let after = Request::parse(sample.format, &body).unwrap();
        for key in ["model", "max_tokens", "system", "instructions", "store", "thinking", "x_number"] {
            prop_assert_eq!(before.field(key), after.field(key));
        }
        let touched = |at: usize| edits.iter().any(|edit| match edit {
            RequestEdit::Text { at: id, .. } | RequestEdit::Arguments { at: id, .. } | RequestEdit::DropPart(id) => id.message == at,
            RequestEdit::DropMessage(message) => *message == at,
            _ => false,
        });
        let mut kept = (0..after.conversation().messages.len()).map(|at| after.raw_message(at).unwrap());
        for at in (0..sample.conversation.messages.len()).filter(|&at| !touched(at)) {
            let raw = before.raw_message(at).unwrap();
            prop_assert!(kept.any(|other| other == raw), "message {} changed", at);
        }
    }

    #[test]
    fn parse_never_panics_on_any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        for format in Format::all() {
            let _ = Request::parse(format, &bytes);
        }
        let _ = Format::detect(&bytes);
    }

    #[test]
    fn parse_never_panics_on_damaged_bodies(sample in samples(), damage in vec((any::<Index>(), any::<u8>()), 1..4), cut in any::<Index>()) {
        let mut bytes = sample.body.into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            for format in Format::all() {
                if let Ok(request) = Request::parse(format, bytes) {
                    prop_assert_eq!(request.splice(&[]).unwrap(), bytes);
                }
            }
            let _ = Format::detect(bytes);
        }
    }

    /// A body parsed as another dialect is at worst rejected.
    #[test]
    fn body_of_another_dialect_does_not_panic(sample in samples(), format in select(Format::all().collect::<Vec<_>>())) {
        if let Ok(request) = Request::parse(format, sample.body.as_bytes()) {
            prop_assert_eq!(request.splice(&[]).unwrap(), sample.body.as_bytes());
        }
    }

    /// Unchecked edits give a typed error, or a body that can be parsed.
    #[test]
    fn any_edits_give_a_typed_error_or_a_request(sample in samples(), edits in vec(any_edit(), 0..6)) {
        match sample.request().splice(&edits) {
            Ok(body) => prop_assert!(Request::parse(sample.format, &body).is_ok()),
            Err(error) => prop_assert_eq!(error.kind(), &ErrorKind::BadEdit),
        }
    }
}

fn any_edit() -> impl Strategy<Value = RequestEdit> {
    let at = || {
        (0..6_usize, 0..4_usize, proptest::option::of(0..3_usize)).prop_map(|(message, part, inner)| PartId {
            message,
            part,
            inner,
        })
    };
    let json = || {
        prop_oneof![
            "[{}\\[\\]\",:a0 ]{0,8}",
            Just("{}".to_owned()),
            Just("[1]".to_owned()),
            Just(r#"{"role":"user","content":"x"}"#.to_owned()),
            (0..140_usize).prop_map(|depth| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth))),
        ]
    };
    prop_oneof![
        (at(), sample_text()).prop_map(|(at, text)| RequestEdit::Text { at, text }),
        (at(), json()).prop_map(|(at, arguments)| RequestEdit::Arguments { at, arguments }),
        at().prop_map(RequestEdit::DropPart),
        (0..6_usize).prop_map(RequestEdit::DropMessage),
        (0..6_usize, sample_text()).prop_map(|(before, text)| RequestEdit::InsertMessage {
            before,
            role: Role::User,
            text
        }),
        (0..6_usize, json()).prop_map(|(before, json)| RequestEdit::InsertJson { before, json }),
        json().prop_map(|json| RequestEdit::AppendTool { json }),
    ]
}

fn parse_chat(body: &str) -> Request<'_> {
    Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap()
}

fn spliced_text(request: &Request<'_>, edits: &[RequestEdit]) -> String {
    String::from_utf8(request.splice(edits).unwrap().into_owned()).unwrap()
}

fn replace_text(message: usize, part: usize, text: &str) -> RequestEdit {
    RequestEdit::Text { at: PartId::new(message, part), text: text.into() }
}

/// Every spelling that JSON allows, around two edits.
#[test]
fn unusual_json_spelling_survives_edits() {
    let body = concat!(
        "\r\n{ \"n\" : [ -0, 1e+400, 123456789012345678901234567890, 0.10 ] ,\t\"n\":2,",
        "\"\\u006dessages\" : [ {\"role\":\"user\" , \"content\" : \"a\\u00e9\\ud83d\\ude00\\/\" , \"content\":\"b\\ud83d\"}\n,\n",
        "{\"content\":\"c\",\"role\":\"assistant\",\"content\" : null , \"x\":{\"content\":\"not this\"}} ],\"z\":{} }\n \t"
    );
    let request = parse_chat(body);
    assert_eq!(request.splice(&[]).unwrap(), body.as_bytes());
    assert_eq!(request.conversation().messages[0], Message::text(Role::User, "b\\ud83d"));
    let expected = body.replace("\"b\\ud83d\"", "\"new\\n\"");
    assert_eq!(spliced_text(&request, &[replace_text(0, 0, "new\n")]), expected);
}

/// If the last of two duplicate keys were removed, the first one would become effective.
#[test]
fn duplicate_key_cannot_be_dropped_alone() {
    let body = r#"[{"role":"assistant","content":"old","content":"new","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}]"#;
    let error = parse_chat(body).splice(&[RequestEdit::DropPart(PartId::new(0, 0))]).unwrap_err();
    assert_eq!(error.to_string(), "bad edit: part 0.0 can only be dropped with its message");
}

#[test]
fn emptied_list_is_removed_with_its_field() {
    let body =
        r#"[{"role":"assistant","content":"x","tool_calls":[ {"id":"c","function":{"name":"f","arguments":"{}"}} ]}]"#;
    assert_eq!(
        spliced_text(&parse_chat(body), &[RequestEdit::DropPart(PartId::new(0, 1))]),
        r#"[{"role":"assistant","content":"x"}]"#
    );
    assert_eq!(
        spliced_text(&parse_chat(body), &[RequestEdit::DropPart(PartId::new(0, 0))]),
        r#"[{"role":"assistant","tool_calls":[ {"id":"c","function":{"name":"f","arguments":"{}"}} ]}]"#
    );
    let both = [RequestEdit::DropPart(PartId::new(0, 0)), RequestEdit::DropPart(PartId::new(0, 1))];
    let error = parse_chat(body).splice(&both).unwrap_err();
    assert_eq!(error.to_string(), "bad edit: message 0 would be left empty: drop it instead");
}

/// Every position of a list, and every neighbor, with the right commas.
#[test]
fn any_drops_and_inserts_leave_a_valid_list() {
    let message = |name: &str| format!(r#"{{"role":"user","content":"{name}"}}"#);
    let body = format!("[ {} , {},{} ]", message("0"), message("1"), message("2"));
    for dropped in 0..8_usize {
        for inserted in 0..256_usize {
            let mut edits = Vec::new();
            let mut expected = Vec::new();
            for at in 0..4 {
                for number in 0..inserted >> (2 * at) & 3 {
                    let name = format!("{at}{number}");
                    edits.push(RequestEdit::InsertJson { before: at, json: message(&name) });
                    expected.push(name);
                }
                if dropped >> at & 1 == 1 {
                    edits.push(RequestEdit::DropMessage(at));
                } else if at < 3 {
                    expected.push(at.to_string());
                }
            }
            let out = spliced_text(&parse_chat(&body), &edits);
            let request = parse_chat(&out);
            let texts = request.conversation().messages.iter().map(|message| message.parts[0].as_text().unwrap());
            assert_eq!(texts.collect::<Vec<_>>(), expected, "{out}");
        }
    }
}

/// Editing time is linear in the bytes, however many messages there are.
#[test]
fn ten_thousand_messages_are_edited_in_linear_time() {
    let one = |at: usize| format!(r#"{{"role":"user","content":"{at}"}}"#);
    let all: Vec<String> = (0..10_000).map(one).collect();
    let body = format!("{{\"messages\":[{}]}}", all.join(" ,\n"));
    let request = parse_chat(&body);
    assert_eq!(request.splice(&[]).unwrap(), body.as_bytes());
    let edits: Vec<RequestEdit> = (0..10_000)
        .map(|at| match at % 4 {
            0 => replace_text(at, 0, "edited"),
            1 => RequestEdit::DropMessage(at),
            2 => RequestEdit::InsertMessage { before: at, role: Role::User, text: "new".into() },
            _ => RequestEdit::DropMessage(at),
        })
        .collect();
    let out = spliced_text(&request, &edits);
    let texts: Vec<String> = parse_chat(&out)
        .conversation()
        .messages
        .iter()
        .map(|message| message.parts[0].as_text().unwrap().into())
        .collect();
    let expected = (0..10_000).step_by(4).flat_map(|at| ["edited".to_owned(), "new".to_owned(), (at + 2).to_string()]);
    assert_eq!(texts, expected.collect::<Vec<_>>());
}

#[test]
fn message_with_64_nesting_levels_is_edited() {
    let deep = format!("{}1{}", "[{\"a\":".repeat(32), "}]".repeat(32));
    let body = format!(r#"{{"messages":[{{"x":{deep},"role":"user","content":"hi"}}]}}"#);
    let expected = body.replace("hi", "hello");
    assert_eq!(spliced_text(&parse_chat(&body), &[replace_text(0, 0, "hello")]), expected);
}

#[test]
fn non_request_is_a_typed_error() {
    let kind = |format, body: &str| Request::parse(format, body.as_bytes()).unwrap_err().kind().clone();
    for format in Format::all() {
        assert_eq!(kind(format, ""), ErrorKind::NotJson { offset: 0 });
        assert_eq!(kind(format, "{\"messages\":[],\"input\":[] "), ErrorKind::NotJson { offset: 26 });
        assert_eq!(kind(format, "{\"messages\":[{},]}"), ErrorKind::NotJson { offset: 16 });
        assert_eq!(kind(format, "[] x"), ErrorKind::NotJson { offset: 3 });
        for body in ["1", "\"text\"", "null", "{}", "{\"messages\":{},\"input\":{}}", "[1]", "{\"prompt\":\"old\"}"] {
            assert_eq!(kind(format, body), ErrorKind::NotARequest, "{body}");
        }
        let deep = "[".repeat(200);
        assert_eq!(
            kind(format, &format!("{{\"x\":{deep}")),
            ErrorKind::TooDeep { offset: 5 + MAX_JSON_DEPTH as usize - 1 }
        );
        let error = Request::parse(format, b"{\"messages\":\"\xff\"}").unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::NotJson { offset: 13 });
    }
}

/// Positions are 32-bit. The body is never read, so its memory pages are never touched.
#[test]
#[cfg(target_pointer_width = "64")]
fn body_over_4_gb_is_a_typed_error() {
    // Skipped where this much memory cannot be reserved.
    if Vec::<u8>::new().try_reserve_exact(crate::wire::json::layout::MAX_BODY_BYTES + 1).is_err() {
        return;
    }
    let body = vec![0; crate::wire::json::layout::MAX_BODY_BYTES + 1];
    let error = Request::parse(Format::OpenAiChat, &body).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TooLong { limit: crate::wire::json::layout::MAX_BODY_BYTES });
    let error = Request::parse(Format::OpenAiChat, &body[..8]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::NotJson { offset: 0 });
}

/// Memory is reserved as the first messages predict; later ones may be more, fewer, longer or shorter.
#[test]
fn messages_of_changing_length_are_all_read() {
    let message =
        |text: usize| format!(r#"{{"role":"user","content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(text));
    for lengths in [[1, 2_000], [2_000, 1]] {
        let messages: Vec<String> = (0..3_000).map(|at| message(lengths[usize::from(at >= 300)] + at % 7)).collect();
        let body = format!("[{}]", messages.join(","));
        for format in Format::all().filter(|format| !matches!(format, Format::Gemini | Format::Ollama)) {
            let request = Request::parse(format, body.as_bytes()).unwrap();
            assert_eq!(request.conversation().messages.len(), 3_000);
            assert!((0..3_000).all(|at| request.raw_message(at) == Some(&messages[at])));
            let last = request.splice(&[replace_text(2_999, 0, "y")]).unwrap();
            let expected = format!("[{},{}]", messages[..2_999].join(","), message(0).replace(r#""""#, r#""y""#));
            assert_eq!(String::from_utf8_lossy(&last), expected);
        }
    }
}

#[test]
fn invalid_edit_is_a_typed_error() {
    let body = r#"{"messages":[{"role":"assistant","reasoning_content":"hm","content":"x","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"out"}]}"#;
    let request = parse_chat(body);
    let id = PartId::new;
    let error = |edits: &[RequestEdit]| request.splice(edits).unwrap_err().to_string();
    let arguments = |at, arguments: &str| RequestEdit::Arguments { at, arguments: arguments.into() };
    let insert = |before, json: &str| RequestEdit::InsertJson { before, json: json.into() };
    for (edits, expected) in [
        (vec![replace_text(2, 0, "")], "bad edit: there is no message 2"),
        (vec![replace_text(0, 3, "")], "bad edit: there is no part 0.3"),
        (vec![replace_text(0, 0, "")], "bad edit: part 0.0 has no text that can be replaced"),
        (vec![replace_text(0, 2, "")], "bad edit: part 0.2 has no text that can be replaced"),
        (vec![RequestEdit::Text { at: id(1, 0).inner(1), text: String::new() }], "bad edit: there is no part 1.0.1"),
        (vec![arguments(id(0, 1), "{}")], "bad edit: part 0.1 has no arguments that can be replaced"),
        (
            vec![arguments(id(0, 2), "{")],
            "bad edit: the new arguments of part 0.2 are not JSON: expected a string at byte 1",
        ),
        (vec![RequestEdit::DropPart(id(1, 0))], "bad edit: part 1.0 can only be dropped with its message"),
        (vec![RequestEdit::DropMessage(9)], "bad edit: there is no message 9"),
        (vec![insert(3, "{}")], "bad edit: there is no message 3 to insert before"),
        (vec![insert(0, "1")], "bad edit: the inserted text is not a JSON object"),
        (vec![insert(0, "{},{}")], "bad edit: the inserted text is not JSON: trailing text after the value at byte 2"),
        (
            vec![RequestEdit::AppendTool { json: "{}".into() }],
            "bad edit: the request has no list of tools to append to",
        ),
        (vec![replace_text(0, 1, "a"), replace_text(0, 1, "b")], "bad edit: two edits change the bytes at 68"),
        (vec![RequestEdit::DropMessage(1), replace_text(1, 0, "b")], "bad edit: two edits change the bytes at 184"),
    ] {
        assert_eq!(error(&edits), expected);
    }
    let tool = RequestEdit::InsertMessage { before: 0, role: Role::Tool, text: "x".into() };
    assert_eq!(error(&[tool]), "bad edit: role Tool cannot have a text-only message");
    let lone = Request::parse(Format::OpenAiResponses, br#"{"input":"hi"}"#).unwrap();
    let error = lone.splice(&[RequestEdit::DropMessage(0)]).unwrap_err();
    assert_eq!(error.to_string(), "bad edit: the input is a plain string, not a list of messages");
    assert_eq!(*lone.splice(&[replace_text(0, 0, "ho")]).unwrap(), *br#"{"input":"ho"}"#);
    let around = lone.splice(&[insert(1, r#"{"b":1}"#), replace_text(0, 0, "ho"), insert(0, r#"{"a":1}"#)]).unwrap();
    assert_eq!(*around, *br#"{"input":[{"a":1},{"role":"user","content":"ho"},{"b":1}]}"#);
}

/// A result of several blocks becomes one text; one of its blocks can be replaced alone.
#[test]
fn result_is_replaced_whole_or_one_block() {
    let body = r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"image","source":{"type":"url","url":"u"}}]}]}]"#;
    let request = Request::parse(Format::Anthropic, body.as_bytes()).unwrap();
    assert_eq!(
        spliced_text(&request, &[replace_text(0, 0, "folded")]),
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"folded"}]}]"#
    );
    let at = PartId::new(0, 0);
    let pieces = [
        RequestEdit::Text { at: at.inner(0), text: "b".into() },
        RequestEdit::Text { at: at.inner(1), text: "a picture was here".into() },
    ];
    assert_eq!(
        spliced_text(&request, &pieces),
        body.replace(r#""text":"a""#, r#""text":"b""#).replace(
            r#"{"type":"image","source":{"type":"url","url":"u"}}"#,
            r#"{"type":"text","text":"a picture was here"}"#
        )
    );
}

/// A dialect is detected by fields that only one of them has.
#[test]
fn dialect_of_a_body_is_detected() {
    for (body, format) in [
        (r#"{"input":"hi"}"#, Some(Format::OpenAiResponses)),
        (r#"{"instructions":"x","input":[]}"#, Some(Format::OpenAiResponses)),
        (r#"[{"type":"function_call","call_id":"c"}]"#, Some(Format::OpenAiResponses)),
        (r#"{"system":"x","messages":[]}"#, Some(Format::Anthropic)),
        (r#"{"messages":[],"tools":[{"name":"f","input_schema":{}}]}"#, Some(Format::Anthropic)),
        (
            r#"[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use"}]}]"#,
            Some(Format::Anthropic),
        ),
        (r#"{"contents":[{"parts":[{"text":"hi"}]}]}"#, Some(Format::Gemini)),
        (r#"[{"role":"model","parts":[]}]"#, Some(Format::Gemini)),
        (r#"{"messages":[],"options":{"num_ctx":4096}}"#, Some(Format::Ollama)),
        (r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]}]"#, Some(Format::Ollama)),
        (r#"{"messages":[],"inferenceConfig":{"maxTokens":9}}"#, Some(Format::Converse)),
        (
            r#"[{"role":"assistant","content":[{"toolUse":{"toolUseId":"t","name":"f","input":{}}}]}]"#,
            Some(Format::Converse),
        ),
        (r#"{"messages":[{"role":"developer","content":"x"}]}"#, Some(Format::OpenAiChat)),
        (r#"{"messages":[{"role":"user","content":"x"}]}"#, Some(Format::OpenAiChat)),
        (r#"{}"#, Some(Format::OpenAiChat)),
        ("17", None),
        ("{", None),
        ("", None),
    ] {
        assert_eq!(Format::detect(body.as_bytes()), format, "{body}");
    }
}
