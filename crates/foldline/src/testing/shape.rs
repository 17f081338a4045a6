//! Text form of a conversation for tests: one line per message.

use crate::conversation::{CallArguments, Conversation, ImagePart, MediaSource, Part, Role};

/// Returns a conversation as one line per message; instructions outside the messages come first.
pub fn shape(conversation: &Conversation<'_>) -> Vec<String> {
    let instructions = (!conversation.system.is_empty()).then(|| format!("standing: {}", parts(&conversation.system)));
    let messages =
        conversation.messages.iter().map(|message| format!("{}: {}", role_name(message.role), parts(&message.parts)));
    instructions.into_iter().chain(messages).collect()
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
        Part::Reasoning(reasoning) => match &reasoning.seal {
            Some(seal) => format!("thought {:?} sealed {seal}", reasoning.text),
            None => format!("thought {:?}", reasoning.text),
        },
        Part::ToolCall(call) => match &call.arguments {
            CallArguments::Json(json) => format!("call {} {}({json})", call.id, call.name),
            CallArguments::Text(text) => format!("call {} {}({text:?})", call.id, call.name),
        },
        Part::ToolResult(result) => {
            let outcome = if result.is_error { "failed" } else { "result" };
            format!("{outcome} {} [{}]", result.call_id, parts(&result.content))
        }
        Part::Image(ImagePart { source, detail }) => match detail {
            Some(detail) => format!("image {} {detail}", source_text(source)),
            None => format!("image {}", source_text(source)),
        },
        Part::File(file) => match &file.name {
            Some(name) => format!("file {name:?} {}", source_text(&file.source)),
            None => format!("file {}", source_text(&file.source)),
        },
        Part::Opaque(block) => match &block.pair {
            Some(pair) => format!("kept {} {pair}", block.kind),
            None => format!("kept {}", block.kind),
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
