//! Results of tool calls that foldline writes itself: answers of hidden calls, and placeholders of missing results.

use crate::conversation::PartId;
use crate::wire::request::Request;

/// The form of a dialect's results.
#[derive(Debug)]
pub(crate) struct ResultSyntax {
    /// Returns a result as JSON: an element of the list of messages, or a block if `message_of_blocks` is set.
    pub(crate) result_json: fn(AnsweredCall<'_>, &str) -> String,
    /// Returns the message that contains the given blocks, separated by commas; `None` if each result is an element of
    /// the list of messages.
    pub(crate) message_of_blocks: Option<fn(&str) -> String>,
    /// Returns a result for a call of the request, whose form may depend on the kind of the call.
    pub(crate) result_for_part: fn(&Request<'_>, PartId, AnsweredCall<'_>, &str) -> String,
}

/// The call that a result answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredCall<'c> {
    pub(crate) id: &'c str,
    pub(crate) name: &'c str,
}

impl ResultSyntax {
    /// Returns the elements of the list of messages that contain these results.
    pub(crate) fn elements(&self, results: Vec<String>) -> Vec<String> {
        match self.message_of_blocks {
            Some(_) if results.is_empty() => Vec::new(),
            Some(message) => vec![message(&results.join(","))],
            None => results,
        }
    }
}
