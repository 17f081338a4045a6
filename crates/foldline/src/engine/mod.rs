//! The engine: decides which parts of a conversation are folded, and when.
//!
//! [`fold`](crate::fold) and [`resume`](crate::resume) are the left fold over request points (`left_fold.rs`).
//!
//! | module | task |
//! |---|---|
//! | `left_fold` | the loop over request points |
//! | `state` | ingests messages: segments, rounds, token totals, results |
//! | `schedule` | decides when to plan a crease |
//! | `planner` | chooses the folds of a crease |
//! | `passes` | propose folds |
//! | `decide` | decides at a request point: schedule, plan, apply |
//! | `overlay` | holds the folds and renders them |
//! | `adopt` | records decided folds, and adopts those that another proxy or version decided |
//! | `apply` | stores originals and edits the bytes of a request |
//! | `session` | the same engine for a conversation that grows in memory |
//! | `json_session` | the same for messages in a provider's own JSON |
//!
//! Nothing in this module does IO or reads a clock.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod archive;
pub(crate) mod argument_values;
pub(crate) mod cancel;
pub(crate) mod crease;
pub(crate) mod decide;
pub(crate) mod excerpt;
pub(crate) mod fold_details;
pub(crate) mod handle;
pub(crate) mod identifiers;
pub(crate) mod identity_hasher;
pub(crate) mod json_session;
pub(crate) mod left_fold;
pub(crate) mod line_index;
pub mod marker;
pub(crate) mod message_ranges;
pub(crate) mod options;
pub(crate) mod original;
pub(crate) mod overlay;
pub(crate) mod passes;
pub(crate) mod planner;
pub(crate) mod policy;
pub(crate) mod prefix_sums;
pub(crate) mod readable;
pub(crate) mod record;
pub(crate) mod rendering;
pub(crate) mod schedule;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod stage;
pub(crate) mod state;
pub(crate) mod summary;
pub(crate) mod superseded;
#[cfg(test)]
mod tests;
pub(crate) mod text_delta;
pub mod text_kind;
pub(crate) mod tool_action;
pub(crate) mod unfold_tool;

pub use crate::engine::apply::apply_with_state;
pub use crate::engine::archive::StoreError;
pub use crate::engine::cancel::CancelFlag;
pub use crate::engine::crease::{Crease, Trigger};
pub use crate::engine::excerpt::{Excerpt, ExcerptQuery, LineRange, PAGE_BYTES, excerpt, excerpt_until};
pub use crate::engine::fold_details::{FoldDetail, TokenBreakdown};
pub use crate::engine::handle::HandleParseError;
pub use crate::engine::json_session::{JsonMessage, JsonRendering, JsonSession};
pub use crate::engine::options::{PinPatterns, PinRules, ReasoningRetention};
pub use crate::engine::policy::CreaseMode;
pub use crate::engine::readable::{OriginalImage, original_image, readable_original};
pub use crate::engine::record::FoldRecord;
pub use crate::engine::rendering::FoldStats;
pub use crate::engine::session::{FoldedOriginal, RenderedMessage};
pub use crate::engine::stage::Stage;
pub use crate::engine::summary::PrefixSummary;
pub use crate::engine::tool_action::{ActionKind, ToolAction};
pub use crate::engine::unfold_tool::{UNFOLD_TOOL, answer_unfold, truncate_answer};
pub use crate::event::EventListener;
