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
pub(crate) mod calls;
pub(crate) mod positions;
pub(crate) mod restore;
pub(crate) mod round;
pub(crate) mod stream;
pub(crate) mod syntax;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod tool;

pub use body::{BodyOutcome, BodySplicer};
pub use calls::{FinishedAnswer, HiddenCall, InterceptedCalls};
pub use restore::HiddenRound;
pub use round::ReportedId;
pub use stream::{AnswerEnd, InterruptedRound, RoundOutcome, StreamSplicer};
pub use tool::InjectedTool;
