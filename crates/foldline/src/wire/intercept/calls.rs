//! Calls of the hidden tool, and answers that contained them.

use crate::wire::format::Format;
use crate::wire::response::{Response, Usage};
use crate::wire::result::AnsweredCall;

/// The hidden tool's calls in a round, to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptedCalls {
    pub(crate) format: Format,
    /// The name of the hidden tool.
    pub(crate) tool: String,
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
    /// Hidden calls in the same turn as client calls, or in the last permitted round. The client answers its own; these
    /// calls and their results must be added to the client's next request.
    pub mixed_calls: Option<InterceptedCalls>,
}

impl InterceptedCalls {
    /// Returns the elements that the next request appends to its list: the model's output, and the answers to its calls
    /// in order.
    pub fn continuation(&self, answers: &[&str]) -> Vec<String> {
        let syntax = &self.format.dialect().results;
        let answered = self.calls.iter().zip(answers);
        let results = answered
            .map(|(call, answer)| (syntax.result_json)(AnsweredCall { id: &call.id, name: &self.tool }, answer));
        let mut elements = self.turn_json.clone();
        elements.extend(syntax.elements(results.collect()));
        elements
    }
}

/// Returns the calls of the hidden tool in a response.
pub(crate) fn hidden_calls(response: &Response<'_>, tool: &str) -> Vec<HiddenCall> {
    let calls = response.calls().filter(|call| call.name == tool);
    calls.map(|call| HiddenCall { id: call.id.to_string(), arguments: call.arguments.as_str().to_owned() }).collect()
}
