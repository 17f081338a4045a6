//! Answers one tool ourselves, inside the client's stream, without the client noticing.
//!
//! A model that was offered a tool of ours may call it. The client knows no such tool, so the call
//! must not reach it: its events are withheld, we answer the call in a second request, and the
//! second response goes on in the same stream, as if the model had never stopped. What the client
//! gets must be a stream that its library can read: positions without gaps, an id that does not
//! change, one beginning and one end.
//!
//! As long as no hidden call comes, every byte passes as it is. Nothing here talks to anyone: the
//! caller feeds the bytes of each round and sends what comes out.

pub(crate) mod body;
pub(crate) mod restore;
pub(crate) mod tool;

use crate::wire::Format;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::quoted;
use crate::wire::response::{
    ApiError, Response, StopInfo, StopReason, StreamEvent, StreamLimits, StreamReader, StreamStep, Usage,
};
use crate::wire::sse::SseFrame;

pub use crate::wire::intercept::body::{BodyOutcome, BodySplicer};
pub use crate::wire::intercept::restore::HiddenRound;
pub use crate::wire::intercept::tool::InjectedTool;

/// Puts the rounds of one answer together into one stream.
///
/// ```
/// use foldline::wire::{Format, Next, Splicer};
///
/// let round_1 = br#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"Let me see. "}}]}
///
/// data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"h","type":"function","function":{"name":"unfold","arguments":"{}"}}]}}]}
///
/// data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}
///
/// data: [DONE]
///
/// "#;
/// let round_2 = br#"data: {"id":"b","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}
///
/// data: {"id":"b","choices":[{"index":0,"delta":{"content":"It is 42."},"finish_reason":"stop"}]}
///
/// data: [DONE]
///
/// "#;
/// let mut client = Vec::new();
/// let mut splicer = Splicer::new(Format::OpenAiChat, "unfold");
/// splicer.push(round_1, &mut client);
/// let Next::Continue(asked) = splicer.end_round(&mut client) else { panic!("it asked for unfold") };
/// assert_eq!(asked.calls[0].id, "h");
/// assert_eq!(asked.continuation(&["the original"]).len(), 2, "the assistant's message and the result");
///
/// splicer.push(round_2, &mut client);
/// assert!(matches!(splicer.end_round(&mut client), Next::Finished(_)));
/// let client = String::from_utf8(client).unwrap();
/// assert!(client.contains("Let me see. ") && client.contains("It is 42.") && !client.contains("unfold"));
/// assert_eq!(client.matches("[DONE]").count(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct StreamSplicer {
    format: Format,
    tool: String,
    limits: StreamLimits,
    reader: StreamReader,
    editor: DialectEditor,
    round: RoundState,
    /// The bytes from the event on that ends an answer with hidden calls, until they are taken.
    end: Option<Vec<u8>>,
}

/// The end of an answer from which calls were hidden, or that the provider stores. A client may continue as soon as it
/// has these bytes, so what the next request depends on is recorded before they are sent.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    /// The bytes for the client, from the event that tells why the model stopped.
    pub bytes: Vec<u8>,
    /// The same as [`FinishedAnswer::mixed_calls`].
    pub mixed: Option<InterceptedCalls>,
    /// The id of the response.
    pub response_id: Option<String>,
}

/// What to do when a round has ended.
#[derive(Clone, Debug)]
pub enum RoundOutcome {
    /// The answer is complete, and the client has all of it.
    Finished(Box<FinishedAnswer>),
    /// The model asked for the hidden tool and for nothing else: answer, and send the next round.
    Continue(InterceptedCalls),
    /// The round broke off, or in a later round the provider gave up. The same round may be sent
    /// again when nothing of it was shown; otherwise the client must be told.
    Interrupted(InterruptedRound),
}

