//! The answers of the API, written from a summary. Pure functions: the same summary gives the same answer.

use std::sync::Arc;

use foldline::engine::PinPatterns;
use foldline_archive::TenantArchive;
use serde_json::{Value, json};

use crate::activity::log::ReadProgress;
use crate::activity::{ActivitySummary, ActivityTotals, SessionEntry, SessionGroup, now_millis};
use crate::proxy::admin::stats;
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::session_share::SessionShare;
use crate::proxy::settings::ProxyMode;
use crate::proxy::state::AppState;
use crate::proxy::upstream::models::ModelWindow;

/// Milliseconds of an hour and of a day.
const HOUR_MILLIS: i64 = 3_600_000;
const DAY_MILLIS: i64 = 24 * HOUR_MILLIS;

/// Returns the begin of a period: whole days in UTC (`1d` is today), hours, `all`, or a time in milliseconds.
pub(crate) fn period_start(text: &str, now: i64) -> Option<i64> {
    if text == "all" {
        return Some(0);
    }
    let number =
        |suffix| text.strip_suffix(suffix).and_then(|days: &str| days.parse::<i64>().ok()).filter(|it| *it > 0);
    if let Some(days) = number('d') {
        let today = now.div_euclid(DAY_MILLIS);
        return Some((today.saturating_sub(days - 1)).saturating_mul(DAY_MILLIS));
    }
    if let Some(hours) = number('h') {
        return Some(now.saturating_sub(hours.saturating_mul(HOUR_MILLIS)));
    }
    text.parse().ok()
}

/// Facts about the running proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyFacts {
    mode: ProxyMode,
    started_at: i64,
    has_archive: bool,
    requests: u64,
    internal_errors: Vec<(&'static str, u64)>,
    upstream_errors: u64,
    violations: [u64; 4],
    upstreams: Vec<(String, String)>,
}

/// The guarantees, in the order of `violations`, and what they mean.
const GUARANTEES: [(&str, &str); 4] = [
    ("fits", "no prompt was refused for its length"),
    ("valid", "no folded prompt was refused as invalid"),
    ("stable", "no prompt changed what was sent before, except at a crease"),
    ("recoverable", "every folded original was stored, and restored when requested"),
];

impl ProxyFacts {
    /// Gathers the facts, with the mode of this tenant.
    pub(crate) fn new(state: &AppState, tenant: &Tenant) -> Self {
        let metrics = &state.metrics;
        Self {
            mode: state.modes.get(tenant),
            started_at: state.started_at,
            has_archive: state.tenants.has_archive(),
            requests: metrics.conversation_requests(),
            internal_errors: metrics.internal_error_counts(),
            upstream_errors: stats::upstream_errors(metrics).total(),
            violations: metrics.violations(),
            upstreams: state.settings.all_upstreams().map(|(name, url)| (name.to_owned(), url.to_string())).collect(),
        }
    }

    /// Returns the state in one sentence, with its level.
    fn state(&self) -> (&'static str, String) {
        let broken: Vec<&str> = GUARANTEES
            .iter()
            .zip(self.violations)
            .filter(|(_, count)| *count > 0)
            .map(|((name, _), _)| *name)
            .collect();
        if !broken.is_empty() {
            return ("bad", format!("A guarantee was violated: {}. The log has the details.", broken.join(", ")));
        }
        let errors: u64 = self.internal_errors.iter().map(|(_, count)| count).sum();
        match self.mode {
            ProxyMode::Off => ("warn", "Folding is off: every request passes through unchanged.".into()),
            _ if self.requests == 0 => ("idle", "Ready. No request since the proxy was started.".into()),
            _ if errors > 0 => (
                "warn",
                format!("Working. {errors} requests or steps failed inside foldline; clients got what they sent."),
            ),
            ProxyMode::Observe => ("ok", "Observing: requests are forwarded unchanged, and measured.".into()),
            ProxyMode::Fold => ("ok", "Working: all four guarantees hold.".into()),
        }
    }
}

