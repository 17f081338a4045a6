//! Messages of parts, and the conversation that they form.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conversation::text::LazyText;

/// The parts of a request that folding needs.
///
/// ```
/// use foldline::{Conversation, Message, Part, Role};
///
/// let conversation = Conversation {
///     messages: vec![
///         Message::text(Role::User, "what is in main.rs?"),
///         Message::new(Role::Assistant, vec![Part::call("c1", "read_file", r#"{"path":"main.rs"}"#)]),
///         Message::new(Role::Tool, vec![Part::result("c1", "fn main() {}")]),
///     ],
///     ..Conversation::default()
/// };
/// assert_eq!(conversation.rounds(), vec![1..3]);
/// assert_eq!(conversation.request_points(), vec![1, 3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conversation<'a> {
    /// Model that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Cow<'a, str>>,
    /// Instructions outside the list of messages (Anthropic `system`, Responses `instructions`). They are never
    /// folded, so they have no [`PartId`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<Part<'a>>,
    /// Tools that the request declares, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition<'a>>,
    /// Messages (Responses: items) in the order in which they were sent.
    pub messages: Vec<Message<'a>>,
}

/// A tool that the request declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition<'a> {
    /// Name by which the model calls the tool; empty for hosted tools without one.
    pub name: Cow<'a, str>,
    /// Whole declaration, as JSON text.
    pub definition: Cow<'a, str>,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// Instructions of the operator, under OpenAI's newer name.
    Developer,
    /// The user, or a program in their place.
    User,
    /// The model.
    Assistant,
    /// Results of tools, where the format has a role for them.
    Tool,
    /// A role that this version does not know; its message is kept unchanged.
    Other,
}

/// One message, or one item of the Responses API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message<'a> {
    /// Author of the message.
    pub role: Role,
    /// Content, in order.
    pub parts: Vec<Part<'a>>,
}

/// A message that owns its text, for the structs of a program that keeps its messages: it can be stored and read with
/// serde, and no lifetime appears.
///
/// ```
/// use foldline::Role;
/// use foldline::conversation::OwnedMessage;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Agent {
///     messages: Vec<OwnedMessage>,
/// }
///
/// let agent = Agent { messages: vec![OwnedMessage::text(Role::User, "hello")] };
/// let json = serde_json::to_string(&agent).unwrap();
/// let again: Agent = serde_json::from_str(&json).unwrap();
/// assert_eq!(again.messages, agent.messages);
/// ```
pub type OwnedMessage = Message<'static>;

