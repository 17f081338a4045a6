//! Requests with which clients compact their own history.
//!
//! Such a request asks the model for a summary that replaces the conversation, so the model should see all of it.

use crate::conversation::{Part, Role};
use crate::wire::request::Request;

/// Sentences in the prompts of clients that send the conversation and ask for its summary: Claude Code and Codex.
const COMPACTION_PROMPTS: [&str; 2] =
    ["Your task is to create a detailed summary of", "You are performing a CONTEXT CHECKPOINT COMPACTION"];
/// The last item of a Responses request for which the provider writes the summary.
const TRIGGER_KIND: &str = "compaction_trigger";
/// Bytes at the start of a text in which a prompt is searched.
const MAX_SEARCHED_BYTES: usize = 4096;

impl Request<'_> {
    /// Returns true if the client compacts its history with this request.
    pub fn is_compaction(&self) -> bool {
        let Some(last) = self.conversation().messages.last() else { return false };
        let is_prompt = |text: &str| {
            let start = &text[..text.floor_char_boundary(MAX_SEARCHED_BYTES)];
            COMPACTION_PROMPTS.iter().any(|prompt| start.contains(prompt))
        };
        last.parts.iter().any(|part| match part {
            Part::Opaque(block) => block.kind == TRIGGER_KIND,
            Part::Text { text } => last.role == Role::User && is_prompt(text),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Format;

    #[test]
    fn only_the_newest_message_makes_a_compaction_request() {
        let prompt =
            "CRITICAL: Respond with TEXT ONLY.\\n\\nYour task is to create a detailed summary of the conversation";
        let is_compaction = |format, body: &str| Request::parse(format, body.as_bytes()).unwrap().is_compaction();
        let claude = |last: &str| {
            format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{prompt}"}}]}}{last}]}}"#)
        };
        assert!(is_compaction(Format::Anthropic, &claude("")));
        assert!(!is_compaction(Format::Anthropic, &claude(r#",{"role":"assistant","content":"Done."}"#)));
        let codex = r#"{"input":[{"type":"message","role":"user","content":"You are performing a CONTEXT CHECKPOINT COMPACTION. Create"}]}"#;
        assert!(is_compaction(Format::OpenAiResponses, codex));
        let trigger = r#"{"input":[{"role":"user","content":"go"},{"type":"compaction_trigger"}]}"#;
        assert!(is_compaction(Format::OpenAiResponses, trigger));
        assert!(!is_compaction(Format::OpenAiChat, r#"{"messages":[{"role":"user","content":"go"}]}"#));
    }
}
