//! Policies: named sets of tuning parameters.
//!
//! | name | creases | folds |
//! |---|---|---|
//! | `none` | never | nothing; a request over the budget is an error |
//! | `lossless` | when forced | only text with a verified inverse or with another copy in the request |
//! | `balanced` | when forced or profitable | all stages; old text is folded when carrying it costs more than unfolding it |
//! | `tight` | like balanced, earlier and deeper | all stages; free space is valued higher than recall |

use std::str::FromStr;

use crate::engine::stage::Stage;

/// A named set of tuning parameters. Start from a named policy and change fields only for a measured reason.
///
/// ```
/// use foldline::Policy;
///
/// assert_eq!("tight".parse::<Policy>()?, Policy::tight());
/// let mut policy = Policy::balanced();
/// policy.target_ratio = 0.7; // forced creases free less at a time
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Name of the policy.
    pub name: &'static str,
    /// Condition for creases.
    pub crease_mode: CreaseMode,
    /// Share of the budget left after system and tools above which a crease is forced.
    pub trigger_ratio: f64,
    /// Share of the budget left after system, tools and protected messages to which a forced crease folds.
    pub target_ratio: f64,
    /// Calls for which file contents (read or changed) and failures stay whole, so that the model can edit the file.
    pub keep_file_calls: u32,
    /// Calls for which any other result and the model's own text stay whole.
    pub keep_other_calls: u32,
    /// Maximum share of the same space for the newest rounds that stay whole; the newest round stays whole while it fits.
    pub keep_share: f64,
    /// Further calls expected for each call so far; session lengths are heavy-tailed.
    pub remaining_ratio: f64,
    /// Minimum ratio of the expected gain of a crease to its cost.
    pub min_gain_ratio: f64,
    /// Factor by which the space of kept text is valued above its price.
    pub space_value: f64,
    /// Last stage that a forced crease may use.
    pub max_stage: Stage,
}

/// The condition for creases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreaseMode {
    /// Never.
    Never,
    /// When the request is above the trigger ratio.
    Forced,
    /// When the request is above the trigger ratio, or the crease is profitable.
    Profitable,
    /// When the last request is above the trigger ratio. Earlier requests of the conversation are not decided, as if
    /// they had been sent whole.
    Once,
}

impl Policy {
    /// Returns the policy that folds nothing.
    pub const fn none() -> Self {
        Self { name: "none", crease_mode: CreaseMode::Never, ..Self::balanced() }
    }

    /// Returns the policy that folds only text with a verified inverse or with another copy in the request.
    pub const fn lossless() -> Self {
        Self { name: "lossless", crease_mode: CreaseMode::Forced, max_stage: Stage::Duplicates, ..Self::balanced() }
    }

    /// Returns the default policy.
    pub const fn balanced() -> Self {
        Self {
            name: "balanced",
            crease_mode: CreaseMode::Profitable,
            trigger_ratio: 0.95,
            target_ratio: 0.55,
            keep_file_calls: 7,
            keep_other_calls: 1,
            keep_share: 0.3,
            remaining_ratio: 0.9,
            min_gain_ratio: 1.8,
            space_value: 6.95,
            max_stage: Stage::Truncation,
        }
    }

    /// Returns the policy that values free space higher than recall.
    pub const fn tight() -> Self {
        Self {
            name: "tight",
            trigger_ratio: 0.85,
            target_ratio: 0.35,
            keep_file_calls: 6,
            keep_other_calls: 1,
            keep_share: 0.2,
            space_value: 16.0,
            ..Self::balanced()
        }
    }

    /// Returns the policy for a single request that no other follows: it folds just enough to fit the budget, and only
    /// at the end of the conversation. A loop needs the room that the named policies leave, or it creases at every call.
    #[must_use]
    pub const fn once(self) -> Self {
        match self.crease_mode {
            CreaseMode::Never => self,
            _ => Self { crease_mode: CreaseMode::Once, trigger_ratio: 1.0, target_ratio: 1.0, ..self },
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
            format!("unknown policy \"{name}\"; use one of {}", names.join(", "))
        })
    }
}
