//! The parts of a dialect that hide calls of the injected tool.

use crate::wire::intercept::restore::HiddenRound;
use crate::wire::intercept::round::{FrameEditor, ReportedId, RoundState};
use crate::wire::intercept::tool::InjectedTool;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::request::Request;
use crate::wire::response::StreamLimits;

/// The form of an injected tool and of its calls in a dialect's answers.
#[derive(Debug)]
pub(crate) struct InterceptSyntax {
    /// Returns the declaration of the tool as JSON.
    pub(crate) tool_declaration: fn(&InjectedTool<'_>) -> String,
    /// Creates the editor of a streamed answer.
    pub(crate) new_editor: fn(StreamLimits) -> Box<dyn FrameEditor>,
    /// The bytes that keep a waiting client's stream open.
    pub(crate) keep_alive: &'static [u8],
    /// Returns the model's output in a body, verbatim, as elements of the list of messages.
    pub(crate) body_turn: fn(&JsonObject<'_>) -> Vec<String>,
    /// Returns the client's position after the output of these bodies, without calls of the tool.
    pub(crate) body_position: fn(&[JsonObject<'_>], &str) -> u64,
    /// Merges the bodies of all rounds; `None` if the client gets the last one unchanged.
    pub(crate) merged_body: fn(&[JsonObject<'_>], &RoundState, &str, ReportedId) -> Option<String>,
    /// Returns the edits that restore hidden rounds in the answer that begins with a message, or `None` if the message
    /// is not a copy of that answer.
    pub(crate) restore: fn(&Request<'_>, usize, &[HiddenRound]) -> Option<Vec<RequestEdit>>,
}
