//! What a text is, and where something begins in it.

use crate::content::{self, Kind};
use crate::pass::prose::Fence;

/// What a text is, as far as its chunks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Content {
    /// Turns of users, assistants and tools, under labels.
    Conversation,
    /// Output of programs.
    Log,
    /// Source text or a diff.
    Code,
    /// Prose, maybe under headings.
    Document,
}

/// What begins with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Boundary {
    /// A line that reports a failure.
    Error,
    /// The result of a tool that failed.
    FailedTool,
    /// A heading.
    Heading,
    /// A turn of a conversation.
    Turn,
    /// A definition in source text.
    Definition,
    /// A block of code.
    Code,
    /// A call of a tool, or its result.
    Tool,
    /// Nothing in particular.
    Text,
}

impl Boundary {
    /// The rank, from 1 to 8: what has a higher one is kept first.
    pub fn priority(self) -> u8 {
        match self {
            Boundary::Error => 8,
            Boundary::FailedTool => 7,
            Boundary::Heading => 6,
            Boundary::Turn | Boundary::Definition => 5,
            Boundary::Code => 4,
            Boundary::Tool => 3,
            Boundary::Text => 1,
        }
    }
}

impl Content {
    /// Recognises a text: by the labels of its turns, else by a sample of its lines.
    pub fn of(text: &str) -> Self {
        let mut labels = text.lines().filter_map(Label::of);
        let user = labels.clone().any(|label| label == Label::User);
        if user && labels.any(|label| matches!(label, Label::Assistant | Label::Tool | Label::FailedTool)) {
            return Content::Conversation;
        }
        // Headings of the second level and below: one sign alone begins a comment in many languages.
        if text.lines().filter(|line| line.starts_with("##") && content::is_heading(line)).nth(1).is_some() {
            return Content::Document;
        }
        match content::kind(text) {
            Kind::Source | Kind::Diff => Content::Code,
            Kind::Prose => Content::Document,
            _ => Content::Log,
        }
    }
}

/// Who speaks from a line on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    User,
    Assistant,
    Instructions,
    Tool,
    FailedTool,
}

impl Label {
    /// The label at the beginning of a line: `[user]`, `User:`, `## User`, `**User:**`, `<user>`; and those that
    /// [`transcript`](super::transcript()) writes.
    pub(super) fn of(line: &str) -> Option<Self> {
        let bare = line.trim_start_matches(['#', '*', '[', '<']);
        let signs = &line[..line.len() - bare.len()];
        let bare = if signs.starts_with('#') { bare.trim_start() } else { bare };
        let length = bare.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (word, rest) = bare.split_at(length);
        let ends = match signs.as_bytes().first() {
            Some(b'#') => rest.trim_end().is_empty() || rest.starts_with(':'),
            // A label of ours may name the tool and the call.
            Some(b'[') => rest.starts_with(']') || rest.starts_with(' ') && rest.trim_end().ends_with(']'),
            Some(b'<') => rest.starts_with('>'),
            Some(_) => rest.starts_with(['*', ':']),
            None => rest.starts_with(':'),
        };
        if !ends {
            return None;
        }
        Some(match word.to_ascii_lowercase().as_str() {
            "user" | "human" => Label::User,
            "assistant" | "ai" | "thinking" => Label::Assistant,
            "system" | "developer" => Label::Instructions,
            "failed" if signs == "[" => Label::FailedTool,
            "call" | "result" if signs == "[" => Label::Tool,
            "tool" | "function" | "observation" => Label::Tool,
            _ => return None,
        })
    }
}

/// Reads a text line by line.
pub(super) struct Reader {
    content: Content,
    /// Who speaks, in a conversation.
    speaker: Option<Label>,
    fence: Option<Fence>,
}

impl Reader {
    pub(super) fn new(content: Content) -> Self {
        Self { content, speaker: None, fence: None }
    }

    /// What begins with the next line.
    pub(super) fn read(&mut self, line: &str) -> Option<Boundary> {
        match self.content {
            Content::Log => content::is_failure(line).then_some(Boundary::Error),
            Content::Code => content::is_definition(line).then_some(Boundary::Definition),
            Content::Document => self.prose(line),
            Content::Conversation => self.turn(line),
        }
    }

    fn turn(&mut self, line: &str) -> Option<Boundary> {
        if let Some(label) = Label::of(line) {
            // A label ends whatever stood open before it.
            (self.speaker, self.fence) = (Some(label), None);
            return Some(match label {
                Label::FailedTool => Boundary::FailedTool,
                Label::Tool => Boundary::Tool,
                Label::User | Label::Assistant | Label::Instructions => Boundary::Turn,
            });
        }
        match self.speaker {
            // Of a failure only tools report; others speak about it.
            Some(Label::Tool | Label::FailedTool) => content::is_failure(line).then_some(Boundary::Error),
            _ => self.prose(line),
        }
    }

    fn prose(&mut self, line: &str) -> Option<Boundary> {
        if let Some(fence) = self.fence {
            if fence.is_closed_by(line) {
                self.fence = None;
            }
            return None;
        }
        self.fence = Fence::opened_by(line);
        match () {
            () if self.fence.is_some() => Some(Boundary::Code),
            () if content::is_heading(line) => Some(Boundary::Heading),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_many_agents_mean_the_same() {
        for (line, label) in [
            ("[user]", Label::User),
            ("User: hello", Label::User),
            ("## Human", Label::User),
            ("**Assistant:** hello", Label::Assistant),
            ("<assistant>", Label::Assistant),
            ("[call read_file c1]", Label::Tool),
            ("[failed c1]", Label::FailedTool),
            ("Observation: done", Label::Tool),
        ] {
            assert_eq!(Label::of(line), Some(label), "{line}");
        }
        for line in ["user", "users: 3", " [user]", "the user: me", "result: 3", "call me", "[+3]", "#user", "é:"] {
            let expected = (line == "#user").then_some(Label::User);
            assert_eq!(Label::of(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_said_of_errors_is_none_and_what_a_tool_reports_is() {
        let mut reader = Reader::new(Content::Conversation);
        let read: Vec<_> =
            ["[user]", "there is an error", "[result c1]", "error: no such file", "[assistant]", "an error, I see"]
                .map(|line| reader.read(line))
                .into();
        assert_eq!(
            read,
            [Some(Boundary::Turn), None, Some(Boundary::Tool), Some(Boundary::Error), Some(Boundary::Turn), None]
        );
    }
}
