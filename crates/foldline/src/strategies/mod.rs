//! The classic strategies: plain functions over messages, for an agent loop that does not use the engine.
//!
//! Each takes messages, returns them with the old ones shortened, and reports what it did. The default thresholds are
//! those commonly used for such strategies. They are built on the engine's text kinds, markers, laws and meter.
//!
//! Common to all: instructions and messages of users are unchanged; the newest round is kept whole, however many
//! messages it has, since the model has not answered it yet; a text never grows; the functions are idempotent; and a
//! marker depends only on the original. They know no provider. Where a provider binds reasoning to everything before
//! it, or where the prompt cache dominates the cost, use [`fold`](crate::fold()).
//!
//! ```
//! use foldline::strategies::apply_all;
//! use foldline::{Message, Part, Role};
//!
//! let listing = "src/main.rs\n".repeat(40);
//! let mut messages = vec![Message::text(Role::User, "tidy up")];
//! for at in 0..8 {
//!     messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "ls", "{}")]));
//!     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), listing.clone())]));
//! }
//! let stats = apply_all(&mut messages);
//! assert_eq!(messages[4], Message::new(Role::Tool, vec![
//!     Part::result("c1", "[folded: 40 lines, 480 bytes of ls; same as result c0]"),
//! ]));
//! assert_eq!(stats.outputs.hits, 3);
//! ```

pub(crate) mod apply_all;
pub mod chunk;
pub(crate) mod compact_to_budget;
pub(crate) mod dedup_calls;
pub(crate) mod dedup_outputs;
pub(crate) mod prune_prose;
pub(crate) mod prune_thinking;
pub(crate) mod references;
mod snippets;
pub(crate) mod stats;
pub(crate) mod support;
#[cfg(test)]
mod tests;
pub(crate) mod token_estimate;
pub(crate) mod trim_middle;
mod truncate;

pub use crate::strategies::apply_all::{StrategyOptions, apply_all, apply_all_with, repair_orphans};
pub use crate::strategies::compact_to_budget::{CompactToBudget, CompactionStats, compact_to_budget};
pub use crate::strategies::dedup_calls::{DedupToolCalls, dedup_tool_calls};
pub use crate::strategies::dedup_outputs::{DedupToolOutputs, RepeatScope, dedup_tool_outputs};
pub use crate::strategies::prune_prose::{PruneLowEntropy, prune_low_entropy};
pub use crate::strategies::prune_thinking::{PruneThinking, prune_thinking};
pub use crate::strategies::references::{DetachedOriginal, detach_references};
pub use crate::strategies::snippets::{SnippetToolOutputs, snippet_stale_tool_outputs};
pub use crate::strategies::stats::{CombinedStats, StrategyStats};
pub use crate::strategies::token_estimate::{estimate_tokens, total_tokens};
pub use crate::strategies::trim_middle::{TrimMiddle, TrimTokens, trim_middle};
pub use crate::strategies::truncate::{TerminalTruncate, TruncationResult, terminal_truncate};
