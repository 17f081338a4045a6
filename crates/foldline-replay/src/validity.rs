//! Validity: the provider laws that a rendering violates and the full request does not.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldline::conversation::{CallArguments, LazyText, ReasoningPart, ToolCall, ToolResult};
use foldline::laws::{LawProfile, check_conversation};
use foldline::{Conversation, Message, Part};

use crate::case::ReplayCase;
use crate::engine::SharedMessage;

/// Returns the law violations of a rendering beyond those of the recording itself before `at`, by the name of the law.
pub(crate) fn new_violations<'m>(
    case: &'m ReplayCase,
    at: usize,
    rendering: impl Iterator<Item = &'m SharedMessage>,
) -> BTreeMap<Cow<'static, str>, u64> {
    let profile = LawProfile::for_model(case.format, case.model.as_deref());
    let mut rendered = violation_counts(case, rendering.map(|message| borrowed(message)), &profile);
    if rendered.is_empty() {
        return rendered;
    }
    let recorded = violation_counts(case, case.messages[..at].iter().map(|message| borrowed(message)), &profile);
    for (law, count) in &mut rendered {
        *count = count.saturating_sub(recorded.get(law).copied().unwrap_or_default());
    }
    rendered.retain(|_, count| *count > 0);
    rendered
}

fn violation_counts<'m>(
    case: &'m ReplayCase,
    messages: impl Iterator<Item = Message<'m>>,
    profile: &LawProfile,
) -> BTreeMap<Cow<'static, str>, u64> {
    let conversation = Conversation {
        model: case.model.as_deref().map(Into::into),
        system: case.system.clone(),
        tools: case.tools.clone(),
        messages: messages.collect(),
    };
    let mut counts = BTreeMap::new();
    for violation in check_conversation(&conversation, profile) {
        *counts.entry(violation.law.name().into()).or_default() += 1;
    }
    counts
}

/// Returns a message that borrows the texts of another one, which are long.
fn borrowed<'m>(message: &'m Message<'static>) -> Message<'m> {
    Message::new(message.role, message.parts.iter().map(borrowed_part).collect::<Vec<_>>())
}

fn borrowed_part<'m>(part: &'m Part<'static>) -> Part<'m> {
    match part {
        Part::Text { text } => Part::Text { text: LazyText::from(&**text) },
        Part::Reasoning(reasoning) => Part::Reasoning(ReasoningPart {
            text: LazyText::from(&*reasoning.text),
            seal: reasoning.seal.as_deref().map(Cow::Borrowed),
            redacted: reasoning.redacted,
        }),
        Part::ToolCall(call) => Part::ToolCall(ToolCall {
            id: Cow::Borrowed(&call.id),
            name: Cow::Borrowed(&call.name),
            arguments: match &call.arguments {
                CallArguments::Json(json) => CallArguments::Json(LazyText::from(&**json)),
                CallArguments::Text(text) => CallArguments::Text(LazyText::from(&**text)),
            },
            signature: call.signature.clone(),
        }),
        Part::ToolResult(result) => Part::ToolResult(ToolResult {
            call_id: Cow::Borrowed(&result.call_id),
            content: result.content.iter().map(borrowed_part).collect(),
            is_error: result.is_error,
        }),
        other => other.clone(),
    }
}
