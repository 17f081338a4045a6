//! Conversion of messages to Chat Completions messages, for engines in other processes.

use foldline::conversation::MediaSource;
use foldline::{Message, Part, Role};
use serde_json::{Map, Value, json};

/// Converts a message to one or more chat messages: results become separate messages before the
/// rest of their message.
pub(crate) fn to_chat_messages(message: &Message<'_>) -> Vec<Value> {
    let mut out: Vec<Value> = message
        .results()
        .map(|result| {
            let text = result.texts().collect::<Vec<_>>().join("\n");
            json!({ "role": "tool", "tool_call_id": result.call_id, "content": text })
        })
        .collect();
    let text = joined_text(message);
    let reasoning: Vec<&str> = message.parts.iter().filter_map(reasoning_text).collect();
    let calls: Vec<Value> = message
        .calls()
        .map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments.as_str() });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    if !out.is_empty() && text.is_none() && calls.is_empty() && reasoning.is_empty() {
        return out;
    }
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        _ => "user",
    };
    let mut fields = Map::new();
    fields.insert("role".to_owned(), role.into());
    let content = if text.is_none() && !calls.is_empty() { Value::Null } else { text.unwrap_or_default().into() };
    fields.insert("content".to_owned(), content);
    if !reasoning.is_empty() {
        fields.insert("reasoning_content".to_owned(), reasoning.join("\n").into());
    }
    if !calls.is_empty() {
        fields.insert("tool_calls".to_owned(), calls.into());
    }
    out.push(Value::Object(fields));
    out
}

/// Joins the texts of a message: chat messages of engines have no parts.
pub(crate) fn joined_text(message: &Message<'_>) -> Option<String> {
    let texts: Vec<&str> = message.parts.iter().filter_map(part_text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn part_text<'a>(part: &'a Part<'_>) -> Option<&'a str> {
    match part {
        Part::Text { text } => Some(text),
        Part::File(file) => match &file.source {
            MediaSource::Text(text) => Some(text),
            _ => Some("[file]"),
        },
        Part::Image(_) => Some("[image]"),
        _ => None,
    }
}

fn reasoning_text<'a>(part: &'a Part<'_>) -> Option<&'a str> {
    match part {
        Part::Reasoning(reasoning) if !reasoning.text.is_empty() => Some(&reasoning.text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::{Format, Request};

    /// Converted messages are parsed back the same, so that an engine which changes nothing is recognized.
    #[test]
    fn chat_messages_round_trip() {
        let messages = [
            Message::text(Role::System, "s"),
            Message::text(Role::User, "u"),
            Message::new(
                Role::Assistant,
                vec![Part::reasoning("hm"), Part::text("a"), Part::call("c", "sh", "{\"x\":1}")],
            ),
            Message::new(Role::Tool, vec![Part::result("c", "out\nput")]),
            Message::new(Role::Assistant, vec![Part::call("d", "sh", "{}")]),
        ];
        let body = Value::Array(messages.iter().flat_map(to_chat_messages).collect()).to_string();
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        assert_eq!(request.conversation().messages, messages);
    }

    #[test]
    fn results_inside_a_user_message_become_messages() {
        let message = Message::new(Role::User, vec![Part::result("c", "out"), Part::text("and now?")]);
        let roles: Vec<_> = to_chat_messages(&message).into_iter().map(|message| message["role"].clone()).collect();
        assert_eq!(roles, ["tool", "user"]);
    }
}
