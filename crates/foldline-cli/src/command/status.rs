//! `foldline status`: what was saved today, in 7 days and in all, from the archive.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use foldline_server::activity::{ActivityLog, ActivityTotals, GroupTotals, SessionGroup, now_millis};
use foldline_server::proxy::probe;
use serde_json::json;

use crate::output::print_stdout;
use crate::render::{format_number, format_percent, padded, plain};
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};
use crate::units::format_dollars;

/// Show what was saved today, in 7 days and in all
///
/// The numbers are those of the dashboard, from the journal in the archive; docs/reference/api.md defines them. Days are
/// days in UTC. Proxies in observe mode keep their numbers to themselves: see their dashboards.
#[derive(Args)]
pub(crate) struct StatusCommand {
    /// Print one short line, for status bars.
    #[arg(long, conflicts_with = "json")]
    line: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Only check that a proxy answers at this address, for health checks of containers; exit with status 1 if not. It
    /// needs no token.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:8787",
        conflicts_with_all = ["line", "json"])]
    check: Option<SocketAddr>,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

/// Address at which a proxy listens by default.
const DEFAULT_PROXY: &str = "http://127.0.0.1:8787";
/// Timeout of `--check`, for each of connecting, sending and receiving.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Milliseconds of a day.
const DAY_MILLIS: i64 = 86_400_000;

/// Returns the journal of the local user; none if there is no archive yet.
pub(crate) fn open_log(settings: &ArchiveSettings) -> Result<Option<ActivityLog>> {
    if !settings.may_exist() {
        return Ok(None);
    }
    Ok(Some(ActivityLog::new(Some(settings.open_tenant()?))))
}