/// A conversation that owns its text.
pub type OwnedConversation = Conversation<'static>;

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part<'a> {
    /// Plain text.
    Text {
        /// The text.
        text: LazyText<'a>,
    },
    /// Reasoning of the model. Providers reject an edited one: it is kept whole or dropped whole.
    Reasoning(ReasoningPart<'a>),
    /// A call of a tool by the model.
    ToolCall(ToolCall<'a>),
    /// The result of a tool call.
    ToolResult(ToolResult<'a>),
    /// An image.
    Image(ImagePart<'a>),
    /// A document; boxed, since it is the largest variant and rare.
    File(Box<FilePart<'a>>),
    /// Anything else: server tools, encrypted items, blocks newer than this version. Kept byte for byte.
    Opaque(OpaqueBlock<'a>),
}

/// Reasoning of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningPart<'a> {
    /// Readable text; empty when the provider shows none.
    pub text: LazyText<'a>,
    /// Signature or encrypted content by which the provider verifies its own reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Cow<'a, str>>,
    /// True if the provider withheld the text: the seal is then all there is (Anthropic's `redacted_thinking`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub redacted: bool,
}

/// A call of a tool by the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall<'a> {
    /// Id by which the result refers to this call.
    pub id: Cow<'a, str>,
    /// Name of the tool.
    pub name: Cow<'a, str>,
    /// Arguments of the call.
    pub arguments: CallArguments<'a>,
    /// Signature by which the provider verifies its reasoning before this call (Gemini's thought signature). It is sent
    /// back unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Box<str>>,
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallArguments<'a> {
    /// JSON text; an object unless the model made a mistake.
    Json(LazyText<'a>),
    /// Free text, as custom tools take it (an `apply_patch` body).
    Text(LazyText<'a>),
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult<'a> {
    /// Id of the call that this result answers.
    pub call_id: Cow<'a, str>,
    /// Content that the tool returned: texts, images, files.
    pub content: Vec<Part<'a>>,
    /// True if the client marked the result as an error.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePart<'a> {
    /// Location of the bytes.
    pub source: MediaSource<'a>,
    /// Resolution requested from OpenAI: `low`, `high`, `auto`, `original`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
}

/// A document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart<'a> {
    /// Name or title, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Cow<'a, str>>,
    /// Media type, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<Cow<'a, str>>,
    /// Location of the bytes.
    pub source: MediaSource<'a>,
}

/// Location of the bytes of an image or a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource<'a> {
    /// In the request, as base64.
    Base64(Cow<'a, str>),
    /// In the request, as plain text (a text document).
    Text(LazyText<'a>),
    /// At a URL.
    Url(Cow<'a, str>),
    /// Stored by the provider, under an id.
    Id(Cow<'a, str>),
    /// Given in a form that this version does not know.
    #[default]
    Unknown,
}

/// A block that is kept unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpaqueBlock<'a> {
    /// The block's `type`, as the provider names it.
    pub kind: Cow<'a, str>,
    /// Id that connects the call and the result of a server tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<Cow<'a, str>>,
    /// JSON text of the block.
    pub raw: Cow<'a, str>,
}

impl OpaqueBlock<'_> {
    /// The kind of a block that refers to an item which the provider stores.
    pub(crate) const REFERENCE_KIND: &'static str = "item_reference";

    /// Returns true if the block refers to an item which the provider stores.
    pub(crate) fn is_reference(&self) -> bool {
        self.kind == Self::REFERENCE_KIND
    }
}

/// The position of a part. Stable while messages are only appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartId {
    /// Index of the message.
    pub message: usize,
    /// Index of the part in its message.
    pub part: usize,
    /// Index inside a tool result's content; `None` is the part itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<usize>,
}

impl PartId {
    /// Returns the id of part `part` of message `message`.
    pub fn new(message: usize, part: usize) -> Self {
        Self { message, part, inner: None }
    }

    /// Returns the id of item `inner` in the content of the tool result at this position.
    pub fn inner(self, inner: usize) -> Self {
        Self { inner: Some(inner), ..self }
    }
}

impl std::fmt::Display for PartId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.message, self.part)?;
        match self.inner {
            Some(inner) => write!(f, ".{inner}"),
            None => Ok(()),
        }
    }
}

impl<'a> Conversation<'a> {
    /// Returns the part at a position, if it exists.
    pub fn part(&self, id: PartId) -> Option<&Part<'a>> {
        let part = self.messages.get(id.message)?.parts.get(id.part)?;
        match (id.inner, part) {
            (None, part) => Some(part),
            (Some(inner), Part::ToolResult(result)) => result.content.get(inner),
            (Some(_), _) => None,
        }
    }

    /// Returns the rounds, oldest first: each is an assistant turn with the results of its calls, as a range of
    /// messages. Messages of the user or the operator are between rounds.
    pub fn rounds(&self) -> Vec<Range<usize>> {
        let mut rounds: Vec<Range<usize>> = Vec::new();
        let mut previous = None;
        for (at, message) in self.messages.iter().enumerate() {
            let opens = message.opens_round(previous);
            match rounds.last_mut() {
                _ if opens => rounds.push(at..at + 1),
                Some(round) if round.end == at && (message.is_assistant() || message.has_results()) => {
                    round.end = at + 1
                }
                _ => {}
            }
            previous = Some(message);
        }
        rounds
    }

    /// Returns the positions at which requests were sent: before each assistant turn, and at the end. A point `p`
    /// represents the request that carried the messages before `p`.
    pub fn request_points(&self) -> Vec<usize> {
        let mut points: Vec<usize> = self.rounds().into_iter().map(|round| round.start).filter(|&at| at > 0).collect();
        if points.last() != Some(&self.messages.len()) && !self.messages.is_empty() {
            points.push(self.messages.len());
        }
        points
    }

    /// Returns the same conversation with all text owned.
    pub fn into_owned(self) -> Conversation<'static> {
        Conversation {
            model: self.model.map(owned),
            system: self.system.into_iter().map(Part::into_owned).collect(),
            tools: self.tools.into_iter().map(ToolDefinition::into_owned).collect(),
            messages: self.messages.into_iter().map(Message::into_owned).collect(),
        }
    }
}

