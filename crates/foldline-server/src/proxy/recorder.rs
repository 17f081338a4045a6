//! Records a request when its response has ended: what it did and cost, in the journal, the metrics and the log.

use std::time::Duration;

use foldline::Handle;
use foldline::engine::{Crease, Trigger};
use foldline::wire::Usage;

use crate::activity::bill::{BillFacts, CreaseFacts, RequestBill};
use crate::activity::cache_break::CacheFacts;
use crate::activity::log::LiveSession;
use crate::activity::{CreaseRecord, NanoDollars, RequestActivity, UnfoldRecord, now_millis};
use crate::proxy::admin::metrics::{Guarantee, ProxyMetrics};
use crate::proxy::fold::fold_events::trigger_name;
use crate::proxy::fold::prepare::PreparedRequest;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;

/// A response, as far as its record needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseFacts {
    pub(crate) status: u16,
    /// True if the provider refused the prompt for its length.
    pub(crate) is_overflow: bool,
    /// Time from the end of the request body to sending it.
    pub(crate) overhead: Duration,
}

/// Records a request and its response.
pub(crate) fn record_activity(
    state: &AppState,
    prepared: &PreparedRequest,
    response: ResponseFacts,
    usage: Option<Usage>,
    unfolded: &[Handle],
) {
    let Some(facts) = &prepared.facts else { return };
    let (mode, tenant) = (state.settings.mode, &prepared.job.tenant);
    let is_folding = mode == ProxyMode::Fold;
    let log = state.activity.get(tenant.key.0, tenant.archive.as_ref());
    let now = now_millis();
    let summary_nanos = NanoDollars::from_dollars(prepared.hidden_rounds.facts.summary_cost().dollars).0;
    let mut record = RequestActivity {
        at: now,
        session: facts.session.clone(),
        title: facts.title.clone(),
        client: prepared.job.client.clone(),
        model: prepared.model_name.clone(),
        status: response.status,
        overhead_micros: u64::try_from(response.overhead.as_micros()).unwrap_or(u64::MAX),
        received_tokens: prepared.received_tokens,
        sent_tokens: prepared.prompt_tokens(mode),
        would_send_tokens: (!is_folding).then_some(prepared.sent_tokens),
        usage,
        crease: facts.crease.as_ref().map(crease_record),
        unfolds: unfolded.iter().map(|handle| UnfoldRecord { handle: handle.as_str().to_owned() }).collect(),
        tools: facts.tools.clone(),
        calls: facts.calls.clone(),
        window: Some(facts.window),
        ..RequestActivity::default()
    };
    log.update_session(&facts.session, |live, is_new| {
        let before = (!is_new).then(|| live.clone());
        if is_folding {
            record.folds =
                facts.folds.iter().filter(|fold| is_new_fold(live, fold.handle.as_deref())).cloned().collect();
            live.handles.extend(record.folds.iter().filter_map(|fold| fold.handle.clone()));
        }
        if let Some(usage) = usage {
            let cost = NanoDollars(summary_nanos - before.as_ref().map_or(0, |live| live.summary_nanos));
            record.cache_break = cache_break(prepared, before.as_ref(), usage, now);
            (record.bill, record.would_net) = bills(prepared, before.as_ref(), usage, now, cost, is_folding);
        }
        if is_folding && is_unstable(prepared, before.as_ref()) {
            state.metrics.count_violation(Guarantee::Stable);
            tracing::error!(session = facts.session, "a prompt changed what was sent before, without a crease");
        }
        update_live(live, prepared, usage, now, summary_nanos);
    });
    record_metrics(&state.metrics, prepared, &record, response, is_folding);
    let bill = record.bill.unwrap_or_default();
    tracing::debug!(
        session = record.session,
        model = record.model,
        client = record.client,
        status = record.status,
        received_tokens = record.received_tokens,
        sent_tokens = record.sent_tokens,
        input_tokens = usage.map(|usage| usage.input),
        cache_read_tokens = usage.and_then(|usage| usage.cache_read),
        output_tokens = usage.map(|usage| usage.output),
        net_usd = bill.net().dollars(),
        overhead_ms = record.overhead_micros as f64 / 1e3,
        "request"
    );
    log.record(record);
}

fn is_new_fold(live: &LiveSession, handle: Option<&str>) -> bool {
    handle.is_none_or(|handle| !live.handles.contains(handle))
}

fn crease_record(crease: &Crease) -> CreaseRecord {
    CreaseRecord {
        trigger: trigger_name(crease.trigger).to_owned(),
        saved_tokens: crease.saved_tokens,
        request_point: crease.request_point as u64,
    }
}

/// Returns true if the request begins with the previous one of its session.
fn extends_previous(prepared: &PreparedRequest, before: &LiveSession) -> bool {
    let is_previous = |(_, prefix)| prefix == before.prefix;
    prepared.facts.as_ref().is_some_and(|facts| facts.prefixes.longest_first().any(is_previous))
}

