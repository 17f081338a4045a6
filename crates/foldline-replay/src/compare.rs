//! Comparison of engines over a set of conversations.
//!
//! Conversations are replayed in parallel and released at once; only the runs are kept. All
//! numbers are relative to no compaction, with intervals over conversations.

use foldline::conversation::task_title;
use foldline::transcript::RecordedSession;
use foldline::{Meter, Prices};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

use crate::CorpusStats;
use crate::actions::action_ranges;
use crate::baselines;
use crate::baselines::{DropUnit, EqualTokensDrop};
use crate::case::ReplayCase;
use crate::engine::{EngineError, ReplayEngine};
use crate::interval::{IntervalEstimate, bootstrap};
use crate::oracle::{OracleEngine, OracleSchedule};
use crate::score::{ReplayRun, ReplayScore, WINDOW_TOKENS, replay};

/// An engine of a comparison.
pub enum EngineSpec {
    /// An engine or policy.
    Engine(Box<dyn ReplayEngine>),
    /// The oracle that knows the future.
    Oracle(OracleSchedule),
    /// A drop with the tokens of an earlier engine, by its index.
    EqualTokens(usize, DropUnit),
}

impl fmt::Debug for EngineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineSpec::Engine(_) => f.write_str("Engine(..)"),
            EngineSpec::Oracle(schedule) => f.debug_tuple("Oracle").field(schedule).finish(),
            EngineSpec::EqualTokens(engine, unit) => f.debug_tuple("EqualTokens").field(engine).field(unit).finish(),
        }
    }
}

impl EngineSpec {
    /// Returns the name shown in tables.
    pub fn name(&self) -> &str {
        match self {
            EngineSpec::Engine(engine) => engine.name(),
            EngineSpec::Oracle(schedule) => schedule.name(),
            EngineSpec::EqualTokens(_, unit) => unit.name(),
        }
    }
}

/// Options of a comparison.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Maximum tokens of a rendering.
    pub budget: u64,
    /// The prices by which engines decide and costs are computed.
    pub prices: Prices,
    /// The token counter.
    pub meter: Meter,
    /// Minimum calls of a conversation; shorter ones are skipped.
    pub min_calls: usize,
}

/// A choice of prices for each recording.
pub type PriceChoice<'a> = &'a (dyn Fn(&RecordedSession) -> Prices + Sync);

/// What people recognize a recorded session by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOrigin {
    /// The day of its first entry, as YYYY-MM-DD.
    pub date: Option<String>,
    /// The name of the folder in which the agent worked.
    pub project: Option<String>,
    /// First words of the task.
    pub title: Option<String>,
}

impl SessionOrigin {
    fn new(recording: &RecordedSession) -> Self {
        let title = task_title(&recording.conversation.messages);
        Self { date: recording.date.clone(), project: recording.project.clone(), title }
    }
}

/// The runs of one conversation, in the order of the engines; the first is no compaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionOutcome {
    /// The recording's name.
    pub id: String,
    /// Its day, project and task.
    #[serde(flatten)]
    pub origin: SessionOrigin,
    /// Tokens of its last request without compaction.
    pub tokens: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// The prices by which engines decided and costs are computed.
    #[serde(with = "crate::exact_prices")]
    pub prices: Prices,
    /// One run per engine, after the run without compaction.
    pub runs: Vec<ReplayRun>,
}

/// The runs of one conversation, and its position in the set of recordings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlacedOutcome {
    /// Index of the recording in the whole set.
    pub position: usize,
    /// The runs.
    pub outcome: SessionOutcome,
}

/// All runs of a comparison.
#[derive(Debug)]
pub struct EngineComparison {
    /// The names, `no compaction` first.
    pub engine_names: Vec<String>,
    /// The conversations.
    pub outcomes: Vec<SessionOutcome>,
    /// The prices of the costs: of all conversations, or their average, weighted by input tokens.
    pub prices: Prices,
}

/// Replays recordings through every engine. `done` is called after each conversation.
///
/// # Errors
///
/// Fails if an engine fails, with its name and the conversation.
pub fn compare_engines(
    recordings: impl Iterator<Item = RecordedSession> + Send,
    corpus: &CorpusStats,
    engines: &[EngineSpec],
    options: &CompareOptions,
    done: impl Fn(&SessionOutcome) + Sync,
) -> Result<EngineComparison, EngineError> {
    compare_engines_at(recordings, corpus, engines, options, &|_| options.prices, done)
}

