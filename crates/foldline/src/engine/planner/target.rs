//! The target of a forced crease.
//!
//! Instructions, user messages and the newest round, whose results the model has not seen yet, are protected. The target
//! is a share of the space that they leave.

use crate::engine::planner::builder::PlanBuilder;
use crate::engine::policy::CreaseMode;
use crate::engine::segment::{Segment, SegmentKind};
use crate::tokens::Tokens;

/// Minimum distance between the target of a crease and the trigger of the next, as a share of the message budget.
const MIN_FREED_SHARE: f64 = 1.0 / 16.0;
impl PlanBuilder<'_> {
    /// Sets the target of a forced crease, and the message before which everything is old.
    pub(crate) fn set_target(&mut self) {
        let protected = self.protected_tokens();
        self.target = self.target(protected);
        self.keep_share_start = self.state.totals.keep_share_start(self.options, self.newest_round_start, protected);
    }

    /// Returns the tokens that no stage before [`Stage::Protected`] may fold.
    fn protected_tokens(&self) -> Tokens {
        let is_protected =
            |segment: &&Segment| segment.kind == SegmentKind::InputText || self.options.pins.matches(segment);
        let segments = self.state.segments.as_slice();
        let older = self.live.iter().map(|live| &segments[live.index]);
        let older = older.take_while(|segment| segment.at.message < self.newest_round_start).filter(is_protected);
        let newest: Tokens = (self.newest_round_start..self.state.len()).map(|at| self.message_tokens(at)).sum();
        newest + older.map(|segment| self.tokens_of(segment)).sum::<Tokens>()
    }

    /// Returns the target of a forced crease: the policy's share of the space that `protected` tokens leave, but far
    /// enough below the trigger that an agent loop does not crease at every request.
    fn target(&self, protected: Tokens) -> Tokens {
        let space = self.options.message_budget(1.0);
        let protected = protected.min(space);
        let target = protected + ((space - protected) as f64 * self.options.policy.target_ratio) as Tokens;
        target.min(self.max_target())
    }

    /// Returns the largest target that is far enough below the trigger. After a single request there is no next trigger.
    pub(crate) fn max_target(&self) -> Tokens {
        let policy = &self.options.policy;
        let freed = if policy.crease_mode == CreaseMode::Once { 0.0 } else { MIN_FREED_SHARE };
        self.options.message_budget(policy.trigger_ratio - freed)
    }

    /// Returns the tokens of a segment as currently rendered.
    pub(crate) fn tokens_of(&self, segment: &Segment) -> Tokens {
        self.folds.part_tokens(segment.at).unwrap_or(segment.tokens)
    }
}
