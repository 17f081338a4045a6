//! Our own engine, in process.

use std::sync::Arc;

use foldline::{ErrorKind, Folder, Policy, Thoughts};

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
        let mut own = foldline::Setup::new(setup.meter.clone(), setup.prices, setup.budget);
        own.policy = self.policy.clone();
        own.handles = true;
        own.fixed = setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request();
        own.thoughts = Thoughts::AnyOld;
        let folder = Folder::new(own);
        Ok(Box::new(Running { folder, sent: 0, pushed: 0 }))
    }
}

struct Running {
    folder: Folder,
    sent: usize,
    pushed: usize,
}

impl Engine for Running {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        for message in messages {
            self.folder.push(message.as_ref().clone());
            self.pushed += 1;
        }
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        let crease = self.folder.request().map_err(refusal)?;
        let creased = crease.is_some();
        let from = crease.map_or(self.sent, |crease| crease.first.min(self.sent));
        let first = self.folder.position(from);
        let set: Vec<_> =
            self.folder.rendered(from).enumerate().map(|(at, message)| (first + at, Arc::new(message))).collect();
        let len = first + set.len();
        self.sent = self.pushed;
        Ok(Delta { set, len, creased })
    }
}

fn refusal(error: foldline::Error) -> Refusal {
    match error.kind() {
        ErrorKind::CannotFit { floor, .. } => Refusal::CannotFit { floor: *floor },
        _ => Refusal::Broken(error.to_string()),
    }
}