/// Replays recordings through every engine, each at prices of its own. `done` is called after each conversation.
///
/// # Errors
///
/// Fails if an engine fails, with its name and the conversation.
pub fn compare_engines_at(
    recordings: impl Iterator<Item = RecordedSession> + Send,
    corpus: &CorpusStats,
    engines: &[EngineSpec],
    options: &CompareOptions,
    prices: PriceChoice<'_>,
    done: impl Fn(&SessionOutcome) + Sync,
) -> Result<EngineComparison, EngineError> {
    let outcomes = replay_recordings(recordings.enumerate(), corpus, engines, options, prices, done)?;
    let outcomes = outcomes.into_iter().map(|placed| placed.outcome).collect();
    Ok(EngineComparison::new(engine_names(engines), outcomes, options.prices))
}

/// Replays recordings, given with their positions in a set, through every engine. Returns the outcomes by position.
/// `done` is called after each conversation.
///
/// # Errors
///
/// Fails if an engine fails, with its name and the conversation.
pub fn replay_recordings(
    recordings: impl Iterator<Item = (usize, RecordedSession)> + Send,
    corpus: &CorpusStats,
    engines: &[EngineSpec],
    options: &CompareOptions,
    prices: PriceChoice<'_>,
    done: impl Fn(&SessionOutcome) + Sync,
) -> Result<Vec<PlacedOutcome>, EngineError> {
    // A conversation is read when a thread is free for it, so only a few are in memory at a time.
    let mut outcomes = recordings
        .par_bridge()
        .filter(|(_, recording)| action_ranges(&recording.conversation.messages).len() >= options.min_calls)
        .map(|(position, recording)| {
            let options = CompareOptions { prices: prices(&recording), ..options.clone() };
            let outcome = replay_recording(recording, corpus, engines, &options)?;
            done(&outcome);
            Ok(PlacedOutcome { position, outcome })
        })
        .collect::<Result<Vec<_>, EngineError>>()?;
    outcomes.sort_by_key(|placed| placed.position);
    Ok(outcomes)
}

/// Returns the names of all rows of a comparison: no compaction, then the engines.
pub fn engine_names(engines: &[EngineSpec]) -> Vec<String> {
    let mut names = vec![baselines::BASELINES[0].name().to_owned()];
    names.extend(engines.iter().map(|it| it.name().to_owned()));
    names
}

/// Returns the common prices of conversations, or their average, weighted by the input tokens without compaction.
fn average_prices(outcomes: &[SessionOutcome]) -> Option<Prices> {
    let first = outcomes.first()?.prices;
    if outcomes.iter().all(|outcome| outcome.prices == first) {
        return Some(first);
    }
    let total: f64 = outcomes.iter().map(|outcome| outcome.runs[0].score.tokens as f64).sum();
    let average = |field: fn(&Prices) -> f64| -> f64 {
        let weighted = outcomes.iter().map(|outcome| field(&outcome.prices) * outcome.runs[0].score.tokens as f64);
        weighted.sum::<f64>() / total.max(1.0)
    };
    let mut prices = first;
    prices.read = average(|prices| prices.read);
    prices.write = average(|prices| prices.write);
    prices.output = average(|prices| prices.output);
    prices.base_usd = average(|prices| prices.base_usd);
    Some(prices)
}

fn replay_recording(
    recording: RecordedSession,
    corpus: &CorpusStats,
    engines: &[EngineSpec],
    options: &CompareOptions,
) -> Result<SessionOutcome, EngineError> {
    let origin = SessionOrigin::new(&recording);
    let case = ReplayCase::new(recording, corpus, &options.meter);
    let run = |engine: &dyn ReplayEngine| {
        replay(&case, engine, options.budget, options.prices).map_err(|error| match error {
            EngineError::Failed(reason) => EngineError::Failed(format!("{} in {}: {reason}", engine.name(), case.id)),
            other => other,
        })
    };
    let mut runs = vec![run(&baselines::BASELINES[0])?];
    for spec in engines {
        runs.push(match spec {
            EngineSpec::Engine(engine) => run(&**engine)?,
            EngineSpec::Oracle(schedule) => run(&OracleEngine::new(&case, &options.prices, *schedule))?,
            EngineSpec::EqualTokens(like, unit) => {
                run(&EqualTokensDrop::matching(&runs[like + 1].points, *unit, xxh3_64(case.id.as_bytes())))?
            }
        });
    }
    let tokens = runs[0].points.last().map_or(0, |point| point.tokens);
    let output = case.calls.iter().map(|call| call.output_tokens).sum();
    Ok(SessionOutcome { id: case.id, origin, tokens, output, prices: options.prices, runs })
}

