//! Random drop at equal tokens: what the same saving is worth without knowing what matters.

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::baselines::{BaselinePolicy, CLEARED_TEXT, EditedHistory, PolicySession};
use crate::engine::{EngineError, EngineSession, EngineSetup, ReplayEngine};
use crate::score::CallPoint;

/// Drops at random so that each request has at most the tokens of another run, at the same calls as
/// that run.
#[derive(Clone, Debug)]
pub struct RandomDrop {
    unit: DropUnit,
    targets: Vec<CallPoint>,
    seed: u64,
}

/// What is dropped at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropUnit {
    /// Whole results.
    Results,
    /// Lines of results: the control of an engine that keeps excerpts. A name that stands in many lines
    /// survives this.
    Lines,
}

impl DropUnit {
    /// The name that tables show.
    pub fn name(self) -> &'static str {
        match self {
            DropUnit::Results => "random results dropped, equal tokens",
            DropUnit::Lines => "random lines dropped, equal tokens",
        }
    }
}

impl RandomDrop {
    /// Follows the tokens of these calls.
    pub fn matching(points: &[CallPoint], grain: DropUnit, seed: u64) -> Self {
        Self { unit: grain, targets: points.to_vec(), seed }
    }
}

impl ReplayEngine for RandomDrop {
    fn name(&self) -> &str {
        self.unit.name()
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let policy = RandomDropPolicy {
            unit: self.unit,
            targets: self.targets.clone(),
            seed: self.seed,
            next_call: 0,
            cleared: FxHashSet::default(),
        };
        Ok(Box::new(PolicySession { history: EditedHistory::new(setup), policy: Box::new(policy) }))
    }
}

struct RandomDropPolicy {
    unit: DropUnit,
    targets: Vec<CallPoint>,
    seed: u64,
    next_call: usize,
    cleared: FxHashSet<usize>,
}

impl BaselinePolicy for RandomDropPolicy {
    fn apply(&mut self, sheet: &mut EditedHistory) {
        let Some(target) = self.targets.get(self.next_call) else { return };
        self.next_call += 1;
        if sheet.tokens() <= target.tokens.max(sheet.base_tokens()) {
            return;
        }
        let newest = sheet.results().len().saturating_sub(1);
        if self.unit == DropUnit::Lines {
            let seed = self.seed;
            let uncut = sheet.uncut_results().filter(|&at| at < newest).collect();
            self.cut_randomly(sheet, uncut, target.tokens, |text, at| sampled_lines(text, seed ^ at as u64));
        }
        let left = (0..newest).filter(|at| !self.cleared.contains(at)).collect();
        let cut = self.cut_randomly(sheet, left, target.tokens, |_, _| CLEARED_TEXT.to_owned());
        self.cleared.extend(cut);
    }
}

impl RandomDropPolicy {
    /// Cuts results in a random order until the rendering has this many tokens. Gives those it cut.
    fn cut_randomly(
        &self,
        sheet: &mut EditedHistory,
        mut order: Vec<usize>,
        target: u64,
        text: impl Fn(&str, usize) -> String,
    ) -> Vec<usize> {
        order.sort_by_key(|at| xxh3_64_with_seed(&at.to_le_bytes(), self.seed));
        let mut cut = Vec::new();
        for at in order {
            if sheet.tokens() <= target {
                break;
            }
            let text = text(&sheet.result_text(at), at);
            sheet.cut_result(at, text);
            cut.push(at);
        }
        cut
    }
}

/// A text with one line in eight, drawn at random.
fn sampled_lines(text: &str, seed: u64) -> String {
    const LINES_PER_SAMPLE: u64 = 8;
    let drawn = |at: usize| xxh3_64_with_seed(&at.to_le_bytes(), seed).is_multiple_of(LINES_PER_SAMPLE);
    let kept: Vec<&str> = text.lines().enumerate().filter(|&(at, _)| drawn(at)).map(|(_, line)| line).collect();
    if kept.is_empty() { CLEARED_TEXT.to_owned() } else { kept.join("\n") }
}
