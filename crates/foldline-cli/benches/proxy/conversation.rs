//! Synthetic agent conversations; no two of them share more than their beginning.

use serde_json::{Value, json};

use super::synthetic::TextGenerator;

/// A conversation as its messages, in Chat Completions or Anthropic Messages.
pub(crate) struct BenchConversation {
    format: BenchFormat,
    /// The messages in JSON; a request ends after any user or tool message.
    messages: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchFormat {
    Chat,
    Anthropic,
}

impl BenchFormat {
    pub(crate) fn path(self) -> &'static str {
        match self {
            BenchFormat::Chat => "/v1/chat/completions",
            BenchFormat::Anthropic => "/v1/messages",
        }
    }
}

impl BenchConversation {
    /// Creates a conversation of a task and `turns` turns with a result of `bytes` bytes each.
    pub(crate) fn new(format: BenchFormat, seed: u64, turns: usize, bytes: usize) -> Self {
        let mut printer = TextGenerator::new(seed);
        let mut messages =
            vec![json!({ "role": "user", "content": format!("Repair {}. {}", printer.path(), printer.text(400)) })];
        for turn in 0..turns {
            messages.extend(round_messages(format, turn, &mut printer, bytes));
        }
        Self { format, messages: messages.iter().map(Value::to_string).collect() }
    }

    /// Returns the number of its requests.
    pub(crate) fn request_count(&self) -> usize {
        self.messages.len().div_ceil(2)
    }

    /// Returns the body of a request, counted from 0.
    pub(crate) fn request_body(&self, request: usize, stream: bool) -> String {
        let messages = self.messages[..=request * 2].join(",");
        let parameters = r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#;
        match self.format {
            BenchFormat::Chat => format!(
                r#"{{"model":"gpt-5.4","stream":{stream},"max_completion_tokens":4000,"tools":[{{"type":"function","function":{{"name":"read_file","description":"Read a file","parameters":{parameters}}}}}],"messages":[{{"role":"system","content":"You are a careful programmer."}},{messages}]}}"#
            ),
            BenchFormat::Anthropic => format!(
                r#"{{"model":"claude-sonnet-4-5","stream":{stream},"max_tokens":4000,"tools":[{{"name":"read_file","description":"Read a file","input_schema":{parameters}}}],"system":"You are a careful programmer.","messages":[{messages}]}}"#
            ),
        }
    }
}

fn round_messages(format: BenchFormat, turn: usize, printer: &mut TextGenerator, bytes: usize) -> [Value; 2] {
    let (id, text) = (format!("call_{turn}"), printer.text(120));
    let arguments = json!({ "path": printer.path() });
    let result = printer.text(bytes);
    match format {
        BenchFormat::Chat => [
            json!({ "role": "assistant", "content": text, "tool_calls": [{ "id": id, "type": "function",
                "function": { "name": "read_file", "arguments": arguments.to_string() } }] }),
            json!({ "role": "tool", "tool_call_id": id, "content": result }),
        ],
        BenchFormat::Anthropic => [
            json!({ "role": "assistant", "content": [{ "type": "text", "text": text },
                { "type": "tool_use", "id": id, "name": "read_file", "input": arguments }] }),
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": result }] }),
        ],
    }
}
