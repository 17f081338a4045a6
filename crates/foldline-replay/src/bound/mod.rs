//! The clairvoyant bound: what a compaction could reach that knows the recorded future.
//!
//! At a crease it keeps the fewest old lines such that every atom which a later action needs still
//! stands somewhere (`cover`). When to crease is either the cheapest of all schedules, by dynamic
//! programming (`schedule`), or simply whenever it pays (`paying`), as an engine does. It folds results,
//! prose and reasoning, never arguments of calls or instructions.
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
        let schedule = match foresight {
            Foresight::BestSchedule => schedule::cheapest(case, &cover, prices),
            Foresight::WhenItPays => paying::creases(case, &cover, prices),
        };
        Self::scheduled(case, &cover, &schedule, foresight)
    }

    fn scheduled(case: &Case, cover: &Cover, schedule: &[Crease], foresight: Foresight) -> Self {
        let mut kept = cover.nothing_kept();
        let creases = schedule.iter().map(|&crease| (crease.call, cover.fold(case, crease, &mut kept))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::RECENT;
    use crate::{Survey, replay};
    use foldline::transcript::TranscriptReader;
    use foldline::{Meter, ModelTable, PriceTable};
    use serde_json::json;

    const CALLS: usize = 9;

    /// Rounds of unequal results; some names in them are needed again a few calls later.
    fn case(seed: usize) -> Case {
        let mut messages = vec![json!({ "role": "user", "content": "go" })];
        for round in 0..CALLS {
            let id = format!("c{round}");
            let needed = if round > 3 { format!("use value_{}_x", round - 4) } else { "look".to_owned() };
            let function = json!({ "name": "sh", "arguments": json!({ "cmd": needed }).to_string() });
            messages.push(json!({ "role": "assistant", "content": null,
                "tool_calls": [{ "id": id, "type": "function", "function": function }] }));
            let lines = if round < 2 + seed { 60 } else { 1 + round % 3 * 4 };
            let noise = "words that nobody needs again\n".repeat(lines);
            let text = format!("{noise}fn value_{round}_x() {{}}\n{noise}");
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        }
        let line = json!({ "id": "one", "source": "test", "messages": messages }).to_string();
        let mut reader = TranscriptReader::new("test", line.as_bytes()).unwrap();
        let recording = reader.next().unwrap().unwrap();
        Case::new(recording, &Survey::default(), &Meter::for_model(ModelTable::builtin(), Some("gpt-4o")))
    }

    /// All schedules: at each call no crease, one that adds to what is frozen, or one that folds anew.
    fn schedules(case: &Case) -> Vec<Vec<Crease>> {
        let mut all: Vec<Vec<Crease>> = vec![Vec::new()];
        for (call, it) in case.calls.iter().enumerate().filter(|(_, call)| call.at > RECENT) {
            let to = it.at - RECENT;
            for at in 0..all.len() {
                let before = all[at].last().map_or(0, |crease| crease.to);
                for from in if before == 0 { vec![0] } else { vec![0, before] } {
                    let mut longer = all[at].clone();
                    longer.push(Crease { call, from, to });
                    all.push(longer);
                }
            }
        }
        all
    }

    /// The search is exact but for a few tokens of markers, which it estimates before they are written: no
    /// schedule of all that there are has a noticeably smaller bill when it is really replayed.
    #[test]
    fn no_schedule_beats_the_one_that_was_found() {
        for (seed, prices) in [(0, "openai-4o"), (1, "openai"), (2, "openai-4o")] {
            let case = case(seed);
            let prices = PriceTable::builtin().get(prices).unwrap();
            let cover = Cover::new(&case);
            let bill = |schedule: &[Crease]| {
                let maker = Clairvoyant::scheduled(&case, &cover, schedule, Foresight::BestSchedule);
                replay(&case, &maker, 1_000_000, prices).unwrap().score.bill(&prices)
            };
            let found = schedule::cheapest(&case, &cover, &prices);
            let all = schedules(&case);
            let best = all.iter().map(|schedule| bill(schedule)).fold(f64::INFINITY, f64::min);
            let (bill_found, nothing) = (bill(&found), bill(&[]));
            assert!(bill_found <= best * 1.01, "{bill_found} {best} {found:?}");
            assert!(!found.is_empty() && bill_found < nothing, "{bill_found} {nothing}");
        }
    }

    /// What a clairvoyant keeps is enough for every action, and less than everything.
    #[test]
    fn a_clairvoyant_misses_nothing() {
        let case = case(0);
        let prices = PriceTable::builtin().get("openai-4o").unwrap();
        for foresight in [Foresight::BestSchedule, Foresight::WhenItPays] {
            let run = replay(&case, &Clairvoyant::new(&case, &prices, foresight), 1_000_000, prices).unwrap();
            assert_eq!((run.score.hard.have, run.score.missteps()), (run.score.hard.of, 0.0));
            assert!(run.score.hard.of > 0 && run.score.creases > 0);
        }
    }
}
