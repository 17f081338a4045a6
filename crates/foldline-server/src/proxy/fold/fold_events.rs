//! Events of the engine, recorded in the log, the metrics and the journal, without content.

use foldline::FoldEvent;
use foldline::engine::{Crease, Trigger};
use foldline_archive::TenantArchive;

use crate::proxy::admin::metrics::{ProxyMetrics, TriggerLabels};

/// The session whose fold is recorded.
#[derive(Clone, Copy)]
pub(crate) struct RecordedSession<'s> {
    pub(crate) name: &'s str,
    pub(crate) model: &'s str,
    pub(crate) archive: Option<&'s TenantArchive>,
}

/// Records the events of a fold, and the crease that was made for the current request, except its cost.
pub(crate) fn record_events(
    metrics: &ProxyMetrics,
    session: RecordedSession<'_>,
    events: &[FoldEvent],
    crease: Option<&Crease>,
) {
    events.iter().for_each(|event| record_event(metrics, session.archive, event));
    if let Some(crease) = crease {
        record_crease(metrics, session, crease);
    }
}

fn record_event(metrics: &ProxyMetrics, archive: Option<&TenantArchive>, event: &FoldEvent) {
    match event {
        FoldEvent::Refused { reason } => {
            metrics.count_internal_error("fold_refused");
            tracing::warn!(%reason, "fold refused");
        }
        // Creases are recorded by `record_crease`, because only new ones are recorded.
        FoldEvent::Failed { .. } | FoldEvent::Started { .. } | FoldEvent::Creased { .. } => return,
        _ => {}
    }
    journal_event(archive, event);
}

fn record_crease(metrics: &ProxyMetrics, session: RecordedSession<'_>, crease: &Crease) {
    let &Crease { request_point, trigger, saved_tokens, rewrite_cost, .. } = crease;
    let name = trigger_name(trigger);
    tracing::info!(
        session = session.name,
        model = session.model,
        request_point,
        trigger = name,
        saved_tokens,
        rewrite_cost_tokens = rewrite_cost,
        "crease"
    );
    metrics.creases.get_or_create(&TriggerLabels { trigger: name }).inc();
    journal_event(session.archive, &FoldEvent::Creased { request_point, trigger, saved_tokens, rewrite_cost });
}

/// Returns the name of a trigger as metrics and logs show it.
pub(crate) fn trigger_name(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::OverBudget => "over_budget",
        Trigger::Profitable => "profitable",
        Trigger::ColdCache => "cold_cache",
        _ => "other",
    }
}

/// Appends an event to the journal, which is informational: nothing depends on it.
fn journal_event(archive: Option<&TenantArchive>, event: &FoldEvent) {
    if let (Some(archive), Ok(payload)) = (archive, serde_json::to_vec(event)) {
        let kind = match event {
            FoldEvent::Creased { .. } => "creased",
            FoldEvent::Completed { .. } => "completed",
            FoldEvent::Truncated { .. } => "truncated",
            FoldEvent::Refused { .. } => "refused",
            _ => "other",
        };
        let _ = archive.append_event(kind, &payload);
    }
}
