//! `cargo xtask corpus`: reads every recording of a corpus, and checks that every request body survives a round trip
//! byte for byte.
//!
//! The corpus is not part of the repository. Its folder is the argument or the environment variable. It contains originals under `raw/FORMAT/` and sets of
//! records, one per line, as `*.jsonl.zst`.
//!
//! Recorded sessions can break laws themselves (a call whose result was never recorded), so broken laws are listed and
//! are not failures. Read errors, wrong counts and changed bytes are.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use foldline::laws;
use foldline::laws::LawProfile;
use foldline::transcript::{LogFormat, TranscriptReader};
use foldline::wire;
use foldline_replay::open_decompressed;
use serde_json::Value;

use crate::output::print_line;

/// One row of the table.
#[derive(Default)]
struct CorpusRow {
    name: String,
    formats: Vec<LogFormat>,
    files: usize,
    recordings: usize,
    messages: usize,
    calls: usize,
    results: usize,
    omitted: usize,
    compactions: usize,
    /// Bodies that were unchanged by a round trip, and bodies that were tried.
    round_trips: Option<(usize, usize)>,
    errors: Vec<String>,
    /// Number of violations and first place, by law.
    violations: BTreeMap<&'static str, (usize, String)>,
}

/// Checks the corpus and prints one row per set.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let corpus = corpus_folder(arguments)?;
    let mut rows = Vec::new();
    for folder in sorted_entries(&corpus.join("raw")).unwrap_or_default().iter().filter(|path| path.is_dir()) {
        rows.push(check_originals(folder).with_context(|| folder.display().to_string())?);
    }
    for set in sorted_entries(&corpus)?.iter().filter(|path| path.to_string_lossy().ends_with(".jsonl.zst")) {
        rows.push(check_records(set).with_context(|| set.display().to_string())?);
    }
    print_table(&rows);
    for row in rows.iter().filter(|row| !row.violations.is_empty()) {
        print_line(&format!("\nlaws broken in {}", row.name));
        for (law, (count, first)) in &row.violations {
            print_line(&format!("  {count:>5}  {law:<28}  first in {first}"));
        }
    }
    let faults: Vec<&String> = rows.iter().flat_map(|row| &row.errors).collect();
    faults.iter().for_each(|fault| print_line(fault));
    if !faults.is_empty() {
        bail!("{} errors in the corpus, listed above", faults.len());
    }
    Ok(())
}

/// Returns the folder of the corpus: the argument, or the environment variable.
fn corpus_folder(arguments: &[String]) -> Result<PathBuf> {
    let named = arguments.first().map(PathBuf::from).or_else(|| std::env::var_os("FOLDLINE_CORPUS").map(PathBuf::from));
    let folder = named.context("no folder of recorded sessions: pass one, or set FOLDLINE_CORPUS")?;
    if !folder.is_dir() {
        bail!("{} is not a folder: pass one with recorded sessions, or set FOLDLINE_CORPUS", folder.display());
    }
    Ok(folder)
}

/// Returns the path of the development set.
pub(crate) fn development_set(arguments: &[String]) -> Result<PathBuf> {
    let set = corpus_folder(arguments)?.join("dev.jsonl.zst");
    if !set.exists() {
        bail!("{} does not exist: pass the folder of a corpus, or set FOLDLINE_CORPUS", set.display());
    }
    Ok(set)
}

/// Returns the paths in a folder, sorted.
fn sorted_entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

/// Checks sessions and bodies in their original formats.
fn check_originals(folder: &Path) -> Result<CorpusRow> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let body = match name.as_str() {
        "anthropic-messages" => Some(wire::Format::Anthropic),
        "openai-chat" => Some(wire::Format::OpenAiChat),
        "openai-responses" => Some(wire::Format::OpenAiResponses),
        _ => None,
    };
    let mut row = CorpusRow { name, round_trips: body.map(|_| (0, 0)), ..CorpusRow::default() };
    for path in sorted_entries(folder)? {
        row.files += 1;
        row.read_file(&path, |_, _| None)?;
        if let Some(format) = body {
            row.check_round_trip(format, &path)?;
        }
    }
    Ok(row)
}