/// A round that did not come to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptedRound {
    /// Whether the client has seen anything of this round.
    pub shown_to_client: bool,
    /// What the provider said, when it gave up in a later round. In the first one the client has it.
    pub error: Option<ApiError>,
    /// The bytes by which the provider told it, for a client that is to be told the same. Without
    /// any, [`StreamSplicer::write_error`] writes some.
    pub error_bytes: Vec<u8>,
}

/// The calls of the hidden tool that a round made, to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptedCalls {
    format: Format,
    /// The calls, in order.
    pub calls: Vec<HiddenCall>,
    /// What the model said in this round, word for word, as the elements that the next request
    /// appends to its list.
    pub turn_json: Vec<String>,
    /// What this round cost.
    pub usage: Option<Usage>,
    /// The id of the response that made the calls.
    pub response_id: Option<String>,
    /// Where in the client's copy of the answer the calls are missing: before the block (Anthropic)
    /// or the item (Responses) of this number, or behind so many bytes of text (Chat Completions).
    pub position: u64,
}

/// A call that the client does not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenCall {
    /// By which its result refers to it.
    pub id: String,
    /// With what it was called: JSON text, unless the model erred.
    pub arguments: String,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct FinishedAnswer {
    /// The last round as the provider gave it, hidden calls included.
    pub response: Response<'static>,
    /// What all rounds cost together; its context is that of the last.
    pub usage: Option<Usage>,
    /// Calls of the hidden tool that stand beside calls of the client's own. The client answers its
    /// own; these, with their results, must be put beside them in the client's next request.
    pub mixed_calls: Option<InterceptedCalls>,
}

/// Which id a Responses stream of several rounds ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReportedId {
    /// That of the first round, which the client saw when the stream began.
    #[default]
    First,
    /// That of the last one: the provider stores responses, and the client will refer to the state
    /// that contains the hidden call.
    Last,
}

impl StreamSplicer {
    /// A splicer at the beginning of an answer, for a hidden tool of this name.
    pub fn new(format: Format, tool: impl Into<String>) -> Self {
        Self::with_limits(format, tool, StreamLimits::default())
    }

    /// A splicer that keeps no more of each round than it is told to.
    pub fn with_limits(format: Format, tool: impl Into<String>, limits: StreamLimits) -> Self {
        let editor = match format {
            Format::OpenAiChat => DialectEditor::OpenAiChat(Default::default()),
            Format::OpenAiResponses => DialectEditor::OpenAiResponses(
                crate::wire::dialect::openai_responses::intercept::ResponsesEditor::new(limits.max_kept_bytes),
            ),
            Format::Anthropic => DialectEditor::Anthropic(Default::default()),
        };
        let reader = StreamReader::with_limits(format, limits);
        Self { format, tool: tool.into(), limits, reader, editor, round: RoundState::default(), end: None }
    }

    /// Chooses the id that a Responses stream ends with.
    pub fn with_reported_id(mut self, id: ReportedId) -> Self {
        if let DialectEditor::OpenAiResponses(editor) = &mut self.editor {
            editor.reported_id = id;
        }
        self
    }

    /// Takes bytes of the current round, and writes what the client is to get. The end of an answer with hidden calls
    /// is kept for [`Self::take_end`].
    pub fn push(&mut self, mut bytes: &[u8], client: &mut Vec<u8>) {
        while let Some(step) = self.reader.next(&mut bytes) {
            self.round.pass(&step, &mut self.editor, &self.tool, &mut self.end, client);
        }
    }

    /// Returns the end of an answer with hidden calls, once it has come. What follows it is written by [`Self::push_marker`]
    /// again.
    pub fn take_end(&mut self) -> Option<AnswerEnd> {
        let bytes = self.end.take()?;
        let response = self.reader.clone().finish();
        let calls = || self.asked(&response, self.reader.turn_json(), self.reader.usage());
        let mixed = self.has_hidden_calls().then(calls).flatten();
        Some(AnswerEnd { bytes, mixed, response_id: response.id.as_deref().map(str::to_owned) })
    }