impl StatusCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(address) = self.check {
            check_proxy(address).with_context(|| format!("no proxy answers at {address}"))?;
            print_stdout(&format!("a proxy answers at {address}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let today = now_millis().div_euclid(DAY_MILLIS);
        let read = |log: ActivityLog| {
            log.read(|summary| {
                let totals = [today, today - 6, 0].map(|day| summary.totals_since(day));
                (totals, SessionGroup::ALL.map(|group| summary.group_since(0, group)))
            })
            .context("could not read the journal")
        };
        let ([today, week, all], groups) = open_log(&settings)?.map(read).transpose()?.unwrap_or_default();
        if self.line {
            print_stdout(&format!("{}\n", status_line(&today)))?;
            return Ok(ExitCode::SUCCESS);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = DEFAULT_PROXY.parse().context("the default address is a URL")?;
        let running = runtime.block_on(probe::find_running_proxy(&url));
        if self.json {
            let proxies: Vec<_> =
                running.iter().map(|proxy| json!({ "url": DEFAULT_PROXY, "version": proxy.version })).collect();
            let status = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "proxies": proxies,
                "totals": { "today": today.to_json(), "week": week.to_json(), "all": all.to_json() },
                "groups": SessionGroup::ALL.iter().zip(groups).map(|(group, sum)| sum.to_json(*group)).collect::<Vec<_>>(),
            });
            print_stdout(&format!("{status}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        print_stdout(&match running {
            Some(proxy) => {
                format!("proxy at {DEFAULT_PROXY}, version {}; dashboard: {DEFAULT_PROXY}/foldline/\n\n", proxy.version)
            }
            None => format!("no proxy at {DEFAULT_PROXY}; start one with `foldline serve`\n\n"),
        })?;
        if all.requests == 0 {
            let path = settings.location();
            print_stdout(&format!("no request was recorded in {path} yet\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        print_stdout(&format_table(&[("today (UTC)", today), ("7 days", week), ("all time", all)]))?;
        if groups.iter().any(|group| group.sessions > 0) {
            print_stdout(&format_groups(&groups))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns an error unless a proxy answers that it runs.
fn check_proxy(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, CHECK_TIMEOUT)?;
    stream.set_read_timeout(Some(CHECK_TIMEOUT))?;
    stream.set_write_timeout(Some(CHECK_TIMEOUT))?;
    write!(stream, "GET /foldline/livez HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut status_line = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut status_line)?;
    if &status_line != b"HTTP/1.1 200" {
        return Err(io::Error::other("another program listens there"));
    }
    Ok(())
}

/// Formats the groups of sessions that are compared (`--observe-share`).
fn format_groups(groups: &[GroupTotals; 2]) -> String {
    let mut text = "\nsessions compared (--observe-share):\n".to_owned();
    for (group, sum) in SessionGroup::ALL.iter().zip(groups) {
        let totals = &sum.totals;
        let billed =
            if totals.priced_requests > 0 { format_dollars(totals.billed.dollars()) } else { "no price".to_owned() };
        text.push_str(&format!(
            "{} {:>9} sessions {:>9} requests {:>13} sent {billed:>10} {:>6} upstream errors\n",
            padded(group.name(), 8),
            format_number(sum.sessions),
            format_number(totals.requests),
            format_number(totals.sent_tokens),
            format_number(sum.upstream_errors),
        ));
    }
    text
}

/// Formats an amount with its sign.
pub(crate) fn signed_dollars(amount: f64) -> String {
    if amount < 0.0 { format!("-{}", format_dollars(-amount)) } else { format_dollars(amount) }
}

/// Formats the net saving; tokens if there are no prices.
fn net(totals: &ActivityTotals) -> String {
    if totals.priced_requests > 0 { signed_dollars(totals.net().dollars()) } else { "no price".to_owned() }
}

/// Returns the line for status bars.
fn status_line(today: &ActivityTotals) -> String {
    if today.requests == 0 {
        return "foldline: no request today".to_owned();
    }
    let less = format_percent(today.received_tokens.saturating_sub(today.sent_tokens), today.received_tokens);
    let money = match today.priced_requests {
        0 => String::new(),
        _ if today.net().0 < 0 => format!(", {} lost", format_dollars(-today.net().dollars())),
        _ => format!(", {} saved", format_dollars(today.net().dollars())),
    };
    format!("foldline: {} requests, {less} less sent{money} today", format_number(today.requests))
}

/// Formats totals as rows of a table. Names may be recorded data.
pub(crate) fn format_table(rows: &[(&str, ActivityTotals)]) -> String {
    let rows: Vec<(String, &ActivityTotals)> = rows.iter().map(|(name, totals)| (plain(name), totals)).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).clamp(11, 48);
    let mut text = format!(
        "{} {:>9} {:>13} {:>13} {:>7} {:>10} {:>10}\n",
        padded("", width),
        "requests",
        "received",
        "sent",
        "creases",
        "billed",
        "net"
    );
    for (name, totals) in rows {
        let billed =
            if totals.priced_requests > 0 { format_dollars(totals.billed.dollars()) } else { "no price".to_owned() };
        text.push_str(&format!(
            "{} {:>9} {:>13} {:>13} {:>7} {billed:>10} {:>10}\n",
            padded(&name, width),
            format_number(totals.requests),
            format_number(totals.received_tokens),
            format_number(totals.sent_tokens),
            format_number(totals.creases),
            net(totals)
        ));
    }
    text.push_str("\nreceived and sent: prompt tokens by our count; net: saved - creases - unfolds - summaries\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline_server::activity::NanoDollars;

    #[test]
    fn status_line_is_short_and_shows_losses() {
        assert_eq!(status_line(&ActivityTotals::default()), "foldline: no request today");
        let mut totals =
            ActivityTotals { requests: 12, received_tokens: 1_000, sent_tokens: 400, ..ActivityTotals::default() };
        assert_eq!(status_line(&totals), "foldline: 12 requests, 60 % less sent today");
        (totals.priced_requests, totals.saved) = (12, NanoDollars::from_dollars(1.25));
        assert_eq!(status_line(&totals), "foldline: 12 requests, 60 % less sent, $1.25 saved today");
        totals.crease = NanoDollars::from_dollars(2.0);
        assert_eq!(status_line(&totals), "foldline: 12 requests, 60 % less sent, $0.75 lost today");
    }

    #[test]
    fn control_characters_of_titles_are_not_printed() {
        let table = format_table(&[("\u{1b}]0;title\u{7}\u{202e}\nrow", ActivityTotals::default())]);
        assert!(table.contains("\u{241b}]0;title\u{2407}\u{fffd}\u{240a}row"), "{table:?}");
        assert!(!table.contains('\u{1b}') && !table.contains('\u{202e}'), "{table:?}");
    }

    #[test]
    fn table_has_one_row_per_period() {
        let table = format_table(&[("today", ActivityTotals { requests: 3, ..ActivityTotals::default() })]);
        let row = table.lines().nth(1).unwrap();
        assert!(row.starts_with("today") && row.contains(" 3 ") && row.ends_with("no price"), "{table}");
    }
}
