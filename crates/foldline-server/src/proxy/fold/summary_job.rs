//! Decides whether a conversation should be summarized now, and what the summary needs.

use std::sync::Arc;

use foldline::engine::{Crease, Stage, Trigger};
use foldline::laws::LawProfile;
use foldline::tokens::Tokens;
use foldline::{Conversation, Meter, Policy};
use foldline_archive::TenantArchive;
use foldline_summarize::PREPARE_THRESHOLD;

use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::{KnownFacts, SessionFacts, SummaryProgress};
use crate::proxy::settings::{ProxySettings, SummaryMode};

/// Messages by which a conversation must grow before the next attempt.
const MIN_NEW_MESSAGES: usize = 16;
/// Lowest share of the budget to which a summary reduces a conversation.
const MIN_TARGET_RATIO: f64 = 0.2;

/// A folded conversation, for which a summary may be due.
pub(crate) struct SummarySource<'s> {
    pub(crate) conversation: &'s Conversation<'s>,
    pub(crate) prefixes: &'s PrefixHashes,
    pub(crate) facts: &'s Arc<SessionFacts>,
    pub(crate) known: &'s KnownFacts,
    pub(crate) profile: &'s LawProfile,
    pub(crate) meter: &'s Meter,
    pub(crate) creases: &'s [Crease],
    pub(crate) policy: &'s Policy,
    /// Tokens that are sent.
    pub(crate) sent: Tokens,
    pub(crate) budget: Tokens,
    pub(crate) archive: Option<&'s TenantArchive>,
}

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
    /// Returns the job for a folded conversation, if it should be summarized now.
    pub(crate) fn if_due(source: &SummarySource<'_>, settings: &ProxySettings) -> Option<Self> {
        if !is_due(source, settings) {
            return None;
        }
        Some(Self {
            conversation: source.conversation.clone().into_owned(),
            prefixes: source.prefixes.clone(),
            facts: source.facts.clone(),
            profile: source.profile.clone(),
            meter: source.meter.clone(),
            budget: source.budget,
            target_ratio: target_ratio(source.policy),
            archive: Some(source.archive?.clone()),
        })
    }

    pub(crate) fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }
}

/// Returns true if a conversation should be summarized now.
fn is_due(source: &SummarySource<'_>, settings: &ProxySettings) -> bool {
    if source.policy.max_stage < Stage::Rounds {
        return false;
    }
    let SummarySource { prefixes, known, creases, sent, budget, .. } = *source;
    let len = prefixes.len();
    let mut forced =
        creases.iter().rev().filter(|crease| crease.trigger == Trigger::OverBudget).map(|crease| crease.request_point);
    let newest = forced.clone().next();
    let is_time = match settings.summary_mode {
        SummaryMode::Off => false,
        SummaryMode::Prepared => sent as f64 >= budget as f64 * source.policy.trigger_ratio * PREPARE_THRESHOLD,
        SummaryMode::Inline(_) => newest == Some(len),
    };
    // One unused summary is enough.
    is_time
        && !has_unused_summary(known, forced.find(|&at| at < len).unwrap_or(0))
        && may_start(&known.summary_progress, len)
}

/// Returns true if there is a summary that no crease could use yet. `last_crease` is the request point of the last one.
fn has_unused_summary(known: &KnownFacts, last_crease: usize) -> bool {
    let Some(newest) = &known.newest_summary else { return false };
    match known.ledger.summaries.last_key_value() {
        Some((&from, adopted)) if adopted.until >= newest.until() => from >= last_crease,
        _ => !known.is_summary_adopted,
    }
}

/// Returns true if no summary is being written, and the conversation has grown since the last one.
fn may_start(progress: &SummaryProgress, messages: usize) -> bool {
    let started = progress.last_started_len;
    !progress.in_progress && (started == 0 || messages >= started + MIN_NEW_MESSAGES || messages < started)
}

/// Returns the share of the budget to which a summary reduces a conversation: new messages until the crease have to fit
/// below the trigger ratio, too.
fn target_ratio(policy: &Policy) -> f64 {
    let Policy { trigger_ratio, target_ratio, .. } = *policy;
    (target_ratio - trigger_ratio * (1.0 - PREPARE_THRESHOLD)).max(MIN_TARGET_RATIO)
}
