//! Any edits of any request: a typed error, or a request that can be read and says what they say.
//!
//! The input is a line of edits, three bytes and a text each, and behind it the body.

#![no_main]

use foldline::wire::{Edit, Format, Request};
use foldline::{ErrorKind, PartId, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return };
    let (edits, body) = (edits(&input[..end]), &input[end + 1..]);
    for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
        let Ok(request) = Request::parse(format, body) else { continue };
        let edited = match request.splice(&edits) {
            Ok(edited) => edited,
            Err(error) => {
                assert_eq!(error.kind(), &ErrorKind::BadEdit);
                continue;
            }
        };
        let after = match Request::parse(format, &edited) {
            Ok(after) => after,
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&edited)),
        };
        let count = |wanted: fn(&Edit) -> bool| edits.iter().filter(|edit| wanted(edit)).count();
        let inserted = count(|edit| matches!(edit, Edit::InsertMessage { .. } | Edit::InsertJson { .. }));
        let mut dropped: Vec<usize> =
            edits.iter().filter_map(|edit| if let Edit::DropMessage(at) = edit { Some(*at) } else { None }).collect();
        dropped.sort_unstable();
        dropped.dedup();
        let (before, after) = (request.conversation(), after.conversation());
        assert_eq!(after.messages.len(), before.messages.len() + inserted - dropped.len());
        let tools = count(|edit| matches!(edit, Edit::AppendTool { .. }));
        assert_eq!(after.tools.len(), before.tools.len() + tools);
        if inserted == 0 && dropped.is_empty() && count(|edit| matches!(edit, Edit::DropPart(_))) == 0 {
            for edit in &edits {
                if let Edit::Text { at, text } = edit {
                    let part = after.part(*at).expect("an edited part is still there");
                    let said = match part {
                        foldline::Part::ToolResult(result) => result.only_text(),
                        part => part.as_text(),
                    };
                    assert_eq!(said, Some(text.as_str()));
                }
            }
        }
    }
});

fn edits(line: &[u8]) -> Vec<Edit> {
    line.split(|&byte| byte == b'\t').filter_map(edit).collect()
}

fn edit(bytes: &[u8]) -> Option<Edit> {
    let [kind, message, part, text @ ..] = bytes else { return None };
    let text = String::from_utf8_lossy(text).into_owned();
    let digit = |byte: &u8| usize::from(*byte % 16);
    let mut at = PartId::new(digit(message), digit(part) % 4);
    if digit(part) >= 8 {
        at = at.inner(digit(part) / 4 % 2);
    }
    let before = at.message;
    Some(match kind % 7 {
        0 => Edit::Text { at, text },
        1 => Edit::Arguments { at, arguments: text },
        2 => Edit::DropPart(at),
        3 => Edit::DropMessage(before),
        4 => Edit::InsertMessage { before, role: [Role::User, Role::Assistant, Role::System][digit(part) % 3], text },
        5 => Edit::InsertJson { before, json: text },
        _ => Edit::AppendTool { json: text },
    })
}
