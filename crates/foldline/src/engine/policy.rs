//! Policies: named sets of choices, so that nobody has to turn thirty knobs.
//!
//! | name | when it creases | what it spends |
//! |---|---|---|
//! | `none` | never | nothing; a request over the budget is an error |
//! | `lossless` | when it must | only what has a verified inverse or still stands elsewhere |
//! | `balanced` | when it must, and when it pays | the whole ladder; old text is folded when keeping it costs more than unfolding it would |
//! | `tight` | as balanced, earlier and deeper | the same, valuing room higher than recall |

use std::str::FromStr;

use crate::engine::planner::Stage;

/// A named set of choices. Start from a named one; fields are public so that a measured reason can
/// change them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// When creases happen.
    pub crease_mode: CreaseMode,
    /// Above this share of the room that system and tools leave in the budget a crease is forced.
    pub trigger_ratio: f64,
    /// A forced crease folds down to this share of the room that system, tools and protected messages leave.
    pub target_ratio: f64,
    /// What shows a file, read or changed, is left whole for so many calls, so that it can be edited; and so is a failure.
    pub keep_file_calls: u32,
    /// Any other result, and what the model wrote, for so many calls.
    pub keep_other_calls: u32,
    /// The newest rounds that are left whole may have this share of the same room; the newest stays whole while it fits.
    pub keep_share: f64,
    /// So many more calls are expected for each call so far; sessions are heavy-tailed.
    pub remaining_ratio: f64,
    /// A crease must be expected to gain so many times what it costs.
    pub min_gain_ratio: f64,
    /// By how much the room that kept text takes is valued above its price.
    pub space_value: f64,
    /// The last rung of the ladder that a forced crease may spend.
    pub max_stage: Stage,
}

/// When creases happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreaseMode {
    /// Never.
    Never,
    /// Above the high-water mark.
    Forced,
    /// Above the high-water mark, and whenever the price says so.
    Profitable,
}

impl Policy {
    /// Folds nothing.
    pub const fn none() -> Self {
        Self { name: "none", crease_mode: CreaseMode::Never, ..Self::balanced() }
    }

    /// Spends only what has a verified inverse or still stands elsewhere.
    pub const fn lossless() -> Self {
        Self { name: "lossless", crease_mode: CreaseMode::Forced, max_stage: Stage::Duplicates, ..Self::balanced() }
    }

    /// The default.
    pub const fn balanced() -> Self {
        Self {
            name: "balanced",
            crease_mode: CreaseMode::Profitable,
            trigger_ratio: 0.95,
            target_ratio: 0.55,
            keep_file_calls: 7,
            keep_other_calls: 1,
            keep_share: 0.45,
            remaining_ratio: 0.9,
            min_gain_ratio: 1.8,
            space_value: 6.95,
            max_stage: Stage::Truncation,
        }
    }

    /// Values room higher than recall.
    pub const fn tight() -> Self {
        Self {
            name: "tight",
            trigger_ratio: 0.85,
            target_ratio: 0.35,
            keep_file_calls: 6,
            keep_other_calls: 1,
            keep_share: 0.3,
            space_value: 16.0,
            ..Self::balanced()
        }
    }

    /// All named policies.
    pub const ALL: [Policy; 4] = [Self::none(), Self::lossless(), Self::balanced(), Self::tight()];
}

impl Default for Policy {
    fn default() -> Self {
        Self::balanced()
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|policy| policy.name == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|policy| policy.name).collect();
            format!("there is no policy \"{name}\": choose one of {}", names.join(", "))
        })
    }
}
