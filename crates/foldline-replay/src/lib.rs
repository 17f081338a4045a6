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

pub use atom::atoms;
pub use bound::{Clairvoyant, Foresight};
pub use case::{Call, Case, Need, Place, RECENT};
pub use compare::{Comparison, Contestant, Options, Outcome, Summary, compare, half};
pub use edit::Anchor;
pub use engine::{Delta, Engine, Maker, Refusal, Setup, Shared};
pub use external::External;
pub use interval::Estimate;
pub use open::{Recordings, Unread, open};
pub use ours::Ours;
pub use report::{Bills, Report, ReportedPrices, Row, Session};
pub use score::{Misstep, Point, Run, Score, Share, Spent, WINDOWS, replay};
pub use survey::Survey;
pub use text::Kind;
