//! Simple policies: what the field does, and controls to set numbers against.
//!
//! A policy is a choice made before each request over a [`Sheet`] of the messages so far. The
//! sheet does the bookkeeping; the policy is a few lines. None of them sees the future; the bounds
//! that do are in `bound`.

mod classic;
pub(crate) mod history;
mod random;

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64;

pub use crate::baselines::classic::{CLASSIC_STRATEGIES, ClassicStrategy};
pub use crate::baselines::history::{EditedHistory, ResultPosition};
pub use crate::baselines::random::{DropUnit, RandomDrop};
use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};

/// Chooses before a request. The sheet keeps earlier choices.
pub trait BaselinePolicy {
    /// Looks at the sheet and cuts or drops.
    fn apply(&mut self, sheet: &mut EditedHistory);
}

impl<F: FnMut(&mut EditedHistory)> BaselinePolicy for F {
    fn apply(&mut self, sheet: &mut EditedHistory) {
        self(sheet);
    }
}

/// A policy by name. Everyone measures against the same ones.
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

/// An engine made of a policy.
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
        Ok(self.history.take_delta())
    }
}

/// What stands in place of a result that a policy took out.
const CLEARED_TEXT: &str = "[Old tool result content cleared]";

/// All simple policies, in the order in which tables show them.
pub const BASELINES: &[NamedPolicy] = &[
    NamedPolicy { name: "everything", build: || Box::new(|_: &mut EditedHistory| {}) },
    NamedPolicy {
        name: "mask all but 10 results",
        build: || Box::new(|sheet: &mut EditedHistory| mask_all_but(sheet, 10)),
    },
    NamedPolicy {
        name: "clear above 100k, keep 3",
        build: || Box::new(|sheet: &mut EditedHistory| clear_above(sheet, 100_000, 3)),
    },
    NamedPolicy {
        name: "trim to the last 64k",
        build: || Box::new(|sheet: &mut EditedHistory| drop_rounds_until(sheet, 64_000)),
    },
    NamedPolicy { name: "exact dedup only", build: || Box::new(DedupPolicy::default()) },
    NamedPolicy {
        name: "head/tail of stale results",
        build: || Box::new(|sheet: &mut EditedHistory| cut_to_head_and_tail(sheet, 10)),
    },
    NamedPolicy {
        name: "sinks + last 16 messages",
        build: || Box::new(|sheet: &mut EditedHistory| keep_last(sheet, 4, 16)),
    },
    NamedPolicy {
        name: "keep last 40 messages",
        build: || Box::new(|sheet: &mut EditedHistory| keep_last(sheet, 0, 40)),
    },
    NamedPolicy { name: "elide to 32k", build: || Box::new(|sheet: &mut EditedHistory| mask_until(sheet, 32_000)) },
    NamedPolicy {
        name: "fold 64k to 24k, oldest first",
        build: || {
            Box::new(|sheet: &mut EditedHistory| {
                if sheet.tokens() > 64_000 {
                    mask_until(sheet, 24_000);
                }
            })
        },
    },
];

/// Masks every result but the newest ones.
fn mask_all_but(sheet: &mut EditedHistory, keep: usize) {
    let stale = sheet.results().len().saturating_sub(keep);
    for at in sheet.uncut_results().take_while(|&at| at < stale).collect::<Vec<_>>() {
        sheet.cut_result(at, CLEARED_TEXT.to_owned());
    }
}

fn clear_above(sheet: &mut EditedHistory, trigger: u64, keep: usize) {
    if sheet.tokens() > trigger {
        mask_all_but(sheet, keep);
    }
}

/// Masks results, oldest first, until the rendering has this many tokens; never the newest.
fn mask_until(sheet: &mut EditedHistory, target: u64) {
    let newest = sheet.results().len().saturating_sub(1);
    for at in sheet.uncut_results().take_while(|&at| at < newest).collect::<Vec<_>>() {
        if sheet.tokens() <= target {
            return;
        }
        if sheet.result_text(at).len() > CLEARED_TEXT.len() {
            sheet.cut_result(at, CLEARED_TEXT.to_owned());
        }
    }
}

/// Drops whole rounds, oldest first, until the rendering has this many tokens.
fn drop_rounds_until(sheet: &mut EditedHistory, target: u64) {
    while sheet.tokens() > target && sheet.drop_oldest_round() {}
}

/// Drops what lies between the first and the last messages, in whole rounds.
fn keep_last(sheet: &mut EditedHistory, sinks: usize, last: usize) {
    sheet.drop_between(sinks, last);
}

/// Cuts stale results to their first and last lines.
fn cut_to_head_and_tail(sheet: &mut EditedHistory, keep: usize) {
    const KEPT_LINES: usize = 5;
    let stale = sheet.results().len().saturating_sub(keep);
    for at in sheet.uncut_results().take_while(|&at| at < stale).collect::<Vec<_>>() {
        let text = sheet.result_text(at);
        let lines: Vec<&str> = text.split('\n').collect();
        if lines.len() <= 2 * KEPT_LINES + 1 {
            continue;
        }
        let (head, tail) = (lines[..KEPT_LINES].join("\n"), lines[lines.len() - KEPT_LINES..].join("\n"));
        let gone = lines.len() - 2 * KEPT_LINES;
        sheet.cut_result(at, format!("{head}\n[{gone} lines left out]\n{tail}"));
    }
}

/// Replaces a result that is the exact repeat of an earlier one.
#[derive(Default)]
struct DedupPolicy {
    seen: HashSet<u64>,
    next_result: usize,
}

impl BaselinePolicy for DedupPolicy {
    fn apply(&mut self, sheet: &mut EditedHistory) {
        for at in self.next_result..sheet.results().len() {
            let text = sheet.result_text(at);
            if text.len() > 100 && !self.seen.insert(xxh3_64(text.as_bytes())) {
                sheet.cut_result(at, "[same as an earlier result]".to_owned());
            }
        }
        self.next_result = sheet.results().len();
    }
}
