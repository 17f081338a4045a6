//! Policies: named sets of choices, so that nobody has to turn thirty knobs.
//!
//! | name | when it creases | what it spends |
//! |---|---|---|
//! | `none` | never | nothing; a request over the budget is an error |
//! | `lossless` | when it must | only what has a verified inverse or still stands elsewhere |
//! | `balanced` | when it must, and when it pays | the whole ladder; old text is folded when keeping it costs more than unfolding it would |
//! | `tight` | as balanced, earlier and deeper | the same, valuing room higher than recall |

use std::str::FromStr;

use crate::plan::Rung;

/// A named set of choices. Start from a named one; fields are public so that a measured reason can
/// change them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// When creases happen.
    pub creases: Creases,
    /// Above this share of the room that system and tools leave in the budget a crease is forced.
    pub high: f64,
    /// A forced crease folds down to this share of the room that system, tools and protected messages leave.
    pub low: f64,
    /// What shows a file, read or changed, is left whole for so many calls, so that it can be edited; and so is a failure.
    pub keep_reads: u32,
    /// Any other result, and what the model wrote, for so many calls.
    pub keep_rest: u32,
    /// The newest rounds that are left whole may have this share of the same room; the newest stays whole while it fits.
    pub keep_share: f64,
    /// So many more calls are expected for each call so far; sessions are heavy-tailed.
    pub remaining: f64,
    /// A crease must be expected to gain so many times what it costs.
    pub patience: f64,
    /// By how much the room that kept text takes is valued above its price.
    pub thrift: f64,
    /// The last rung of the ladder that a forced crease may spend.
    pub deepest: Rung,
}

/// When creases happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creases {
    /// Never.
    Never,
    /// Above the high-water mark.
    Forced,
    /// Above the high-water mark, and whenever the price says so.
    Paid,
}

impl Policy {
    /// Folds nothing.
    pub const fn none() -> Self {
        Self { name: "none", creases: Creases::Never, ..Self::balanced() }
    }

    /// Spends only what has a verified inverse or still stands elsewhere.
    pub const fn lossless() -> Self {
        Self { name: "lossless", creases: Creases::Forced, deepest: Rung::Repeats, ..Self::balanced() }
    }

    /// The default.
    pub const fn balanced() -> Self {
        Self {
            name: "balanced",
            creases: Creases::Paid,
            high: 0.95,
            low: 0.55,
            keep_reads: 7,
            keep_rest: 1,
            keep_share: 0.45,
            remaining: 0.9,
            patience: 1.8,
            thrift: 6.95,
            deepest: Rung::Truncation,
        }
    }

    /// Values room higher than recall.
    pub const fn tight() -> Self {
        Self {
            name: "tight",
            high: 0.85,
            low: 0.35,
            keep_reads: 6,
            keep_rest: 1,
            keep_share: 0.3,
            thrift: 16.0,
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
