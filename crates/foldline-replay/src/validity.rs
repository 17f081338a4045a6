//! Validity: the provider laws that a rendering violates and the full request does not.

use foldline::laws::{Law, LawProfile, check_conversation};
use foldline::{Conversation, Message};
use rustc_hash::FxHashMap;

use crate::case::ReplayCase;
use crate::engine::SharedMessage;

/// Returns the number of law violations of a rendering beyond those of the recording itself before `at`.
pub(crate) fn count_new_violations<'m>(
    case: &ReplayCase,
    at: usize,
    rendering: impl Iterator<Item = &'m SharedMessage>,
) -> u64 {
    let profile = LawProfile::for_model(case.format, case.model.as_deref());
    let rendered = violation_counts(case, rendering.map(|message| (**message).clone()), &profile);
    if rendered.is_empty() {
        return 0;
    }
    let recorded = violation_counts(case, case.messages[..at].iter().map(|message| (**message).clone()), &profile);
    let beyond = |(law, count): (&Law, &u64)| count.saturating_sub(recorded.get(law).copied().unwrap_or_default());
    rendered.iter().map(beyond).sum()
}

fn violation_counts(
    case: &ReplayCase,
    messages: impl Iterator<Item = Message<'static>>,
    profile: &LawProfile,
) -> FxHashMap<Law, u64> {
    let conversation = Conversation {
        model: case.model.clone().map(Into::into),
        system: case.system.clone(),
        tools: case.tools.clone(),
        messages: messages.collect(),
    };
    let mut counts = FxHashMap::default();
    for violation in check_conversation(&conversation, profile) {
        *counts.entry(violation.law).or_default() += 1;
    }
    counts
}
