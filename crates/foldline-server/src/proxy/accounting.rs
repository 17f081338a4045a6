//! Records what requests do and cost: metrics, the journal, the log, and the comparison of reported counts with ours. A
//! turn is recorded when it is sent, and when its response has ended.

use std::time::{Duration, Instant, SystemTime};

use foldline::Handle;
use foldline::engine::{Crease, Trigger};
use foldline::tokens::Tokens;
use foldline::wire::{CacheVerdict, Usage};
use foldline_archive::RequestRecord;

use crate::activity::bill::{BillFacts, CreaseFacts, RequestBill};
use crate::activity::cache_break::CacheFacts;
use crate::activity::log::LiveSession;
use crate::activity::{
    BreakCause, CreaseRecord, NanoDollars, ProviderVerdict, RequestActivity, UnfoldRecord, now_millis,
};
use crate::proxy::admin::metrics::{Guarantee, ProxyMetrics, TokenLabels, TokenStage};
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::fold::fold_events::trigger_name;
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::state::AppState;
use crate::proxy::traces::span::RequestSpan;
use crate::proxy::upstream::learned_window::CountVerdict;
use crate::proxy::upstream::relay::{MaybeUsage, RoundCount};

/// Names of clients by the begin of their user agents.
const KNOWN_CLIENTS: [(&str, &str); 6] = [
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("aider", "aider"),
    ("gemini", "gemini-cli"),
    ("openai/", "openai-sdk"),
];
/// Maximum characters of a name.
const MAX_CLIENT_NAME_CHARS: usize = 40;

/// A response, as far as its record needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseFacts {
    pub(crate) status: u16,
    /// True if the provider refused the prompt for its length.
    pub(crate) is_overflow: bool,
    /// Time from the end of the request body to sending it.
    pub(crate) overhead: Duration,
    /// Time at which the request body was received.
    pub(crate) received_at: Instant,
}

/// Records a turn that is sent now: its overhead, and its tokens as received and as sent.
pub(crate) fn record_turn(
    state: &AppState,
    format: &'static str,
    form: BodyForm,
    prepared: Option<&PreparedRequest>,
    overhead: Duration,
) {
    let metrics = &state.metrics;
    metrics.count_request(format, if form == BodyForm::Unmodified { "unmodified" } else { "folded" });
    metrics.request_overhead.observe(overhead.as_secs_f64());
    let Some(prepared) = prepared else { return };
    if let Some(reason) = prepared.passthrough.filter(|_| prepared.job.is_folding())
        && metrics.count_passthrough(reason) == 0
    {
        tracing::warn!(reason, "the provider stores the history of a conversation, so it is not folded");
    }
    let PreparedRequest { received_tokens, sent_tokens, model, .. } = prepared;
    // Folded tokens would otherwise have been read from the provider's cache.
    let saved = model.prices.read * received_tokens.saturating_sub(*sent_tokens) as f64;
    let saved_usd = model.dollars(saved, model.upstream.url(&state.settings.upstreams));
    metrics.prompt_tokens(TokenStage::Received).inc_by(*received_tokens);
    if form == BodyForm::Unmodified {
        metrics.prompt_tokens(TokenStage::Sent).inc_by(*received_tokens);
        if !prepared.job.is_folding() {
            metrics.prompt_tokens(TokenStage::WouldSend).inc_by(*sent_tokens);
            metrics.would_save_usd.inc_by(saved_usd);
        }
        return;
    }
    metrics.prompt_tokens(TokenStage::Sent).inc_by(*sent_tokens);
}

/// Records the token usage that a response reported.
pub(crate) fn record_usage(
    state: &AppState,
    prepared: &PreparedRequest,
    response: ResponseFacts,
    reported: MaybeUsage,
) {
    let usage = reported.as_ref().and_then(|reported| reported.usage);
    let unfolded = reported.as_ref().map_or(&[][..], |reported| &reported.unfolded);
    let unfolded_count = unfolded.len() as u64;
    let response_id = reported.as_ref().and_then(|reported| reported.response_id.clone());
    record_activity(state, prepared, response, usage, unfolded, response_id);
    let Some((usage, rounds)) = reported.and_then(|reported| Some((reported.usage?, reported.rounds))) else {
        return;
    };
    for (direction, tokens) in [
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read.unwrap_or(0)),
        ("cache_write", usage.cache_write.unwrap_or(0)),
    ] {
        state.metrics.reported_tokens.get_or_create(&TokenLabels { direction }).inc_by(tokens);
    }
    let earlier_rounds = usage.input.saturating_sub(usage.context_tokens());
    if rounds == RoundCount::Several {
        state.metrics.unfold_tokens.inc_by(earlier_rounds);
        prepared.hidden_rounds.facts.add_unfolds(unfolded_count, earlier_rounds);
    }
    if rounds == RoundCount::One {
        compare_counts(state, prepared, usage.context_tokens());
    }
    if let Some(archive) = &prepared.archive {
        let record = RequestRecord {
            model: prepared.model_name.clone(),
            raw_tokens: prepared.received_tokens,
            sent_tokens: prepared.sent_tokens,
            folds: prepared.fold_count,
            payload: serde_json::to_vec(&usage).unwrap_or_default(),
            ..Default::default()
        };
        // The journal is informational; nothing depends on it.
        let _ = archive.append_request(&record);
    }
}

