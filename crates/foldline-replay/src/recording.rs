//! A recorded conversation, as it comes out of a file.

use foldline::{Conversation, Message, Part, Role, Tool};
use serde::Deserialize;

/// A recorded conversation.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its name, unique in a set.
    pub id: String,
    /// The messages.
    pub conversation: Conversation<'static>,
}

#[derive(Deserialize)]
struct Record {
    id: String,
    model: Option<String>,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    tools: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct ChatMessage {
    role: String,
    content: Option<String>,
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ChatCall>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct ChatCall {
    id: String,
    function: ChatFunction,
}

#[derive(Deserialize)]
struct ChatFunction {
    name: String,
    arguments: String,
}

impl Recording {
    /// Reads one line of a set.
    pub fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        let record: Record = serde_json::from_str(line)?;
        let tools = record
            .tools
            .into_iter()
            .map(|tool| Tool {
                name: tool["function"]["name"].as_str().unwrap_or_default().to_owned().into(),
                definition: tool.to_string().into(),
            })
            .collect();
        Ok(Self {
            id: record.id,
            conversation: Conversation {
                model: record.model.map(Into::into),
                system: Vec::new(),
                tools,
                messages: record.messages.into_iter().map(message).collect(),
            },
        })
    }
}

fn message(it: ChatMessage) -> Message<'static> {
    let role = match it.role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => Role::Other,
    };
    let mut parts = Vec::new();
    if let Some(reasoning) = it.reasoning_content.filter(|text| !text.is_empty()) {
        parts.push(Part::reasoning(reasoning));
    }
    if let Some(content) = it.content.filter(|text| !text.is_empty()) {
        parts.push(match it.tool_call_id {
            Some(id) => Part::result(id, content),
            None => Part::text(content),
        });
    } else if let Some(id) = it.tool_call_id {
        parts.push(Part::result(id, ""));
    }
    for call in it.tool_calls {
        parts.push(Part::call(call.id, call.function.name, call.function.arguments));
    }
    Message::new(role, parts)
}
