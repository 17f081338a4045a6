//! Measures what compaction saved, cost and lost on recorded conversations.
//!
//! A recording contains what the agent did next, and therefore what it needed; no language model judges.
//! An engine is fed message by message and renders before each recorded call; the rendering is
//! measured against the recorded action.
//!
//! This crate reads recordings and measures. It decides no folds and prints nothing.

mod actions;
pub(crate) mod artifact_trail;
pub mod baselines;
mod case;
mod compare;
pub(crate) mod corpus_stats;
mod edit;
mod engine;
mod engine_messages;
mod exact_prices;
mod external;
pub(crate) mod foldline_engine;
pub(crate) mod identifiers;
mod interval;
mod message_hash;
pub(crate) mod oracle;
mod recall;
pub(crate) mod recordings;
mod rendering;
mod repeats;
mod report;
mod score;
mod shard;
mod text;
mod validity;
mod whole_strings;

pub use crate::corpus_stats::CorpusStats;
pub use crate::foldline_engine::FoldlineEngine;
pub use crate::identifiers::{IdentifierClass, for_each_identifier};
pub use crate::oracle::{OracleEngine, OracleSchedule};
pub use crate::recordings::{ReadError, RecordingFiles, open_decompressed};
pub use case::{ContextNeed, RECENT_MESSAGES, RecordedCall, ReplayCase, TextPosition};
pub use compare::{
    CompareOptions, EngineComparison, EngineSpec, EngineSummary, PlacedOutcome, PriceChoice, SessionOrigin,
    SessionOutcome, compare_engines, compare_engines_at, engine_names, is_tuning_half, replay_recordings,
};
pub use edit::EditAnchor;
pub use engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
pub use external::ExternalEngine;
pub use interval::IntervalEstimate;
pub use recall::RecallEngine;
pub use report::{PriceTableCosts, ReplayReport, ReplayedSession, ReportRow, ReportedPrices};
pub use score::{CallPoint, HitRatio, MissingContext, ReplayRun, ReplayScore, TokenSpend, WINDOW_TOKENS, replay};
pub use shard::{MergedReplay, RecordingSetHash, ReplayShard, ShardContext, ShardError, ShardResult, merge_shards};
pub use text::TextOrigin;
pub use whole_strings::for_each_whole_string;