impl ToolDefinition<'_> {
    /// Returns the same declaration with all text owned.
    pub fn into_owned(self) -> ToolDefinition<'static> {
        ToolDefinition { name: owned(self.name), definition: owned(self.definition) }
    }
}

impl<'a> Message<'a> {
    /// Creates a message from parts.
    pub fn new(role: Role, parts: Vec<Part<'a>>) -> Self {
        Self { role, parts }
    }

    /// Creates a message of one text.
    pub fn text(role: Role, text: impl Into<LazyText<'a>>) -> Self {
        Self::new(role, vec![Part::text(text)])
    }

    /// Returns true if the model wrote the message.
    pub fn is_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    /// Returns true if the message contains a tool result, whatever its role.
    pub fn has_results(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::ToolResult(_)))
    }

    /// Returns true if a request was sent right before this message, given the previous message: an assistant turn
    /// begins here. In the Responses API one turn is several consecutive items.
    pub fn opens_round(&self, before: Option<&Message<'_>>) -> bool {
        self.is_assistant() && !before.is_some_and(Message::is_assistant)
    }

    /// Returns the tool calls in the message.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the tool results in the message.
    pub fn results(&self) -> impl Iterator<Item = &ToolResult<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// Returns the same message with all text owned.
    pub fn into_owned(self) -> Message<'static> {
        Message { role: self.role, parts: self.parts.into_iter().map(Part::into_owned).collect() }
    }
}

impl<'a> Part<'a> {
    /// Creates a text part.
    pub fn text(text: impl Into<LazyText<'a>>) -> Self {
        Part::Text { text: text.into() }
    }

    /// Creates a call with JSON arguments.
    pub fn call(
        id: impl Into<Cow<'a, str>>,
        name: impl Into<Cow<'a, str>>,
        arguments: impl Into<LazyText<'a>>,
    ) -> Self {
        Part::ToolCall(ToolCall::new(id, name, arguments))
    }

    /// Creates a result of one text.
    pub fn result(call_id: impl Into<Cow<'a, str>>, text: impl Into<LazyText<'a>>) -> Self {
        Part::ToolResult(ToolResult { call_id: call_id.into(), content: vec![Part::text(text)], is_error: false })
    }

    /// Creates reasoning without a seal.
    pub fn reasoning(text: impl Into<LazyText<'a>>) -> Self {
        Part::Reasoning(ReasoningPart { text: text.into(), ..ReasoningPart::default() })
    }

    /// Returns the text if this is a text part.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Part::Text { text } => Some(text),
            _ => None,
        }
    }

    /// Returns the same part with all text owned.
    pub fn into_owned(self) -> Part<'static> {
        match self {
            Part::Text { text } => Part::Text { text: text.into_owned() },
            Part::Reasoning(reasoning) => {
                let (text, seal) = (reasoning.text.into_owned(), reasoning.seal.map(owned));
                Part::Reasoning(ReasoningPart { text, seal, redacted: reasoning.redacted })
            }
            Part::ToolCall(call) => Part::ToolCall(ToolCall {
                id: owned(call.id),
                name: owned(call.name),
                arguments: match call.arguments {
                    CallArguments::Json(json) => CallArguments::Json(json.into_owned()),
                    CallArguments::Text(text) => CallArguments::Text(text.into_owned()),
                },
                signature: call.signature,
            }),
            Part::ToolResult(result) => Part::ToolResult(ToolResult {
                call_id: owned(result.call_id),
                content: result.content.into_iter().map(Part::into_owned).collect(),
                is_error: result.is_error,
            }),
            Part::Image(image) => {
                Part::Image(ImagePart { source: image.source.into_owned(), detail: image.detail.map(owned) })
            }
            Part::File(file) => Part::File(Box::new(FilePart {
                name: file.name.map(owned),
                media_type: file.media_type.map(owned),
                source: file.source.into_owned(),
            })),
            Part::Opaque(block) => Part::Opaque(OpaqueBlock {
                kind: owned(block.kind),
                pair: block.pair.map(owned),
                raw: owned(block.raw),
            }),
        }
    }
}

impl<'a> ToolCall<'a> {
    /// Creates a call with JSON arguments and no signature.
    pub fn new(id: impl Into<Cow<'a, str>>, name: impl Into<Cow<'a, str>>, arguments: impl Into<LazyText<'a>>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: CallArguments::Json(arguments.into()), signature: None }
    }
}

