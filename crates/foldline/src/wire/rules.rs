//! Facts about a dialect that its laws depend on. The checks are in `laws`; nothing is checked here.

use crate::conversation::{Part, PartId, Role};
use crate::wire::request::Request;

/// Facts about a dialect that select and parameterize checks.
#[derive(Debug)]
pub(crate) struct DialectRules {
    pub(crate) result_placement: ResultPlacement,
    /// Roles that a message may have.
    pub(crate) roles: &'static [Role],
    /// True if instructions are messages; false if they are in a separate field.
    pub(crate) instructions_are_messages: bool,
    /// False if the provider may compare the arguments of a call with those that the model generated.
    pub(crate) arguments_are_editable: bool,
    /// False if no text can take the place of an image or a file.
    pub(crate) media_is_editable: bool,
    /// Range within which the id of a call must be unique.
    pub(crate) call_id_scope: CallIdScope,
    /// Longest id of a call, in characters.
    pub(crate) max_call_id_chars: Option<usize>,
    /// Longest name of a tool, in characters.
    pub(crate) max_tool_name_chars: usize,
    /// Longest text, in characters.
    pub(crate) max_text_chars: usize,
    /// Largest body, in bytes.
    pub(crate) max_body_bytes: usize,
    /// Returns the largest number of images for a model with a window of this many tokens.
    pub(crate) max_images: fn(u64) -> usize,
    /// Returns true if the content of a result may contain this part.
    pub(crate) allows_in_result: fn(&Part<'_>) -> bool,
    pub(crate) empty_result: EmptyResult,
    pub(crate) assistant_content: AssistantContent,
    pub(crate) old_reasoning: OldReasoning,
    /// Returns the description of a call whose arguments are not encoded as the dialect requires.
    pub(crate) arguments_fault: fn(&Request<'_>, PartId) -> Option<String>,
}

/// The position of a result relative to its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultPlacement {
    /// In the user turn after the assistant turn with the call. Adjacent messages of one role are one turn.
    NextUserTurn,
    /// In the messages directly after the message with the call, one message per result.
    DirectlyAfter,
    /// In a message anywhere after the call.
    AnywhereAfter,
}

/// The range within which the id of a call must be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallIdScope {
    Request,
    Message,
}

/// Treatment of a result without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmptyResult {
    /// Accepted, and an empty string too: the tool had no output.
    Accepted,
    /// Accepted without content; an empty text is not.
    WithoutText,
    /// Rejected.
    Rejected,
}

/// The parts that count as content of an assistant message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AssistantContent {
    /// Any part.
    AnyPart,
    /// Any part but reasoning.
    VisiblePart,
}

/// Reasoning of earlier turns that may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldReasoning {
    /// None: the provider requires all of it, or all or nothing.
    Required,
    /// That of turns before the newest user message.
    RequiredInOpenTurn,
    /// All of it, unless a law of the model requires it.
    Optional,
}
