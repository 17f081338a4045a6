//! The provider-neutral conversation: messages of parts, rounds, request points.
//!
//! Everything behind the wire formats speaks in these types and in nothing else. What is short is borrowed
//! from the request body where it can be (`Cow`), and long texts stay there until somebody looks at them
//! ([`Text`]), so a 4 MB body is not copied to be read; the same types, owned and with serde, serve a Rust
//! agent as its own message type.
//!
//! Nothing here knows a provider, counts a token or decides a fold.

pub(crate) mod text;

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conversation::text::LazyText;

/// A request, as far as folding is concerned.
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
    /// The model that the request names.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub model: Option<Cow<'a, str>>,
    /// Instructions that stand outside the list of messages (Anthropic `system`, Responses
    /// `instructions`). They are never folded, so they have no [`PartId`].
    #[serde(borrow, skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<Part<'a>>,
    /// The tools that the request declares, in order.
    #[serde(borrow, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition<'a>>,
    /// The messages (Responses: the items) in the order in which they were sent.
    #[serde(borrow)]
    pub messages: Vec<Message<'a>>,
}

/// A tool that the request declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition<'a> {
    /// The name by which the model calls it; empty for hosted tools without one.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The whole declaration, as JSON text.
    #[serde(borrow)]
    pub definition: Cow<'a, str>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// Instructions of the operator, in OpenAI's newer word.
    Developer,
    /// The person, or the program in their place.
    User,
    /// The model.
    Assistant,
    /// Results of tools, where the format has a role for them.
    Tool,
    /// A role that this version does not know; its message stays in place, untouched.
    Other,
}

