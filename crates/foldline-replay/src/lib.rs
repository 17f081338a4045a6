//! What a compaction saved, cost and lost, measured on recorded conversations.
//!
//! A recording tells what the agent did next, so it tells what it needed; no language model judges.
//! An engine is fed message by message and renders before each recorded call; the rendering is
//! measured against the recorded action.
//!
//! This crate reads recordings and measures. It decides no fold and prints nothing.

mod atom;
mod case;
mod counter;
mod edit;
mod engine;
mod open;
pub mod policy;
mod price;
mod recording;
mod rendering;
mod score;
mod text;

pub use atom::atoms;
pub use case::{Call, Case, Common, Need, Place, RECENT};
pub use counter::Counter;
pub use edit::Anchor;
pub use engine::{Delta, Engine, Maker, Refusal, Setup, Shared};
pub use open::{open, recordings};
pub use price::Prices;
pub use recording::Recording;
pub use score::{Misstep, Point, Run, Score, Share, Spent, WINDOWS, replay};
pub use text::Kind;
