//! foldline for bindings of other languages: conversations as JSON of a provider, with an archive.
//!
//! Everything is a string or a plain struct, so that a binding only converts values. No fold is decided here, and
//! nothing depends on a host language.

mod check;
mod count;
mod error;
mod message_alignment;
mod one_shot;
mod options;
mod replay;
mod session;
mod strategies;

pub use crate::check::broken_laws;
pub use crate::count::count_tokens;
pub use crate::error::{EmbedError, EmbedErrorKind};
pub use crate::one_shot::{FoldedBody, fold_body};
pub use crate::options::{ArchiveChoice, SessionOptions};
pub use crate::replay::{ReplayOptions, merge_replays, replay_recordings, replay_shard};
pub use crate::session::{EmbeddedSession, OriginalHit};
pub use crate::strategies::{ShortenedMessages, apply_strategy, compress_text, estimate_tokens};
pub use foldline::engine::{JsonMessage, JsonRendering};

/// Returns the declaration of the tool with which a model unfolds, as JSON of a dialect.
///
/// # Errors
///
/// If the name of the dialect is unknown.
pub fn tool_declaration(format: &str) -> Result<String, EmbedError> {
    let format = options::parse_format(format)?;
    Ok(foldline_archive::UNFOLD_TOOL.declaration(format))
}
