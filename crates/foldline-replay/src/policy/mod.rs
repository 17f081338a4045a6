//! Simple policies: what the field does, and controls to set numbers against.
//!
//! A policy is a choice made before each request over a [`Sheet`] of the messages so far. The
//! sheet does the bookkeeping; the policy is a few lines. None of them sees the future; the bounds
//! that do are in `bound`.

mod classic;
mod random;
mod sheet;

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{Delta, Engine, Maker, Refusal, Setup, Shared};
pub use classic::{CLASSIC, Classic};
pub use random::{Grain, RandomDrop};
pub use sheet::{Sheet, Spot};

/// Chooses before a request. The sheet keeps earlier choices.
pub trait Policy {
    /// Looks at the sheet and cuts or drops.
    fn decide(&mut self, sheet: &mut Sheet);
}

impl<F: FnMut(&mut Sheet)> Policy for F {
    fn decide(&mut self, sheet: &mut Sheet) {
        self(sheet);
    }
}

/// A policy by name. Everyone measures against the same ones.
#[derive(Clone, Debug)]
pub struct Named {
    name: &'static str,
    open: fn() -> Box<dyn Policy>,
}

impl Maker for Named {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        Ok(Box::new(Driven { sheet: Sheet::new(setup), policy: (self.open)() }))
    }
}

/// An engine made of a policy.
pub(crate) struct Driven {
    pub(crate) sheet: Sheet,
    pub(crate) policy: Box<dyn Policy>,
}

impl Engine for Driven {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        messages.iter().for_each(|message| self.sheet.push(message));
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        self.policy.decide(&mut self.sheet);
        Ok(self.sheet.delta())
    }
}

/// What stands in place of a result that a policy took out.
const CLEARED: &str = "[Old tool result content cleared]";

/// All simple policies, in the order in which tables show them.
pub const ALL: &[Named] = &[
    Named { name: "everything", open: || Box::new(|_: &mut Sheet| {}) },
    Named { name: "mask all but 10 results", open: || Box::new(|sheet: &mut Sheet| mask_but(sheet, 10)) },
    Named { name: "clear above 100k, keep 3", open: || Box::new(|sheet: &mut Sheet| clear_above(sheet, 100_000, 3)) },
    Named { name: "trim to the last 64k", open: || Box::new(|sheet: &mut Sheet| trim(sheet, 64_000)) },
    Named { name: "exact dedup only", open: || Box::new(Dedup::default()) },
    Named { name: "head/tail of stale results", open: || Box::new(|sheet: &mut Sheet| head_and_tail(sheet, 10)) },
    Named { name: "sinks + last 16 messages", open: || Box::new(|sheet: &mut Sheet| keep_last(sheet, 4, 16)) },
    Named { name: "keep last 40 messages", open: || Box::new(|sheet: &mut Sheet| keep_last(sheet, 0, 40)) },
    Named { name: "elide to 32k", open: || Box::new(|sheet: &mut Sheet| mask_to(sheet, 32_000)) },
    Named {
        name: "fold 64k to 24k, oldest first",
        open: || {
            Box::new(|sheet: &mut Sheet| {
                if sheet.tokens() > 64_000 {
                    mask_to(sheet, 24_000);
                }
            })
        },
    },
];

/// Masks every result but the newest ones.
fn mask_but(sheet: &mut Sheet, keep: usize) {
    let stale = sheet.results().len().saturating_sub(keep);
    for at in sheet.uncut().take_while(|&at| at < stale).collect::<Vec<_>>() {
        sheet.cut(at, CLEARED.to_owned());
    }
}

fn clear_above(sheet: &mut Sheet, trigger: u64, keep: usize) {
    if sheet.tokens() > trigger {
        mask_but(sheet, keep);
    }
}

/// Masks results, oldest first, until the rendering has this many tokens; never the newest.
fn mask_to(sheet: &mut Sheet, target: u64) {
    let newest = sheet.results().len().saturating_sub(1);
    for at in sheet.uncut().take_while(|&at| at < newest).collect::<Vec<_>>() {
        if sheet.tokens() <= target {
            return;
        }
        if sheet.result_text(at).len() > CLEARED.len() {
            sheet.cut(at, CLEARED.to_owned());
        }
    }
}

/// Drops whole rounds, oldest first, until the rendering has this many tokens.
fn trim(sheet: &mut Sheet, target: u64) {
    while sheet.tokens() > target && sheet.drop_oldest_round() {}
}

/// Drops what lies between the first and the last messages, in whole rounds.
fn keep_last(sheet: &mut Sheet, sinks: usize, last: usize) {
    sheet.drop_between(sinks, last);
}

/// Cuts stale results to their first and last lines.
fn head_and_tail(sheet: &mut Sheet, keep: usize) {
    const ENDS: usize = 5;
    let stale = sheet.results().len().saturating_sub(keep);
    for at in sheet.uncut().take_while(|&at| at < stale).collect::<Vec<_>>() {
        let text = sheet.result_text(at);
        let lines: Vec<&str> = text.split('\n').collect();
        if lines.len() <= 2 * ENDS + 1 {
            continue;
        }
        let (head, tail) = (lines[..ENDS].join("\n"), lines[lines.len() - ENDS..].join("\n"));
        let gone = lines.len() - 2 * ENDS;
        sheet.cut(at, format!("{head}\n[{gone} lines left out]\n{tail}"));
    }
}

/// Replaces a result that is the exact repeat of an earlier one.
#[derive(Default)]
struct Dedup {
    seen: HashSet<u64>,
    looked: usize,
}

impl Policy for Dedup {
    fn decide(&mut self, sheet: &mut Sheet) {
        for at in self.looked..sheet.results().len() {
            let text = sheet.result_text(at);
            if text.len() > 100 && !self.seen.insert(xxh3_64(text.as_bytes())) {
                sheet.cut(at, "[same as an earlier result]".to_owned());
            }
        }
        self.looked = sheet.results().len();
    }
}
