//! Drops at equal tokens: the controls that show what a saving loses without knowing what matters.

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::baselines::{BaselinePolicy, CLEARED_TEXT, EditedHistory, PolicySession, drop_rounds_until};
use crate::engine::{EngineError, EngineSession, EngineSetup, ReplayEngine};
use crate::score::CallPoint;

/// Drops at random, or the oldest rounds, so that each request has at most the tokens of another run at the same
/// call.
#[derive(Clone, Debug)]
pub struct EqualTokensDrop {
    unit: DropUnit,
    targets: Vec<CallPoint>,
    seed: u64,
}

/// The unit that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropUnit {
    /// Whole results, at random.
    Results,
    /// Lines of results: the control of an engine that keeps excerpts. A name that appears in many lines
    /// survives this.
    Lines,
    /// The oldest rounds: plain truncation. A request that the other run refused is refused too.
    OldestRounds,
}

impl DropUnit {
    /// Returns the name shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            DropUnit::Results => "random results dropped, equal tokens",
            DropUnit::Lines => "random lines dropped, equal tokens",
            DropUnit::OldestRounds => "truncation, equal tokens",
        }
    }
}

impl EqualTokensDrop {
    /// Follows the tokens of these calls.
    pub fn matching(points: &[CallPoint], unit: DropUnit, seed: u64) -> Self {
        Self { unit, targets: points.to_vec(), seed }
    }
}

impl ReplayEngine for EqualTokensDrop {
    fn name(&self) -> &str {
        self.unit.name()
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let policy = EqualTokensPolicy {
            unit: self.unit,
            targets: self.targets.clone(),
            seed: self.seed,
            next_call: 0,
            cleared: FxHashSet::default(),
        };
        Ok(Box::new(PolicySession { history: EditedHistory::new(setup), policy: Box::new(policy) }))
    }
}

struct EqualTokensPolicy {
    unit: DropUnit,
    targets: Vec<CallPoint>,
    seed: u64,
    next_call: usize,
    cleared: FxHashSet<usize>,
}

impl BaselinePolicy for EqualTokensPolicy {
    fn apply(&mut self, history: &mut EditedHistory) {
        let Some(target) = self.targets.get(self.next_call) else { return };
        self.next_call += 1;
        if self.unit == DropUnit::OldestRounds {
            match target.is_refused {
                true => history.refuse(),
                false => drop_rounds_until(history, target.tokens),
            }
            return;
        }
        if history.tokens() <= target.tokens.max(history.base_tokens()) {
            return;
        }
        let newest = history.results().len().saturating_sub(1);
        if self.unit == DropUnit::Lines {
            let seed = self.seed;
            let uncut = history.uncut_results().filter(|&at| at < newest).collect();
            self.cut_randomly(history, uncut, target.tokens, |text, at| sampled_lines(text, seed ^ at as u64));
        }
        let left = (0..newest).filter(|at| !self.cleared.contains(at)).collect();
        let cut = self.cut_randomly(history, left, target.tokens, |_, _| CLEARED_TEXT.to_owned());
        self.cleared.extend(cut);
    }
}

impl EqualTokensPolicy {
    /// Cuts results in a random order until the rendering has this many tokens. Returns the cut results.
    fn cut_randomly(
        &self,
        history: &mut EditedHistory,
        mut order: Vec<usize>,
        target: u64,
        text: impl Fn(&str, usize) -> String,
    ) -> Vec<usize> {
        order.sort_by_key(|at| xxh3_64_with_seed(&at.to_le_bytes(), self.seed));
        let mut cut = Vec::new();
        for at in order {
            if history.tokens() <= target {
                break;
            }
            let text = text(&history.result_text(at), at);
            history.cut_result(at, text);
            cut.push(at);
        }
        cut
    }
}

/// Returns one line in eight of a text, chosen at random.
fn sampled_lines(text: &str, seed: u64) -> String {
    const LINES_PER_SAMPLE: u64 = 8;
    let is_sampled = |at: usize| xxh3_64_with_seed(&at.to_le_bytes(), seed).is_multiple_of(LINES_PER_SAMPLE);
    let kept: Vec<&str> = text.lines().enumerate().filter(|&(at, _)| is_sampled(at)).map(|(_, line)| line).collect();
    if kept.is_empty() { CLEARED_TEXT.to_owned() } else { kept.join("\n") }
}
