//! The oracle: the bound of a compaction that knows the recorded future.
//!
//! At a crease it keeps the fewest old lines such that every identifier which a later action needs still
//! appears somewhere (`cover`). The creases are either the cheapest of all schedules, by dynamic
//! programming (`optimal`), or made whenever they pay (`profitable`), as an engine does. It folds results,
//! prose and reasoning, never arguments of calls or instructions.
//! No engine can know this much; the oracle is an upper bound for savings.

mod cover;
mod crease;
pub(crate) mod optimal;
pub(crate) mod profitable;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldline::Prices;

use crate::case::ReplayCase;
use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
use crate::oracle::cover::LineCover;
use crate::oracle::crease::OracleCrease;

/// A compaction of one conversation that knows its future. It cannot render any other conversation.
pub struct OracleEngine {
    creases: Arc<HashMap<usize, Vec<(usize, SharedMessage)>>>,
    schedule: OracleSchedule,
}

impl fmt::Debug for OracleEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OracleEngine").field("schedule", &self.schedule).field("creases", &self.creases.len()).finish()
    }
}

/// Choice of an oracle's creases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleSchedule {
    /// The cheapest of all schedules, where each crease folds everything again or adds to the frozen part.
    Optimal,
    /// At every call at which folding everything old saves more until the end than it costs now.
    Profitable,
}

impl OracleSchedule {
    /// All schedules.
    pub(crate) const ALL: [Self; 2] = [OracleSchedule::Optimal, OracleSchedule::Profitable];

    /// Returns the name shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            OracleSchedule::Optimal => "oracle (optimal)",
            OracleSchedule::Profitable => "oracle (pays)",
        }
    }
}

impl OracleEngine {
    /// Compacts this conversation by cover, with the creases of the schedule.
    pub fn new(case: &ReplayCase, prices: &Prices, schedule: OracleSchedule) -> Self {
        let cover = LineCover::new(case);
        let creases = match schedule {
            OracleSchedule::Optimal => optimal::cheapest_schedule(case, &cover, prices),
            OracleSchedule::Profitable => profitable::profitable_creases(case, &cover, prices),
        };
        Self::with_creases(case, &cover, &creases, schedule)
    }

    fn with_creases(case: &ReplayCase, cover: &LineCover, creases: &[OracleCrease], schedule: OracleSchedule) -> Self {
        let mut kept = cover.no_identifiers();
        let creases =
            creases.iter().map(|&crease| (crease.call, cover.fold_messages(case, crease, &mut kept))).collect();
        Self { creases: Arc::new(creases), schedule }
    }
}

impl ReplayEngine for OracleEngine {
    fn name(&self) -> &str {
        self.schedule.name()
    }

    fn open(&self, _: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        Ok(Box::new(OracleSession {
            creases: Arc::clone(&self.creases),
            next_call: 0,
            len: 0,
            new_messages: Vec::new(),
        }))
    }
}

struct OracleSession {
    creases: Arc<HashMap<usize, Vec<(usize, SharedMessage)>>>,
    next_call: usize,
    len: usize,
    new_messages: Vec<(usize, SharedMessage)>,
}

