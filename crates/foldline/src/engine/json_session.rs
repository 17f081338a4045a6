//! A growing conversation in a provider's own JSON: for callers that hold request bodies, not messages.
//!
//! No fold is decided here: [`FoldSession`] decides, and its edits are written into the JSON that the caller pushed, so
//! every byte outside of an edit is the caller's.

use crate::conversation::{Conversation, Message, PartId};
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::handle::Handle;
use crate::engine::options::FoldOptions;
use crate::engine::session::{FoldSession, FoldedOriginal, RenderedMessage};
use crate::error::Error;
use crate::tokens::{Meter, Tokens};
use crate::wire::RequestEdit;
use crate::wire::format::Format;
use crate::wire::request::{CallNumbering, Request};

/// A growing conversation whose messages are JSON of one dialect.
///
/// ```
/// use foldline::FoldOptions;
/// use foldline::engine::{JsonMessage, JsonSession};
/// use foldline::wire::Format;
///
/// let mut session = JsonSession::new(Format::OpenAiChat, FoldOptions::for_model("gpt-4o", 2_000));
/// session.push(r#"[{"role":"user","content":"Make the parser faster."}]"#)?;
/// let rendering = session.plan_request()?;
/// assert_eq!(rendering.messages, [JsonMessage::Unchanged(0)]);
/// assert_eq!((rendering.first, rendering.len, rendering.creased), (0, 1, false));
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct JsonSession {
    format: Format,
    session: FoldSession,
    numbering: CallNumbering,
    /// The messages as pushed.
    raw_messages: Vec<Box<str>>,
    /// Length of the last rendering.
    rendered_len: usize,
    /// Number of messages at the last rendering.
    rendered_messages: usize,
}

/// The part of a rendering that differs from the previous one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JsonRendering {
    /// Position in the rendering of the first of `messages`; those before it are as they were.
    pub first: usize,
    /// Messages from this position to the end.
    pub messages: Vec<JsonMessage>,
    /// Number of messages in the whole rendering.
    pub len: usize,
    /// True if messages that were rendered before changed.
    pub creased: bool,
    /// Tokens of the whole rendering, including system, tools and request overhead.
    pub tokens: Tokens,
    /// The same without any fold.
    pub received_tokens: Tokens,
}

/// One message of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonMessage {
    /// The pushed message with this index, byte for byte.
    Unchanged(usize),
    /// A pushed message with folds.
    Edited {
        /// Index of the pushed message.
        index: usize,
        /// The message to send.
        json: String,
    },
    /// A message that replaces whole rounds.
    Note {
        /// The message to send.
        json: String,
    },
}

impl JsonRendering {
    /// Returns true if the changed part has folds, whose originals must be stored before it is sent.
    pub fn has_folds(&self) -> bool {
        self.messages.iter().any(|message| !matches!(message, JsonMessage::Unchanged(_)))
    }
}

impl JsonSession {
    /// Creates a session with an empty conversation.
    pub fn new(format: Format, options: FoldOptions) -> Self {
        Self {
            format,
            session: FoldSession::new(options),
            numbering: CallNumbering::default(),
            raw_messages: Vec::new(),
            rendered_len: 0,
            rendered_messages: 0,
        }
    }

    /// Returns the dialect of the messages.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the tokens that a request may have.
    pub fn budget(&self) -> Tokens {
        self.session.options().budget
    }

    /// Returns the token meter of the model.
    pub fn meter(&self) -> &Meter {
        &self.session.options().meter
    }

    /// Sets the overhead of the requests from now on, see [`FoldSession::set_overhead_of`].
    pub fn set_overhead_of(&mut self, conversation: &Conversation<'_>) {
        self.session.set_overhead_of(conversation);
    }

    /// Returns the number of pushed messages.
    pub fn len(&self) -> usize {
        self.raw_messages.len()
    }