/// One message, or one item of the Responses API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message<'a> {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    #[serde(borrow)]
    pub parts: Vec<Part<'a>>,
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part<'a> {
    /// Plain text.
    Text {
        /// The text.
        #[serde(borrow)]
        text: LazyText<'a>,
    },
    /// What the model thought. Providers refuse an edited one: it is kept whole or dropped whole.
    Reasoning(#[serde(borrow)] ReasoningPart<'a>),
    /// The model asks for a tool.
    ToolCall(#[serde(borrow)] ToolCall<'a>),
    /// The tool's answer.
    ToolResult(#[serde(borrow)] ToolResult<'a>),
    /// A picture.
    Image(#[serde(borrow)] ImagePart<'a>),
    /// A document, in a box: it is larger than all else and rare.
    File(#[serde(borrow)] Box<FilePart<'a>>),
    /// Anything else: server tools, encrypted items, blocks newer than this version. It stays in
    /// place byte for byte.
    Opaque(#[serde(borrow)] OpaqueBlock<'a>),
}

/// What the model thought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningPart<'a> {
    /// The readable text; empty when the provider shows none.
    #[serde(borrow)]
    pub text: LazyText<'a>,
    /// A signature or encrypted content by which the provider recognises its own words.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Cow<'a, str>>,
}

/// The model asks for a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall<'a> {
    /// By which the result refers to this call.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// Which tool.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// With what.
    #[serde(borrow)]
    pub arguments: CallArguments<'a>,
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallArguments<'a> {
    /// JSON text; an object unless the model erred.
    Json(#[serde(borrow)] LazyText<'a>),
    /// Free text, as custom tools take it (an `apply_patch` body).
    Text(#[serde(borrow)] LazyText<'a>),
}

/// The answer of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult<'a> {
    /// The call that it answers.
    #[serde(borrow)]
    pub call_id: Cow<'a, str>,
    /// What the tool gave back: texts, images, files.
    #[serde(borrow)]
    pub content: Vec<Part<'a>>,
    /// The client marked it as an error.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
}

/// A picture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePart<'a> {
    /// Where its bytes are.
    #[serde(borrow)]
    pub source: MediaSource<'a>,
    /// OpenAI's wish for its resolution: `low`, `high`, `auto`, `original`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
}

/// A document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart<'a> {
    /// Its name or title, when given.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Cow<'a, str>>,
    /// Its media type, when given.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<Cow<'a, str>>,
    /// Where its bytes are.
    #[serde(borrow)]
    pub source: MediaSource<'a>,
}

/// Where the bytes of an image or a file are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource<'a> {
    /// In the request, as base64.
    Base64(#[serde(borrow)] Cow<'a, str>),
    /// In the request, as plain text (a text document).
    Text(#[serde(borrow)] LazyText<'a>),
    /// Behind an address.
    Url(#[serde(borrow)] Cow<'a, str>),
    /// At the provider, under an id.
    Id(#[serde(borrow)] Cow<'a, str>),
    /// Not told in a way that this version knows.
    #[default]
    Unknown,
}

/// A block that is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpaqueBlock<'a> {
    /// Its `type`, as the provider names it.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    /// The id by which a call and its result of a server tool belong together.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<Cow<'a, str>>,
    /// The JSON text of the block.
    #[serde(borrow)]
    pub raw: Cow<'a, str>,
}

/// The place of a part. Stable while messages are only appended.
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
    /// The part `part` of message `message`.
    pub fn new(message: usize, part: usize) -> Self {
        Self { message, part, inner: None }
    }

    /// The piece `inner` of the tool result at this place.
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
    /// The part at a place, if there is one.
    pub fn part(&self, id: PartId) -> Option<&Part<'a>> {
        let part = self.messages.get(id.message)?.parts.get(id.part)?;
        match (id.inner, part) {
            (None, part) => Some(part),
            (Some(inner), Part::ToolResult(result)) => result.content.get(inner),
            (Some(_), _) => None,
        }
    }

    /// The rounds, oldest first: each an assistant turn together with the results of its calls, as
    /// a range of messages. What a user or the operator says stands between rounds.
    pub fn rounds(&self) -> Vec<Range<usize>> {
        let mut rounds: Vec<Range<usize>> = Vec::new();
        let mut before = None;
        for (at, message) in self.messages.iter().enumerate() {
            let opens = message.opens_round(before);
            match rounds.last_mut() {
                _ if opens => rounds.push(at..at + 1),
                Some(round) if round.end == at && (message.is_assistant() || message.has_results()) => {
                    round.end = at + 1
                }
                _ => {}
            }
            before = Some(message);
        }
        rounds
    }

    /// Where requests were sent: before each assistant turn, and at the end. A point `p` stands for
    /// the request that carried the messages before `p`.
    pub fn request_points(&self) -> Vec<usize> {
        let mut points: Vec<usize> = self.rounds().into_iter().map(|round| round.start).filter(|&at| at > 0).collect();
        if points.last() != Some(&self.messages.len()) && !self.messages.is_empty() {
            points.push(self.messages.len());
        }
        points
    }

    /// The same conversation with all its text owned.
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
    /// The same declaration with all its text owned.
    pub fn into_owned(self) -> ToolDefinition<'static> {
        ToolDefinition { name: owned(self.name), definition: owned(self.definition) }
    }
}

impl<'a> Message<'a> {
    /// A message of these parts.
    pub fn new(role: Role, parts: Vec<Part<'a>>) -> Self {
        Self { role, parts }
    }

    /// A message of one text.
    pub fn text(role: Role, text: impl Into<LazyText<'a>>) -> Self {
        Self::new(role, vec![Part::text(text)])
    }

    /// Whether the model speaks.
    pub fn is_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    /// Whether it answers a tool call, in a message of its own or inside a user's.
    pub fn has_results(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::ToolResult(_)))
    }

    /// Whether a request was sent right before this message, given the message before it: the model
    /// begins to speak. In the Responses API one turn is several items in a row.
    pub fn opens_round(&self, before: Option<&Message<'_>>) -> bool {
        self.is_assistant() && !before.is_some_and(Message::is_assistant)
    }

    /// The calls in it.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// The results in it.
    pub fn results(&self) -> impl Iterator<Item = &ToolResult<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// The same message with all its text owned.
    pub fn into_owned(self) -> Message<'static> {
        Message { role: self.role, parts: self.parts.into_iter().map(Part::into_owned).collect() }
    }
}

impl<'a> Part<'a> {
    /// A text part.
    pub fn text(text: impl Into<LazyText<'a>>) -> Self {
        Part::Text { text: text.into() }
    }

    /// A call with JSON arguments.
    pub fn call(
        id: impl Into<Cow<'a, str>>,
        name: impl Into<Cow<'a, str>>,
        arguments: impl Into<LazyText<'a>>,
    ) -> Self {
        Part::ToolCall(ToolCall { id: id.into(), name: name.into(), arguments: CallArguments::Json(arguments.into()) })
    }

    /// A result of one text.
    pub fn result(call_id: impl Into<Cow<'a, str>>, text: impl Into<LazyText<'a>>) -> Self {
        Part::ToolResult(ToolResult { call_id: call_id.into(), content: vec![Part::text(text)], is_error: false })
    }

    /// Reasoning without a seal.
    pub fn reasoning(text: impl Into<LazyText<'a>>) -> Self {
        Part::Reasoning(ReasoningPart { text: text.into(), seal: None })
    }

