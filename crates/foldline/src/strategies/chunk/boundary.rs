//! Detection of content kinds and of boundaries in a text.

use crate::engine::passes::prose::CodeFence;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;

/// The content kind of a text, for chunking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContentKind {
    /// Turns of users, assistants and tools, under labels.
    Conversation,
    /// Output of programs.
    Log,
    /// Source code or a diff.
    Code,
    /// Prose, possibly with headings.
    Document,
}

/// The kind of boundary at the start of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BoundaryKind {
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
    /// Plain text without a boundary.
    Text,
}

impl BoundaryKind {
    /// Returns the priority, from 1 to 8: chunks of higher priority are kept first.
    pub fn priority(self) -> u8 {
        match self {
            BoundaryKind::Error => 8,
            BoundaryKind::FailedTool => 7,
            BoundaryKind::Heading => 6,
            BoundaryKind::Turn | BoundaryKind::Definition => 5,
            BoundaryKind::Code => 4,
            BoundaryKind::Tool => 3,
            BoundaryKind::Text => 1,
        }
    }
}

impl ContentKind {
    /// Detects the kind of a text: by the labels of its turns, else by a sample of its lines.
    pub fn detect(text: &str) -> Self {
        let mut labels = text.lines().filter_map(SpeakerLabel::parse);
        let user = labels.clone().any(|label| label == SpeakerLabel::User);
        if user
            && labels
                .any(|label| matches!(label, SpeakerLabel::Assistant | SpeakerLabel::Tool | SpeakerLabel::FailedTool))
        {
            return ContentKind::Conversation;
        }
        // Only headings of level two and below: a single `#` starts a comment in many languages.
        if text.lines().filter(|line| line.starts_with("##") && text_kind::is_heading(line)).nth(1).is_some() {
            return ContentKind::Document;
        }
        match text_kind::detect_kind(text) {
            TextKind::Source | TextKind::Diff => ContentKind::Code,
            TextKind::Prose => ContentKind::Document,
            _ => ContentKind::Log,
        }
    }
}

/// The speaker of the lines after a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeakerLabel {
    User,
    Assistant,
    Instructions,
    Tool,
    FailedTool,
}

impl SpeakerLabel {
    /// Parses the label at the start of a line: `[user]`, `User:`, `## User`, `**User:**`, `<user>`; and those that
    /// [`render_transcript`](super::render_transcript()) writes.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let bare = line.trim_start_matches(['#', '*', '[', '<']);
        let signs = &line[..line.len() - bare.len()];
        let bare = if signs.starts_with('#') { bare.trim_start() } else { bare };
        let length = bare.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (word, rest) = bare.split_at(length);
        let is_label = match signs.as_bytes().first() {
            Some(b'#') => rest.trim_end().is_empty() || rest.starts_with(':'),
            // Labels of `render_transcript` may name the tool and the call.
            Some(b'[') => rest.starts_with(']') || rest.starts_with(' ') && rest.trim_end().ends_with(']'),
            Some(b'<') => rest.starts_with('>'),
            Some(_) => rest.starts_with(['*', ':']),
            None => rest.starts_with(':'),
        };
        if !is_label {
            return None;
        }
        Some(match word.to_ascii_lowercase().as_str() {
            "user" | "human" => SpeakerLabel::User,
            "assistant" | "ai" | "thinking" => SpeakerLabel::Assistant,
            "system" | "developer" => SpeakerLabel::Instructions,
            "failed" if signs == "[" => SpeakerLabel::FailedTool,
            "call" | "result" if signs == "[" => SpeakerLabel::Tool,
            "tool" | "function" | "observation" => SpeakerLabel::Tool,
            _ => return None,
        })
    }
}

/// A line-by-line scanner for boundaries.
pub(crate) struct BoundaryScanner {
    content: ContentKind,
    /// Current speaker, in a conversation.
    speaker: Option<SpeakerLabel>,
    fence: Option<CodeFence>,
}

impl BoundaryScanner {
    pub(crate) fn new(content: ContentKind) -> Self {
        Self { content, speaker: None, fence: None }
    }

    /// Returns the boundary at the next line, if any.
    pub(crate) fn boundary_at(&mut self, line: &str) -> Option<BoundaryKind> {
        match self.content {
            ContentKind::Log => text_kind::is_failure(line).then_some(BoundaryKind::Error),
            ContentKind::Code => text_kind::is_definition(line).then_some(BoundaryKind::Definition),
            ContentKind::Document => self.document_boundary(line),
            ContentKind::Conversation => self.conversation_boundary(line),
        }
    }

    fn conversation_boundary(&mut self, line: &str) -> Option<BoundaryKind> {
        if let Some(label) = SpeakerLabel::parse(line) {
            // A label ends any open code block.
            (self.speaker, self.fence) = (Some(label), None);
            return Some(match label {
                SpeakerLabel::FailedTool => BoundaryKind::FailedTool,
                SpeakerLabel::Tool => BoundaryKind::Tool,
                SpeakerLabel::User | SpeakerLabel::Assistant | SpeakerLabel::Instructions => BoundaryKind::Turn,
            });
        }
        match self.speaker {
            // Only tool output reports failures; users and models only mention them.
            Some(SpeakerLabel::Tool | SpeakerLabel::FailedTool) => {
                text_kind::is_failure(line).then_some(BoundaryKind::Error)
            }
            _ => self.document_boundary(line),
        }
    }

    fn document_boundary(&mut self, line: &str) -> Option<BoundaryKind> {
        if let Some(fence) = self.fence {
            if fence.is_closed_by(line) {
                self.fence = None;
            }
            return None;
        }
        self.fence = CodeFence::opened_by(line);
        match () {
            () if self.fence.is_some() => Some(BoundaryKind::Code),
            () if text_kind::is_heading(line) => Some(BoundaryKind::Heading),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaker_labels_of_many_agents_are_recognized() {
        for (line, label) in [
            ("[user]", SpeakerLabel::User),
            ("User: hello", SpeakerLabel::User),
            ("## Human", SpeakerLabel::User),
            ("**Assistant:** hello", SpeakerLabel::Assistant),
            ("<assistant>", SpeakerLabel::Assistant),
            ("[call read_file c1]", SpeakerLabel::Tool),
            ("[failed c1]", SpeakerLabel::FailedTool),
            ("Observation: done", SpeakerLabel::Tool),
        ] {
            assert_eq!(SpeakerLabel::parse(line), Some(label), "{line}");
        }
        for line in ["user", "users: 3", " [user]", "the user: me", "result: 3", "call me", "[+3]", "#user", "é:"] {
            let expected = (line == "#user").then_some(SpeakerLabel::User);
            assert_eq!(SpeakerLabel::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn only_tool_output_reports_errors() {
        let mut scanner = BoundaryScanner::new(ContentKind::Conversation);
        let boundaries: Vec<_> =
            ["[user]", "there is an error", "[result c1]", "error: no such file", "[assistant]", "an error, I see"]
                .map(|line| scanner.boundary_at(line))
                .into();
        assert_eq!(
            boundaries,
            [
                Some(BoundaryKind::Turn),
                None,
                Some(BoundaryKind::Tool),
                Some(BoundaryKind::Error),
                Some(BoundaryKind::Turn),
                None
            ]
        );
    }
}
