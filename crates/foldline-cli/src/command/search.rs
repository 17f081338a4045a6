//! `foldline search`: originals by words that stand in them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline_archive::{AccessMode, SearchHit};
use serde_json::json;

use super::print_stdout;
use crate::environment::{ColorChoice, Terminal};
use crate::render::format_number;
use crate::settings::ArchiveFlags;
use crate::units::format_age;

/// Search everything that was folded, best and newest first
///
/// Identifiers and paths are found by their pieces, however they are written: config finds readConfigFile and
/// read_config_file. There is no query syntax; every word is just a word.
#[derive(Args)]
pub(crate) struct SearchCommand {
    /// Words that stand in the text.
    #[arg(required = true)]
    words: Vec<String>,

    /// Hits on a page.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    limit: usize,

    /// Which page of the hits, counted from 1.
    #[arg(long, value_name = "N", default_value_t = 1)]
    page: usize,

    /// Print the hits as JSON, one object a line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    archive: ArchiveFlags,
}

impl SearchCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.archive.resolve()?;
        let shelf = settings.open(AccessMode::ReadOnly)?.tenant(&settings.namespace);
        let skip = self.page.saturating_sub(1).saturating_mul(self.limit);
        let found = shelf.search(&self.words.join(" "), skip, self.limit)?;
        let look = Terminal::for_stdout();
        for hit in &found.hits {
            print_stdout(&if self.json { json_line(hit) } else { format_hit(hit, look) })?;
        }
        if !self.json {
            let rest = found.total.saturating_sub(skip + found.hits.len());
            print_stdout(&match (found.total, rest) {
                (0, _) => "nothing that was folded has any of these words\n".to_owned(),
                (_, 0) => String::new(),
                (_, rest) => format!("{} more: --page {}\n", format_number(rest as u64), self.page + 1),
            })?;
        }
        // As grep does: nothing found is not success, and no error either.
        Ok(if found.hits.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn format_hit(hit: &SearchHit, look: Terminal) -> String {
    let entry = &hit.info;
    let ink = |code: &str, text: &str| match look.color {
        ColorChoice::Colored => format!("\x1b[{code}m{text}\x1b[0m"),
        ColorChoice::Plain => text.to_owned(),
    };
    let mut source = [entry.tool.as_deref(), entry.arguments.as_deref()].map(Option::unwrap_or_default).join(" ");
    source.truncate(source.floor_char_boundary(look.width.saturating_sub(50)));
    let about = format!("{} tokens, {}, line {}", format_number(entry.tokens), format_age(entry.kept_at), hit.line);
    let mut text = format!("{}  {}  {}\n", ink("1;36", entry.handle.as_str()), source.trim(), ink("2", &about));
    for line in hit.snippet.lines() {
        // What others wrote must not draw on the terminal.
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