/// Returns true if a conversation is in the tuning half of a set, and false if it is in the validation half.
pub fn is_tuning_half(id: &str) -> bool {
    xxh3_64(id.as_bytes()) & 1 == 0
}

/// Results of one engine over all conversations. Shares are relative to 1.
#[derive(Clone, Debug, Serialize)]
pub struct EngineSummary {
    /// The engine's name.
    pub name: String,
    /// Input tokens, relative to no compaction.
    pub tokens: IntervalEstimate,
    /// Cost, relative to no compaction.
    pub cost: IntervalEstimate,
    /// Cost including retries, relative to no compaction.
    pub cost_with_retries: IntervalEstimate,
    /// Cost of the worst conversation, relative to no compaction.
    pub worst_cost: f64,
    /// Conversations that cost more than without compaction, by more than half a percent.
    pub costlier_sessions: usize,
    /// Share of all needed identifiers that were kept, recent ones included.
    pub context_kept: IntervalEstimate,
    /// Share of needed identifiers that were kept, of those that recency alone does not give.
    pub needed_context_kept: IntervalEstimate,
    /// The same by whole strings, an independent definition.
    pub needed_strings_kept: IntervalEstimate,
    /// The same for another conversation's actions: a control.
    pub foreign: IntervalEstimate,
    /// Recall of the artifact trail.
    pub trail_recall: IntervalEstimate,
    /// Precision of the artifact trail.
    pub trail_precision: IntervalEstimate,
    /// Share of actions that miss needed context or the old text of an edit.
    pub actions_missing_context: IntervalEstimate,
    /// Share of edits whose old text was sent in one piece.
    pub edits_that_apply: IntervalEstimate,
    /// Share of user and system texts that were sent verbatim.
    pub instructions_kept: f64,
    /// Share of the saving of the oracle with the optimal schedule, if it was replayed and saves anything.
    pub optimal_oracle_share: Option<IntervalEstimate>,
    /// Share of the saving of the oracle that creases when it pays, if it was replayed and saves anything.
    pub paying_oracle_share: Option<IntervalEstimate>,
    /// Share of calls that fit each of [`WINDOW_TOKENS`].
    pub fits: [f64; WINDOW_TOKENS.len()],
    /// The sums.
    pub score: ReplayScore,
}

impl EngineComparison {
    /// Creates the comparison of these conversations. Without any, it has the given prices.
    pub fn new(engine_names: Vec<String>, outcomes: Vec<SessionOutcome>, default_prices: Prices) -> Self {
        let prices = average_prices(&outcomes).unwrap_or(default_prices);
        Self { engine_names, outcomes, prices }
    }