impl EngineSession for OracleSession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        for message in messages {
            self.new_messages.push((self.len, Arc::clone(message)));
            self.len += 1;
        }
        Ok(())
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        let folded = self.creases.get(&self.next_call).cloned().unwrap_or_default();
        self.next_call += 1;
        // A message may be folded at the call at which it is new; then it is set once, folded.
        let is_crease = !folded.is_empty();
        let mut changed: HashMap<usize, SharedMessage> = std::mem::take(&mut self.new_messages).into_iter().collect();
        changed.extend(folded);
        let mut changed: Vec<_> = changed.into_iter().collect();
        changed.sort_by_key(|&(at, _)| at);
        Ok(RenderingDelta { changed, len: self.len, is_crease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::RECENT_MESSAGES;
    use crate::{CorpusStats, replay};
    use foldline::models::PriceTable;
    use foldline::transcript::TranscriptReader;
    use foldline::{Meter, ModelTable};
    use serde_json::json;

    const CALL_COUNT: usize = 9;

    /// Builds rounds of unequal results; some names in them are needed again a few calls later.
    fn sample_case(seed: usize) -> ReplayCase {
        let mut messages = vec![json!({ "role": "user", "content": "go" })];
        for round in 0..CALL_COUNT {
            let id = format!("c{round}");
            let needed = if round > 3 { format!("use value_{}_x", round - 4) } else { "look".to_owned() };
            // The last round edits a passage of the first file.
            let old = "fn value_0_x() {}\nwords that are not needed again\n";
            let arguments = match round + 1 == CALL_COUNT {
                true => json!({ "cmd": needed, "old_string": old, "new_string": "" }),
                false => json!({ "cmd": needed }),
            };
            let function = json!({ "name": "sh", "arguments": arguments.to_string() });
            messages.push(json!({ "role": "assistant", "content": null,
                "tool_calls": [{ "id": id, "type": "function", "function": function }] }));
            let lines = if round < 2 + seed { 60 } else { 1 + round % 3 * 4 };
            let noise = "words that are not needed again\n".repeat(lines);
            let text = format!("{noise}fn value_{round}_x() {{}}\n{noise}");
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        }
        let line = json!({ "id": "one", "source": "test", "messages": messages }).to_string();
        let mut reader = TranscriptReader::new("test", line.as_bytes()).unwrap();
        let recording = reader.next().unwrap().unwrap();
        ReplayCase::new(recording, &CorpusStats::default(), &Meter::for_model(ModelTable::builtin(), Some("gpt-4o")))
    }

    /// Returns all schedules: at each call no crease, one that adds to the frozen part, or one that folds everything again.
    fn all_schedules(case: &ReplayCase) -> Vec<Vec<OracleCrease>> {
        let mut all: Vec<Vec<OracleCrease>> = vec![Vec::new()];
        for (call, it) in case.calls.iter().enumerate().filter(|(_, call)| call.start > RECENT_MESSAGES) {
            let to = it.start - RECENT_MESSAGES;
            for at in 0..all.len() {
                let before = all[at].last().map_or(0, |crease| crease.to);
                for from in if before == 0 { vec![0] } else { vec![0, before] } {
                    let mut longer = all[at].clone();
                    longer.push(OracleCrease { call, from, to });
                    all.push(longer);
                }
            }
        }
        all
    }

    /// The search is exact except for a few marker tokens, which it estimates before they are written: no
    /// possible schedule has a noticeably lower cost in a real replay.
    #[test]
    fn cheapest_schedule_is_optimal() {
        for (seed, prices) in [(0, "openai-4o"), (1, "openai"), (2, "openai-4o")] {
            let case = sample_case(seed);
            let prices = PriceTable::builtin().get(prices).unwrap();
            let cover = LineCover::new(&case);
            let cost = |creases: &[OracleCrease]| {
                let engine = OracleEngine::with_creases(&case, &cover, creases, OracleSchedule::Optimal);
                replay(&case, &engine, 1_000_000, prices).unwrap().score.cost(&prices)
            };
            let found = optimal::cheapest_schedule(&case, &cover, &prices);
            let all = all_schedules(&case);
            let best = all.iter().map(|creases| cost(creases)).fold(f64::INFINITY, f64::min);
            let (found_cost, baseline_cost) = (cost(&found), cost(&[]));
            assert!(found_cost <= best * 1.01, "{found_cost} {best} {found:?}");
            assert!(!found.is_empty() && found_cost < baseline_cost, "{found_cost} {baseline_cost}");
        }
    }

    /// The lines that an oracle keeps are enough for every action, and fewer than all.
    #[test]
    fn oracle_keeps_all_needed_context() {
        let case = sample_case(0);
        let prices = PriceTable::builtin().get("openai-4o").unwrap();
        for schedule in OracleSchedule::ALL {
            let run = replay(&case, &OracleEngine::new(&case, &prices, schedule), 1_000_000, prices).unwrap();
            assert_eq!(
                (run.score.needed_context_kept.hits, run.score.missing_context_ratio()),
                (run.score.needed_context_kept.total, 0.0)
            );
            assert!(run.score.needed_context_kept.total > 0 && run.score.creases > 0);
            assert_eq!((run.score.edits_that_apply.hits, run.score.edits_that_apply.total), (1, 1));
        }
    }
}
