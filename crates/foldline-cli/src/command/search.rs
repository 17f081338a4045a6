//! `foldline search`: finds originals by the words in them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline_archive::{AccessMode, SearchHit};
use serde_json::json;

use crate::environment::{ColorChoice, Terminal};
use crate::output::print_stdout;
use crate::render::format_number;
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};
use crate::units::format_age;

/// Search all folded originals, best and newest first
///
/// Identifiers and paths are found by their parts, in any notation: config finds readConfigFile and
/// read_config_file. There is no query syntax; every word is matched as a word.
#[derive(Args)]
pub(crate) struct SearchCommand {
    /// Words to search for.
    #[arg(required = true)]
    query: Vec<String>,

    /// Hits per page.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    limit: usize,

    /// Page of hits to print, counted from 1.
    #[arg(long, value_name = "N", default_value_t = 1)]
    page: usize,

    /// Print the hits as JSON, one object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl SearchCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let tenant = settings.open(AccessMode::ReadOnly)?.tenant(&settings.namespace);
        let skip = self.page.saturating_sub(1).saturating_mul(self.limit);
        let found = tenant.search(&self.query.join(" "), skip, self.limit)?;
        let terminal = Terminal::for_stdout();
        for hit in &found.hits {
            print_stdout(&if self.json { json_line(hit) } else { format_hit(hit, terminal) })?;
        }
        if !self.json {
            let rest = found.total.saturating_sub(skip + found.hits.len());
            print_stdout(&match (found.total, rest) {
                (0, _) => "no folded original contains any of these words\n".to_owned(),
                (_, 0) => String::new(),
                (_, rest) => format!("{} more: --page {}\n", format_number(rest as u64), self.page + 1),
            })?;
        }
        // Like grep: no hit is neither success nor an error.
        Ok(if found.hits.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn format_hit(hit: &SearchHit, terminal: Terminal) -> String {
    let entry = &hit.info;
    let colored = |code: &str, text: &str| match terminal.color {
        ColorChoice::Colored => format!("\x1b[{code}m{text}\x1b[0m"),
        ColorChoice::Plain => text.to_owned(),
    };
    let mut source = [entry.tool.as_deref(), entry.arguments.as_deref()].map(Option::unwrap_or_default).join(" ");
    source.truncate(source.floor_char_boundary(terminal.width.saturating_sub(50)));
    let details = format!("{} tokens, {}, line {}", format_number(entry.tokens), format_age(entry.kept_at), hit.line);
    let mut text =
        format!("{}  {}  {}\n", colored("1;36", entry.handle.as_str()), source.trim(), colored("2", &details));
    for line in hit.snippet.lines() {
        // Archived text must not control the terminal.
        let plain: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text += &format!("    {plain}\n");
    }
    text
}

fn json_line(hit: &SearchHit) -> String {
    let entry = &hit.info;
    let object = json!({
        "handle": entry.handle, "score": hit.score, "line": hit.line, "snippet": hit.snippet,
        "tool": entry.tool, "arguments": entry.arguments, "session": entry.session, "message": entry.message,
        "tokens": entry.tokens, "bytes": entry.length, "kept_at": entry.kept_at, "carried_at": entry.carried_at,
    });
    format!("{object}\n")
}
