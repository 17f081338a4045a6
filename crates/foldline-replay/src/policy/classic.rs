//! The classic strategies as engines: plain functions over messages, called before each request as a
//! simple agent loop would.
//!
//! What shortens the history replaces it, so the next request begins from there; what projects it to a
//! budget is given the whole history each time. Both are how the functions are meant to be used.

use std::sync::Arc;

use foldline::Message;
use foldline::classic::{
    CompactToBudget, DedupToolCalls, DedupToolOutputs, SnippetToolOutputs, StrategyOptions, TerminalTruncate,
    TrimMiddle, apply_all, compact_to_budget, dedup_tool_outputs, snippet_stale_tool_outputs, terminal_truncate,
    trim_middle,
};

use crate::engine::{Delta, Engine, Maker, Refusal, Setup, Shared};

/// A classic strategy by name, with its default options.
#[derive(Clone, Debug)]
pub struct Classic {
    name: &'static str,
    way: Way,
}

type Messages = Vec<Message<'static>>;

#[derive(Clone, Copy, Debug)]
enum Way {
    /// What it gives is the history from then on. The number is the budget of the messages.
    Replaces(fn(Messages, u64) -> Messages),
    /// The history stays whole beside what it gives.
    Projects(fn(&[Message<'static>], u64) -> Messages),
}

/// All of them, in the order in which tables show them.
pub const CLASSIC: &[Classic] = &[
    Classic {
        name: "classic dedup of outputs",
        way: Way::Replaces(|messages, _| dedup_tool_outputs(messages, &DedupToolOutputs::default()).0),
    },
    Classic {
        name: "classic snippets of stale outputs",
        way: Way::Replaces(|messages, _| snippet_stale_tool_outputs(messages, &SnippetToolOutputs::default()).0),
    },
    Classic {
        name: "classic trim of the middle",
        way: Way::Replaces(|messages, _| trim_middle(messages, &TrimMiddle::default()).0),
    },
    Classic {
        name: "classic apply_all",
        way: Way::Replaces(|messages, _| apply_all(messages, &StrategyOptions::default()).0),
    },
    Classic {
        name: "classic apply_all, all asked for",
        way: Way::Replaces(|messages, _| {
            let strategies = StrategyOptions {
                middle: Some(TrimMiddle::default()),
                calls: Some(DedupToolCalls::default()),
                snippets: Some(SnippetToolOutputs::default()),
                ..StrategyOptions::default()
            };
            apply_all(messages, &strategies).0
        }),
    },
    Classic {
        name: "classic compact_to_budget",
        way: Way::Projects(|messages, budget| compact_to_budget(messages, budget, &CompactToBudget::default()).0),
    },
    Classic {
        name: "classic terminal_truncate",
        way: Way::Replaces(|messages, budget| {
            terminal_truncate(messages, budget, &TerminalTruncate::default()).messages
        }),
    },
];

impl Maker for Classic {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let beside =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        let budget = setup.budget.saturating_sub(beside);
        Ok(Box::new(Running { way: self.way, budget, history: Vec::new(), sent: Vec::new() }))
    }
}

struct Running {
    way: Way,
    budget: u64,
    history: Messages,
    sent: Vec<Shared>,
}

impl Engine for Running {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        self.history.extend(messages.iter().map(|message| (**message).clone()));
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        let projected;
        let now = match self.way {
            Way::Replaces(shorten) => {
                self.history = shorten(std::mem::take(&mut self.history), self.budget);
                &self.history
            }
            Way::Projects(project) => {
                projected = project(&self.history, self.budget);
                &projected
            }
        };
        let set: Vec<(usize, Shared)> = now
            .iter()
            .enumerate()
            .filter(|&(at, message)| self.sent.get(at).is_none_or(|sent| **sent != *message))
            .map(|(at, message)| (at, Arc::new(message.clone())))
            .collect();
        let creased = now.len() < self.sent.len() || set.first().is_some_and(|&(at, _)| at < self.sent.len());
        self.sent.truncate(now.len());
        for (at, message) in &set {
            match self.sent.get_mut(*at) {
                Some(sent) => *sent = Arc::clone(message),
                None => self.sent.push(Arc::clone(message)),
            }
        }
        Ok(Delta { set, len: now.len(), creased })
    }
}
