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

mod anthropic;
mod body;
mod heal;
mod offer;
mod openai_chat;
mod openai_responses;

use super::Format;
use super::response::{ApiError, Event, Limits, Response, Step, Stop, StopReason, StreamReader, Usage};
use super::scan::{self, Object};
use super::sse::Frame;
use super::write::quoted;

pub use body::{BodySplicer, NextBody};
pub use heal::Gap;
pub use offer::Offer;

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
pub struct Splicer {
    format: Format,
    tool: String,
    limits: Limits,
    reader: StreamReader,
    editor: Editor,
    round: Round,
    /// The bytes from the event on that ends an answer with hidden calls, until they are taken.
    end: Option<Vec<u8>>,
}

/// The end of an answer from which calls were hidden, or that the provider stores. A client may continue as soon as it
/// has these bytes, so what the next request depends on is recorded before they are sent.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    /// The bytes for the client, from the event that tells why the model stopped.
    pub bytes: Vec<u8>,
    /// The same as [`Finished::mixed`].
    pub mixed: Option<Asked>,
    /// The id of the response.
    pub response_id: Option<String>,
}

/// What to do when a round has ended.
#[derive(Clone, Debug)]
pub enum Next {
    /// The answer is complete, and the client has all of it.
    Finished(Box<Finished>),
    /// The model asked for the hidden tool and for nothing else: answer, and send the next round.
    Continue(Asked),
    /// The round broke off, or in a later round the provider gave up. The same round may be sent
    /// again when nothing of it was shown; otherwise the client must be told.
    Broken(Broken),
}

/// A round that did not come to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// Whether the client has seen anything of this round.
    pub shown: bool,
    /// What the provider said, when it gave up in a later round. In the first one the client has it.
    pub error: Option<ApiError>,
    /// The bytes by which the provider told it, for a client that is to be told the same. Without
    /// any, [`Splicer::fail`] writes some.
    pub told: Vec<u8>,
}

/// The calls of the hidden tool that a round made, to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    format: Format,
    /// The calls, in order.
    pub calls: Vec<HiddenCall>,
    /// What the model said in this round, word for word, as the elements that the next request
    /// appends to its list.
    pub turn: Vec<String>,
    /// What this round cost.
    pub usage: Option<Usage>,
    /// The id of the response that made the calls.
    pub response_id: Option<String>,
    /// Where in the client's copy of the answer the calls are missing: before the block (Anthropic)
    /// or the item (Responses) of this number, or behind so many bytes of text (Chat Completions).
    pub at: u64,
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
pub struct Finished {
    /// The last round as the provider gave it, hidden calls included.
    pub response: Response<'static>,
    /// What all rounds cost together; its context is that of the last.
    pub usage: Option<Usage>,
    /// Calls of the hidden tool that stand beside calls of the client's own. The client answers its
    /// own; these, with their results, must be put beside them in the client's next request.
    pub mixed: Option<Asked>,
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

impl Splicer {
    /// A splicer at the beginning of an answer, for a hidden tool of this name.
    pub fn new(format: Format, tool: impl Into<String>) -> Self {
        Self::with_limits(format, tool, Limits::default())
    }

    /// A splicer that keeps no more of each round than it is told to.
    pub fn with_limits(format: Format, tool: impl Into<String>, limits: Limits) -> Self {
        let editor = match format {
            Format::OpenAiChat => Editor::OpenAiChat(Default::default()),
            Format::OpenAiResponses => Editor::OpenAiResponses(openai_responses::Editor::new(limits.kept)),
            Format::Anthropic => Editor::Anthropic(Default::default()),
        };
        let reader = StreamReader::with_limits(format, limits);
        Self { format, tool: tool.into(), limits, reader, editor, round: Round::default(), end: None }
    }