/// Returns the answer of `overview`.
pub(crate) fn overview(summary: &ActivitySummary, facts: &ProxyFacts, progress: Option<ReadProgress>) -> Value {
    let now = now_millis();
    let since = |period| summary.totals_since(period_start(period, now).unwrap_or(0).div_euclid(DAY_MILLIS)).to_json();
    let (level, sentence) = facts.state();
    let guarantees = GUARANTEES.iter().zip(facts.violations);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mode": facts.mode.name(),
        "now": now,
        "started_at": facts.started_at,
        "has_archive": facts.has_archive,
        "state": { "level": level, "sentence": sentence },
        "guarantees": guarantees
            .map(|((name, meaning), violations)| json!({ "name": name, "violations": violations, "meaning": meaning }))
            .collect::<Vec<_>>(),
        "requests_since_start": facts.requests,
        "internal_errors": facts.internal_errors.iter().map(|(kind, count)| json!({ "kind": kind, "count": count })).collect::<Vec<_>>(),
        "upstream_errors": facts.upstream_errors,
        "journal": { "is_complete": progress.is_none(), "share_read": progress.map_or(1.0, ReadProgress::share) },
        "totals": { "today": since("1d"), "week": since("7d"), "all": since("all") },
    })
}

/// Returns a session as the API shows it.
pub(crate) fn session_json(entry: &SessionEntry, now: i64) -> Value {
    json!({
        "id": entry.id,
        "title": entry.title,
        "client": entry.client,
        "model": entry.model,
        "first_at": entry.first_at,
        "last_at": entry.last_at,
        "is_live": entry.is_live(now),
        "totals": entry.totals.to_json(),
        "window": entry.window,
    })
}

/// Returns the answer of `sessions`.
pub(crate) fn sessions(summary: &ActivitySummary, since: i64, limit: usize, live_only: bool) -> Value {
    let now = now_millis();
    let entries = summary.sessions_since(since).into_iter().filter(|entry| !live_only || entry.is_live(now));
    json!({ "sessions": entries.take(limit).map(|entry| session_json(entry, now)).collect::<Vec<_>>() })
}

/// Returns the answer of `groups`: sessions that are folded next to those that are only observed.
pub(crate) fn groups(summary: &ActivitySummary, since: i64, share: SessionShare) -> Value {
    let day = since.div_euclid(DAY_MILLIS);
    let groups = SessionGroup::ALL.map(|group| summary.group_since(day, group).to_json(group));
    json!({ "observe_share": share.to_string(), "groups": groups })
}

/// Returns the answer of `sessions/{id}`; none if there is no such session.
pub(crate) fn session(summary: &ActivitySummary, id: &str, pins: impl FnOnce() -> Arc<PinPatterns>) -> Option<Value> {
    let entry = summary.session(id)?;
    let folds = summary.session_folds(id).map(|entry| {
        let mut fold = serde_json::to_value(&entry.fold).unwrap_or_default();
        if let Some(object) = fold.as_object_mut() {
            object.insert("at".into(), json!(entry.at));
            object.insert("unfolds".into(), json!(entry.unfolds));
        }
        fold
    });
    Some(json!({
        "session": session_json(entry, now_millis()),
        "requests": summary.session_requests(id).map(|request| request.to_json()).collect::<Vec<_>>(),
        "folds": folds.collect::<Vec<_>>(),
        "pins": *pins(),
    }))
}

/// Returns the answer of `cache`.
pub(crate) fn cache(summary: &ActivitySummary, limit: usize) -> Value {
    let week = period_start("7d", now_millis()).unwrap_or(0).div_euclid(DAY_MILLIS);
    json!({
        "requests": summary.recent_requests().take(limit).map(|request| request.to_json()).collect::<Vec<_>>(),
        "totals": summary.totals_since(week).to_json(),
    })
}

