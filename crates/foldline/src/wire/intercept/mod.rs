//! Answers calls of the injected tool inside the client's stream, invisibly to the client.
//!
//! A model may call the tool that foldline injected. The client does not know that tool, so the call must not reach it:
//! its events are withheld, foldline answers the call in a second request, and the second response continues in the
//! same stream as if the model had never stopped. The client's library must be able to read the result: positions
//! without gaps, an unchanged id, one start and one end.
//!
//! Until a hidden call arrives, every byte is forwarded unchanged. This module does no IO: the caller pushes the bytes
//! of each round and sends the output.

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

/// Merges the rounds of one answer into one stream.
///
/// ```
/// use foldline::wire::{Format, RoundOutcome, StreamSplicer};
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
/// let mut splicer = StreamSplicer::new(Format::OpenAiChat, "unfold");
/// splicer.push(round_1, &mut client);
/// let RoundOutcome::Continue(calls) = splicer.end_round(&mut client) else { panic!("expected a call of unfold") };
/// assert_eq!(calls.calls[0].id, "h");
/// assert_eq!(calls.continuation(&["the original"]).len(), 2, "the assistant's message and the result");
///
/// splicer.push(round_2, &mut client);
/// assert!(matches!(splicer.end_round(&mut client), RoundOutcome::Finished(_)));
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
    /// The bytes starting at the event that ends an answer with hidden calls, until [`StreamSplicer::take_end`].
    end: Option<Vec<u8>>,
}

/// The end of an answer with hidden calls, or of one that the provider stores. A client may continue as soon as it has
/// these bytes, so everything that the next request depends on must be recorded before they are sent.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    /// The bytes for the client, starting at the event with the stop reason.
    pub bytes: Vec<u8>,
    /// The same value as [`FinishedAnswer::mixed_calls`].
    pub mixed: Option<InterceptedCalls>,
    /// The id of the response.
    pub response_id: Option<String>,
}

/// The outcome of a round.
#[derive(Clone, Debug)]
pub enum RoundOutcome {
    /// The answer is complete, and all of it was written for the client.
    Finished(Box<FinishedAnswer>),
    /// The model called only the hidden tool: answer the calls and send the next round.
    Continue(InterceptedCalls),
    /// The round broke off, or the provider failed in a later round. The same round may be sent again if none of it was
    /// shown; otherwise the client must get an error.
    Interrupted(InterruptedRound),
}

/// A round that did not end normally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptedRound {
    /// True if the client has received anything of this round.
    pub shown_to_client: bool,
    /// The provider's error in a later round. An error in the first round has already been forwarded.
    pub error: Option<ApiError>,
    /// The bytes of the provider's error, to be forwarded. If empty, [`StreamSplicer::write_error`] writes an error.
    pub error_bytes: Vec<u8>,
}

/// The hidden tool's calls in a round, to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptedCalls {
    format: Format,
    /// The calls, in order.
    pub calls: Vec<HiddenCall>,
    /// The model's verbatim output of this round, as the elements that the next request appends to its list.
    pub turn_json: Vec<String>,
    /// The token counts of this round.
    pub usage: Option<Usage>,
    /// The id of the response that made the calls.
    pub response_id: Option<String>,
    /// Position of the missing calls in the client's copy of the answer: the number of the following block (Anthropic)
    /// or item (Responses), or the number of preceding text bytes (Chat Completions).
    pub position: u64,
}

/// A call that the client does not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenCall {
    /// The id to which the result refers.
    pub id: String,
    /// The arguments: JSON text, unless the model produced invalid JSON.
    pub arguments: String,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct FinishedAnswer {
    /// The last round as received from the provider, including hidden calls.
    pub response: Response<'static>,
    /// The token counts of all rounds together; the context size is that of the last.
    pub usage: Option<Usage>,
    /// Hidden calls in the same turn as client calls. The client answers its own; these calls and their results must be
    /// added to the client's next request.
    pub mixed_calls: Option<InterceptedCalls>,
}

/// The id reported at the end of a Responses stream of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReportedId {
    /// The id of the first round, which the client received when the stream began.
    #[default]
    First,
    /// The id of the last round: the provider stores responses, and the client will refer to the state that contains
    /// the hidden call.
    Last,
}

