//! Random drop at equal tokens: what the same saving is worth without knowing what matters.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CLEARED, Driven, Policy, Sheet};
use crate::engine::{Engine, Maker, Refusal, Setup};
use crate::score::Point;

/// Masks results in a random order so that each request has at most the tokens of another run, at
/// the same calls as that run.
#[derive(Clone, Debug)]
pub struct RandomDrop {
    targets: Vec<Point>,
    seed: u64,
}

impl RandomDrop {
    /// Follows the tokens of these calls.
    pub fn like(points: &[Point], seed: u64) -> Self {
        Self { targets: points.to_vec(), seed }
    }
}

impl Maker for RandomDrop {
    fn name(&self) -> &str {
        "random drop at equal tokens"
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let policy = Drop { targets: self.targets.clone(), seed: self.seed, call: 0 };
        Ok(Box::new(Driven { sheet: Sheet::new(setup), policy: Box::new(policy) }))
    }
}

struct Drop {
    targets: Vec<Point>,
    seed: u64,
    call: usize,
}

impl Policy for Drop {
    fn decide(&mut self, sheet: &mut Sheet) {
        let Some(target) = self.targets.get(self.call) else { return };
        self.call += 1;
        if sheet.tokens() <= target.tokens.max(sheet.base()) {
            return;
        }
        let newest = sheet.results().len().saturating_sub(1);
        let mut order: Vec<usize> = sheet.uncut().filter(|&at| at < newest).collect();
        order.sort_by_key(|at| xxh3_64_with_seed(&at.to_le_bytes(), self.seed));
        for at in order {
            if sheet.tokens() <= target.tokens {
                return;
            }
            sheet.cut(at, CLEARED.to_owned());
        }
    }
}
