//! The engine's side of a replay: what it is told, what it answers.
//!
//! An engine is fed message by message and asked for a rendering before every recorded call. It
//! never sees what comes later; that is the point of the exercise. The trait mirrors the lines of
//! `foldline pipe`, so that an engine in another process is on equal terms.

use std::sync::Arc;

use foldline::{Handle, Message, Meter, Part, Prices, ToolDefinition};

/// A message of the replayed conversation. Shared, because most of a rendering is the original.
pub type SharedMessage = Arc<Message<'static>>;

/// What an engine is told when a conversation begins.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// Tokens that a rendering may have.
    pub budget: u64,
    /// The model, when the recording names one.
    pub model: Option<String>,
    /// What reading and writing the provider's cache costs.
    pub prices: Prices,
    /// The tools that every request declares.
    pub tools: Vec<ToolDefinition<'static>>,
    /// Instructions that stand outside the messages.
    pub system: Vec<Part<'static>>,
    /// How tokens are counted.
    pub meter: Meter,
}

/// What changed since the engine's last rendering.
#[derive(Clone, Debug, Default)]
pub struct RenderingDelta {
    /// Changed and new messages by their index in the rendering, ascending.
    pub changed: Vec<(usize, SharedMessage)>,
    /// The rendering's length after the change.
    pub len: usize,
    /// Whether the engine says that it moved bytes which were sent before.
    pub is_crease: bool,
}

/// Why an engine gave no rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine says that it cannot go below this many tokens.
    CannotFit {
        /// The fewest tokens that it could reach.
        floor: u64,
    },
    /// The engine is gone or does not make sense.
    Failed(String),
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::CannotFit { floor } => {
                write!(f, "the engine cannot fit the conversation: its floor is {floor} tokens")
            }
            EngineError::Failed(why) => write!(f, "the engine gave no rendering: {why}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// Something that renders a growing conversation.
pub trait EngineSession {
    /// The conversation has grown by these messages.
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError>;

    /// A request is about to be sent: what changed in its rendering?
    fn request(&mut self) -> Result<RenderingDelta, EngineError>;

    /// The original behind a handle that stands in a marker; `None` from an engine that has none.
    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, EngineError> {
        let _ = handle;
        Ok(None)
    }
}

/// Makes a fresh engine for each conversation.
pub trait ReplayEngine: Send + Sync {
    /// The name that the tables show.
    fn name(&self) -> &str;

    /// An engine for one conversation.
    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError>;
}