    /// Returns true if no message was pushed.
    pub fn is_empty(&self) -> bool {
        self.raw_messages.is_empty()
    }

    /// Returns the pushed messages as they were parsed.
    pub fn messages(&self) -> &[Message<'static>] {
        self.session.messages()
    }

    /// Returns the JSON of a pushed message.
    pub fn raw_message(&self, index: usize) -> Option<&str> {
        self.raw_messages.get(index).map(|message| &**message)
    }

    /// Adds the messages of a JSON list. If one of them is not a message, none is added.
    ///
    /// # Errors
    ///
    /// If the text is not a list of messages of the dialect.
    pub fn push(&mut self, list: &str) -> Result<(), Error> {
        let mut numbering = self.numbering.clone();
        let request = Request::parse_continued(self.format, list.as_bytes(), &mut numbering)?;
        if !list.trim_start().starts_with('[') {
            return Err(Error::not_a_request("expected a list of messages"));
        }
        for (at, message) in request.conversation().messages.iter().enumerate() {
            self.session.push(message.clone().into_owned());
            self.raw_messages.push(request.raw_message(at).unwrap_or_default().into());
        }
        self.numbering = numbering;
        Ok(())
    }

    /// Decides what to send now, and returns what changed since the last rendering.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CannotFit`](crate::ErrorKind::CannotFit) if the conversation cannot be folded to the budget,
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the caller cancelled the fold.
    pub fn plan_request(&mut self) -> Result<JsonRendering, Error> {
        self.session.plan_request()?;
        let from = self.session.take_first_changed().min(self.rendered_messages);
        let first = match from < self.rendered_messages {
            true => self.session.rendered_position(from),
            false => self.rendered_len,
        };
        let render = |rendered| self.render(rendered);
        let messages: Vec<JsonMessage> =
            self.session.rendered_with_edits(from).into_iter().map(render).collect::<Result<_, _>>()?;
        let creased = from < self.rendered_messages;
        self.rendered_len = first + messages.len();
        self.rendered_messages = self.raw_messages.len();
        let (tokens, received_tokens) = (self.session.tokens(), self.session.raw_tokens());
        Ok(JsonRendering { first, messages, len: self.rendered_len, creased, tokens, received_tokens })
    }

    /// Makes the next rendering start at its first message, for a caller that lost the previous one.
    pub fn forget_rendering(&mut self) {
        (self.rendered_len, self.rendered_messages) = (0, 0);
    }

    /// Writes the originals of all folds to a store. Call this before a rendering with folds is sent; if it fails, do
    /// not send the rendering.
    ///
    /// # Errors
    ///
    /// The error of the store.
    pub fn store_originals(&self, store: &dyn OriginalStore) -> Result<(), StoreError> {
        self.session.store_originals(store)
    }

    /// Returns the original of a handle in this rendering or in an earlier one.
    pub fn unfold(&self, handle: Handle) -> Option<Vec<u8>> {
        self.session.unfold(handle)
    }