/// Checks a set of records, each of which states its numbers of messages and calls.
fn check_records(set: &Path) -> Result<CorpusRow> {
    let mut stated = HashMap::new();
    for line in open_decompressed(set)?.lines() {
        let record: Value = serde_json::from_str(&line?)?;
        let count = |key: &str| record["stats"][key].as_u64().unwrap_or_default();
        stated.insert(record["id"].as_str().unwrap_or_default().to_owned(), (count("messages"), count("tool_calls")));
    }
    let name = set.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut row = CorpusRow { name, files: 1, ..CorpusRow::default() };
    row.read_file(set, |id, counted| match stated.get(id) {
        Some(stated) if *stated == counted => None,
        Some(stated) => Some(format!("{id}: states {stated:?} messages and calls, {counted:?} were read")),
        None => Some(format!("{id}: not an id of the set")),
    })?;
    if row.recordings != stated.len() {
        row.errors.push(format!("{}: {} records, {} recordings", row.name, stated.len(), row.recordings));
    }
    Ok(row)
}

impl CorpusRow {
    /// Reads a file and checks the numbers of messages and calls of each recording.
    fn read_file(&mut self, path: &Path, check: impl Fn(&str, (u64, u64)) -> Option<String>) -> Result<()> {
        let name = path.display().to_string();
        let reader = match TranscriptReader::new(&name, open_decompressed(path)?) {
            Ok(reader) => reader,
            Err(fault) => {
                self.errors.push(format!("{name}: {fault}"));
                return Ok(());
            }
        };
        for event in reader {
            let recording = match event {
                Ok(recording) => recording,
                Err(fault) => {
                    self.errors.push(format!("{name}: {fault}"));
                    continue;
                }
            };
            let messages = &recording.conversation.messages;
            let calls: usize = messages.iter().map(|message| message.calls().count()).sum();
            if messages.is_empty() {
                self.errors.push(format!("{name}: {} has no messages", recording.id));
            }
            self.errors.extend(check(&recording.id, (messages.len() as u64, calls as u64)));
            let profile = LawProfile::for_model(recording.format.wire_format(), recording.model());
            for violation in laws::check_conversation(&recording.conversation, &profile) {
                let first = || (0, format!("{}, {}: {}", recording.id, violation.at, violation.detail));
                self.violations.entry(violation.law.name()).or_insert_with(first).0 += 1;
            }
            self.recordings += 1;
            self.messages += messages.len();
            self.calls += calls;
            self.results += messages.iter().map(|message| message.results().count()).sum::<usize>();
            self.omitted += recording.omitted_messages;
            self.compactions += recording.compactions;
            if !self.formats.contains(&recording.format) {
                self.formats.push(recording.format);
            }
        }
        Ok(())
    }

    fn check_round_trip(&mut self, format: wire::Format, path: &Path) -> Result<()> {
        let body = std::fs::read(path)?;
        let same = wire::Request::parse(format, &body)
            .and_then(|request| request.splice(&[]))
            .is_ok_and(|spliced| *spliced == body);
        let (good, tried) = self.round_trips.unwrap_or_default();
        self.round_trips = Some((good + usize::from(same), tried + 1));
        if !same {
            self.errors.push(format!("{}: changed by a round trip", path.display()));
        }
        Ok(())
    }
}

fn print_table(rows: &[CorpusRow]) {
    const TABLE_HEADER: [&str; 12] = [
        "corpus",
        "format",
        "files",
        "recordings",
        "messages",
        "calls",
        "results",
        "compactions",
        "omitted",
        "round trips",
        "laws broken",
        "errors",
    ];
    let mut lines = vec![TABLE_HEADER.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        [
            row.name.clone(),
            row.formats.iter().map(|format| format.name()).collect::<Vec<_>>().join(", "),
            row.files.to_string(),
            row.recordings.to_string(),
            row.messages.to_string(),
            row.calls.to_string(),
            row.results.to_string(),
            row.compactions.to_string(),
            row.omitted.to_string(),
            row.round_trips.map(|(good, tried)| format!("{good}/{tried}")).unwrap_or_default(),
            row.violations.values().map(|(count, _)| count).sum::<usize>().to_string(),
            row.errors.len().to_string(),
        ]
    }));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TABLE_HEADER.len()).map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        print_line(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
