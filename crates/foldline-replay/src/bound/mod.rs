//! The clairvoyant bound: what a compaction could reach that knows the recorded future.
//!
//! At a crease it keeps the fewest old lines such that every atom which a later action needs still
//! stands somewhere (`cover`). When to crease is either the cheapest of all schedules, by dynamic
//! programming (`schedule`), or simply whenever it pays (`paying`), as an engine does. It folds results, prose and reasoning, never arguments of calls or instructions.
//! No engine can know this much; the bound gives a saving its ceiling.

mod cover;
mod paying;
mod schedule;

use std::collections::HashMap;
use std::sync::Arc;

use foldline::Prices;

use crate::case::Case;
use crate::engine::{Delta, Engine, Maker, Refusal, Setup, Shared};
use cover::Cover;

/// A compaction of one conversation that knows its future. It can render no other conversation.
pub struct Clairvoyant {
    creases: Arc<HashMap<usize, Vec<(usize, Shared)>>>,
    foresight: Foresight,
}

/// How a clairvoyant chooses its creases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foresight {
    /// The cheapest schedule of all, where each crease folds anew or adds to what is frozen.
    BestSchedule,
    /// At every call at which folding all that is old saves more until the end than it costs now.
    WhenItPays,
}

impl Foresight {
    /// The name that tables show.
    pub fn name(self) -> &'static str {
        match self {
            Foresight::BestSchedule => "clairvoyant cover, best schedule",
            Foresight::WhenItPays => "clairvoyant cover, when it pays",
        }
    }
}

impl Clairvoyant {
    /// The compaction of this conversation by cover, creased as foreseen.
    pub fn new(case: &Case, prices: &Prices, foresight: Foresight) -> Self {
        let cover = Cover::new(case);
        let mut kept = cover.nothing_kept();
        let schedule = match foresight {
            Foresight::BestSchedule => schedule::cheapest(case, &cover, prices),
            Foresight::WhenItPays => paying::creases(case, &cover, prices),
        };
        let creases = schedule.into_iter().map(|crease| (crease.call, cover.fold(case, crease, &mut kept))).collect();
        Self { creases: Arc::new(creases), foresight }
    }
}

impl Maker for Clairvoyant {
    fn name(&self) -> &str {
        self.foresight.name()
    }

    fn open(&self, _: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        Ok(Box::new(Foreseen { creases: Arc::clone(&self.creases), call: 0, len: 0, fresh: Vec::new() }))
    }
}

struct Foreseen {
    creases: Arc<HashMap<usize, Vec<(usize, Shared)>>>,
    call: usize,
    len: usize,
    fresh: Vec<(usize, Shared)>,
}

impl Engine for Foreseen {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        for message in messages {
            self.fresh.push((self.len, Arc::clone(message)));
            self.len += 1;
        }
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        let folded = self.creases.get(&self.call).cloned().unwrap_or_default();
        self.call += 1;
        // A message may be folded at the very call at which it is new; then it is set once, folded.
        let creased = !folded.is_empty();
        let mut set: HashMap<usize, Shared> = std::mem::take(&mut self.fresh).into_iter().collect();
        set.extend(folded);
        let mut set: Vec<_> = set.into_iter().collect();
        set.sort_by_key(|&(at, _)| at);
        Ok(Delta { set, len: self.len, creased })
    }
}

/// A place in the schedule: at this call, the messages `from..to` are folded. Those before `from` stay
/// as an earlier crease left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crease {
    call: usize,
    from: usize,
    to: usize,
}