/// Returns the answer of `quality`.
pub(crate) fn quality(summary: &ActivitySummary) -> Value {
    let totals = summary.totals_since(0);
    let recent = summary.recent_unfolds().map(|unfold| {
        json!({
            "at": unfold.at,
            "session": unfold.session,
            "handle": unfold.fold.handle,
            "tool": unfold.fold.tool,
            "target": unfold.fold.target,
            "tokens": unfold.fold.tokens_before,
        })
    });
    json!({
        "folds": totals.folds,
        "unfolds": totals.unfolds,
        "unfolds_per_100_folds": totals.unfolds_per_100_folds(),
        "recent": recent.collect::<Vec<_>>(),
    })
}

/// Returns the answer of `inventory`.
pub(crate) fn inventory(summary: &ActivitySummary) -> Value {
    let requests = summary.totals_by(0, |_, _, client| client.to_owned());
    let clients = requests.iter().map(|(client, (_, totals))| {
        let tools = summary.tools().filter(|(owner, _, _)| owner == client).map(|(_, name, tool)| {
            json!({
                "name": name,
                "server": mcp_server(name),
                "tokens": tool.tokens,
                "calls": tool.calls,
                "sessions": tool.sessions,
                "last_called_at": tool.last_called_at,
            })
        });
        json!({
            "client": client,
            "requests": totals.requests,
            "hint": removal_hint(client),
            "tools": tools.collect::<Vec<_>>(),
        })
    });
    json!({ "clients": clients.collect::<Vec<_>>() })
}

/// Returns the MCP server of a tool, which clients put into its name.
fn mcp_server(tool: &str) -> Option<&str> {
    tool.strip_prefix("mcp__")?.split("__").next()
}

/// Returns how a tool is removed from the prompts of a client.
fn removal_hint(client: &str) -> &'static str {
    match client {
        "claude-code" => {
            "MCP servers: claude mcp remove NAME, or disable them with /mcp; built-in tools: permissions.deny in settings.json."
        }
        "codex" => "MCP servers: remove their [mcp_servers.NAME] section from ~/.codex/config.toml.",
        "opencode" => "In opencode.json: set \"NAME\": false in \"tools\", or \"enabled\": false for an MCP server.",
        _ => "Remove the tool, or its MCP server, from the settings of the client.",
    }
}

/// The rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKey {
    Session,
    Model,
    Client,
    Day,
}

impl TableKey {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "session" => TableKey::Session,
            "model" => TableKey::Model,
            "client" => TableKey::Client,
            "day" => TableKey::Day,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            TableKey::Session => "session",
            TableKey::Model => "model",
            TableKey::Client => "client",
            TableKey::Day => "day",
        }
    }
}

/// A table: its rows and its period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableQuery {
    pub(crate) key: TableKey,
    /// Begin of the period, in milliseconds since 1970. Sessions count with all their requests.
    pub(crate) since: i64,
}

/// A row of a table.
struct TableRow {
    key: String,
    label: String,
    last_at: i64,
    totals: ActivityTotals,
}

fn table_rows(summary: &ActivitySummary, query: TableQuery, limit: usize) -> Vec<TableRow> {
    let first_day = query.since.div_euclid(DAY_MILLIS);
    let day_rows = |key: fn(i64, &str, &str) -> String| {
        let sums = summary.totals_by(first_day, key).into_iter();
        let mut rows: Vec<TableRow> = sums
            .map(|(key, (day, totals))| TableRow { label: key.clone(), key, last_at: day * DAY_MILLIS, totals })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.last_at));
        rows
    };
    let mut rows = match query.key {
        TableKey::Session => {
            let sessions = summary.sessions_since(query.since).into_iter().take(limit);
            let row = |entry: &SessionEntry| TableRow {
                key: entry.id.clone(),
                label: entry.title.clone(),
                last_at: entry.last_at,
                totals: entry.totals,
            };
            sessions.map(row).collect()
        }
        TableKey::Model => day_rows(|_, model, _| model.to_owned()),
        TableKey::Client => day_rows(|_, _, client| client.to_owned()),
        TableKey::Day => day_rows(|day, _, _| format_day(day)),
    };
    rows.truncate(limit);
    rows
}

