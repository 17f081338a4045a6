//! `foldline search`: finds originals by the words in them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline_archive::{AccessMode, SearchHit, TenantArchive};
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use crate::environment::{ColorChoice, Terminal};
use crate::output::print_stdout;
use crate::render::{format_number, plain, truncated};
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
            print_stdout(&match self.json {
                true => json_line(hit),
                false => format_hit(hit, &hit_source(&tenant, hit), &self.query, terminal),
            })?;
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

/// Returns the tool that produced the text of a hit, and what it was called for.
fn hit_source(tenant: &TenantArchive, hit: &SearchHit) -> String {
    let entry = &hit.info;
    if entry.tool.is_none() && entry.arguments.is_none() {
        let original = tenant.unfold(entry.handle.as_str()).ok();
        let source = original.and_then(|it| source_in_rounds(&String::from_utf8_lossy(&it.readable()), hit.line));
        return source.unwrap_or_default();
    }
    let target = entry.arguments.as_deref().map(call_target).unwrap_or_default();
    [entry.tool.as_deref().unwrap_or_default(), &target].join(" ").trim().to_owned()
}

/// Returns the tool and target of the result that a line of dropped rounds belongs to.
fn source_in_rounds(readable: &str, line: usize) -> Option<String> {
    const HEADINGS: [&str; 5] = ["-- result of ", "-- call of ", "-- reasoning", "== assistant", "== user"];
    let before: Vec<&str> = readable.lines().take(line).collect();
    let is_heading = |line: &&&str| HEADINGS.iter().any(|heading| line.starts_with(heading));
    let heading = before.iter().rev().find(is_heading)?;
    let result = heading.strip_prefix("-- result of ")?;
    Some(result.rsplit_once(", ").map_or(result, |(source, _)| source).to_owned())
}

/// Cuts a tool and its target to a number of columns. Of a path the end remains, which has the file name.
fn truncated_source(source: &str, columns: usize) -> String {
    let path = source.split_once(' ').filter(|(_, target)| target.contains('/') && !target.contains(' '));
    match path {
        Some((tool, path)) if source.width() > columns => {
            let room = columns.saturating_sub(tool.width() + 1);
            let end: String = path.chars().rev().collect();
            let end: String = truncated(&end, room).chars().rev().collect();
            format!("{tool} {end}")
        }
        _ => truncated(source, columns),
    }
}

fn format_hit(hit: &SearchHit, source: &str, query: &[String], terminal: Terminal) -> String {
    let entry = &hit.info;
    let colored = |code: &str, text: &str| match terminal.color {
        ColorChoice::Colored => format!("\x1b[{code}m{text}\x1b[0m"),
        ColorChoice::Plain => text.to_owned(),
    };
    let source = truncated_source(&plain(source), terminal.width.saturating_sub(50));
    let details = format!("{} tokens, {}, line {}", format_number(entry.tokens), format_age(entry.kept_at), hit.line);
    let mut text = format!("{}  {}  {}\n", colored("1;36", entry.handle.as_str()), source, colored("2", &details));
    let matching = matching_line(&hit.snippet, query);
    for (at, line) in hit.snippet.lines().enumerate() {
        // Archived text must not control the terminal.
        text += &format!("  {} {}\n", if at == matching { ">" } else { " " }, plain(line));
    }
    text
}

/// Returns the index of the line of a snippet that contains most of the words.
fn matching_line(snippet: &str, query: &[String]) -> usize {
    let words: Vec<String> = query.iter().flat_map(|text| text.split_whitespace()).map(str::to_lowercase).collect();
    let count = |line: &str| {
        let line = line.to_lowercase();
        words.iter().filter(|word| line.contains(word.as_str())).count()
    };
    let lines = snippet.lines().enumerate().map(|(at, line)| (count(line), std::cmp::Reverse(at)));
    lines.max().map_or(0, |(_, std::cmp::Reverse(at))| at)
}

/// Returns what a call is about: the file, command or pattern in its arguments, or the arguments themselves.
fn call_target(arguments: &str) -> String {
    const TARGET_KEYS: [&str; 12] = [
        "file_path",
        "path",
        "filePath",
        "file",
        "filename",
        "notebook_path",
        "command",
        "cmd",
        "pattern",
        "query",
        "url",
        "input",
    ];
    let parsed: Option<serde_json::Value> = serde_json::from_str(arguments).ok();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(items) => {
            Some(items.iter().filter_map(|item| item.as_str()).collect::<Vec<_>>().join(" "))
                .filter(|it| !it.is_empty())
        }
        _ => None,
    };
    let target = parsed.as_ref().and_then(|parsed| TARGET_KEYS.iter().find_map(|key| text(parsed.get(*key)?)));
    target.unwrap_or_else(|| arguments.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_line_is_marked() {
        let query = ["Config".to_owned(), "parser".to_owned()];
        assert_eq!(matching_line("fn a()\nfn read_config_parser()\nconfig", &query), 1);
        assert_eq!(matching_line("", &query), 0);
    }

    #[test]
    fn file_name_survives_truncation() {
        assert_eq!(truncated_source("Read src/deep/folder/name.rs", 18), "Read …lder/name.rs");
        assert_eq!(truncated_source("bash cat src/a.rs | wc", 10), "bash cat …");
        assert_eq!(truncated_source("Read a.rs", 18), "Read a.rs");
    }

    #[test]
    fn line_of_dropped_rounds_has_the_source_of_its_result() {
        let text = "== assistant\nI look, and say so\n-- call of Read a.rs\n== user\n-- result of Read a.rs, ok\none\n";
        assert_eq!(source_in_rounds(text, 6).as_deref(), Some("Read a.rs"));
        assert_eq!(source_in_rounds(text, 2), None);
    }

    #[test]
    fn file_or_command_of_a_call_is_shown() {
        assert_eq!(call_target(r#"{"limit":5,"file_path":"src/a.rs"}"#), "src/a.rs");
        assert_eq!(call_target(r#"{"command":["bash","-lc","ls"]}"#), "bash -lc ls");
        assert_eq!(call_target(r#"{"depth":1}"#), r#"{"depth":1}"#);
    }
}