    /// The text, when this is a text part.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Part::Text { text } => Some(text),
            _ => None,
        }
    }

    /// The same part with all its text owned.
    pub fn into_owned(self) -> Part<'static> {
        match self {
            Part::Text { text } => Part::Text { text: text.into_owned() },
            Part::Reasoning(it) => {
                Part::Reasoning(ReasoningPart { text: it.text.into_owned(), seal: it.seal.map(owned) })
            }
            Part::ToolCall(it) => Part::ToolCall(ToolCall {
                id: owned(it.id),
                name: owned(it.name),
                arguments: match it.arguments {
                    CallArguments::Json(json) => CallArguments::Json(json.into_owned()),
                    CallArguments::Text(text) => CallArguments::Text(text.into_owned()),
                },
            }),
            Part::ToolResult(it) => Part::ToolResult(ToolResult {
                call_id: owned(it.call_id),
                content: it.content.into_iter().map(Part::into_owned).collect(),
                is_error: it.is_error,
            }),
            Part::Image(it) => Part::Image(ImagePart { source: it.source.into_owned(), detail: it.detail.map(owned) }),
            Part::File(it) => Part::File(Box::new(FilePart {
                name: it.name.map(owned),
                media_type: it.media_type.map(owned),
                source: it.source.into_owned(),
            })),
            Part::Opaque(it) => {
                Part::Opaque(OpaqueBlock { kind: owned(it.kind), pair: it.pair.map(owned), raw: owned(it.raw) })
            }
        }
    }
}

impl<'a> ToolResult<'a> {
    /// The text of a result that is one text and nothing else, as nearly all are.
    pub fn only_text(&self) -> Option<&str> {
        match self.content.as_slice() {
            [Part::Text { text }] => Some(text),
            _ => None,
        }
    }

    /// The texts of the result, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(Part::as_text)
    }
}

impl<'a> CallArguments<'a> {
    /// Puts other arguments of the same kind in their place.
    pub(crate) fn set(&mut self, to: impl Into<LazyText<'a>>) {
        match self {
            CallArguments::Json(text) | CallArguments::Text(text) => *text = to.into(),
        }
    }

    /// The arguments as they were written.
    pub fn as_str(&self) -> &str {
        match self {
            CallArguments::Json(text) | CallArguments::Text(text) => text,
        }
    }
}

impl MediaSource<'_> {
    fn into_owned(self) -> MediaSource<'static> {
        match self {
            MediaSource::Base64(it) => MediaSource::Base64(owned(it)),
            MediaSource::Text(it) => MediaSource::Text(it.into_owned()),
            MediaSource::Url(it) => MediaSource::Url(owned(it)),
            MediaSource::Id(it) => MediaSource::Id(owned(it)),
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

/// Whether the round that begins here answers a note of the operator inside the conversation: the two
/// belong together, and the note is not ours to drop.
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

    fn conversation(messages: Vec<Message<'static>>) -> Conversation<'static> {
        Conversation { messages, ..Conversation::default() }
    }

    /// Parallel results stand in messages of their own and still belong to one round.
    #[test]
    fn round_includes_all_parallel_results() {
        let it = conversation(vec![
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
        assert_eq!(it.rounds(), vec![2..5, 6..8, 8..9]);
        assert_eq!(it.request_points(), vec![2, 6, 8, 9]);
    }

    /// In the Responses API a turn is several items: reasoning, text, calls.
    #[test]
    fn consecutive_assistant_items_are_one_round() {
        let it = conversation(vec![
            Message::text(Role::User, "u"),
            Message::new(Role::Assistant, vec![Part::reasoning("hm")]),
            call("a"),
            call("b"),
            result("a"),
            result("b"),
        ]);
        assert_eq!(it.rounds(), vec![1..6]);
        assert_eq!(it.request_points(), vec![1, 6]);
    }

    /// Anthropic puts results into user messages, maybe with words of the user behind them.
    #[test]
    fn results_inside_a_user_message_belong_to_the_round() {
        let it = conversation(vec![
            Message::text(Role::User, "u"),
            call("a"),
            Message::new(Role::User, vec![Part::result("a", "ok"), Part::text("and now?")]),
            Message::text(Role::User, "hello?"),
        ]);
        assert_eq!(it.rounds(), vec![1..3]);
    }

    /// A long conversation has tens of thousands of them: a call takes as much room as its three texts.
    #[test]
    fn parts_are_small() {
        assert_eq!(size_of::<Part<'_>>(), 88);
        assert_eq!(size_of::<Part<'_>>(), size_of::<ToolCall<'_>>());
    }

    #[test]
    fn serde_round_trip_borrows_and_owns() {
        let it = conversation(vec![call("a"), result("a"), Message::text(Role::User, "x")]);
        let json = serde_json::to_string(&it).unwrap();
        let back: Conversation<'_> = serde_json::from_str(&json).unwrap();
        assert_eq!(back.clone().into_owned(), it);
        assert_eq!(back, it);
    }
}