impl StreamSplicer {
    /// Creates a splicer for a new answer and a hidden tool of this name.
    pub fn new(format: Format, tool: impl Into<String>) -> Self {
        Self::with_limits(format, tool, StreamLimits::default())
    }

    /// Creates a splicer with the given memory limits for each round.
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

    /// Sets the id reported at the end of a Responses stream.
    pub fn with_reported_id(mut self, id: ReportedId) -> Self {
        if let DialectEditor::OpenAiResponses(editor) = &mut self.editor {
            editor.reported_id = id;
        }
        self
    }

    /// Processes bytes of the current round, and writes the client's bytes. The end of an answer with hidden calls is
    /// kept for [`Self::take_end`].
    pub fn push(&mut self, mut bytes: &[u8], client: &mut Vec<u8>) {
        while let Some(step) = self.reader.next(&mut bytes) {
            self.round.pass(&step, &mut self.editor, &self.tool, &mut self.end, client);
        }
    }

    /// Returns the end of an answer with hidden calls, once received. [`Self::push`] writes what follows it.
    pub fn take_end(&mut self) -> Option<AnswerEnd> {
        let bytes = self.end.take()?;
        let response = self.reader.clone().finish();
        let calls = || self.intercepted_calls(&response, self.reader.turn_json(), self.reader.usage());
        let mixed = self.has_hidden_calls().then(calls).flatten();
        Some(AnswerEnd { bytes, mixed, response_id: response.id.as_deref().map(str::to_owned) })
    }

    /// Returns the hidden calls of the current round, unless it stopped for a reason that invalidates them.
    fn intercepted_calls(
        &self,
        response: &Response<'_>,
        turn_json: Vec<String>,
        usage: Option<Usage>,
    ) -> Option<InterceptedCalls> {
        let calls = hidden_calls(response, &self.tool);
        let counts = matches!(self.round.end, Some(RoundEnd::HiddenCalls | RoundEnd::Answered)) && !calls.is_empty();
        counts.then(|| InterceptedCalls {
            format: self.format,
            calls,
            turn_json,
            usage,
            response_id: response.id.as_deref().map(str::to_owned),
            position: self.editor.position(),
        })
    }

    /// Ends the current round, and writes the rest of it.
    pub fn end_round(&mut self, client: &mut Vec<u8>) -> RoundOutcome {
        if let Some(step) = self.reader.flush() {
            self.round.pass(&step, &mut self.editor, &self.tool, &mut self.end, client);
        }
        client.append(&mut self.end.take().unwrap_or_default());
        let reader = std::mem::replace(&mut self.reader, StreamReader::with_limits(self.format, self.limits));
        let round_end = match self.round.end {
            Some(round_end) if self.round.error.is_none() => round_end,
            _ => {
                let RoundState { number, earlier_usage, output, shown_to_client, error, error_bytes, .. } =
                    std::mem::take(&mut self.round);
                self.round = RoundState { number, earlier_usage, output, ..RoundState::default() };
                self.editor.restart_round();
                return RoundOutcome::Interrupted(InterruptedRound { shown_to_client, error, error_bytes });
            }
        };
        let (usage, turn) = (reader.usage(), reader.turn_json());
        let response = reader.finish();
        let total = self.round.total_usage(usage);
        let calls = self.intercepted_calls(&response, turn, usage);
        match (round_end, calls) {
            (RoundEnd::HiddenCalls, Some(calls)) => {
                self.round = RoundState {
                    number: self.round.number + 1,
                    earlier_usage: total,
                    output: self.round.output,
                    ..RoundState::default()
                };
                self.editor.next_round();
                RoundOutcome::Continue(calls)
            }
            (_, mixed) => {
                RoundOutcome::Finished(Box::new(FinishedAnswer { response, usage: total, mixed_calls: mixed }))
            }
        }
    }

    /// Returns true once the client's bytes contain model output, or the end of the answer. Until then they only
    /// announce a response, and may be held back in case a later round fails.
    pub fn shows_output(&self) -> bool {
        self.round.output
    }

    /// Returns the token counts of the answer so far.
    pub fn usage(&self) -> Option<Usage> {
        self.round.total_usage(self.reader.usage())
    }

    /// Returns true if the current round has called the hidden tool.
    pub fn has_hidden_calls(&self) -> bool {
        self.round.hidden_calls > 0
    }

