//! Simple policies: common practice, and controls for comparison.
//!
//! A policy decides before each request over an [`EditedHistory`] of the messages so far. The
//! history does the bookkeeping; a policy is a few lines. None of them knows the future; the oracles
//! that do are in `oracle`.

mod classic;
mod equal_tokens;
pub(crate) mod history;

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64;

pub use crate::baselines::classic::{CLASSIC_STRATEGIES, ClassicStrategy};
pub use crate::baselines::equal_tokens::{DropUnit, EqualTokensDrop};
pub use crate::baselines::history::{EditedHistory, ResultPosition};
use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};

/// A policy that edits the history before a request. The history keeps earlier edits.
pub trait BaselinePolicy {
    /// Cuts or drops parts of the history.
    fn apply(&mut self, history: &mut EditedHistory);
}

impl<F: FnMut(&mut EditedHistory)> BaselinePolicy for F {
    fn apply(&mut self, history: &mut EditedHistory) {
        self(history);
    }
}

/// A policy with its name in tables.
#[derive(Clone, Debug)]
pub struct NamedPolicy {
    name: &'static str,
    build: fn() -> Box<dyn BaselinePolicy>,
}

impl ReplayEngine for NamedPolicy {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        Ok(Box::new(PolicySession { history: EditedHistory::new(setup), policy: (self.build)() }))
    }
}

/// A session of an engine that consists of a policy.
pub(crate) struct PolicySession {
    pub(crate) history: EditedHistory,
    pub(crate) policy: Box<dyn BaselinePolicy>,
}

impl EngineSession for PolicySession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        messages.iter().for_each(|message| self.history.push(message));
        Ok(())
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        self.policy.apply(&mut self.history);
        match self.history.take_refusal() {
            true => Err(EngineError::CannotFit { floor: self.history.tokens() }),
            false => Ok(self.history.take_delta()),
        }
    }
}

/// Text that replaces a result that a policy removed.
const CLEARED_TEXT: &str = "[Old tool result content cleared]";

/// All simple policies, in the order in which tables show them.
pub const BASELINES: &[NamedPolicy] = &[
    NamedPolicy { name: "no compaction", build: || Box::new(|_: &mut EditedHistory| {}) },
    NamedPolicy {
        name: "mask all but 10 results",
        build: || Box::new(|history: &mut EditedHistory| mask_all_but(history, 10)),
    },
    NamedPolicy {
        name: "clear above 100k, keep 3",
        build: || Box::new(|history: &mut EditedHistory| clear_above(history, 100_000, 3)),
    },
    NamedPolicy {
        name: "trim to the last 64k",
        build: || Box::new(|history: &mut EditedHistory| drop_rounds_until(history, 64_000)),
    },
    NamedPolicy {
        name: "truncation, equal window",
        build: || Box::new(|history: &mut EditedHistory| truncate_to_window(history)),
    },
    NamedPolicy { name: "exact dedup only", build: || Box::new(DedupPolicy::default()) },
    NamedPolicy {
        name: "head/tail of stale results",
        build: || Box::new(|history: &mut EditedHistory| cut_to_head_and_tail(history, 10)),
    },
    NamedPolicy {
        name: "sinks + last 16 messages",
        build: || Box::new(|history: &mut EditedHistory| keep_last(history, 4, 16)),
    },
    NamedPolicy {
        name: "keep last 40 messages",
        build: || Box::new(|history: &mut EditedHistory| keep_last(history, 0, 40)),
    },
    NamedPolicy { name: "elide to 32k", build: || Box::new(|history: &mut EditedHistory| mask_until(history, 32_000)) },
    NamedPolicy {
        name: "fold 64k to 24k, oldest first",
        build: || {
            Box::new(|history: &mut EditedHistory| {
                if history.tokens() > 64_000 {
                    mask_until(history, 24_000);
                }
            })
        },
    },
];

/// Masks every result but the newest ones.
fn mask_all_but(history: &mut EditedHistory, keep: usize) {
    let stale = history.results().len().saturating_sub(keep);
    for at in history.uncut_results().take_while(|&at| at < stale).collect::<Vec<_>>() {
        history.cut_result(at, CLEARED_TEXT.to_owned());
    }
}

fn clear_above(history: &mut EditedHistory, trigger: u64, keep: usize) {
    if history.tokens() > trigger {
        mask_all_but(history, keep);
    }
}

/// Masks results, oldest first, until the rendering has this many tokens; never the newest.
fn mask_until(history: &mut EditedHistory, target: u64) {
    let newest = history.results().len().saturating_sub(1);
    for at in history.uncut_results().take_while(|&at| at < newest).collect::<Vec<_>>() {
        if history.tokens() <= target {
            return;
        }
        if history.result_text(at).len() > CLEARED_TEXT.len() {
            history.cut_result(at, CLEARED_TEXT.to_owned());
        }
    }
}

/// Drops whole rounds, oldest first, until the rendering has this many tokens.
fn drop_rounds_until(history: &mut EditedHistory, target: u64) {
    while history.tokens() > target && history.drop_oldest_round() {}
}

/// Drops whole rounds, oldest first, until the rendering fits the budget.
fn truncate_to_window(history: &mut EditedHistory) {
    let budget = history.budget();
    drop_rounds_until(history, budget);
    if history.tokens() > budget {
        history.refuse();
    }
}

/// Drops the messages between the first and the last ones, in whole rounds.
fn keep_last(history: &mut EditedHistory, sinks: usize, last: usize) {
    history.drop_between(sinks, last);
}

/// Cuts stale results to their first and last lines.
fn cut_to_head_and_tail(history: &mut EditedHistory, keep: usize) {
    const KEPT_LINES: usize = 5;
    let stale = history.results().len().saturating_sub(keep);
    for at in history.uncut_results().take_while(|&at| at < stale).collect::<Vec<_>>() {
        let text = history.result_text(at);
        let lines: Vec<&str> = text.split('\n').collect();
        if lines.len() <= 2 * KEPT_LINES + 1 {
            continue;
        }
        let (head, tail) = (lines[..KEPT_LINES].join("\n"), lines[lines.len() - KEPT_LINES..].join("\n"));
        let gone = lines.len() - 2 * KEPT_LINES;
        history.cut_result(at, format!("{head}\n[{gone} lines left out]\n{tail}"));
    }
}

/// Replaces a result that is the exact repeat of an earlier one.
#[derive(Default)]
struct DedupPolicy {
    seen: HashSet<u64>,
    next_result: usize,
}

impl BaselinePolicy for DedupPolicy {
    fn apply(&mut self, history: &mut EditedHistory) {
        for at in self.next_result..history.results().len() {
            let text = history.result_text(at);
            if text.len() > 100 && !self.seen.insert(xxh3_64(text.as_bytes())) {
                history.cut_result(at, "[same as an earlier result]".to_owned());
            }
        }
        self.next_result = history.results().len();
    }
}