/// Returns the answer of `table`.
pub(crate) fn table(summary: &ActivitySummary, query: TableQuery, limit: usize) -> Value {
    let rows = table_rows(summary, query, limit).into_iter().map(
        |row| json!({ "key": row.key, "label": row.label, "last_at": row.last_at, "totals": row.totals.to_json() }),
    );
    json!({ "by": query.key.name(), "rows": rows.collect::<Vec<_>>() })
}

/// Returns the table as CSV.
pub(crate) fn table_csv(summary: &ActivitySummary, query: TableQuery, limit: usize) -> String {
    let names: Vec<&str> = ActivityTotals::default().columns().into_iter().map(|(name, _)| name).collect();
    let mut csv = format!("{},label,last_at,{}\n", query.key.name(), names.join(","));
    for row in table_rows(summary, query, limit) {
        let values: Vec<String> = row.totals.columns().into_iter().map(|(_, value)| csv_number(&value)).collect();
        let line = format!("{},{},{},{}\n", csv_text(&row.key), csv_text(&row.label), row.last_at, values.join(","));
        csv.push_str(&line);
    }
    csv
}

fn csv_number(value: &Value) -> String {
    if value.is_null() { String::new() } else { value.to_string() }
}

/// Returns a text as a quoted field. A text that a spreadsheet would run as a formula gets an apostrophe.
fn csv_text(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// Returns a day as YYYY-MM-DD.
fn format_day(day: i64) -> String {
    // Days since 1970 to a civil date, in the proleptic Gregorian calendar.
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}")
}

/// Returns the windows that were learned from providers.
pub(crate) fn learned_windows(state: &AppState, tenant: &Tenant) -> Vec<Value> {
    let lifetime = state.settings.timeouts.learned;
    let windows = state.models.learned_windows(tenant.key).into_iter();
    let window = |ModelWindow { model, upstream, window }: ModelWindow| {
        let age = window.learned_at.elapsed();
        let expires = (!window.evidence.is_stated()).then(|| lifetime.saturating_sub(age));
        json!({
            "model": model,
            "upstream": upstream.url(&state.settings.upstreams).to_string(),
            "tokens": window.tokens,
            "bounds": window.bounds,
            "evidence": window.evidence,
            "age_seconds": age.as_secs(),
            "expires_in_seconds": expires.map(|left| left.as_secs()),
        })
    };
    windows.map(window).collect()
}

/// Returns the facts about the tenant's part of the archive; null if it cannot be read.
pub(crate) fn archive_facts(archive: &TenantArchive) -> Value {
    let Ok(stats) = archive.stats() else { return Value::Null };
    json!({
        "is_counted": true,
        "bytes": stats.packed_bytes,
        "originals": stats.available,
        "damaged": stats.damaged,
        "oldest_at": stats.oldest_at,
    })
}

/// Returns the answer of `health`.
pub(crate) fn health(summary: &ActivitySummary, facts: &ProxyFacts, archive: Value, windows: Vec<Value>) -> Value {
    let mut overheads: Vec<u64> = summary.recent_requests().map(|request| request.overhead_micros).collect();
    overheads.sort_unstable();
    let quantile = |share: f64| {
        let at = (overheads.len() as f64 * share) as usize;
        overheads.get(at.min(overheads.len().saturating_sub(1))).map(|micros| *micros as f64 / 1e3)
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": (now_millis() - facts.started_at) / 1_000,
        "overhead": { "p50_ms": quantile(0.5), "p99_ms": quantile(0.99), "requests": overheads.len() },
        "findings": findings(facts, &archive),
        "archive": archive,
        "windows": windows,
        "upstreams": facts.upstreams.iter().map(|(name, url)| json!({ "name": name, "url": url })).collect::<Vec<_>>(),
    })
}

