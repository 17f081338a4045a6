//! The interface of an engine in a replay.
//!
//! An engine receives message after message and is asked for a rendering before every recorded call. It
//! never sees later messages. The trait mirrors the protocol of
//! `foldline pipe`, so that an engine in another process has the same information.

use std::sync::Arc;

use foldline::conversation::ToolDefinition;
use foldline::wire::Format;
use foldline::{Handle, Message, Meter, Part, Prices};

/// A message of the replayed conversation. Shared, because most of a rendering is the original.
pub type SharedMessage = Arc<Message<'static>>;

/// Settings of a conversation that an engine receives at its start.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// The dialect of the session, whose laws a rendering must obey.
    pub format: Format,
    /// Maximum tokens of a rendering.
    pub budget: u64,
    /// The model, if the recording names one.
    pub model: Option<String>,
    /// Prices of reading and writing the provider's cache.
    pub prices: Prices,
    /// The tools that every request declares.
    pub tools: Vec<ToolDefinition<'static>>,
    /// Instructions outside the messages.
    pub system: Vec<Part<'static>>,
    /// The token counter.
    pub meter: Meter,
}

/// Changes since the engine's last rendering.
#[derive(Clone, Debug, Default)]
pub struct RenderingDelta {
    /// Changed and new messages by their index in the rendering, ascending.
    pub changed: Vec<(usize, SharedMessage)>,
    /// The rendering's length after the change.
    pub len: usize,
    /// True if the engine announces that previously sent bytes changed.
    pub is_crease: bool,
}

/// Error of an engine that returned no rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine cannot go below this many tokens.
    CannotFit {
        /// The lowest number of tokens that it could reach.
        floor: u64,
    },
    /// The engine has ended or gave an invalid answer.
    Failed(String),
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::CannotFit { floor } => {
                write!(f, "the engine cannot fit the conversation: its floor is {floor} tokens")
            }
            EngineError::Failed(reason) => write!(f, "the engine returned no rendering: {reason}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// An engine's session with one growing conversation.
pub trait EngineSession {
    /// Adds messages to the conversation.
    ///
    /// # Errors
    ///
    /// [`EngineError::Failed`] if the engine cannot take the messages, for example because its process has ended.
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError>;

    /// Returns the changes of the rendering for the next request.
    ///
    /// # Errors
    ///
    /// [`EngineError::CannotFit`] if the budget is too small for the conversation, [`EngineError::Failed`] if the engine
    /// returned no rendering.
    fn request(&mut self) -> Result<RenderingDelta, EngineError>;

    /// Returns the original of a handle in a marker; `None` from an engine that stores none.
    ///
    /// # Errors
    ///
    /// [`EngineError::Failed`] if the engine cannot be reached.
    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, EngineError> {
        let _ = handle;
        Ok(None)
    }
}

/// An engine that opens a session for each conversation.
pub trait ReplayEngine: Send + Sync {
    /// Returns the name shown in tables.
    fn name(&self) -> &str;

    /// Opens a session for one conversation.
    ///
    /// # Errors
    ///
    /// [`EngineError::Failed`] if the session cannot be opened, for example because its process does not start.
    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError>;
}
