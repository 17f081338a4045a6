//! One round of an answer: which of its calls are hidden, how it ended, and what the client may see of it.

use crate::wire::client_stream::{ClientStream, ErrorEvent};
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json_array::{ArrayState, is_array_end};
use crate::wire::response::{ApiError, StopInfo, StopReason, StreamEvent, StreamStep, Usage};
use crate::wire::sse::{FrameKind, SseFrame};

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

/// State of the current round.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundState {
    /// Zero for the first.
    pub(crate) number: u32,
    /// The number of rounds after which the answer ends whatever the model calls; none if unlimited.
    pub(crate) max_rounds: Option<u32>,
    /// The token counts of the earlier rounds.
    pub(crate) earlier_usage: Option<Usage>,
    /// Number of calls withheld from the client; the next field counts the others.
    pub(crate) hidden_calls: usize,
    pub(crate) visible_calls: usize,
    pub(crate) end: Option<RoundEnd>,
    /// The client has received model output, in this round or before.
    pub(crate) output: bool,
    /// The client has received something of this round.
    pub(crate) shown_to_client: bool,
    /// The provider's error in a later round; the next field has its bytes.
    pub(crate) error: Option<ApiError>,
    pub(crate) error_bytes: Vec<u8>,
    /// The form of the client's stream; kept in later rounds.
    pub(crate) stream: ClientStream,
}

/// The end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// Ended in calls of the hidden tool only.
    HiddenCalls,
    /// Ended in calls of the hidden tool only, in the last permitted round: the answer ends like one without calls.
    Exhausted,
    /// Ended in an answer, or in calls of the client's tools.
    Answered,
    /// Stopped for another reason: length, a filter, an error. Started calls are invalid.
    Stopped,
}

impl RoundState {
    /// Processes a step of the stream, and writes the client's bytes: into `end` starting at the event that ends an
    /// answer with hidden calls, until the end is taken.
    pub(crate) fn pass(
        &mut self,
        step: &StreamStep<'_>,
        editor: &mut dyn FrameEditor,
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
        self.forward_frame(step, editor, tool, end.as_mut().unwrap_or(client));
    }

    fn forward_frame(&mut self, step: &StreamStep<'_>, editor: &mut dyn FrameEditor, tool: &str, client: &mut Vec<u8>) {
        if self.is_first() && self.stream.kind() != step.frame.kind {
            self.stream = ClientStream::new(step.frame.kind);
        }
        let data = match edit_frame(editor, &step.frame, self, tool) {
            FrameAction::Withhold => return,
            FrameAction::Forward => None,
            FrameAction::Rewrite(data) => Some(data),
        };
        // An error of a later round is held back, since the round may be retried.
        if self.error.is_some() {
            let mut stream = match self.stream {
                ClientStream::Array(_) if !self.error_bytes.is_empty() => ClientStream::Array(ArrayState::Opened),
                stream => stream,
            };
            // An error in another form than the client's stream is written in the client's form at the end.
            if stream.kind() == step.frame.kind {
                stream.write_frame(&step.frame, data.as_deref(), &mut self.error_bytes);
            }
        } else {
            self.stream.write_frame(&step.frame, data.as_deref(), client);
            self.shown_to_client |= step.events != [StreamEvent::Ping];
            self.output |= step.events.iter().any(|event| self.shows(event, tool));
        }
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

    pub(crate) fn record_stop(&mut self, stop: Option<&StopInfo>) {
        use StopReason::{Compacted, ContextFull, MaxTokens, Paused, Refused};
        let round_end = match stop.map(|stop| stop.reason) {
            Some(MaxTokens | ContextFull | Refused | Paused | Compacted) => RoundEnd::Stopped,
            _ if self.hidden_calls == 0 || self.visible_calls > 0 => RoundEnd::Answered,
            _ if self.max_rounds.is_some_and(|most| self.number.saturating_add(1) >= most) => RoundEnd::Exhausted,
            _ => RoundEnd::HiddenCalls,
        };
        self.end.get_or_insert(round_end);
    }

    /// Returns the token counts of all rounds including this one.
    pub(crate) fn total_usage(&self, usage: Option<Usage>) -> Option<Usage> {
        match (self.earlier_usage, usage) {
            (Some(before), Some(usage)) => Some(before.combined_with(usage)),
            (before, usage) => usage.or(before),
        }
    }

    /// Returns true if the end of this round is not the end of the answer.
    pub(crate) fn continues(&self) -> bool {
        self.end == Some(RoundEnd::HiddenCalls)
    }

    /// Returns true if the answer ends because no further round is permitted. Its stop reason must not be a call.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.end == Some(RoundEnd::Exhausted)
    }

    /// Returns the state of the round after this one, with the token counts so far.
    pub(crate) fn next(&self, earlier_usage: Option<Usage>) -> Self {
        let (number, max_rounds) = (self.number + 1, self.max_rounds);
        Self { number, max_rounds, earlier_usage, output: self.output, stream: self.stream, ..Self::default() }
    }

    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Returns the output tokens of earlier rounds.
    pub(crate) fn earlier_output_tokens(&self) -> u64 {
        self.earlier_usage.map_or(0, |usage| usage.output)
    }
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

/// A dialect's editor of a stream's frames.
pub(crate) trait FrameEditor: std::fmt::Debug + Send + Sync {
    /// Returns the action for a frame with this event type and data.
    fn edit_frame(&mut self, kind: &str, data: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction;

    /// Prepares for the next round of the answer.
    fn next_round(&mut self);

    /// Prepares for another attempt at the current round.
    fn restart_round(&mut self);

    /// Returns the client's position after the output so far; see [`InterceptedCalls::position`].
    ///
    /// [`InterceptedCalls::position`]: crate::wire::InterceptedCalls::position
    fn position(&self) -> u64;

    /// Returns the event that ends a stream with an error; `kind` is the error's type.
    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent;

    /// Sets the id reported at the end of the stream.
    fn report_id(&mut self, _id: ReportedId) {}

    /// Returns the bytes of output that is kept for the end of the stream.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Keeps no further output.
    fn stop_keeping(&mut self) {}

    /// Returns true if the client may continue from the id of this answer without sending the conversation again.
    fn is_stored(&self) -> bool {
        false
    }

    /// Returns a copy.
    fn boxed_clone(&self) -> Box<dyn FrameEditor>;
}

impl Clone for Box<dyn FrameEditor> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

fn edit_frame(editor: &mut dyn FrameEditor, frame: &SseFrame<'_>, round: &RoundState, tool: &str) -> FrameAction {
    let Some(data) = frame.data() else {
        let is_early_end = frame.kind == FrameKind::ArrayElement && round.continues() && is_array_end(frame.raw);
        return if is_early_end { FrameAction::Withhold } else { FrameAction::Forward };
    };
    if data.starts_with(b"[DONE]") {
        return if round.continues() { FrameAction::Withhold } else { FrameAction::Forward };
    }
    let document = std::str::from_utf8(&data).ok().and_then(|text| scan::parse_document(text).ok());
    let Some(data) = document.filter(|value| value.is_object()).map(|value| value.object()) else {
        return FrameAction::Forward;
    };
    let kind = data.string("type").unwrap_or_else(|| frame.name().unwrap_or_default().into());
    editor.edit_frame(&kind, &data, round, tool)
}

/// Returns a count as JSON, with the count of earlier rounds added.
pub(crate) fn summed_count(counts: &JsonObject<'_>, path: &[&str], before: u64) -> Option<String> {
    counts.u64(path).map(|count| count.saturating_add(before).to_string())
}
