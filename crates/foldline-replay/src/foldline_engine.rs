//! The foldline engine, in process.

use std::sync::Arc;

use foldline::engine::ReasoningRetention;
use foldline::{ErrorKind, FoldSession, Handle, Policy};

use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};

/// The foldline engine with a policy.
#[derive(Clone, Debug)]
pub struct FoldlineEngine {
    name: String,
    policy: Policy,
}

impl FoldlineEngine {
    /// Creates the engine with this policy.
    pub fn new(policy: Policy) -> Self {
        Self { name: format!("foldline {}", policy.name), policy }
    }
}

impl ReplayEngine for FoldlineEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let mut options = foldline::FoldOptions::new(setup.meter.clone(), setup.prices, setup.budget);
        options.policy = self.policy.clone();
        options.handles = true;
        options.overhead_tokens =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        options.reasoning_retention = ReasoningRetention::DropOld;
        let session = FoldSession::new(options);
        Ok(Box::new(FoldlineSession { session, rendered_count: 0, rendering_len: 0 }))
    }
}

struct FoldlineSession {
    session: FoldSession,
    /// Messages that were rendered before.
    rendered_count: usize,
    /// Length of the rendering.
    rendering_len: usize,
}

impl EngineSession for FoldlineSession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        for message in messages {
            self.session.push(message.as_ref().clone());
        }
        Ok(())
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        self.session.plan_request().map_err(engine_error)?;
        let from = self.session.take_first_changed();
        let is_crease = from < self.rendered_count;
        let first = if is_crease { self.session.rendered_position(from) } else { self.rendering_len };
        let rendered = self.session.rendered_messages(from).enumerate();
        let changed: Vec<_> = rendered.map(|(at, message)| (first + at, Arc::new(message))).collect();
        self.rendering_len = first + changed.len();
        self.rendered_count = self.session.messages().len();
        Ok(RenderingDelta { changed, len: self.rendering_len, is_crease })
    }

    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.session.unfold(handle))
    }
}

fn engine_error(error: foldline::Error) -> EngineError {
    match error.kind() {
        ErrorKind::CannotFit { floor, .. } => EngineError::CannotFit { floor: *floor },
        _ => EngineError::Failed(error.to_string()),
    }
}
