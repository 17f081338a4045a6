//! The classic strategies as engines: functions over messages, called before each request as a
//! simple agent loop would.
//!
//! A strategy that shortens the history replaces it, so the next request starts from there; one that projects it to a
//! budget receives the whole history each time. Both follow the intended use of the functions.

use std::sync::Arc;

use foldline::Message;
use foldline::strategies::{
    CompactToBudget, DedupToolCalls, DedupToolOutputs, SnippetToolOutputs, StrategyOptions, TerminalTruncate,
    TrimMiddle, apply_all, apply_all_with, compact_to_budget, dedup_tool_outputs, snippet_stale_tool_outputs,
    terminal_truncate, trim_middle,
};

use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};

/// A classic strategy by name, with its default options.
#[derive(Clone, Debug)]
pub struct ClassicStrategy {
    name: &'static str,
    mode: ClassicMode,
}

type MessageList = Vec<Message<'static>>;

#[derive(Clone, Copy, Debug)]
enum ClassicMode {
    /// The result replaces the history. The number is the budget of the messages.
    Replace(fn(MessageList, u64) -> MessageList),
    /// The history is kept in full; only the result is sent.
    Project(fn(&[Message<'static>], u64) -> MessageList),
}

/// All classic strategies, in the order in which tables show them.
pub const CLASSIC_STRATEGIES: &[ClassicStrategy] = &[
    ClassicStrategy {
        name: "classic dedup of outputs",
        mode: ClassicMode::Replace(|messages, _| dedup_tool_outputs(messages, &DedupToolOutputs::default()).0),
    },
    ClassicStrategy {
        name: "classic snippets of stale outputs",
        mode: ClassicMode::Replace(|messages, _| {
            snippet_stale_tool_outputs(messages, &SnippetToolOutputs::default()).0
        }),
    },
    ClassicStrategy {
        name: "classic trim of the middle",
        mode: ClassicMode::Replace(|messages, _| trim_middle(messages, &TrimMiddle::default()).0),
    },
    ClassicStrategy {
        name: "classic apply_all",
        mode: ClassicMode::Replace(|mut messages, _| {
            apply_all(&mut messages);
            messages
        }),
    },
    ClassicStrategy {
        name: "classic apply_all, all enabled",
        mode: ClassicMode::Replace(|mut messages, _| {
            let strategies = StrategyOptions {
                middle: Some(TrimMiddle::default()),
                calls: Some(DedupToolCalls::default()),
                snippets: Some(SnippetToolOutputs::default()),
                ..StrategyOptions::default()
            };
            apply_all_with(&mut messages, &strategies);
            messages
        }),
    },
    ClassicStrategy {
        name: "classic compact_to_budget",
        mode: ClassicMode::Project(|messages, budget| {
            compact_to_budget(messages, budget, &CompactToBudget::default().for_loop()).0
        }),
    },
    ClassicStrategy {
        name: "classic terminal_truncate",
        mode: ClassicMode::Replace(|messages, budget| {
            terminal_truncate(messages, budget, &TerminalTruncate::default()).messages
        }),
    },
];

impl ReplayEngine for ClassicStrategy {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let overhead =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        let budget = setup.budget.saturating_sub(overhead);
        Ok(Box::new(ClassicSession { mode: self.mode, budget, history: Vec::new(), sent: Vec::new() }))
    }
}

struct ClassicSession {
    mode: ClassicMode,
    budget: u64,
    history: MessageList,
    sent: Vec<SharedMessage>,
}

impl EngineSession for ClassicSession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        self.history.extend(messages.iter().map(|message| (**message).clone()));
        Ok(())
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        let projected;
        let now = match self.mode {
            ClassicMode::Replace(shorten) => {
                self.history = shorten(std::mem::take(&mut self.history), self.budget);
                &self.history
            }
            ClassicMode::Project(project) => {
                projected = project(&self.history, self.budget);
                &projected
            }
        };
        let changed: Vec<(usize, SharedMessage)> = now
            .iter()
            .enumerate()
            .filter(|&(at, message)| self.sent.get(at).is_none_or(|sent| **sent != *message))
            .map(|(at, message)| (at, Arc::new(message.clone())))
            .collect();
        let is_crease = now.len() < self.sent.len() || changed.first().is_some_and(|&(at, _)| at < self.sent.len());
        self.sent.truncate(now.len());
        for (at, message) in &changed {
            match self.sent.get_mut(*at) {
                Some(sent) => *sent = Arc::clone(message),
                None => self.sent.push(Arc::clone(message)),
            }
        }
        Ok(RenderingDelta { changed, len: now.len(), is_crease })
    }
}