/// Returns what a look at the running proxy finds; `foldline doctor` looks at settings and clients too.
fn findings(facts: &ProxyFacts, archive: &Value) -> Vec<Value> {
    let finding = |is_ok: bool, ok: &str, warning: &str| {
        if is_ok { json!({ "level": "ok", "text": ok }) } else { json!({ "level": "warn", "text": warning }) }
    };
    let errors: u64 = facts.internal_errors.iter().map(|(_, count)| count).sum();
    let mut findings = vec![
        finding(
            facts.has_archive,
            "Originals are stored in an archive.",
            "There is no archive: folded text cannot be unfolded. Start the proxy with --archive.",
        ),
        finding(errors == 0, "No internal error since start.", "There were internal errors: see the log of the proxy."),
        finding(
            facts.mode == ProxyMode::Fold,
            "Requests are folded.",
            "Requests are not folded: the mode is observe or off.",
        ),
    ];
    // Unknown while a large archive is counted.
    if archive["is_counted"] != false {
        findings.push(finding(
            archive["damaged"].as_u64().unwrap_or(0) == 0,
            "No original is damaged.",
            "Some originals are damaged: run `foldline archive verify`.",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::RequestActivity;

    #[test]
    fn days_are_calendar_days() {
        for (day, date) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_774, "2026-11-17")] {
            assert_eq!(format_day(day), date);
        }
    }

    #[test]
    fn periods_are_days_hours_or_times() {
        let now = 20_774 * DAY_MILLIS + 5 * HOUR_MILLIS;
        assert_eq!(period_start("1d", now), Some(20_774 * DAY_MILLIS));
        assert_eq!(period_start("7d", now), Some(20_768 * DAY_MILLIS));
        assert_eq!(period_start("2h", now), Some(now - 2 * HOUR_MILLIS));
        assert_eq!((period_start("all", now), period_start("123", now)), (Some(0), Some(123)));
        assert_eq!((period_start("x", now), period_start("0d", now)), (None, None));
    }

    #[test]
    fn csv_has_the_columns_of_the_table_and_no_formula() {
        let mut summary = ActivitySummary::default();
        summary.add(RequestActivity {
            session: "=1+1".into(),
            title: Some("say \"hi\", please".into()),
            received_tokens: 7,
            ..RequestActivity::default()
        });
        let csv = table_csv(&summary, TableQuery { key: TableKey::Session, since: 0 }, 10);
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].starts_with("session,label,last_at,requests,usage_requests"), "{csv}");
        assert!(lines[1].starts_with("\"'=1+1\",\"say \"\"hi\"\", please\",0,1,0,0,7,"), "{csv}");
        let columns = ActivityTotals::default().columns().len() + 3;
        assert_eq!(lines[0].split(',').count(), columns);
    }

    /// 10,000 sessions with 100 requests each: every answer that a page reads takes less than 100 ms.
    #[test]
    #[ignore = "adds a million records"]
    fn large_journal_is_answered_quickly() {
        let mut summary = ActivitySummary::default();
        for at in 0..1_000_000_i64 {
            summary.add(RequestActivity {
                session: format!("session-{}", at % 10_000),
                at: at * 1_000,
                client: format!("client-{}", at % 3),
                model: format!("model-{}", at % 5),
                received_tokens: 50_000,
                ..RequestActivity::default()
            });
        }
        let timed = |name: &str, answer: &dyn Fn() -> usize| {
            let begin = std::time::Instant::now();
            let bytes = answer();
            let time = begin.elapsed();
            assert!(time.as_millis() < 100, "{name}: {time:?} for {bytes} bytes");
        };
        let by = |key| TableQuery { key, since: 0 };
        timed("sessions", &|| sessions(&summary, 0, 50, false).to_string().len());
        timed("session", &|| session(&summary, "session-9999", Arc::default).unwrap().to_string().len());
        timed("cache", &|| cache(&summary, 120).to_string().len());
        timed("quality", &|| quality(&summary).to_string().len());
        timed("inventory", &|| inventory(&summary).to_string().len());
        timed("day", &|| table(&summary, by(TableKey::Day), 1_000).to_string().len());
        timed("model", &|| table(&summary, by(TableKey::Model), 1_000).to_string().len());
        timed("table", &|| table(&summary, by(TableKey::Session), 1_000).to_string().len());
    }

    #[test]
    fn mcp_servers_are_read_from_tool_names() {
        assert_eq!(mcp_server("mcp__github__create_issue"), Some("github"));
        assert_eq!(mcp_server("read"), None);
    }
}
