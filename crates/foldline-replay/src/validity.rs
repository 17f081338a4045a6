//! Validity: the provider laws that a rendering violates and the full request does not.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldline::laws::{LawProfile, check_conversation};
use foldline::{Conversation, Message};

use crate::case::ReplayCase;
use crate::engine::SharedMessage;

/// Returns the law violations of a rendering beyond those of the recording itself before `at`, by the name of the law.
pub(crate) fn new_violations<'m>(
    case: &ReplayCase,
    at: usize,
    rendering: impl Iterator<Item = &'m SharedMessage>,
) -> BTreeMap<Cow<'static, str>, u64> {
    let profile = LawProfile::for_model(case.format, case.model.as_deref());
    let mut rendered = violation_counts(case, rendering.map(|message| (**message).clone()), &profile);
    if rendered.is_empty() {
        return rendered;
    }
    let recorded = violation_counts(case, case.messages[..at].iter().map(|message| (**message).clone()), &profile);
    for (law, count) in &mut rendered {
        *count = count.saturating_sub(recorded.get(law).copied().unwrap_or_default());
    }
    rendered.retain(|_, count| *count > 0);
    rendered
}

fn violation_counts(
    case: &ReplayCase,
    messages: impl Iterator<Item = Message<'static>>,
    profile: &LawProfile,
) -> BTreeMap<Cow<'static, str>, u64> {
    let conversation = Conversation {
        model: case.model.clone().map(Into::into),
        system: case.system.clone(),
        tools: case.tools.clone(),
        messages: messages.collect(),
    };
    let mut counts = BTreeMap::new();
    for violation in check_conversation(&conversation, profile) {
        *counts.entry(violation.law.name().into()).or_default() += 1;
    }
    counts
}
