//! `foldline top`: sessions and totals, updated while requests are made.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foldline_server::activity::{ActivitySummary, now_millis};

use crate::command::status::{format_table, open_log};
use crate::output::print_stdout;
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};

/// Watch sessions and totals while requests are made
///
/// Reads the journal in the archive, so it shows all proxies that share it. Ctrl-C ends it.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,

    /// Print once and end; the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

/// Sessions shown.
const MAX_ROWS: usize = 15;
/// Milliseconds of a day.
const DAY_MILLIS: i64 = 86_400_000;

impl TopCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let Some(log) = open_log(&settings)? else {
            bail!("there is no archive at {} yet; start a proxy with `foldline serve`", settings.location());
        };
        let once = self.once || !std::io::stdout().is_terminal();
        loop {
            let page = log.read(format_page).context("could not read the journal")?;
            // Clears the screen and moves to its corner.
            let clear = if once { "" } else { "\x1b[2J\x1b[H" };
            print_stdout(&format!("{clear}{page}"))?;
            if once {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_secs(self.interval));
        }
    }
}

fn format_page(summary: &ActivitySummary) -> String {
    let now = now_millis();
    let sessions = summary.sessions_since(0);
    let name = |entry: &&foldline_server::activity::SessionEntry| {
        let live = if entry.is_live(now) { "* " } else { "  " };
        let title: String = if entry.title.is_empty() { &entry.id } else { &entry.title }.chars().take(44).collect();
        format!("{live}{title}")
    };
    let shown: Vec<_> = sessions.iter().take(MAX_ROWS).collect();
    let mut names: Vec<String> = vec!["today (UTC)".to_owned()];
    names.extend(shown.iter().map(|entry| name(entry)));
    let mut totals = vec![summary.totals_since(now.div_euclid(DAY_MILLIS))];
    totals.extend(shown.iter().map(|entry| entry.totals));
    let rows: Vec<_> = names.iter().map(String::as_str).zip(totals).collect();
    format!("{}* live: a request in the last 10 minutes\n", format_table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline_server::activity::RequestActivity;

    #[test]
    fn page_marks_live_sessions() {
        let mut summary = ActivitySummary::default();
        let record = |session: &str, at| RequestActivity { session: session.into(), at, ..RequestActivity::default() };
        summary.add(record("old", 1));
        summary.add(record("new", now_millis()));
        let page = format_page(&summary);
        assert!(page.contains("\n* new") && page.contains("\n  old") && page.contains("today"), "{page}");
    }
}
