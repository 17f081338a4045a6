//! Our own engine, in process.

use std::sync::Arc;

use foldline::{ErrorKind, FoldSession, Handle, Policy, ReasoningRetention};

use crate::engine::{Delta, Engine, Maker, Refusal, Setup, Shared};

/// Our engine under a policy.
#[derive(Clone, Debug)]
pub struct Ours {
    name: String,
    policy: Policy,
}

impl Ours {
    /// Our engine under this policy.
    pub fn new(policy: Policy) -> Self {
        Self { name: format!("foldline {}", policy.name), policy }
    }
}

impl Maker for Ours {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let mut own = foldline::FoldOptions::new(setup.meter.clone(), setup.prices, setup.budget);
        own.policy = self.policy.clone();
        own.handles = true;
        own.overhead_tokens =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        own.reasoning_retention = ReasoningRetention::DropOld;
        let folder = FoldSession::new(own);
        Ok(Box::new(Running { folder, sent: 0, length: 0 }))
    }
}

struct Running {
    folder: FoldSession,
    /// Messages that were rendered before.
    sent: usize,
    /// Messages of the rendering.
    length: usize,
}

impl Engine for Running {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        for message in messages {
            self.folder.push(message.as_ref().clone());
        }
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        self.folder.plan_request().map_err(refusal)?;
        let from = self.folder.take_first_changed();
        let creased = from < self.sent;
        let first = if creased { self.folder.rendered_position(from) } else { self.length };
        let rendered = self.folder.rendered_messages(from).enumerate();
        let set: Vec<_> = rendered.map(|(at, message)| (first + at, Arc::new(message))).collect();
        self.length = first + set.len();
        self.sent = self.folder.messages().len();
        Ok(Delta { set, len: self.length, creased })
    }

    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.folder.unfold(handle))
    }
}

fn refusal(error: foldline::Error) -> Refusal {
    match error.kind() {
        ErrorKind::CannotFit { floor, .. } => Refusal::CannotFit { floor: *floor },
        _ => Refusal::Broken(error.to_string()),
    }
}
