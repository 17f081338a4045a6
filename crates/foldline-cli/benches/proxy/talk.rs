//! Conversations of agents, made up word by word, so that no two of them share more than their beginning.

use serde_json::{Value, json};

/// A conversation as its messages, in Chat Completions or Anthropic Messages.
pub(crate) struct Talk {
    format: Format,
    /// Each in JSON; a request ends behind any message of a user or tool.
    messages: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Chat,
    Anthropic,
}

impl Format {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Format::Chat => "/v1/chat/completions",
            Format::Anthropic => "/v1/messages",
        }
    }
}

/// Numbers that look random and are always the same.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn throw(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }

    fn word(&mut self) -> String {
        const SYLLABLES: [&str; 24] = [
            "con", "text", "par", "ser", "lex", "node", "tree", "walk", "fold", "mark", "hash", "map", "read", "er",
            "ing", "buf", "fer", "in", "dex", "quo", "ta", "lim", "it", "s",
        ];
        (0..2 + self.throw(3)).map(|_| SYLLABLES[self.throw(SYLLABLES.len())]).collect()
    }

    /// A line as it stands in a source, a log or a listing.
    fn line(&mut self) -> String {
        match self.throw(5) {
            0 => format!("    let {} = {}({}, {});", self.word(), self.word(), self.word(), self.throw(10_000)),
            1 => format!("pub fn {}({}: &str) -> Result<{}, Error> {{", self.word(), self.word(), self.word()),
            2 => format!("test {}::{} ... ok", self.word(), self.word()),
            3 => format!("src/{}/{}.rs:{}: {}", self.word(), self.word(), self.throw(900), self.word()),
            _ => format!("        // the {} of a {} is not the {}", self.word(), self.word(), self.word()),
        }
    }

    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 80);
        while text.len() < bytes {
            text += &self.line();
            text.push('\n');
        }
        text
    }
}

impl Talk {
    /// A task, and turns with a result of so many bytes each.
    pub(crate) fn new(format: Format, seed: u64, turns: usize, bytes: usize) -> Self {
        let mut dice = Dice::new(seed);
        let mut messages =
            vec![json!({ "role": "user", "content": format!("Mend the {}. {}", dice.word(), dice.text(400)) })];
        for turn in 0..turns {
            messages.extend(round(format, turn, &mut dice, bytes));
        }
        Self { format, messages: messages.iter().map(Value::to_string).collect() }
    }

    /// Requests that it consists of.
    pub(crate) fn requests(&self) -> usize {
        self.messages.len().div_ceil(2)
    }

    /// The body of one of its requests, counted from 0.
    pub(crate) fn body(&self, request: usize, stream: bool) -> String {
        let messages = self.messages[..=request * 2].join(",");
        let parameters = r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#;
        match self.format {
            Format::Chat => format!(
                r#"{{"model":"gpt-5.4","stream":{stream},"max_completion_tokens":4000,"tools":[{{"type":"function","function":{{"name":"read_file","description":"Read a file","parameters":{parameters}}}}}],"messages":[{{"role":"system","content":"You are a careful programmer."}},{messages}]}}"#
            ),
            Format::Anthropic => format!(
                r#"{{"model":"claude-sonnet-4-5","stream":{stream},"max_tokens":4000,"tools":[{{"name":"read_file","description":"Read a file","input_schema":{parameters}}}],"system":"You are a careful programmer.","messages":[{messages}]}}"#
            ),
        }
    }
}

fn round(format: Format, turn: usize, dice: &mut Dice, bytes: usize) -> [Value; 2] {
    let (id, says) = (format!("call_{turn}"), dice.text(120));
    let arguments = json!({ "path": format!("src/{}.rs", dice.word()) });
    let result = dice.text(bytes);
    match format {
        Format::Chat => [
            json!({ "role": "assistant", "content": says, "tool_calls": [{ "id": id, "type": "function",
                "function": { "name": "read_file", "arguments": arguments.to_string() } }] }),
            json!({ "role": "tool", "tool_call_id": id, "content": result }),
        ],
        Format::Anthropic => [
            json!({ "role": "assistant", "content": [{ "type": "text", "text": says },
                { "type": "tool_use", "id": id, "name": "read_file", "input": arguments }] }),
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": result }] }),
        ],
    }
}