    /// Returns the hidden calls of the current round, unless it ended for a reason by which they do not count.
    fn asked(&self, response: &Response<'_>, turn: Vec<String>, usage: Option<Usage>) -> Option<InterceptedCalls> {
        let calls = hidden_calls(response, &self.tool);
        let counts = matches!(self.round.end, Some(RoundEnd::HiddenCalls | RoundEnd::Answered)) && !calls.is_empty();
        counts.then(|| InterceptedCalls {
            format: self.format,
            calls,
            turn_json: turn,
            usage,
            response_id: response.id.as_deref().map(str::to_owned),
            position: self.editor.position(),
        })
    }

    /// Ends the current round, and writes what was left of it.
    pub fn end_round(&mut self, client: &mut Vec<u8>) -> RoundOutcome {
        if let Some(step) = self.reader.flush() {
            self.round.pass(&step, &mut self.editor, &self.tool, &mut self.end, client);
        }
        client.append(&mut self.end.take().unwrap_or_default());
        let reader = std::mem::replace(&mut self.reader, StreamReader::with_limits(self.format, self.limits));
        let verdict = match self.round.end {
            Some(verdict) if self.round.error.is_none() => verdict,
            _ => {
                let RoundState {
                    number,
                    earlier_usage: before,
                    output,
                    shown_to_client: shown,
                    error,
                    error_bytes: told,
                    ..
                } = std::mem::take(&mut self.round);
                self.round = RoundState { number, earlier_usage: before, output, ..RoundState::default() };
                self.editor.restart_round();
                return RoundOutcome::Interrupted(InterruptedRound {
                    shown_to_client: shown,
                    error,
                    error_bytes: told,
                });
            }
        };
        let (usage, turn) = (reader.usage(), reader.turn_json());
        let response = reader.finish();
        let total = self.round.total_usage(usage);
        let asked = self.asked(&response, turn, usage);
        match (verdict, asked) {
            (RoundEnd::HiddenCalls, Some(asked)) => {
                self.round = RoundState {
                    number: self.round.number + 1,
                    earlier_usage: total,
                    output: self.round.output,
                    ..RoundState::default()
                };
                self.editor.next_round();
                RoundOutcome::Continue(asked)
            }
            (_, mixed) => {
                RoundOutcome::Finished(Box::new(FinishedAnswer { response, usage: total, mixed_calls: mixed }))
            }
        }
    }

    /// Returns true once the bytes for the client contain something of the model's, or the end of the answer. Until
    /// then they only announce a response, and may be held back in case that a later round fails.
    pub fn shows_output(&self) -> bool {
        self.round.output
    }

    /// Returns what the answer has cost so far.
    pub fn usage(&self) -> Option<Usage> {
        self.round.total_usage(self.reader.usage())
    }

    /// Whether the round that is running has called the hidden tool.
    pub fn has_hidden_calls(&self) -> bool {
        self.round.hidden_calls > 0
    }

    /// Writes the error that ends a stream which has begun, in the provider's own words, so that clients retry as they
    /// would without us. Where the provider gives an error no name, it gets the usual one for its HTTP status.
    pub fn write_error(&mut self, status: u16, error: &ApiError, client: &mut Vec<u8>) {
        let message = quoted(&error.message);
        let name = error_name(self.format, status);
        let kind = quoted(error.kind.as_deref().unwrap_or(name));
        let event = match &mut self.editor {
            DialectEditor::Anthropic(_) => format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":{kind},\"message\":{message}}}}}\n\n"
            ),
            DialectEditor::OpenAiChat(_) => {
                let code = error.code.as_deref().map_or("null".to_owned(), quoted);
                format!(
                    "data: {{\"error\":{{\"message\":{message},\"type\":{kind},\"param\":null,\"code\":{code}}}}}\n\n"
                )
            }
            DialectEditor::OpenAiResponses(editor) => {
                let code = error.code.as_deref().or(error.kind.as_deref()).unwrap_or(name);
                editor.error_event(&quoted(code), &message)
            }
        };
        client.extend_from_slice(event.as_bytes());
    }

    /// What keeps a waiting client's connection open while a round is being prepared.
    pub fn keep_alive_bytes(&self) -> &'static [u8] {
        match self.format {
            Format::Anthropic => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
            Format::OpenAiChat | Format::OpenAiResponses => b": keep-alive\n\n",
        }
    }
}

