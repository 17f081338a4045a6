//! A conversation as a test shows it: one line a message.

use crate::conversation::{CallArguments, Conversation, ImagePart, MediaSource, Part, Role};

/// The shape of a conversation, one line a message; instructions outside the messages come first.
pub fn shape(conversation: &Conversation<'_>) -> Vec<String> {
    let standing = (!conversation.system.is_empty()).then(|| format!("standing: {}", parts(&conversation.system)));
    let messages =
        conversation.messages.iter().map(|message| format!("{}: {}", role_name(message.role), parts(&message.parts)));
    standing.into_iter().chain(messages).collect()
}

fn role_name(role: Role) -> String {
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
            CallArguments::Json(json) => format!("call {} {}({json})", it.id, it.name),
            CallArguments::Text(text) => format!("call {} {}({text:?})", it.id, it.name),
        },
        Part::ToolResult(it) => {
            let outcome = if it.is_error { "failed" } else { "result" };
            format!("{outcome} {} [{}]", it.call_id, parts(&it.content))
        }
        Part::Image(ImagePart { source, detail }) => match detail {
            Some(detail) => format!("image {} {detail}", source_text(source)),
            None => format!("image {}", source_text(source)),
        },
        Part::File(file) => match &file.name {
            Some(name) => format!("file {name:?} {}", source_text(&file.source)),
            None => format!("file {}", source_text(&file.source)),
        },
        Part::Opaque(it) => match &it.pair {
            Some(pair) => format!("kept {} {pair}", it.kind),
            None => format!("kept {}", it.kind),
        },
    }
}

fn source_text(source: &MediaSource<'_>) -> String {
    match source {
        MediaSource::Base64(data) => format!("of {} base64 characters", data.len()),
        MediaSource::Text(text) => format!("{text:?}"),
        MediaSource::Url(url) => format!("at {url}"),
        MediaSource::Id(id) => format!("id {id}"),
        MediaSource::Unknown => "somewhere".to_owned(),
    }
}
