//! A conversation as a test shows it: one line a message.

use crate::conversation::{Arguments, Conversation, Image, Part, Role, Source};

/// The shape of a conversation, one line a message; instructions outside the messages come first.
pub fn shape(conversation: &Conversation<'_>) -> Vec<String> {
    let standing = (!conversation.system.is_empty()).then(|| format!("standing: {}", parts(&conversation.system)));
    let messages =
        conversation.messages.iter().map(|message| format!("{}: {}", name(message.role), parts(&message.parts)));
    standing.into_iter().chain(messages).collect()
}

fn name(role: Role) -> String {
    format!("{role:?}").to_lowercase()
}

fn parts(parts: &[Part<'_>]) -> String {
    parts.iter().map(part).collect::<Vec<_>>().join(" | ")
}

fn part(part: &Part<'_>) -> String {
    match part {
        Part::Text { text } => format!("{text:?}"),
        Part::Reasoning(it) => match &it.seal {
            Some(seal) => format!("thought {:?} sealed {seal}", it.text),
            None => format!("thought {:?}", it.text),
        },
        Part::ToolCall(it) => match &it.arguments {
            Arguments::Json(json) => format!("call {} {}({json})", it.id, it.name),
            Arguments::Text(text) => format!("call {} {}({text:?})", it.id, it.name),
        },
        Part::ToolResult(it) => {
            let outcome = if it.is_error { "failed" } else { "result" };
            format!("{outcome} {} [{}]", it.call_id, parts(&it.content))
        }
        Part::Image(Image { source, detail }) => match detail {
            Some(detail) => format!("image {} {detail}", place(source)),
            None => format!("image {}", place(source)),
        },
        Part::File(file) => match &file.name {
            Some(name) => format!("file {name:?} {}", place(&file.source)),
            None => format!("file {}", place(&file.source)),
        },
        Part::Opaque(it) => match &it.pair {
            Some(pair) => format!("kept {} {pair}", it.kind),
            None => format!("kept {}", it.kind),
        },
    }
}

fn place(source: &Source<'_>) -> String {
    match source {
        Source::Base64(data) => format!("of {} base64 characters", data.len()),
        Source::Text(text) => format!("{text:?}"),
        Source::Url(url) => format!("at {url}"),
        Source::Id(id) => format!("id {id}"),
        Source::Unknown => "somewhere".to_owned(),
    }
}
