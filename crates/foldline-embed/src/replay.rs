//! Replays of recorded sessions: what folding would have saved, cost and lost.

use std::path::PathBuf;

use foldline::models::PriceTable;
use foldline::tokens::Tokens;
use foldline::transcript::RecordedSession;
use foldline::{Meter, ModelTable, Policy};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineSpec, FoldlineEngine, PlacedOutcome, RecordingFiles,
    RecordingSetHash, ReplayShard, ShardContext, ShardResult, engine_names, merge_shards,
};
use serde::Deserialize;

use crate::error::{EmbedError, EmbedErrorKind};

/// The options of a replay.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplayOptions {
    /// Maximum tokens of a request.
    pub budget: Tokens,
    /// Name of the policy.
    pub policy: String,
    /// Name of the price table.
    pub prices: String,
    /// Model whose tokens are counted.
    pub model: String,
    /// Minimum calls of a session; shorter ones are skipped.
    pub min_calls: usize,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            budget: 128_000,
            policy: "balanced".to_owned(),
            prices: "anthropic-5m".to_owned(),
            model: "gpt-4o".to_owned(),
            min_calls: 10,
        }
    }
}

impl ReplayOptions {
    /// Parses options from a JSON object.
    ///
    /// # Errors
    ///
    /// If a field is unknown or has another type.
    pub fn from_json(json: &str) -> Result<Self, EmbedError> {
        serde_json::from_str(json).map_err(|error| EmbedError::invalid(format_args!("bad options: {error}")))
    }
}

/// A replay of recordings with resolved options.
struct PlannedReplay<'p> {
    paths: &'p [PathBuf],
    options: &'p ReplayOptions,
    compare: CompareOptions,
    engines: [EngineSpec; 1],
    corpus: CorpusStats,
}

impl<'p> PlannedReplay<'p> {
    /// Resolves the options, and reads all recordings for what they have in common.
    fn new(paths: &'p [PathBuf], options: &'p ReplayOptions) -> Result<Self, EmbedError> {
        let policy: Policy = options.policy.parse().map_err(EmbedError::invalid)?;
        let prices = PriceTable::builtin().get(&options.prices);
        let prices =
            prices.ok_or_else(|| EmbedError::invalid(format_args!("unknown price table {:?}", options.prices)))?;
        let compare = CompareOptions {
            budget: options.budget,
            prices,
            meter: Meter::for_model(ModelTable::builtin(), Some(&options.model)),
            min_calls: options.min_calls.max(1),
        };
        let engines = [EngineSpec::Engine(Box::new(FoldlineEngine::new(policy)))];
        let corpus = CorpusStats::from_recordings(read_recordings(paths)?);
        Ok(Self { paths, options, compare, engines, corpus })
    }

    /// Replays the recordings for which `is_selected` returns true, and adds all recordings to `set_hash`.
    fn run(
        &self,
        set_hash: &mut RecordingSetHash,
        is_selected: impl Fn(&RecordedSession) -> bool + Sync,
    ) -> Result<Vec<PlacedOutcome>, EmbedError> {
        let recordings = read_recordings(self.paths)?.inspect(|recording| set_hash.add(recording)).enumerate();
        let selected = recordings.filter(|(_, recording)| is_selected(recording));
        foldline_replay::replay_recordings(
            selected,
            &self.corpus,
            &self.engines,
            &self.compare,
            &|_| self.compare.prices,
            |_| (),
        )
        .map_err(|error| EmbedError::new(EmbedErrorKind::Failed, error))
    }

    /// Returns what all shards of a replay must have in common.
    fn context(&self) -> ShardContext {
        let options = self.options;
        let settings = [
            ("budget", options.budget.to_string()),
            ("policy", options.policy.clone()),
            ("prices", options.prices.clone()),
            ("model", options.model.clone()),
            ("min_calls", self.compare.min_calls.to_string()),
        ];
        let left_out = self.corpus.shorter_than(self.compare.min_calls);
        ShardContext {
            settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
            data_set: String::new(),
            date: String::new(),
            left_out: left_out.into_iter().map(|(id, calls)| (id.to_owned(), calls)).collect(),
        }
    }
}

/// The version that the results of shards must have in common.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The row of foldline, after no compaction.
const SUBJECT: usize = 1;

/// Replays the recordings in files and folders. Returns a JSON object with the number of sessions and calls and a
/// summary per engine: no compaction, then foldline. Nothing leaves the machine.
///
/// # Errors
///
/// If a path cannot be read, an option is unknown, or there is no session with enough calls.
pub fn replay_recordings(paths: &[PathBuf], options: &ReplayOptions) -> Result<String, EmbedError> {
    let plan = PlannedReplay::new(paths, options)?;
    let outcomes = plan.run(&mut RecordingSetHash::default(), |_| true)?;
    let outcomes = outcomes.into_iter().map(|placed| placed.outcome).collect();
    let comparison = EngineComparison::new(engine_names(&plan.engines), outcomes, plan.compare.prices);
    report(&comparison, &plan.compare.min_calls.to_string())
}

/// Replays one shard of the recordings, such as `2/8`: the sessions whose names belong to it. Every shard needs all
/// recordings. Returns its result for [`merge_replays`].
///
/// # Errors
///
/// If a path cannot be read, or an option or the shard is not valid. A shard without sessions has a result, too.
pub fn replay_shard(paths: &[PathBuf], options: &ReplayOptions, shard: &str) -> Result<String, EmbedError> {
    let shard: ReplayShard = shard.parse().map_err(EmbedError::invalid)?;
    let plan = PlannedReplay::new(paths, options)?;
    let mut set_hash = RecordingSetHash::default();
    let outcomes = plan.run(&mut set_hash, |recording| shard.contains(&recording.id))?;
    let names = engine_names(&plan.engines);
    Ok(ShardResult::new(shard, VERSION, plan.context(), &set_hash, names, outcomes, SUBJECT).to_json())
}

/// Merges the results of all shards, in any order. Returns what [`replay_recordings`] returns for all recordings, byte
/// for byte.
///
/// # Errors
///
/// If a shard is missing or appears twice, if settings, recordings or versions differ, or if there is no session with
/// enough calls.
pub fn merge_replays(results: &[String]) -> Result<String, EmbedError> {
    let parse = |(number, text): (usize, &String)| {
        let name = format!("result {number}");
        ShardResult::parse(&name, text, VERSION).map(|result| (name, result))
    };
    let parsed = (1..).zip(results).map(parse).collect::<Result<_, _>>().map_err(EmbedError::invalid)?;
    let merged = merge_shards(parsed).map_err(EmbedError::invalid)?;
    let min_calls = merged.context.settings.get("min_calls").map_or("", String::as_str);
    report(&merged.comparison, min_calls)
}

fn read_recordings(paths: &[PathBuf]) -> Result<impl Iterator<Item = RecordedSession> + Send + use<>, EmbedError> {
    let files = RecordingFiles::from_paths(paths).map_err(EmbedError::invalid)?;
    Ok(files.filter_map(Result::ok))
}

fn report(comparison: &EngineComparison, min_calls: &str) -> Result<String, EmbedError> {
    if comparison.outcomes.is_empty() {
        return Err(EmbedError::invalid(format_args!("no recorded session has {min_calls} calls or more")));
    }
    let engines = comparison.summaries();
    let report = serde_json::json!({
        "sessions": comparison.outcomes.len(),
        "calls": comparison.calls(),
        "engines": engines,
    });
    Ok(report.to_string())
}
