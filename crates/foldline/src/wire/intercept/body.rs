//! Merges the rounds of an answer without streaming: several JSON bodies become one.

use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::intercept::calls::{FinishedAnswer, InterceptedCalls, hidden_calls};
use crate::wire::intercept::round::{ReportedId, RoundEnd, RoundState};
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::response::{Response, Usage};

/// Merges the rounds of one answer into one body.
///
/// ```
/// use foldline::wire::{BodyOutcome, BodySplicer, Format};
///
/// let mut splicer = BodySplicer::new(Format::Anthropic, "unfold");
/// let round_1 = br#"{"id":"m1","content":[{"type":"text","text":"Let me see."},
///     {"type":"tool_use","id":"h","name":"unfold","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":9,"output_tokens":5}}"#;
/// let BodyOutcome::Continue(calls) = splicer.push_round(round_1)? else { panic!("expected a call of unfold") };
/// assert_eq!(calls.calls[0].id, "h");
///
/// let round_2 = br#"{"id":"m2","content":[{"type":"text","text":"42."}],"stop_reason":"end_turn","usage":{"input_tokens":20,"output_tokens":3}}"#;
/// let BodyOutcome::Finished { body, .. } = splicer.push_round(round_2)? else { panic!("expected an answer") };
/// assert_eq!(
///     String::from_utf8_lossy(&body),
///     r#"{"id":"m1","content":[{"type":"text","text":"Let me see."},{"type":"text","text":"42."}],"stop_reason":"end_turn","usage":{"input_tokens":20,"output_tokens":8}}"#
/// );
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BodySplicer {
    format: Format,
    tool: String,
    reported_id: ReportedId,
    round: RoundState,
    /// The bodies of the earlier rounds.
    earlier_bodies: Vec<String>,
}

/// The outcome of a round.
#[derive(Clone, Debug)]
pub enum BodyOutcome {
    /// The answer is complete.
    Finished {
        /// The body for the client.
        body: Vec<u8>,
        /// The token counts, and hidden calls to be stored.
        finished: Box<FinishedAnswer>,
    },
    /// The model called only the hidden tool: answer the calls and send the next round.
    Continue(InterceptedCalls),
}

impl BodySplicer {
    /// Creates a splicer for a new answer and a hidden tool of this name.
    pub fn new(format: Format, tool: impl Into<String>) -> Self {
        Self {
            format,
            tool: tool.into(),
            reported_id: ReportedId::default(),
            round: RoundState::default(),
            earlier_bodies: Vec::new(),
        }
    }

    /// Sets the id reported in a Responses body.
    pub fn with_reported_id(mut self, id: ReportedId) -> Self {
        self.reported_id = id;
        self
    }

    /// Sets the number of rounds after which the answer ends; see
    /// [`StreamSplicer::with_max_rounds`](crate::wire::StreamSplicer::with_max_rounds).
    pub fn with_max_rounds(mut self, rounds: u32) -> Self {
        self.round.max_rounds = Some(rounds);
        self
    }

    /// Returns the token counts of the earlier rounds.
    pub fn usage(&self) -> Option<Usage> {
        self.round.earlier_usage
    }

    /// Processes the body of the next round.
    ///
    /// # Errors
    ///
    /// The same as for [`Response::parse`].
    pub fn push_round(&mut self, body: &[u8]) -> Result<BodyOutcome, Error> {
        let syntax = &self.format.dialect().intercept;
        let response = Response::parse(self.format, body)?;
        let calls = hidden_calls(&response, &self.tool);
        self.round.hidden_calls = calls.len();
        self.round.visible_calls = response.calls().count() - calls.len();
        self.round.end = response.error.as_ref().map(|_| RoundEnd::Stopped);
        self.round.record_stop(response.stop.as_ref());
        // The body was parsed above, so it is UTF-8 and JSON.
        let text = String::from_utf8_lossy(body).into_owned();
        let document = scan::parse_document(&text)?;
        let object = document.object();
        let usage = response.usage;
        let total = self.round.total_usage(usage);
        let intercepted = (self.round.end != Some(RoundEnd::Stopped) && !calls.is_empty()).then(|| InterceptedCalls {
            format: self.format,
            tool: self.tool.clone(),
            calls,
            turn_json: (syntax.body_turn)(&object),
            usage,
            response_id: response.id.as_deref().map(str::to_owned),
            position: self.with_all_bodies(&object, |bodies| (syntax.body_position)(bodies, &self.tool)),
        });
        if let (true, Some(intercepted)) = (self.round.continues(), intercepted.clone()) {
            self.round = self.round.next(total);
            self.earlier_bodies.push(text);
            return Ok(BodyOutcome::Continue(intercepted));
        }
        let merged = self
            .with_all_bodies(&object, |bodies| (syntax.merged_body)(bodies, &self.round, &self.tool, self.reported_id));
        let merged = merged.map_or_else(|| body.to_vec(), String::into_bytes);
        let finished =
            Box::new(FinishedAnswer { response: response.into_owned(), usage: total, mixed_calls: intercepted });
        Ok(BodyOutcome::Finished { body: merged, finished })
    }

    /// Calls a function with the bodies of all rounds, of which this is the last.
    fn with_all_bodies<T>(&self, last: &JsonObject<'_>, read: impl FnOnce(&[JsonObject<'_>]) -> T) -> T {
        let earlier: Vec<_> = self.earlier_bodies.iter().filter_map(|text| scan::parse_document(text).ok()).collect();
        let bodies: Vec<JsonObject<'_>> =
            earlier.iter().map(|document| document.object()).chain([last.clone()]).collect();
        read(&bodies)
    }
}