impl InterceptedCalls {
    /// The elements that the next request appends to its list: what the model said, and the answers
    /// to its calls in their order.
    pub fn continuation(&self, answers: &[&str]) -> Vec<String> {
        let mut elements = self.turn_json.clone();
        let answered = self.calls.iter().zip(answers);
        match self.format {
            Format::Anthropic => {
                let results: Vec<String> = answered
                    .map(|(call, answer)| {
                        let (id, answer) = (quoted(&call.id), quoted(answer));
                        format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{answer}}}"#)
                    })
                    .collect();
                elements.push(format!(r#"{{"role":"user","content":[{}]}}"#, results.join(",")));
            }
            Format::OpenAiChat => elements.extend(answered.map(|(call, answer)| {
                let (id, answer) = (quoted(&call.id), quoted(answer));
                format!(r#"{{"role":"tool","tool_call_id":{id},"content":{answer}}}"#)
            })),
            Format::OpenAiResponses => elements.extend(answered.map(|(call, answer)| {
                let (id, answer) = (quoted(&call.id), quoted(answer));
                format!(r#"{{"type":"function_call_output","call_id":{id},"output":{answer}}}"#)
            })),
        }
        elements
    }
}

/// What is known of the round that is running.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundState {
    /// Zero for the first.
    number: u32,
    /// What the rounds before it cost.
    pub(crate) earlier_usage: Option<Usage>,
    /// How many calls the client will not see, and how many it will.
    pub(crate) hidden_calls: usize,
    visible_calls: usize,
    end: Option<RoundEnd>,
    /// The client has seen something of the model's, in this round or before.
    output: bool,
    /// The client has seen something of this round.
    shown_to_client: bool,
    /// The provider gave up in a later round, with these bytes.
    error: Option<ApiError>,
    error_bytes: Vec<u8>,
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// In a call of the hidden tool, and none of the client's.
    HiddenCalls,
    /// In an answer, or in calls of the client's.
    Answered,
    /// For another reason: length, a filter, an error. Calls that were begun do not count.
    Stopped,
}

impl RoundState {
    /// Takes a step of the stream, and writes what the client gets of it: into `end` from the event on that ends an
    /// answer with hidden calls, as long as nothing was taken out of it.
    fn pass(
        &mut self,
        step: &StreamStep<'_>,
        editor: &mut DialectEditor,
        tool: &str,
        end: &mut Option<Vec<u8>>,
        client: &mut Vec<u8>,
    ) {
        let was_over = self.end.is_some();
        self.record_events(&step.events, tool);
        let hides = self.hidden_calls > 0 || !self.is_first() || editor.is_stored();
        if self.end.is_some() && !was_over && hides && !self.continues() && self.error.is_none() {
            *end = Some(Vec::new());
        }
        editor.forward_frame(step, self, tool, end.as_mut().unwrap_or(client));
    }

    /// Returns true if the client sees more by this event than that a response begins.
    fn shows(&self, event: &StreamEvent, tool: &str) -> bool {
        match event {
            StreamEvent::ToolCallOpened { name, .. } => name != tool,
            StreamEvent::Other { at, .. } => at.is_some(),
            StreamEvent::Stopped { .. }
            | StreamEvent::Done
            | StreamEvent::Error { .. }
            | StreamEvent::Unreadable(_) => !self.continues(),
            _ => event.is_output(),
        }
    }

