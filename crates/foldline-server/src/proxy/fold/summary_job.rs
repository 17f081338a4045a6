//! Decides whether a conversation should be summarized now, and what the summary needs.

use std::sync::Arc;

use foldline::engine::{Crease, Stage, Trigger};
use foldline::laws::LawProfile;
use foldline::tokens::Tokens;
use foldline::{Conversation, Meter, Policy};
use foldline_archive::TenantArchive;
use foldline_summarize::PREPARE_THRESHOLD;

use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::SessionFacts;
use crate::proxy::settings::{ProxyMode, ProxySettings, SummaryMode};

/// Messages by which a conversation must grow before the next attempt.
const MIN_NEW_MESSAGES: usize = 16;
/// Lowest share of the budget to which a summary reduces a conversation.
const MIN_TARGET_RATIO: f64 = 0.2;

/// A conversation for which a summary is due.
pub(crate) struct SummaryJob {
    pub(crate) conversation: Conversation<'static>,
    pub(crate) prefixes: PrefixHashes,
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) profile: LawProfile,
    pub(crate) meter: Meter,
    pub(crate) budget: Tokens,
    /// Share of the budget below which the newest rounds are left unchanged.
    pub(crate) target_ratio: f64,
    pub(crate) archive: Option<TenantArchive>,
}

impl SummaryJob {
    pub(crate) fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }
}

/// Returns the share of the budget to which a summary reduces a conversation: new messages until the crease have to fit
/// below the trigger ratio, too.
pub(crate) fn target_ratio(policy: &Policy) -> f64 {
    let Policy { trigger_ratio, target_ratio, .. } = *policy;
    (target_ratio - trigger_ratio * (1.0 - PREPARE_THRESHOLD)).max(MIN_TARGET_RATIO)
}

/// Returns true if a conversation should be summarized now, given its creases and its size in tokens.
pub(crate) fn is_summary_due(
    settings: &ProxySettings,
    facts: &SessionFacts,
    prefixes: &PrefixHashes,
    creases: &[Crease],
    sent: Tokens,
    budget: Tokens,
) -> bool {
    if settings.mode != ProxyMode::Fold || settings.policy.max_stage < Stage::Rounds {
        return false;
    }
    let len = prefixes.len();
    let mut forced =
        creases.iter().rev().filter(|crease| crease.trigger == Trigger::OverBudget).map(|crease| crease.request_point);
    let newest = forced.clone().next();
    let is_time = match settings.summary_mode {
        SummaryMode::Off => false,
        SummaryMode::Prepared => sent as f64 >= budget as f64 * settings.policy.trigger_ratio * PREPARE_THRESHOLD,
        SummaryMode::Inline(_) => newest == Some(len),
    };
    // One unused summary is enough.
    is_time
        && !facts.has_unused_summary(prefixes, forced.find(|&at| at < len).unwrap_or(0))
        && facts.may_start_summary(len, MIN_NEW_MESSAGES)
}