    /// Returns the number of calls of all conversations.
    pub fn calls(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.runs[0].score.calls).sum()
    }

    /// Returns the scores of an engine, one per conversation.
    fn scores(&self, engine: usize) -> Vec<&ReplayScore> {
        self.outcomes.iter().map(|outcome| &outcome.runs[engine].score).collect()
    }

    /// Returns an engine's cost and cost including retries at other prices than it decided by, relative to no
    /// compaction.
    pub fn relative_costs(&self, engine: usize, prices: &Prices) -> [f64; 2] {
        let sum = |engine: usize, metric: fn(&ReplayScore, &Prices) -> f64| -> f64 {
            self.scores(engine).into_iter().map(|score| metric(score, prices)).sum()
        };
        let full = sum(0, ReplayScore::cost).max(f64::MIN_POSITIVE);
        [sum(engine, ReplayScore::cost) / full, sum(engine, ReplayScore::cost_with_retries) / full]
    }

    /// Returns the input cost of an engine in dollars, over the conversations whose models have a price; none if no
    /// conversation has one.
    pub fn dollars(&self, engine: usize) -> Option<f64> {
        let priced: Vec<&SessionOutcome> = self.outcomes.iter().filter(|it| it.prices.base_usd > 0.0).collect();
        let dollars = |it: &&SessionOutcome| it.prices.dollars(it.runs[engine].score.cost(&it.prices));
        (!priced.is_empty()).then(|| priced.iter().map(dollars).sum())
    }

    /// Returns the number of conversations whose models have no price.
    pub fn unpriced_count(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.prices.base_usd <= 0.0).count()
    }

    /// Returns the costs of an engine, one per conversation, at its own prices. They are comparable: in dollars if
    /// prices differ and all have one, otherwise in input tokens.
    fn costs(&self, engine: usize, metric: fn(&ReplayScore, &Prices) -> f64) -> Vec<f64> {
        let base = |outcome: &SessionOutcome| outcome.prices.base_usd;
        let differ = self.outcomes.windows(2).any(|pair| base(&pair[0]) != base(&pair[1]));
        let in_dollars = differ && self.outcomes.iter().all(|outcome| base(outcome) > 0.0);
        let cost = |outcome: &SessionOutcome| {
            metric(&outcome.runs[engine].score, &outcome.prices) * if in_dollars { base(outcome) } else { 1.0 }
        };
        self.outcomes.iter().map(cost).collect()
    }

    /// Summarizes every engine over all conversations, in order.
    pub fn summaries(&self) -> Vec<EngineSummary> {
        (0..self.engine_names.len()).into_par_iter().map(|engine| self.summary(engine)).collect()
    }

    /// Summarizes one engine over all conversations.
    pub fn summary(&self, engine: usize) -> EngineSummary {
        let full = self.scores(0);
        let ours = self.scores(engine);
        let count = self.outcomes.len();
        let values = |scores: &[&ReplayScore], metric: &dyn Fn(&ReplayScore) -> f64| -> Vec<f64> {
            scores.iter().map(|score| metric(score)).collect()
        };
        let total = |values: &[f64], draw: &[usize]| -> f64 { draw.iter().map(|&at| values[at]).sum() };
        let relative_to = |ours: &[f64], full: &[f64]| {
            bootstrap(count, |draw| total(ours, draw) / total(full, draw).max(f64::MIN_POSITIVE))
        };
        let relative =
            |metric: &dyn Fn(&ReplayScore) -> f64| relative_to(&values(&ours, metric), &values(&full, metric));
        let share = |metric: &dyn Fn(&ReplayScore) -> crate::HitRatio| {
            let hits = values(&ours, &|score| metric(score).hits as f64);
            let totals = values(&ours, &|score| metric(score).total as f64);
            bootstrap(count, |draw| {
                let all = total(&totals, draw);
                if all == 0.0 { 1.0 } else { total(&hits, draw) / all }
            })
        };
        let [full_cost, our_cost] = [0, engine].map(|row| self.costs(row, ReplayScore::cost));
        let [full_retries, our_retries] = [0, engine].map(|row| self.costs(row, ReplayScore::cost_with_retries));
        let oracle_share = |schedule: OracleSchedule| {
            let row = self.engine_names.iter().position(|name| name == schedule.name())?;
            let best = self.costs(row, ReplayScore::cost_with_retries);
            let share = bootstrap(count, |draw| {
                let [full, ours, best] = [&full_retries, &our_retries, &best].map(|costs| total(costs, draw));
                (full - ours) / (full - best)
            });
            Some(share).filter(|it| it.value.is_finite())
        };
        let relative_costs: Vec<f64> = our_cost.iter().zip(&full_cost).map(|(ours, full)| ours / full).collect();
        let mut score = ReplayScore::default();
        ours.iter().for_each(|it| score.add(it));
        let complete = share(&|score| score.complete_actions);
        EngineSummary {
            name: self.engine_names[engine].clone(),
            tokens: relative(&|score| score.tokens as f64),
            cost: relative_to(&our_cost, &full_cost),
            cost_with_retries: relative_to(&our_retries, &full_retries),
            worst_cost: relative_costs.iter().copied().fold(0.0, f64::max),
            costlier_sessions: relative_costs.iter().filter(|&&cost| cost > 1.005).count(),
            context_kept: share(&|score| score.context_kept),
            needed_context_kept: share(&|score| score.needed_context_kept),
            needed_strings_kept: share(&|score| score.needed_strings_kept),
            foreign: share(&|score| score.foreign),
            trail_recall: share(&|score| score.trail_recall),
            trail_precision: share(&|score| score.trail_precision),
            actions_missing_context: IntervalEstimate {
                value: 1.0 - complete.value,
                low: 1.0 - complete.high,
                high: 1.0 - complete.low,
            },
            edits_that_apply: share(&|score| score.edits_that_apply),
            instructions_kept: score.instructions_kept.ratio(),
            optimal_oracle_share: oracle_share(OracleSchedule::Optimal),
            paying_oracle_share: oracle_share(OracleSchedule::Profitable),
            fits: score.fits.map(|fits| fits as f64 / score.calls.max(1) as f64),
            score,
        }
    }
}
