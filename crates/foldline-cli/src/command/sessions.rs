//! `foldline sessions`: the recorded sessions, last active first.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline_server::activity::{SessionEntry, now_millis};
use serde_json::json;

use crate::command::status::{format_table, open_log};
use crate::output::print_stdout;
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};
use crate::units::{AgeArg, format_age};

/// List recorded sessions, last active first
///
/// The numbers are those of the dashboard; docs/reference/api.md defines them.
#[derive(Args)]
pub(crate) struct SessionsCommand {
    /// Only sessions with a request in this time, such as 7d or 12h.
    #[arg(long, value_name = "AGE")]
    since: Option<AgeArg>,

    /// Number of sessions.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    limit: usize,

    /// Print the sessions as JSON, one object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl SessionsCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let age = self.since.map(|age| i64::try_from(age.0.as_millis()).unwrap_or(i64::MAX));
        let since = age.map_or(0, |age| now_millis().saturating_sub(age));
        let entries = |summary: &foldline_server::activity::ActivitySummary| {
            summary.sessions_since(since).into_iter().take(self.limit).cloned().collect::<Vec<SessionEntry>>()
        };
        let log = open_log(&settings)?;
        let sessions = log.map(|log| log.read(entries)).transpose().context("could not read the journal")?;
        let sessions = sessions.unwrap_or_default();
        if self.json {
            for entry in &sessions {
                print_stdout(&format!("{}\n", session_json(entry)))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if sessions.is_empty() {
            print_stdout("no session in this time; `foldline status` shows what was recorded\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        let names: Vec<String> = sessions.iter().map(session_name).collect();
        let rows: Vec<_> = names.iter().map(String::as_str).zip(sessions.iter().map(|entry| entry.totals)).collect();
        print_stdout(&format_table(&rows))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a name that people recognize: the first words of the task, the client and the age.
fn session_name(entry: &SessionEntry) -> String {
    let title: String = if entry.title.is_empty() { &entry.id } else { &entry.title }.chars().take(26).collect();
    format!("{title} ({}, {})", entry.client, format_age(entry.last_at))
}

fn session_json(entry: &SessionEntry) -> serde_json::Value {
    json!({
        "id": entry.id,
        "title": entry.title,
        "client": entry.client,
        "model": entry.model,
        "first_at": entry.first_at,
        "last_at": entry.last_at,
        "totals": entry.totals.to_json(),
    })
}
