//! Random drop at equal tokens: what the same saving is worth without knowing what matters.

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CLEARED, Driven, Policy, Sheet};
use crate::engine::{Engine, Maker, Refusal, Setup};
use crate::score::Point;

/// Drops at random so that each request has at most the tokens of another run, at the same calls as
/// that run.
#[derive(Clone, Debug)]
pub struct RandomDrop {
    grain: Grain,
    targets: Vec<Point>,
    seed: u64,
}

/// What is dropped at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Whole results.
    Results,
    /// Lines of results: the control of an engine that keeps excerpts. A name that stands in many lines
    /// survives this.
    Lines,
}

impl Grain {
    /// The name that tables show.
    pub fn name(self) -> &'static str {
        match self {
            Grain::Results => "random results dropped, equal tokens",
            Grain::Lines => "random lines dropped, equal tokens",
        }
    }
}

impl RandomDrop {
    /// Follows the tokens of these calls.
    pub fn like(points: &[Point], grain: Grain, seed: u64) -> Self {
        Self { grain, targets: points.to_vec(), seed }
    }
}

impl Maker for RandomDrop {
    fn name(&self) -> &str {
        self.grain.name()
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let policy = Drop {
            grain: self.grain,
            targets: self.targets.clone(),
            seed: self.seed,
            call: 0,
            cleared: FxHashSet::default(),
        };
        Ok(Box::new(Driven { sheet: Sheet::new(setup), policy: Box::new(policy) }))
    }
}

struct Drop {
    grain: Grain,
    targets: Vec<Point>,
    seed: u64,
    call: usize,
    cleared: FxHashSet<usize>,
}

impl Policy for Drop {
    fn decide(&mut self, sheet: &mut Sheet) {
        let Some(target) = self.targets.get(self.call) else { return };
        self.call += 1;
        if sheet.tokens() <= target.tokens.max(sheet.base()) {
            return;
        }
        let newest = sheet.results().len().saturating_sub(1);
        if self.grain == Grain::Lines {
            let seed = self.seed;
            let uncut = sheet.uncut().filter(|&at| at < newest).collect();
            self.cut(sheet, uncut, target.tokens, |text, at| thinned(text, seed ^ at as u64));
        }
        let left = (0..newest).filter(|at| !self.cleared.contains(at)).collect();
        let cut = self.cut(sheet, left, target.tokens, |_, _| CLEARED.to_owned());
        self.cleared.extend(cut);
    }
}

impl Drop {
    /// Cuts results in a random order until the rendering has this many tokens. Gives those it cut.
    fn cut(
        &self,
        sheet: &mut Sheet,
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
            sheet.cut(at, text);
            cut.push(at);
        }
        cut
    }
}

/// A text with one line in eight, drawn at random.
fn thinned(text: &str, seed: u64) -> String {
    const ONE_IN: u64 = 8;
    let drawn = |at: usize| xxh3_64_with_seed(&at.to_le_bytes(), seed).is_multiple_of(ONE_IN);
    let kept: Vec<&str> = text.lines().enumerate().filter(|&(at, _)| drawn(at)).map(|(_, line)| line).collect();
    if kept.is_empty() { CLEARED.to_owned() } else { kept.join("\n") }
}