    /// Chooses the id that a Responses stream ends with.
    pub fn reporting(mut self, id: ReportedId) -> Self {
        if let Editor::OpenAiResponses(editor) = &mut self.editor {
            editor.reported = id;
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

    /// Returns the end of an answer with hidden calls, once it has come. What follows it is written by [`Self::push`]
    /// again.
    pub fn take_end(&mut self) -> Option<AnswerEnd> {
        let bytes = self.end.take()?;
        let response = self.reader.clone().finish();
        let calls = || self.asked(&response, self.reader.turn(), self.reader.usage());
        let mixed = self.hides().then(calls).flatten();
        Some(AnswerEnd { bytes, mixed, response_id: response.id.as_deref().map(str::to_owned) })
    }

    /// Returns the hidden calls of the current round, unless it ended for a reason by which they do not count.
    fn asked(&self, response: &Response<'_>, turn: Vec<String>, usage: Option<Usage>) -> Option<Asked> {
        let calls = hidden_calls(response, &self.tool);
        let counts = matches!(self.round.verdict, Some(Verdict::Asked | Verdict::Answered)) && !calls.is_empty();
        counts.then(|| Asked {
            format: self.format,
            calls,
            turn,
            usage,
            response_id: response.id.as_deref().map(str::to_owned),
            at: self.editor.position(),
        })
    }

    /// Ends the current round, and writes what was left of it.
    pub fn end_round(&mut self, client: &mut Vec<u8>) -> Next {
        if let Some(step) = self.reader.end() {
            self.round.pass(&step, &mut self.editor, &self.tool, &mut self.end, client);
        }
        client.append(&mut self.end.take().unwrap_or_default());
        let reader = std::mem::replace(&mut self.reader, StreamReader::with_limits(self.format, self.limits));
        let verdict = match self.round.verdict {
            Some(verdict) if self.round.error.is_none() => verdict,
            _ => {
                let Round { number, before, output, shown, error, told, .. } = std::mem::take(&mut self.round);
                self.round = Round { number, before, output, ..Round::default() };
                self.editor.restart_round();
                return Next::Broken(Broken { shown, error, told });
            }
        };
        let (usage, turn) = (reader.usage(), reader.turn());
        let response = reader.finish();
        let total = self.round.total(usage);
        let asked = self.asked(&response, turn, usage);
        match (verdict, asked) {
            (Verdict::Asked, Some(asked)) => {
                self.round = Round {
                    number: self.round.number + 1,
                    before: total,
                    output: self.round.output,
                    ..Round::default()
                };
                self.editor.next_round();
                Next::Continue(asked)
            }
            (_, mixed) => Next::Finished(Box::new(Finished { response, usage: total, mixed })),
        }
    }

    /// Returns true once the bytes for the client contain something of the model's, or the end of the answer. Until
    /// then they only announce a response, and may be held back in case that a later round fails.
    pub fn shows_output(&self) -> bool {
        self.round.output
    }

    /// Returns what the answer has cost so far.
    pub fn usage(&self) -> Option<Usage> {
        self.round.total(self.reader.usage())
    }

    /// Whether the round that is running has called the hidden tool.
    pub fn hides(&self) -> bool {
        self.round.hidden > 0
    }

    /// Writes the error that ends a stream which has begun, in the provider's own words, so that clients retry as they
    /// would without us. Where the provider gives an error no name, it gets the usual one for its HTTP status.
    pub fn fail(&mut self, status: u16, error: &ApiError, client: &mut Vec<u8>) {
        let message = quoted(&error.message);
        let name = error_name(self.format, status);
        let kind = quoted(error.kind.as_deref().unwrap_or(name));
        let event = match &mut self.editor {
            Editor::Anthropic(_) => format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":{kind},\"message\":{message}}}}}\n\n"
            ),
            Editor::OpenAiChat(_) => {
                let code = error.code.as_deref().map_or("null".to_owned(), quoted);
                format!(
                    "data: {{\"error\":{{\"message\":{message},\"type\":{kind},\"param\":null,\"code\":{code}}}}}\n\n"
                )
            }
            Editor::OpenAiResponses(editor) => {
                let code = error.code.as_deref().or(error.kind.as_deref()).unwrap_or(name);
                editor.failed(&quoted(code), &message)
            }
        };
        client.extend_from_slice(event.as_bytes());
    }

    /// What keeps a waiting client's connection open while a round is being prepared.
    pub fn keep_alive(&self) -> &'static [u8] {
        match self.format {
            Format::Anthropic => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
            Format::OpenAiChat | Format::OpenAiResponses => b": keep-alive\n\n",
        }
    }
}

impl Asked {
    /// The elements that the next request appends to its list: what the model said, and the answers
    /// to its calls in their order.
    pub fn continuation(&self, answers: &[&str]) -> Vec<String> {
        let mut elements = self.turn.clone();
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
struct Round {
    /// Zero for the first.
    number: u32,
    /// What the rounds before it cost.
    before: Option<Usage>,
    /// How many calls the client will not see, and how many it will.
    hidden: usize,
    visible: usize,
    verdict: Option<Verdict>,
    /// The client has seen something of the model's, in this round or before.
    output: bool,
    /// The client has seen something of this round.
    shown: bool,
    /// The provider gave up in a later round, with these bytes.
    error: Option<ApiError>,
    told: Vec<u8>,
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// In a call of the hidden tool, and none of the client's.
    Asked,
    /// In an answer, or in calls of the client's.
    Answered,
    /// For another reason: length, a filter, an error. Calls that were begun do not count.
    Ended,
}

impl Round {
    /// Takes a step of the stream, and writes what the client gets of it: into `end` from the event on that ends an
    /// answer with hidden calls, as long as nothing was taken out of it.
    fn pass(
        &mut self,
        step: &Step<'_>,
        editor: &mut Editor,
        tool: &str,
        end: &mut Option<Vec<u8>>,
        client: &mut Vec<u8>,
    ) {
        let was_over = self.verdict.is_some();
        self.note(&step.events, tool);
        let hides = self.hidden > 0 || !self.is_first() || editor.is_stored();
        if self.verdict.is_some() && !was_over && hides && !self.goes_on() && self.error.is_none() {
            *end = Some(Vec::new());
        }
        editor.pass(step, self, tool, end.as_mut().unwrap_or(client));
    }

    /// Returns true if the client sees more by this event than that a response begins.
    fn shows(&self, event: &Event, tool: &str) -> bool {
        match event {
            Event::ToolCallOpened { name, .. } => name != tool,
            Event::Other { at, .. } => at.is_some(),
            Event::Stopped { .. } | Event::Done | Event::Error { .. } | Event::Unreadable(_) => !self.goes_on(),
            _ => event.is_output(),
        }
    }

    fn note(&mut self, events: &[Event], tool: &str) {
        for event in events {
            match event {
                Event::ToolCallOpened { name, .. } if name == tool => self.hidden += 1,
                Event::ToolCallOpened { .. } => self.visible += 1,
                Event::Stopped { choice: 0, stop } => self.conclude(Some(stop)),
                Event::Done => self.conclude(None),
                Event::Error { error, .. } => {
                    self.verdict = Some(Verdict::Ended);
                    if !self.is_first() {
                        self.error.get_or_insert_with(|| error.clone());
                    }
                }
                _ => {}
            }
        }
    }

    fn conclude(&mut self, stop: Option<&Stop>) {
        use StopReason::{Compacted, MaxTokens, Paused, Refused, WindowFull};
        let verdict = match stop.map(|stop| stop.reason) {
            Some(MaxTokens | WindowFull | Refused | Paused | Compacted) => Verdict::Ended,
            _ if self.hidden == 0 || self.visible > 0 => Verdict::Answered,
            _ => Verdict::Asked,
        };
        self.verdict.get_or_insert(verdict);
    }

    /// What all rounds cost, this one included.
    fn total(&self, usage: Option<Usage>) -> Option<Usage> {
        match (self.before, usage) {
            (Some(before), Some(usage)) => Some(before.then(usage)),
            (before, usage) => usage.or(before),
        }
    }

    /// The end of this round is not the end of the answer.
    fn goes_on(&self) -> bool {
        self.verdict == Some(Verdict::Asked)
    }

    fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Tokens that earlier rounds answered with.
    fn output_before(&self) -> u64 {
        self.before.map_or(0, |usage| usage.output)
    }
}

#[derive(Clone, Debug)]
enum Editor {
    OpenAiChat(openai_chat::Editor),
    OpenAiResponses(openai_responses::Editor),
    Anthropic(anthropic::Editor),
}

/// What becomes of a frame.
enum Pass {
    /// It goes to the client as it is.
    Whole,
    /// The client does not get it.
    Withheld,
    /// The client gets it with this data.
    Changed(String),
}

impl Editor {
    fn pass(&mut self, step: &Step<'_>, round: &mut Round, tool: &str, client: &mut Vec<u8>) {
        let pass = self.judge(&step.frame, round, tool);
        // An error of a later round is kept back: the round may be tried again.
        let out = if round.error.is_some() { &mut round.told } else { client };
        match pass {
            Pass::Withheld => return,
            Pass::Whole => out.extend_from_slice(step.frame.raw),
            Pass::Changed(data) => step.frame.write_with(&data, out),
        }
        if round.error.is_none() {
            round.shown |= step.events != [Event::Ping];
            round.output |= step.events.iter().any(|event| round.shows(event, tool));
        }
    }

    /// Returns true if the client may continue from the id of this answer, without sending the conversation again.
    fn is_stored(&self) -> bool {
        matches!(self, Editor::OpenAiResponses(editor) if editor.reported == ReportedId::Last)
    }

    fn judge(&mut self, frame: &Frame<'_>, round: &Round, tool: &str) -> Pass {
        let Some(data) = frame.data() else { return Pass::Whole };
        if data.starts_with(b"[DONE]") {
            return if round.goes_on() { Pass::Withheld } else { Pass::Whole };
        }
        let document = std::str::from_utf8(&data).ok().and_then(|text| scan::document(text).ok());
        let Some(data) = document.filter(|it| it.is_object()).map(|it| it.object()) else { return Pass::Whole };
        let kind = data.string("type").unwrap_or_else(|| frame.name().unwrap_or_default().into());
        match self {
            Editor::OpenAiChat(editor) => editor.judge(&data, round, tool),
            Editor::OpenAiResponses(editor) => editor.judge(&kind, &data, round, tool),
            Editor::Anthropic(editor) => editor.judge(&kind, &data, round, tool),
        }
    }

    fn next_round(&mut self) {
        match self {
            Editor::OpenAiChat(editor) => editor.next_round(),
            Editor::OpenAiResponses(editor) => editor.next_round(),
            Editor::Anthropic(editor) => editor.next_round(),
        }
    }

    fn restart_round(&mut self) {
        match self {
            Editor::OpenAiChat(editor) => editor.restart_round(),
            Editor::OpenAiResponses(editor) => editor.restart_round(),
            Editor::Anthropic(editor) => editor.restart_round(),
        }
    }

    fn position(&self) -> u64 {
        match self {
            Editor::OpenAiChat(editor) => editor.position(),
            Editor::OpenAiResponses(editor) => editor.position(),
            Editor::Anthropic(editor) => editor.position(),
        }
    }
}

/// Positions as the client counts them: those of the provider, without the hidden ones and behind
/// those of earlier rounds. Clients address what they have by position, so a gap crashes them.
#[derive(Clone, Debug, Default)]
struct Positions {
    /// The client's position of this round's first.
    first: u64,
    /// The client's next position.
    next: u64,
    hidden: std::collections::BTreeSet<u64>,
}

impl Positions {
    fn hide(&mut self, index: u64) {
        self.hidden.insert(index);
    }

    fn is_hidden(&self, index: u64) -> bool {
        self.hidden.contains(&index)
    }

    fn any_hidden(&self) -> bool {
        !self.hidden.is_empty()
    }

    fn of(&mut self, index: u64) -> u64 {
        let before = self.hidden.range(..index).count() as u64;
        let position = self.first.saturating_add(index).saturating_sub(before);
        self.next = self.next.max(position.saturating_add(1));
        position
    }

    fn next_round(&mut self) {
        self.first = self.next;
        self.hidden.clear();
    }

    fn restart_round(&mut self) {
        self.next = self.first;
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
fn summed(counts: &Object<'_>, path: &[&str], before: u64) -> Option<String> {
    counts.u64(path).map(|count| count.saturating_add(before).to_string())
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
