//! The clairvoyant bound: what a compaction could reach that knows the recorded future.
//!
//! At a crease it keeps the fewest old lines such that every atom which a later action needs still
//! stands somewhere (`cover`). When to crease is either the cheapest of all schedules, by dynamic
//! programming (`schedule`), or simply whenever it pays (`paying`), as an engine does. It folds results,
//! prose and reasoning, never arguments of calls or instructions.
//! No engine can know this much; the bound gives a saving its ceiling.

mod cover;
pub(crate) mod optimal;
pub(crate) mod profitable;

use std::collections::HashMap;
use std::sync::Arc;

use foldline::Prices;

use crate::case::ReplayCase;
use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
use crate::oracle::cover::LineCover;

/// A compaction of one conversation that knows its future. It can render no other conversation.
pub struct OracleEngine {
    creases: Arc<HashMap<usize, Vec<(usize, SharedMessage)>>>,
    schedule: OracleSchedule,
}

/// How a clairvoyant chooses its creases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleSchedule {
    /// The cheapest schedule of all, where each crease folds anew or adds to what is frozen.
    Optimal,
    /// At every call at which folding all that is old saves more until the end than it costs now.
    Profitable,
}

impl OracleSchedule {
    /// The name that tables show.
    pub fn name(self) -> &'static str {
        match self {
            OracleSchedule::Optimal => "clairvoyant cover, best schedule",
            OracleSchedule::Profitable => "clairvoyant cover, when it pays",
        }
    }
}

impl OracleEngine {
    /// The compaction of this conversation by cover, creased as foreseen.
    pub fn new(case: &ReplayCase, prices: &Prices, foresight: OracleSchedule) -> Self {
        let cover = LineCover::new(case);
        let schedule = match foresight {
            OracleSchedule::Optimal => crate::oracle::optimal::cheapest_schedule(case, &cover, prices),
            OracleSchedule::Profitable => crate::oracle::profitable::profitable_creases(case, &cover, prices),
        };
        Self::with_schedule(case, &cover, &schedule, foresight)
    }

    fn with_schedule(
        case: &ReplayCase,
        cover: &LineCover,
        schedule: &[OracleCrease],
        foresight: OracleSchedule,
    ) -> Self {
        let mut kept = cover.no_identifiers();
        let creases =
            schedule.iter().map(|&crease| (crease.call, cover.fold_messages(case, crease, &mut kept))).collect();
        Self { creases: Arc::new(creases), schedule: foresight }
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
        // A message may be folded at the very call at which it is new; then it is set once, folded.
        let creased = !folded.is_empty();
        let mut set: HashMap<usize, SharedMessage> = std::mem::take(&mut self.new_messages).into_iter().collect();
        set.extend(folded);
        let mut set: Vec<_> = set.into_iter().collect();
        set.sort_by_key(|&(at, _)| at);
        Ok(RenderingDelta { changed: set, len: self.len, is_crease: creased })
    }
}

/// A place in the schedule: at this call, the messages `from..to` are folded. Those before `from` stay
/// as an earlier crease left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OracleCrease {
    call: usize,
    from: usize,
    to: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::RECENT_MESSAGES;
    use crate::{CorpusStats, replay};
    use foldline::transcript::TranscriptReader;
    use foldline::{Meter, ModelTable, PriceTable};
    use serde_json::json;

    const CALL_COUNT: usize = 9;

    /// Rounds of unequal results; some names in them are needed again a few calls later.
    fn sample_case(seed: usize) -> ReplayCase {
        let mut messages = vec![json!({ "role": "user", "content": "go" })];
        for round in 0..CALL_COUNT {
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
        ReplayCase::new(recording, &CorpusStats::default(), &Meter::for_model(ModelTable::builtin(), Some("gpt-4o")))
    }

    /// All schedules: at each call no crease, one that adds to what is frozen, or one that folds anew.
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

    /// The search is exact but for a few tokens of markers, which it estimates before they are written: no
    /// schedule of all that there are has a noticeably smaller bill when it is really replayed.
    #[test]
    fn cheapest_schedule_is_optimal() {
        for (seed, prices) in [(0, "openai-4o"), (1, "openai"), (2, "openai-4o")] {
            let case = sample_case(seed);
            let prices = PriceTable::builtin().get(prices).unwrap();
            let cover = LineCover::new(&case);
            let bill = |schedule: &[OracleCrease]| {
                let maker = OracleEngine::with_schedule(&case, &cover, schedule, OracleSchedule::Optimal);
                replay(&case, &maker, 1_000_000, prices).unwrap().score.cost(&prices)
            };
            let found = optimal::cheapest_schedule(&case, &cover, &prices);
            let all = all_schedules(&case);
            let best = all.iter().map(|schedule| bill(schedule)).fold(f64::INFINITY, f64::min);
            let (bill_found, nothing) = (bill(&found), bill(&[]));
            assert!(bill_found <= best * 1.01, "{bill_found} {best} {found:?}");
            assert!(!found.is_empty() && bill_found < nothing, "{bill_found} {nothing}");
        }
    }

    /// What a clairvoyant keeps is enough for every action, and less than everything.
    #[test]
    fn oracle_keeps_all_needed_context() {
        let case = sample_case(0);
        let prices = PriceTable::builtin().get("openai-4o").unwrap();
        for foresight in [OracleSchedule::Optimal, OracleSchedule::Profitable] {
            let run = replay(&case, &OracleEngine::new(&case, &prices, foresight), 1_000_000, prices).unwrap();
            assert_eq!(
                (run.score.needed_context_kept.hits, run.score.missing_context_ratio()),
                (run.score.needed_context_kept.total, 0.0)
            );
            assert!(run.score.needed_context_kept.total > 0 && run.score.creases > 0);
        }
    }
}
