//! Any edits of any request give a typed error, or a request that can be parsed and contains the edits.
//!
//! The input is a line of edits, three bytes and a text each, followed by the body.

#![no_main]

use foldline::wire::{Format, Request, RequestEdit};
use foldline::{ErrorKind, Role};
use foldline::conversation::PartId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return };
    let (edits, body) = (edits(&input[..end]), &input[end + 1..]);
    for format in Format::all() {
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
        let count = |wanted: fn(&RequestEdit) -> bool| edits.iter().filter(|edit| wanted(edit)).count();
        let inserted = count(|edit| matches!(edit, RequestEdit::InsertMessage { .. } | RequestEdit::InsertJson { .. }));
        let mut dropped: Vec<usize> = edits
            .iter()
            .filter_map(|edit| if let RequestEdit::DropMessage(at) = edit { Some(*at) } else { None })
            .collect();
        dropped.sort_unstable();
        dropped.dedup();
        let (before, after) = (request.conversation(), after.conversation());
        assert_eq!(after.messages.len(), before.messages.len() + inserted - dropped.len());
        let tools = count(|edit| matches!(edit, RequestEdit::AppendTool { .. }));
        assert_eq!(after.tools.len(), before.tools.len() + tools);
        if inserted == 0 && dropped.is_empty() && count(|edit| matches!(edit, RequestEdit::DropPart(_))) == 0 {
            for edit in &edits {
                if let RequestEdit::Text { at, text } = edit {
                    let part = after.part(*at).expect("an edited part must exist");
                    let actual = match part {
                        foldline::Part::ToolResult(result) => result.only_text(),
                        part => part.as_text(),
                    };
                    assert_eq!(actual, Some(text.as_str()));
                }
            }
        }
    }
});

fn edits(line: &[u8]) -> Vec<RequestEdit> {
    line.split(|&byte| byte == b'\t').filter_map(edit).collect()
}

fn edit(bytes: &[u8]) -> Option<RequestEdit> {
    let [kind, message, part, text @ ..] = bytes else { return None };
    let text = String::from_utf8_lossy(text).into_owned();
    let digit = |byte: &u8| usize::from(*byte % 16);
    let mut at = PartId::new(digit(message), digit(part) % 4);
    if digit(part) >= 8 {
        at = at.inner(digit(part) / 4 % 2);
    }
    let before = at.message;
    Some(match kind % 7 {
        0 => RequestEdit::Text { at, text },
        1 => RequestEdit::Arguments { at, arguments: text },
        2 => RequestEdit::DropPart(at),
        3 => RequestEdit::DropMessage(before),
        4 => RequestEdit::InsertMessage {
            before,
            role: [Role::User, Role::Assistant, Role::System][digit(part) % 3],
            text,
        },
        5 => RequestEdit::InsertJson { before, json: text },
        _ => RequestEdit::AppendTool { json: text },
    })
}