/// Compares the reported token count of a prompt with ours, and logs the consequence.
fn compare_counts(state: &AppState, prepared: &PreparedRequest, reported: Tokens) {
    let (model, sent) = (&prepared.model_name, prepared.prompt_tokens());
    match prepared.model.observe_usage(sent, reported) {
        CountVerdict::Accepted | CountVerdict::Implausible { first: false } => {}
        CountVerdict::Implausible { first: true } => tracing::warn!(
            model,
            sent,
            reported,
            "reported prompt tokens are implausible and ignored; set --window if the table's window is wrong"
        ),
        CountVerdict::Truncated(window) => {
            state.metrics.count_internal_error("truncated_by_server");
            tracing::warn!(
                model,
                sent,
                reported,
                window,
                "the server truncates prompts: its count stays constant while they grow; folding to this window"
            );
        }
    }
}

/// Records a request and its response.
fn record_activity(
    state: &AppState,
    prepared: &PreparedRequest,
    response: ResponseFacts,
    usage: Option<Usage>,
    unfolded: &[Handle],
    response_id: Option<String>,
) {
    let Some(facts) = &prepared.facts else { return };
    let (is_folding, tenant) = (prepared.job.is_folding(), &prepared.job.tenant);
    let log = state.activity.get(tenant.key.0, tenant.archive.as_ref());
    let now = now_millis();
    let summary_nanos = NanoDollars::from_dollars(prepared.hidden_rounds.facts.summary_cost().dollars).0;
    let mut record = RequestActivity {
        at: now,
        session: facts.session.clone(),
        title: facts.title.clone(),
        client: client_name(&prepared.job.user_agent),
        model: prepared.model_name.clone(),
        status: response.status,
        overhead_micros: u64::try_from(response.overhead.as_micros()).unwrap_or(u64::MAX),
        received_tokens: prepared.received_tokens,
        sent_tokens: prepared.prompt_tokens(),
        group: prepared.job.group,
        would_send_tokens: (!is_folding).then_some(prepared.sent_tokens),
        usage,
        crease: facts.crease.as_ref().map(crease_record),
        unfolds: unfolded.iter().map(|handle| UnfoldRecord { handle: handle.as_str().to_owned() }).collect(),
        tools: facts.tools.clone(),
        calls: facts.calls.clone(),
        window: Some(facts.window),
        provider_verdict: prepared.diagnosis.as_ref().and_then(|asked| asked.verdict.get()).map(provider_verdict),
        ..RequestActivity::default()
    };
    log.update_session(&facts.session, |live, is_new| {
        let before = (!is_new).then(|| live.clone());
        if is_folding {
            record.folds =
                facts.folds.iter().filter(|fold| is_new_fold(live, fold.handle.as_deref())).cloned().collect();
            live.add_handles(&record.folds);
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
        live.response_id = response_id;
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
    state.traces.record(|| request_span(state, prepared, response, &record));
    log.record(record);
}

fn request_span<'r>(
    state: &'r AppState,
    prepared: &'r PreparedRequest,
    response: ResponseFacts,
    record: &'r RequestActivity,
) -> RequestSpan<'r> {
    let ended_at = SystemTime::now();
    let started_at = ended_at.checked_sub(response.received_at.elapsed()).unwrap_or(ended_at);
    RequestSpan {
        record,
        family: prepared.job.upstream.family.name,
        host: prepared.job.upstream.url(&state.settings.upstreams).host(),
        started_at,
        ended_at,
        parent: prepared.job.trace_parent.as_deref(),
    }
}

fn is_new_fold(live: &LiveSession, handle: Option<&str>) -> bool {
    handle.is_none_or(|handle| !live.handles.contains(handle))
}

fn provider_verdict(verdict: &CacheVerdict) -> ProviderVerdict {
    ProviderVerdict { miss_reason: verdict.miss_reason.clone() }
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
    !facts.has_crease_after(before.messages)
        && prepared.tight.is_none()
        && before.model == prepared.model_name
        && extends_previous(prepared, before)
        && !before.body.is_extended_by(&facts.body)
}

fn elapsed(before: &LiveSession, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now - before.at).unwrap_or(0))
}

fn cache_break(prepared: &PreparedRequest, before: Option<&LiveSession>, usage: Usage, now: i64) -> Option<BreakCause> {
    let before = before?;
    let facts = CacheFacts {
        read_tokens: usage.cache_read?,
        cached_before: before.cached_tokens,
        has_crease: prepared.facts.as_ref().is_some_and(|facts| facts.has_crease_after(before.messages)),
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
    if let Some(verdict) = &record.provider_verdict {
        metrics.record_verdict(if verdict.miss_reason.is_none() { "kept" } else { "missed" });
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

/// Returns the name of a client by its user agent: for people who look, never for a decision.
fn client_name(agent: &str) -> String {
    let lower = agent.to_ascii_lowercase();
    if let Some((_, name)) = KNOWN_CLIENTS.iter().find(|(begin, _)| lower.starts_with(begin)) {
        return (*name).to_owned();
    }
    let product = agent.split(['/', ' ']).next().unwrap_or_default();
    if product.is_empty() { "unknown".to_owned() } else { product.chars().take(MAX_CLIENT_NAME_CHARS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_named_by_its_product() {
        assert_eq!(client_name("claude-cli/2.1.299 (external, cli)"), "claude-code");
        assert_eq!(client_name("codex_cli_rs/0.50"), "codex");
        assert_eq!(client_name("my-agent/1.0 linux"), "my-agent");
        assert_eq!(client_name(""), "unknown");
    }
}
