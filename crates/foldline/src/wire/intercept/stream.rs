//! Merges the rounds of a streamed answer.

use crate::wire::client_stream::ClientStream;
use crate::wire::format::Format;
use crate::wire::intercept::calls::{FinishedAnswer, InterceptedCalls, hidden_calls};
use crate::wire::intercept::round::{FrameEditor, ReportedId, RoundEnd, RoundState};
use crate::wire::response::{ApiError, Response, StreamLimits, StreamReader, Usage};

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
    editor: Box<dyn FrameEditor>,
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

impl StreamSplicer {
    /// Creates a splicer for a new answer and a hidden tool of this name.
    pub fn new(format: Format, tool: impl Into<String>) -> Self {
        Self::with_limits(format, tool, StreamLimits::default())
    }

    /// Creates a splicer with the given memory limits for each round.
    pub fn with_limits(format: Format, tool: impl Into<String>, limits: StreamLimits) -> Self {
        let editor = (format.dialect().intercept.new_editor)(limits);
        let reader = StreamReader::with_limits(format, limits);
        let stream = ClientStream::new(format.dialect().response.framing);
        let round = RoundState { stream, ..RoundState::default() };
        Self { format, tool: tool.into(), limits, reader, editor, round, end: None }
    }

    /// Sets the id reported at the end of a Responses stream.
    pub fn with_reported_id(mut self, id: ReportedId) -> Self {
        self.editor.report_id(id);
        self
    }

    /// Sets the number of rounds after which the answer ends. Calls of the hidden tool in the last one are reported like
    /// those next to client calls, and the client gets a normal end.
    pub fn with_max_rounds(mut self, rounds: u32) -> Self {
        self.round.max_rounds = Some(rounds);
        self
    }

    /// Processes bytes of the current round, and writes the client's bytes. The end of an answer with hidden calls is
    /// kept for [`Self::take_end`].
    pub fn push(&mut self, mut bytes: &[u8], client: &mut Vec<u8>) {
        while let Some(step) = self.reader.next(&mut bytes) {
            self.round.pass(&step, &mut *self.editor, &self.tool, &mut self.end, client);
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
        let is_valid = matches!(self.round.end, Some(RoundEnd::HiddenCalls | RoundEnd::Exhausted | RoundEnd::Answered));
        let counts = is_valid && !calls.is_empty();
        counts.then(|| InterceptedCalls {
            format: self.format,
            tool: self.tool.clone(),
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
            self.round.pass(&step, &mut *self.editor, &self.tool, &mut self.end, client);
        }
        client.append(&mut self.end.take().unwrap_or_default());
        let reader = std::mem::replace(&mut self.reader, StreamReader::with_limits(self.format, self.limits));
        let round_end = match self.round.end {
            Some(round_end) if self.round.error.is_none() => round_end,
            _ => {
                let RoundState {
                    number,
                    max_rounds,
                    earlier_usage,
                    output,
                    shown_to_client,
                    error,
                    error_bytes,
                    stream,
                    ..
                } = std::mem::take(&mut self.round);
                self.round = RoundState { number, max_rounds, earlier_usage, output, stream, ..RoundState::default() };
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
                self.round = self.round.next(total);
                self.editor.next_round();
                RoundOutcome::Continue(calls)
            }
            (_, mixed) => {
                RoundOutcome::Finished(Box::new(FinishedAnswer { response, usage: total, mixed_calls: mixed }))
            }
        }
    }

    /// Returns the bytes in memory: an event whose end has not been received, and the output that is kept.
    pub fn held_bytes(&self) -> usize {
        self.reader.held_bytes() + self.editor.kept_bytes() + self.end.as_ref().map_or(0, Vec::len)
    }

    /// Keeps no further output of this round, and buffers only small events, for callers that have no memory left. Larger
    /// events are forwarded unparsed.
    pub fn stop_keeping(&mut self) {
        self.reader.stop_keeping();
        self.editor.stop_keeping();
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
        let kind = error.kind.as_deref().unwrap_or((self.format.dialect().errors.kind)(status));
        let event = self.editor.error_event(kind, error);
        self.round.stream.write_error(&event, kind, &error.message, client);
    }

    /// Returns the keep-alive bytes for a client that waits while a round is prepared.
    pub fn keep_alive_bytes(&self) -> &'static [u8] {
        self.round.stream.keep_alive(self.format.dialect().intercept.keep_alive)
    }
}