    fn record_events(&mut self, events: &[StreamEvent], tool: &str) {
        for event in events {
            match event {
                StreamEvent::ToolCallOpened { name, .. } if name == tool => self.hidden_calls += 1,
                StreamEvent::ToolCallOpened { .. } => self.visible_calls += 1,
                StreamEvent::Stopped { choice: 0, stop } => self.record_stop(Some(stop)),
                StreamEvent::Done => self.record_stop(None),
                StreamEvent::Error { error, .. } => {
                    self.end = Some(RoundEnd::Stopped);
                    if !self.is_first() {
                        self.error.get_or_insert_with(|| error.clone());
                    }
                }
                _ => {}
            }
        }
    }

    fn record_stop(&mut self, stop: Option<&StopInfo>) {
        use StopReason::{Compacted, ContextFull, MaxTokens, Paused, Refused};
        let verdict = match stop.map(|stop| stop.reason) {
            Some(MaxTokens | ContextFull | Refused | Paused | Compacted) => RoundEnd::Stopped,
            _ if self.hidden_calls == 0 || self.visible_calls > 0 => RoundEnd::Answered,
            _ => RoundEnd::HiddenCalls,
        };
        self.end.get_or_insert(verdict);
    }

    /// What all rounds cost, this one included.
    fn total_usage(&self, usage: Option<Usage>) -> Option<Usage> {
        match (self.earlier_usage, usage) {
            (Some(before), Some(usage)) => Some(before.combined_with(usage)),
            (before, usage) => usage.or(before),
        }
    }

    /// The end of this round is not the end of the answer.
    pub(crate) fn continues(&self) -> bool {
        self.end == Some(RoundEnd::HiddenCalls)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Tokens that earlier rounds answered with.
    pub(crate) fn earlier_output_tokens(&self) -> u64 {
        self.earlier_usage.map_or(0, |usage| usage.output)
    }
}

#[derive(Clone, Debug)]
enum DialectEditor {
    OpenAiChat(crate::wire::dialect::openai_chat::intercept::ChatEditor),
    OpenAiResponses(crate::wire::dialect::openai_responses::intercept::ResponsesEditor),
    Anthropic(crate::wire::dialect::anthropic::intercept::AnthropicEditor),
}

/// What becomes of a frame.
pub(crate) enum FrameAction {
    /// It goes to the client as it is.
    Forward,
    /// The client does not get it.
    Withhold,
    /// The client gets it with this data.
    Rewrite(String),
}

impl DialectEditor {
    fn forward_frame(&mut self, step: &StreamStep<'_>, round: &mut RoundState, tool: &str, client: &mut Vec<u8>) {
        let pass = self.edit_frame(&step.frame, round, tool);
        // An error of a later round is kept back: the round may be tried again.
        let out = if round.error.is_some() { &mut round.error_bytes } else { client };
        match pass {
            FrameAction::Withhold => return,
            FrameAction::Forward => out.extend_from_slice(step.frame.raw),
            FrameAction::Rewrite(data) => step.frame.write_with_data(&data, out),
        }
        if round.error.is_none() {
            round.shown_to_client |= step.events != [StreamEvent::Ping];
            round.output |= step.events.iter().any(|event| round.shows(event, tool));
        }
    }

    /// Returns true if the client may continue from the id of this answer, without sending the conversation again.
    fn is_stored(&self) -> bool {
        matches!(self, DialectEditor::OpenAiResponses(editor) if editor.reported_id == ReportedId::Last)
    }

    fn edit_frame(&mut self, frame: &SseFrame<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let Some(data) = frame.data() else { return FrameAction::Forward };
        if data.starts_with(b"[DONE]") {
            return if round.continues() { FrameAction::Withhold } else { FrameAction::Forward };
        }
        let document = std::str::from_utf8(&data).ok().and_then(|text| scan::parse_document(text).ok());
        let Some(data) = document.filter(|it| it.is_object()).map(|it| it.object()) else {
            return FrameAction::Forward;
        };
        let kind = data.string("type").unwrap_or_else(|| frame.name().unwrap_or_default().into());
        match self {
            DialectEditor::OpenAiChat(editor) => editor.edit_frame(&data, round, tool),
            DialectEditor::OpenAiResponses(editor) => editor.edit_frame(&kind, &data, round, tool),
            DialectEditor::Anthropic(editor) => editor.edit_frame(&kind, &data, round, tool),
        }
    }