    /// Returns the originals that ever left the rendering, see [`FoldSession::folded_originals`].
    pub fn folded_originals(&self) -> impl Iterator<Item = FoldedOriginal<'_>> {
        self.session.folded_originals()
    }

    fn render(&self, rendered: RenderedMessage<'_>) -> Result<JsonMessage, Error> {
        match rendered {
            RenderedMessage::Message { index, edits } if edits.is_empty() => Ok(JsonMessage::Unchanged(index)),
            RenderedMessage::Message { index, edits } => self.edit(index, edits),
            RenderedMessage::Note { role, text } => {
                let json = (self.format.dialect().edits.text_message)(role, text);
                let json = json.ok_or_else(|| Error::bad_edit(format_args!("role {role:?} cannot have a note")))?;
                Ok(JsonMessage::Note { json })
            }
        }
    }

    /// Writes the edits of a message into its JSON.
    fn edit(&self, index: usize, edits: Vec<RequestEdit>) -> Result<JsonMessage, Error> {
        let as_only_message = |at: PartId| PartId { message: 0, ..at };
        let edits: Vec<RequestEdit> = edits
            .into_iter()
            .map(|edit| match edit {
                RequestEdit::Text { at, text } => RequestEdit::Text { at: as_only_message(at), text },
                RequestEdit::Arguments { at, arguments } => {
                    RequestEdit::Arguments { at: as_only_message(at), arguments }
                }
                RequestEdit::DropPart(at) => RequestEdit::DropPart(as_only_message(at)),
                other => other,
            })
            .collect();
        let list = format!("[{}]", self.raw_messages[index]);
        let spliced = Request::parse(self.format, list.as_bytes())?.splice(&edits)?;
        let text = std::str::from_utf8(&spliced).map_err(Error::bad_edit)?;
        Ok(JsonMessage::Edited { index, json: text[1..text.len() - 1].to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::apply::apply;
    use crate::engine::archive::MemoryStore;
    use crate::engine::marker;
    use crate::engine::options::Ledger;
    use crate::laws::{LawProfile, check};

    const MODELS: [(Format, &str); 6] = [
        (Format::OpenAiChat, "gpt-4o"),
        (Format::OpenAiResponses, "gpt-4o"),
        (Format::Anthropic, "claude-sonnet-4-5"),
        (Format::Gemini, "gemini-2.5-pro"),
        (Format::Ollama, "qwen3:8b"),
        (Format::Converse, "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ];

    /// Returns the messages of one round: a call and its result.
    fn round(format: Format, at: usize) -> String {
        let source: String = (0..30).map(|line| format!("let value_{at}_{line} = parse({line});\\n")).collect();
        match format {
            Format::OpenAiChat => format!(
                r#"[{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{at}","type":"function","function":{{"name":"read","arguments":"{{\"path\":\"{at}.rs\"}}"}}}}]}},{{"role":"tool","tool_call_id":"c{at}","content":"{source}"}}]"#
            ),
            Format::OpenAiResponses => format!(
                r#"[{{"type":"function_call","call_id":"c{at}","name":"read","arguments":"{{\"path\":\"{at}.rs\"}}"}},{{"type":"function_call_output","call_id":"c{at}","output":"{source}"}}]"#
            ),
            Format::Anthropic => format!(
                r#"[{{"role":"assistant","content":[{{"type":"tool_use","id":"c{at}","name":"read","input":{{"path":"{at}.rs"}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c{at}","content":"{source}"}}]}}]"#
            ),
            Format::Ollama => format!(
                r#"[{{"role":"assistant","tool_calls":[{{"function":{{"name":"read","arguments":{{"path":"{at}.rs"}}}}}}]}},{{"role":"tool","tool_name":"read","content":"{source}"}}]"#
            ),
            Format::Converse => format!(
                r#"[{{"role":"assistant","content":[{{"toolUse":{{"toolUseId":"c{at}","name":"read","input":{{"path":"{at}.rs"}}}}}}]}},{{"role":"user","content":[{{"toolResult":{{"toolUseId":"c{at}","content":[{{"text":"{source}"}}]}}}}]}}]"#
            ),
            Format::Gemini => format!(
                r#"[{{"role":"model","parts":[{{"functionCall":{{"name":"read","args":{{"path":"{at}.rs"}}}}}}]}},{{"role":"user","parts":[{{"functionResponse":{{"name":"read","response":{{"output":"{source}"}}}}}}]}}]"#
            ),
        }
    }

    fn task(format: Format) -> &'static str {
        match format {
            Format::Gemini => r#"[{"role":"user","parts":[{"text":"Make it faster."}]}]"#,
            Format::Converse => r#"[{"role":"user","content":[{"text":"Make it faster."}]}]"#,
            _ => r#"[{"role":"user","content":"Make it faster."}]"#,
        }
    }

    /// The messages that a caller sends, kept from one rendering to the next.
    #[derive(Default)]
    struct SentMessages(Vec<String>);

    impl SentMessages {
        fn update(&mut self, session: &JsonSession, rendering: JsonRendering) {
            self.0.truncate(rendering.first);
            self.0.extend(rendering.messages.into_iter().map(|message| match message {
                JsonMessage::Unchanged(index) => session.raw_message(index).unwrap().to_owned(),
                JsonMessage::Edited { json, .. } | JsonMessage::Note { json } => json,
            }));
            assert_eq!(self.0.len(), rendering.len);
        }

        fn list(&self) -> String {
            format!("[{}]", self.0.join(","))
        }
    }

    /// A session in every dialect sends the bytes of a fold of the whole body, breaks no law and restores originals.
    #[test]
    fn session_sends_what_a_fold_of_the_whole_body_sends() {
        for (format, model) in MODELS {
            let options = FoldOptions::for_model(model, 4_000).with_rules(&LawProfile::for_model(format, Some(model)));
            let meter = options.meter.clone();
            let overhead = FoldOptions { overhead_tokens: meter.request_overhead(), ..options.clone() };
            let mut session = JsonSession::new(format, overhead);
            let (mut sent, mut all, mut creases) = (SentMessages::default(), Vec::new(), 0);
            let store = MemoryStore::default();
            for at in 0..40 {
                let list = if at == 0 { task(format).to_owned() } else { round(format, at) };
                session.push(&list).unwrap();
                all.push(list[1..list.len() - 1].to_owned());
                let rendering = session.plan_request().unwrap();
                assert!(rendering.tokens <= 4_000, "{format:?}");
                creases += usize::from(rendering.creased);
                if rendering.has_folds() {
                    session.store_originals(&store).unwrap();
                }
                sent.update(&session, rendering);
                let body = format!("[{}]", all.join(","));
                let request = Request::parse(format, body.as_bytes()).unwrap();
                let whole = apply(&request, &options, &Ledger::default(), Some(&store), &|_| ()).unwrap();
                assert_eq!(String::from_utf8(whole.body).unwrap(), sent.list(), "{format:?}");
                let list = sent.list();
                let parsed = Request::parse(format, list.as_bytes()).unwrap();
                let profile = LawProfile::for_model(format, Some(model));
                let broken = |request: &Request<'_>| -> Vec<String> {
                    check(request, &profile).iter().map(|violation| violation.to_string()).collect()
                };
                assert_eq!(broken(&parsed), broken(&request), "{format:?}");
            }
            assert!(creases > 2, "{format:?}: {creases}");
            let list = sent.list();
            let handles: Vec<Handle> = marker::handles(&list).collect();
            assert!(!handles.is_empty(), "{format:?}");
            for handle in handles {
                assert_eq!(store.get(handle).as_deref(), session.unfold(handle).as_deref(), "{format:?} {handle}");
            }
        }
    }

    #[test]
    fn bad_message_adds_none_of_its_list() {
        let mut session = JsonSession::new(Format::OpenAiChat, FoldOptions::for_model("gpt-4o", 2_000));
        for list in [r#"[{"role":"user","content":"a"},7]"#, "{", r#"{"messages":[]}"#, ""] {
            session.push(list).unwrap_err();
        }
        assert!(session.is_empty());
    }

    #[test]
    fn forgotten_rendering_starts_at_the_first_message() {
        let mut session = JsonSession::new(Format::OpenAiChat, FoldOptions::for_model("gpt-4o", 2_000));
        session.push(task(Format::OpenAiChat)).unwrap();
        session.push(&round(Format::OpenAiChat, 1)).unwrap();
        let all = session.plan_request().unwrap();
        assert_eq!(session.plan_request().unwrap().messages, []);
        session.forget_rendering();
        let again = session.plan_request().unwrap();
        assert_eq!((again.first, &again.messages), (0, &all.messages));
    }
}