    /// Writes the error that ends a started stream, in the provider's own format, so that clients retry as they would
    /// without foldline. An error without a type gets the usual one for its HTTP status.
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

    /// Returns the keep-alive bytes for a client that waits while a round is prepared.
    pub fn keep_alive_bytes(&self) -> &'static [u8] {
        match self.format {
            Format::Anthropic => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
            Format::OpenAiChat | Format::OpenAiResponses => b": keep-alive\n\n",
        }
    }
}

impl InterceptedCalls {
    /// Returns the elements that the next request appends to its list: the model's output, and the answers to its calls
    /// in order.
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

/// State of the current round.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundState {
    /// Zero for the first.
    number: u32,
    /// The token counts of the earlier rounds.
    pub(crate) earlier_usage: Option<Usage>,
    /// Number of calls withheld from the client; the next field counts the others.
    pub(crate) hidden_calls: usize,
    visible_calls: usize,
    end: Option<RoundEnd>,
    /// The client has received model output, in this round or before.
    output: bool,
    /// The client has received something of this round.
    shown_to_client: bool,
    /// The provider's error in a later round; the next field has its bytes.
    error: Option<ApiError>,
    error_bytes: Vec<u8>,
}

/// The end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// Ended in calls of the hidden tool only.
    HiddenCalls,
    /// Ended in an answer, or in calls of the client's tools.
    Answered,
    /// Stopped for another reason: length, a filter, an error. Started calls are invalid.
    Stopped,
}

impl RoundState {
    /// Processes a step of the stream, and writes the client's bytes: into `end` starting at the event that ends an
    /// answer with hidden calls, until the end is taken.
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

    /// Returns true if this event shows the client more than the start of a response.
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
        let round_end = match stop.map(|stop| stop.reason) {
            Some(MaxTokens | ContextFull | Refused | Paused | Compacted) => RoundEnd::Stopped,
            _ if self.hidden_calls == 0 || self.visible_calls > 0 => RoundEnd::Answered,
            _ => RoundEnd::HiddenCalls,
        };
        self.end.get_or_insert(round_end);
    }

    /// Returns the token counts of all rounds including this one.
    fn total_usage(&self, usage: Option<Usage>) -> Option<Usage> {
        match (self.earlier_usage, usage) {
            (Some(before), Some(usage)) => Some(before.combined_with(usage)),
            (before, usage) => usage.or(before),
        }
    }

    /// Returns true if the end of this round is not the end of the answer.
    pub(crate) fn continues(&self) -> bool {
        self.end == Some(RoundEnd::HiddenCalls)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Returns the output tokens of earlier rounds.
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

/// The action for a frame.
pub(crate) enum FrameAction {
    /// Forwarded unchanged.
    Forward,
    /// Not sent to the client.
    Withhold,
    /// Sent to the client with this data.
    Rewrite(String),
}

impl DialectEditor {
    fn forward_frame(&mut self, step: &StreamStep<'_>, round: &mut RoundState, tool: &str, client: &mut Vec<u8>) {
        let pass = self.edit_frame(&step.frame, round, tool);
        // An error of a later round is held back, since the round may be retried.
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

    /// Returns true if the client may continue from the id of this answer without sending the conversation again.
    fn is_stored(&self) -> bool {
        matches!(self, DialectEditor::OpenAiResponses(editor) if editor.reported_id == ReportedId::Last)
    }

    fn edit_frame(&mut self, frame: &SseFrame<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let Some(data) = frame.data() else { return FrameAction::Forward };
        if data.starts_with(b"[DONE]") {
            return if round.continues() { FrameAction::Withhold } else { FrameAction::Forward };
        }
        let document = std::str::from_utf8(&data).ok().and_then(|text| scan::parse_document(text).ok());
        let Some(data) = document.filter(|value| value.is_object()).map(|value| value.object()) else {
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

/// Maps provider positions to client positions: without the hidden ones, and after those of earlier rounds. Clients
/// address output by position and crash on gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionMap {
    /// The client position of the first output of this round.
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

/// Returns the usual error type for an HTTP status.
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

/// Returns a count as JSON, with the count of earlier rounds added.
pub(crate) fn summed_count(counts: &JsonObject<'_>, path: &[&str], before: u64) -> Option<String> {
    counts.u64(path).map(|count| count.saturating_add(before).to_string())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;
