//! Replays of recorded sessions: what folding would have saved, cost and lost.

use std::path::PathBuf;

use foldline::models::PriceTable;
use foldline::tokens::Tokens;
use foldline::transcript::RecordedSession;
use foldline::{Meter, ModelTable, Policy};
use foldline_replay::{CompareOptions, CorpusStats, EngineSpec, FoldlineEngine, RecordingFiles, compare_engines};
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

/// Replays the recordings in files and folders. Returns a JSON object with the number of sessions and calls and a
/// summary per engine: no compaction, then foldline. Nothing leaves the machine.
///
/// # Errors
///
/// If a path cannot be read, an option is unknown, or there is no session with enough calls.
pub fn replay_recordings(paths: &[PathBuf], options: &ReplayOptions) -> Result<String, EmbedError> {
    let policy: Policy = options.policy.parse().map_err(EmbedError::invalid)?;
    let prices = PriceTable::builtin().get(&options.prices);
    let prices = prices.ok_or_else(|| EmbedError::invalid(format_args!("unknown price table {:?}", options.prices)))?;
    let compare = CompareOptions {
        budget: options.budget,
        prices,
        meter: Meter::for_model(ModelTable::builtin(), Some(&options.model)),
        min_calls: options.min_calls.max(1),
    };
    let read = || -> Result<_, EmbedError> {
        let files = RecordingFiles::from_paths(paths).map_err(EmbedError::invalid)?;
        Ok(files.filter_map(Result::ok).collect::<Vec<RecordedSession>>().into_iter())
    };
    let corpus = CorpusStats::from_recordings(read()?);
    let engines = [EngineSpec::Engine(Box::new(FoldlineEngine::new(policy)))];
    let comparison = compare_engines(read()?, &corpus, &engines, &compare, |_| ())
        .map_err(|error| EmbedError::new(EmbedErrorKind::Failed, error))?;
    if comparison.outcomes.is_empty() {
        return Err(EmbedError::invalid(format_args!("no recorded session has {} calls or more", compare.min_calls)));
    }
    let engines: Vec<_> = (0..comparison.engine_names.len()).map(|at| comparison.summary(at)).collect();
    let report = serde_json::json!({
        "sessions": comparison.outcomes.len(),
        "calls": comparison.calls(),
        "engines": engines,
    });
    Ok(report.to_string())
}