/// Returns true if bytes that were sent before have changed although nothing explains it.
fn is_unstable(prepared: &PreparedRequest, before: Option<&LiveSession>) -> bool {
    let (Some(before), Some(facts)) = (before, &prepared.facts) else { return false };
    facts.crease.is_none()
        && prepared.tight.is_none()
        && before.model == prepared.model_name
        && extends_previous(prepared, before)
        && !before.body.is_extended_by(&facts.body)
}

fn elapsed(before: &LiveSession, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now - before.at).unwrap_or(0))
}

fn cache_break(
    prepared: &PreparedRequest,
    before: Option<&LiveSession>,
    usage: Usage,
    now: i64,
) -> Option<crate::activity::BreakCause> {
    let before = before?;
    let facts = CacheFacts {
        read_tokens: usage.cache_read?,
        cached_before: before.cached_tokens,
        has_crease: prepared.facts.as_ref().is_some_and(|facts| facts.crease.is_some()),
        is_same_model: before.model == prepared.model_name,
        extends_previous: extends_previous(prepared, before),
        elapsed: elapsed(before, now),
        cache_ttl: prepared.model.prices.cache_ttl,
    };
    facts.break_cause()
}

/// Returns the dollars of the request, and the net saving that folding would have had in observe mode; none if the model
/// has no price.
fn bills(
    prepared: &PreparedRequest,
    before: Option<&LiveSession>,
    usage: Usage,
    now: i64,
    summary: NanoDollars,
    is_folding: bool,
) -> (Option<RequestBill>, Option<NanoDollars>) {
    let prices = prepared.model.prices;
    if prices.base_usd <= 0.0 || !prepared.model.meter.row().has_list_price() {
        return (None, None);
    }
    let folded_tokens = prepared.received_tokens.saturating_sub(prepared.sent_tokens);
    let crease = prepared.facts.as_ref().and_then(|facts| facts.crease.as_ref()).map(|crease| CreaseFacts {
        trigger: crease.trigger,
        rewritten_tokens: crease.suffix_tokens.saturating_sub(crease.saved_tokens),
    });
    let facts = BillFacts {
        prices,
        hour_write: prepared.model.meter.row().cache_write_hour.unwrap_or(prices.write),
        usage,
        prompt_tokens: if is_folding { prepared.sent_tokens } else { prepared.received_tokens },
        folded_tokens,
        folded_before: before.map_or(folded_tokens, |live| live.folded_tokens),
        elapsed: before.map(|live| elapsed(live, now)),
        crease,
        summary,
    };
    if is_folding {
        return (Some(facts.bill()), None);
    }
    let unfolded = BillFacts { folded_tokens: 0, folded_before: 0, crease: None, ..facts };
    (Some(unfolded.bill()), Some(facts.bill().net()))
}

fn update_live(live: &mut LiveSession, prepared: &PreparedRequest, usage: Option<Usage>, now: i64, summary_nanos: i64) {
    let Some(facts) = &prepared.facts else { return };
    live.at = now;
    live.model.clone_from(&prepared.model_name);
    live.prefix = facts.prefixes.full();
    live.messages = facts.prefixes.len();
    // A provider that reports no writes caches the whole prompt.
    live.cached_tokens = usage.map_or(live.cached_tokens, |usage| match usage.cache_write {
        Some(written) => usage.cache_read.unwrap_or(0).saturating_add(written),
        None => usage.context_tokens(),
    });
    live.folded_tokens = prepared.received_tokens.saturating_sub(prepared.sent_tokens);
    live.tools_hash = facts.tools_hash;
    live.summary_nanos = summary_nanos;
    live.body = facts.body.clone();
}

fn record_metrics(
    metrics: &ProxyMetrics,
    prepared: &PreparedRequest,
    record: &RequestActivity,
    response: ResponseFacts,
    is_folding: bool,
) {
    metrics.record_response(prepared.job.format.name(), response.status);
    if let Some(bill) = record.bill {
        metrics.billed_usd.inc_by(bill.billed.dollars());
        metrics.saved_usd.inc_by(bill.saved.dollars());
        metrics.crease_cost_usd.inc_by(bill.crease.dollars());
        metrics.unfold_cost_usd.inc_by(bill.unfold.dollars());
        metrics.cold_avoided_usd.inc_by(bill.cold_avoided.dollars());
    }
    if let Some(cause) = record.cache_break {
        metrics.record_cache_break(cause.name());
    }
    if is_folding && response.is_overflow {
        metrics.count_violation(Guarantee::Fits);
    }
    let was_folded = is_folding && prepared.fold_count > 0;
    if was_folded && response.status == 400 && !response.is_overflow {
        metrics.count_violation(Guarantee::Valid);
    }
    if let (Some(CreaseRecord { saved_tokens, .. }), Some(bill)) = (&record.crease, record.bill)
        && record.crease.as_ref().is_some_and(|crease| crease.trigger == trigger_name(Trigger::ColdCache))
    {
        tracing::info!(
            session = record.session,
            model = record.model,
            saved_tokens,
            avoided_usd = bill.cold_avoided.dollars(),
            "the cache had expired: the crease was free"
        );
    }
}