impl<'a> ToolResult<'a> {
    /// Returns the text of a result that consists of exactly one text, as nearly all do.
    pub fn only_text(&self) -> Option<&str> {
        match self.content.as_slice() {
            [Part::Text { text }] => Some(text),
            _ => None,
        }
    }

    /// Returns the texts of the result, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(Part::as_text)
    }
}

impl<'a> CallArguments<'a> {
    /// Replaces the arguments by others of the same kind.
    pub(crate) fn set(&mut self, to: impl Into<LazyText<'a>>) {
        match self {
            CallArguments::Json(text) | CallArguments::Text(text) => *text = to.into(),
        }
    }

    /// Returns the arguments as written.
    pub fn as_str(&self) -> &str {
        match self {
            CallArguments::Json(text) | CallArguments::Text(text) => text,
        }
    }
}

impl MediaSource<'_> {
    fn into_owned(self) -> MediaSource<'static> {
        match self {
            MediaSource::Base64(data) => MediaSource::Base64(owned(data)),
            MediaSource::Text(text) => MediaSource::Text(text.into_owned()),
            MediaSource::Url(url) => MediaSource::Url(owned(url)),
            MediaSource::Id(id) => MediaSource::Id(owned(id)),
            MediaSource::Unknown => MediaSource::Unknown,
        }
    }
}

fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Returns true if the round that starts at `start` answers an operator message inside the conversation. The two
/// belong together, and operator messages are never dropped.
pub(crate) fn answers_system_note(messages: &[Message<'_>], start: usize) -> bool {
    start > 1 && messages[start - 1].role == Role::System && !messages[start - 1].has_results()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &'static str) -> Message<'static> {
        Message::new(Role::Assistant, vec![Part::call(id, "sh", "{}")])
    }

    fn result(id: &'static str) -> Message<'static> {
        Message::new(Role::Tool, vec![Part::result(id, "ok")])
    }

    fn with_messages(messages: Vec<Message<'static>>) -> Conversation<'static> {
        Conversation { messages, ..Conversation::default() }
    }

    /// Parallel results are separate messages but belong to one round.
    #[test]
    fn round_includes_all_parallel_results() {
        let conversation = with_messages(vec![
            Message::text(Role::System, "s"),
            Message::text(Role::User, "u"),
            call("a"),
            result("a"),
            result("b"),
            Message::text(Role::User, "more"),
            call("c"),
            result("c"),
            call("d"),
        ]);
        assert_eq!(conversation.rounds(), vec![2..5, 6..8, 8..9]);
        assert_eq!(conversation.request_points(), vec![2, 6, 8, 9]);
    }

    /// In the Responses API a turn is several items: reasoning, text, calls.
    #[test]
    fn consecutive_assistant_items_are_one_round() {
        let conversation = with_messages(vec![
            Message::text(Role::User, "u"),
            Message::new(Role::Assistant, vec![Part::reasoning("hm")]),
            call("a"),
            call("b"),
            result("a"),
            result("b"),
        ]);
        assert_eq!(conversation.rounds(), vec![1..6]);
        assert_eq!(conversation.request_points(), vec![1, 6]);
    }

    /// Anthropic puts results into user messages, possibly followed by text of the user.
    #[test]
    fn results_inside_a_user_message_belong_to_the_round() {
        let conversation = with_messages(vec![
            Message::text(Role::User, "u"),
            call("a"),
            Message::new(Role::User, vec![Part::result("a", "ok"), Part::text("and now?")]),
            Message::text(Role::User, "hello?"),
        ]);
        assert_eq!(conversation.rounds(), vec![1..3]);
    }

    /// A long conversation has tens of thousands of parts: a call is as large as its three texts and a signature.
    #[test]
    fn parts_are_small() {
        assert_eq!(size_of::<Part<'_>>(), 104);
        assert_eq!(size_of::<Part<'_>>(), size_of::<ToolCall<'_>>());
    }

    #[test]
    fn serde_round_trip_borrows_and_owns() {
        let conversation = with_messages(vec![call("a"), result("a"), Message::text(Role::User, "x")]);
        let json = serde_json::to_string(&conversation).unwrap();
        let back: OwnedConversation = serde_json::from_str(&json).unwrap();
        assert_eq!(back.clone().into_owned(), conversation);
        assert_eq!(back, conversation);
    }
}