    fn next_round(&mut self) {
        match self {
            DialectEditor::OpenAiChat(editor) => editor.next_round(),
            DialectEditor::OpenAiResponses(editor) => editor.next_round(),
            DialectEditor::Anthropic(editor) => editor.next_round(),
        }
    }

    fn restart_round(&mut self) {
        match self {
            DialectEditor::OpenAiChat(editor) => editor.restart_round(),
            DialectEditor::OpenAiResponses(editor) => editor.restart_round(),
            DialectEditor::Anthropic(editor) => editor.restart_round(),
        }
    }

    fn position(&self) -> u64 {
        match self {
            DialectEditor::OpenAiChat(editor) => editor.position(),
            DialectEditor::OpenAiResponses(editor) => editor.position(),
            DialectEditor::Anthropic(editor) => editor.position(),
        }
    }
}

/// Positions as the client counts them: those of the provider, without the hidden ones and behind
/// those of earlier rounds. Clients address what they have by position, so a gap crashes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionMap {
    /// The client's position of this round's first.
    round_start: u64,
    /// The client's next position.
    pub(crate) next: u64,
    hidden: std::collections::BTreeSet<u64>,
}

impl PositionMap {
    pub(crate) fn hide(&mut self, index: u64) {
        self.hidden.insert(index);
    }

    pub(crate) fn is_hidden(&self, index: u64) -> bool {
        self.hidden.contains(&index)
    }

    pub(crate) fn any_hidden(&self) -> bool {
        !self.hidden.is_empty()
    }

    pub(crate) fn client_position(&mut self, index: u64) -> u64 {
        let before = self.hidden.range(..index).count() as u64;
        let position = self.round_start.saturating_add(index).saturating_sub(before);
        self.next = self.next.max(position.saturating_add(1));
        position
    }

    pub(crate) fn next_round(&mut self) {
        self.round_start = self.next;
        self.hidden.clear();
    }

    pub(crate) fn restart_round(&mut self) {
        self.next = self.round_start;
        self.hidden.clear();
    }
}

/// Returns the calls of the hidden tool in a response.
fn hidden_calls(response: &Response<'_>, tool: &str) -> Vec<HiddenCall> {
    let calls = response.calls().filter(|call| call.name == tool);
    calls.map(|call| HiddenCall { id: call.id.to_string(), arguments: call.arguments.as_str().to_owned() }).collect()
}

/// Returns the usual name of an error with this HTTP status.
fn error_name(format: Format, status: u16) -> &'static str {
    match (format, status) {
        (Format::Anthropic, 401) => "authentication_error",
        (Format::Anthropic, 403) => "permission_error",
        (Format::Anthropic, 404) => "not_found_error",
        (Format::Anthropic, 408 | 504) => "timeout_error",
        (Format::Anthropic, 413) => "request_too_large",
        (Format::Anthropic, 429) => "rate_limit_error",
        (Format::Anthropic, 503 | 529) => "overloaded_error",
        (Format::OpenAiChat | Format::OpenAiResponses, 429) => "rate_limit_exceeded",
        (_, 400..=499) => "invalid_request_error",
        (Format::Anthropic, _) => "api_error",
        (Format::OpenAiChat | Format::OpenAiResponses, _) => "server_error",
    }
}

/// A count as JSON, with what earlier rounds add to it.
pub(crate) fn summed_count(counts: &JsonObject<'_>, path: &[&str], before: u64) -> Option<String> {
    counts.u64(path).map(|count| count.saturating_add(before).to_string())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;
