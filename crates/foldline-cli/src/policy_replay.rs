//! The replay behind the dashboard's comparison of policies: the newest sessions in the logs of agents on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use foldline::{Meter, ModelTable, Policy};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineSpec, EngineSummary, FoldlineEngine, RecordingFiles, compare_engines_at,
};
use foldline_server::proxy::{PolicyReplay, PolicyReport, PolicyRow};

use crate::command::replay::{FALLBACK_PRICES, named_prices, session_prices};
use crate::environment::client_folders;

/// Maximum number of log files, and of their bytes together.
const MAX_FILES: usize = 40;
const MAX_BYTES: u64 = 64 << 20;
/// Depth to which folders are searched.
const MAX_DEPTH: usize = 6;
/// Sessions with fewer calls are skipped.
const MIN_CALLS: usize = 10;
/// Maximum tokens of a request.
const BUDGET: u64 = 128_000;

/// Replays the logs of agents on this machine.
#[derive(Debug)]
pub(crate) struct LocalReplay {
    folders: Vec<PathBuf>,
    current: Policy,
}

impl LocalReplay {
    /// Creates the replay for a proxy with this policy; none if no agent has logs here.
    pub(crate) fn new(current: Policy) -> Option<Self> {
        let clients = client_folders();
        let folders = [clients.claude.join("projects"), clients.codex.join("sessions")];
        let folders: Vec<PathBuf> = folders.into_iter().filter(|folder| folder.is_dir()).collect();
        (!folders.is_empty()).then_some(Self { folders, current })
    }
}

impl PolicyReplay for LocalReplay {
    fn compare(&self) -> Result<PolicyReport, String> {
        let files = newest_files(&self.folders);
        let read = || RecordingFiles::from_paths(&files).map_err(|error| error.to_string());
        let corpus = CorpusStats::from_recordings(read()?.filter_map(Result::ok));
        let options = CompareOptions {
            budget: BUDGET,
            prices: named_prices(FALLBACK_PRICES).map_err(|error| error.to_string())?,
            meter: Meter::for_model(ModelTable::builtin(), Some("gpt-4o")),
            min_calls: MIN_CALLS,
        };
        let policies = [Policy::lossless(), Policy::balanced(), Policy::tight()];
        let engine = |policy: &Policy| EngineSpec::Engine(Box::new(FoldlineEngine::new(policy.clone())));
        let engines: Vec<EngineSpec> = policies.iter().map(engine).collect();
        let prices = |recording: &_| session_prices(recording, &options);
        let recordings = read()?.filter_map(Result::ok);
        let comparison = compare_engines_at(recordings, &corpus, &engines, &options, &prices, |_| ())
            .map_err(|error| error.to_string())?;
        if comparison.outcomes.is_empty() {
            return Err(format!("No recorded session on this machine has {MIN_CALLS} calls or more yet. In detail:"));
        }
        // The first engine is no compaction.
        let rows = policies.iter().zip(1..).map(|(policy, engine)| {
            let EngineSummary { tokens, cost, cost_with_retries, needed_context_kept, .. } = comparison.summary(engine);
            PolicyRow {
                policy: policy.name.to_owned(),
                is_current: policy.name == self.current.name,
                tokens: tokens.value,
                cost: cost.value,
                cost_with_retries: cost_with_retries.value,
                needed_context_kept: needed_context_kept.value,
            }
        });
        Ok(PolicyReport { sessions: comparison.outcomes.len(), rows: rows.collect() })
    }
}

/// Returns the newest log files in folders, within the limits.
fn newest_files(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    folders.iter().for_each(|folder| collect_logs(folder, MAX_DEPTH, &mut found));
    found.sort_by_key(|(time, _, _)| std::cmp::Reverse(*time));
    let mut bytes = 0;
    let within = found.into_iter().take(MAX_FILES).take_while(|(_, size, _)| {
        bytes += size;
        bytes <= MAX_BYTES
    });
    within.map(|(_, _, path)| path).collect()
}

/// Adds the logs below a folder, with their times and sizes. What cannot be read is skipped.
fn collect_logs(folder: &Path, depth: usize, found: &mut Vec<(SystemTime, u64, PathBuf)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(facts)) = (entry.path(), entry.metadata()) else { continue };
        if facts.is_dir() && depth > 0 {
            collect_logs(&path, depth - 1, found);
        } else if facts.is_file() && path.extension().is_some_and(|ending| ending == "jsonl") {
            found.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), facts.len(), path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_logs_come_first_and_other_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("a/b");
        fs::create_dir_all(&project).unwrap();
        for (at, name) in ["old.jsonl", "new.jsonl", "notes.txt"].into_iter().enumerate() {
            let path = project.join(name);
            fs::write(&path, "{}\n").unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000 + at as u64);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        let files = newest_files(&[folder.path().to_owned()]);
        assert_eq!(files, [project.join("new.jsonl"), project.join("old.jsonl")]);
    }

    #[test]
    fn folder_without_sessions_gives_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let replay = LocalReplay { folders: vec![folder.path().to_owned()], current: Policy::balanced() };
        assert!(replay.compare().unwrap_err().contains("No recorded session"));
    }
}
