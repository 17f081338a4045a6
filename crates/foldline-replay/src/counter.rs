//! Tokens, as the replay counts them: the same for every engine.

use foldline::{Message, Part, Source};

/// How tokens are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counter {
    /// The o200k vocabulary.
    #[default]
    O200k,
    /// A quarter of the bytes.
    Quarter,
}

/// What a message costs beyond its texts: the marks around it.
const FRAME: u64 = 4;

impl Counter {
    /// Tokens of a text.
    pub fn text(self, text: &str) -> u64 {
        match self {
            Counter::O200k => {
                tiktoken::get_encoding("o200k_base").expect("the vocabulary is part of the build").count(text) as u64
            }
            Counter::Quarter => text.len().div_ceil(4) as u64,
        }
    }

    /// Tokens of a message.
    pub fn message(self, message: &Message<'_>) -> u64 {
        FRAME + message.parts.iter().map(|part| self.part(part)).sum::<u64>()
    }

    /// Tokens of a part.
    pub fn part(self, part: &Part<'_>) -> u64 {
        match part {
            Part::Text { text } => self.text(text),
            Part::Reasoning(reasoning) => self.text(&reasoning.text),
            Part::ToolCall(call) => self.text(&call.name) + self.text(call.arguments.as_str()),
            Part::ToolResult(result) => result.content.iter().map(|part| self.part(part)).sum(),
            // A picture costs by its size, which recordings do not keep; this is a middling one.
            Part::Image(_) => 1_000,
            Part::File(file) => match &file.source {
                Source::Text(text) => self.text(text),
                _ => 1_000,
            },
            Part::Opaque(opaque) => self.text(&opaque.raw),
            _ => 0,
        }
    }
}
