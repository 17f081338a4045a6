//! Events of the engine, recorded in the log, the metrics and the journal, without content.

use foldline::FoldEvent;
use foldline::engine::{Crease, Trigger};
use foldline_archive::TenantArchive;

use crate::proxy::admin::metrics::{ProxyMetrics, TriggerLabels};

/// Records an event of the engine.
pub(crate) fn record_event(metrics: &ProxyMetrics, archive: Option<&TenantArchive>, event: &FoldEvent) {
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

/// Records a crease that was made for the current request, except its cost.
pub(crate) fn record_crease(
    metrics: &ProxyMetrics,
    archive: Option<&TenantArchive>,
    (session, model): (&str, &str),
    &Crease { request_point, trigger, saved_tokens, rewrite_cost, .. }: &Crease,
) {
    let name = trigger_name(trigger);
    tracing::info!(
        session,
        model,
        request_point,
        trigger = name,
        saved_tokens,
        rewrite_cost_tokens = rewrite_cost,
        "crease"
    );
    metrics.creases.get_or_create(&TriggerLabels { trigger: name }).inc();
    journal_event(archive, &FoldEvent::Creased { request_point, trigger, saved_tokens, rewrite_cost });
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
