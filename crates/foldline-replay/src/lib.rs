//! What a compaction saved, cost and lost, measured on recorded conversations.
//!
//! A recording tells what the agent did next, so it tells what it needed; no language model judges.
//! An engine is fed message by message and renders before each recorded call; the rendering is
//! measured against the recorded action.
//!
//! This crate reads recordings and measures. It decides no fold and prints nothing.

mod atom;
mod bound;
mod case;
mod chat;
mod compare;
mod edit;
mod engine;
mod external;
mod interval;
mod open;
mod ours;
pub mod policy;
mod rendering;
mod report;
mod score;
mod survey;
mod text;
mod trail;
mod validity;

pub use atom::for_each_identifier;
pub use bound::{OracleEngine, OracleSchedule};
pub use case::{ContextNeed, RECENT_MESSAGES, RecordedCall, ReplayCase, TextPosition};
pub use compare::{
    CompareOptions, EngineComparison, EngineSpec, EngineSummary, SessionOutcome, compare_engines, is_tuning_half,
};
pub use edit::EditAnchor;
pub use engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
pub use external::ExternalEngine;
pub use interval::IntervalEstimate;
pub use open::{ReadError, RecordingFiles, open_decompressed};
pub use ours::FoldlineEngine;
pub use report::{PriceTableCosts, ReplayReport, ReplayedSession, ReportRow, ReportedPrices};
pub use score::{CallPoint, HitRatio, MissingContext, ReplayRun, ReplayScore, TokenSpend, WINDOW_TOKENS, replay};
pub use survey::CorpusStats;
pub use text::TextOrigin;
