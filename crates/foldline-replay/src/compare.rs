//! Engines side by side over a set of conversations.
//!
//! Conversations are replayed in parallel and forgotten at once; what stays are the runs. All
//! numbers are relative to sending everything, with intervals over conversations.

use foldline::transcript::RecordedSession;
use foldline::{Meter, Prices};
use rayon::prelude::*;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::CorpusStats;
use crate::baselines;
use crate::baselines::{DropUnit, RandomDrop};
use crate::case::{ReplayCase, action_ranges};
use crate::engine::{EngineError, ReplayEngine};
use crate::interval::{IntervalEstimate, bootstrap};
use crate::oracle::{OracleEngine, OracleSchedule};
use crate::score::{ReplayRun, ReplayScore, WINDOW_TOKENS, replay};

/// Who takes part.
pub enum EngineSpec {
    /// An engine or policy.
    Engine(Box<dyn ReplayEngine>),
    /// The bound that knows the future.
    Oracle(OracleSchedule),
    /// Random drop with the tokens of an earlier contestant, by its index.
    RandomMatching(usize, DropUnit),
}

impl EngineSpec {
    /// The name that tables show.
    pub fn name(&self) -> &str {
        match self {
            EngineSpec::Engine(maker) => maker.name(),
            EngineSpec::Oracle(foresight) => foresight.name(),
            EngineSpec::RandomMatching(_, grain) => grain.name(),
        }
    }
}

/// How to compare.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Tokens that a rendering may have.
    pub budget: u64,
    /// The prices by which engines decide and bills are made.
    pub prices: Prices,
    /// How tokens are counted.
    pub meter: Meter,
    /// Conversations with fewer calls are left out.
    pub min_calls: usize,
}

/// The runs of one conversation, in the order of the contestants; the first is sending everything.
#[derive(Clone, Debug, Serialize)]
pub struct SessionOutcome {
    /// The recording's name.
    pub id: String,
    /// Tokens of its last request when everything is sent.
    pub tokens: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// One for each contestant, behind that of sending everything.
    pub runs: Vec<ReplayRun>,
}

/// All runs, ready to be looked at.
pub struct EngineComparison {
    /// The names, `everything` first.
    pub engine_names: Vec<String>,
    /// The conversations.
    pub outcomes: Vec<SessionOutcome>,
    /// The prices of the bills.
    pub prices: Prices,
}

/// Replays recordings through every contestant. `done` is called after each conversation.
pub fn compare_engines(
    recordings: impl Iterator<Item = RecordedSession> + Send,
    survey: &CorpusStats,
    contestants: &[EngineSpec],
    options: &CompareOptions,
    done: impl Fn(&SessionOutcome) + Sync,
) -> Result<EngineComparison, EngineError> {
    // A conversation is read when a thread is free for it, so only a few are in memory at a time.
    let mut outcomes = recordings
        .enumerate()
        .par_bridge()
        .filter(|(_, recording)| action_ranges(&recording.conversation.messages).len() >= options.min_calls)
        .map(|(at, recording)| {
            let outcome = replay_recording(recording, survey, contestants, options)?;
            done(&outcome);
            Ok((at, outcome))
        })
        .collect::<Result<Vec<_>, EngineError>>()?;
    outcomes.sort_by_key(|&(at, _)| at);
    let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let mut names = vec![baselines::BASELINES[0].name().to_owned()];
    names.extend(contestants.iter().map(|it| it.name().to_owned()));
    Ok(EngineComparison { engine_names: names, outcomes, prices: options.prices })
}

fn replay_recording(
    recording: RecordedSession,
    survey: &CorpusStats,
    contestants: &[EngineSpec],
    options: &CompareOptions,
) -> Result<SessionOutcome, EngineError> {
    let case = ReplayCase::new(recording, survey, &options.meter);
    let play = |maker: &dyn ReplayEngine| {
        replay(&case, maker, options.budget, options.prices).map_err(|refusal| match refusal {
            EngineError::Failed(why) => EngineError::Failed(format!("{} in {}: {why}", maker.name(), case.id)),
            other => other,
        })
    };
    let mut runs = vec![play(&baselines::BASELINES[0])?];
    for contestant in contestants {
        runs.push(match contestant {
            EngineSpec::Engine(maker) => play(&**maker)?,
            EngineSpec::Oracle(foresight) => play(&OracleEngine::new(&case, &options.prices, *foresight))?,
            EngineSpec::RandomMatching(like, grain) => {
                play(&RandomDrop::matching(&runs[like + 1].points, *grain, xxh3_64(case.id.as_bytes())))?
            }
        });
    }
    let tokens = runs[0].points.last().map_or(0, |point| point.tokens);
    let output = case.calls.iter().map(|call| call.output_tokens).sum();
    Ok(SessionOutcome { id: case.id, tokens, output, runs })
}

/// Which half of a set a conversation is in: one to tune with (`true`), one to check with.
pub fn is_tuning_half(id: &str) -> bool {
    xxh3_64(id.as_bytes()) & 1 == 0
}

/// One contestant over all conversations. Shares are of 1.
#[derive(Clone, Debug, Serialize)]
pub struct EngineSummary {
    /// The contestant.
    pub name: String,
    /// Input tokens, relative to sending everything.
    pub tokens: IntervalEstimate,
    /// The bill, relative to sending everything.
    pub cost: IntervalEstimate,
    /// The repaired bill, relative to sending everything.
    pub cost_with_retries: IntervalEstimate,
    /// The worst conversation's bill, relative to sending everything.
    pub worst_cost: f64,
    /// Conversations whose bill is above that of sending everything, by more than half a percent.
    pub costlier_sessions: usize,
    /// Support.
    pub context_kept: IntervalEstimate,
    /// Hard support.
    pub needed_context_kept: IntervalEstimate,
    /// Hard support of another conversation's actions: a control.
    pub foreign: IntervalEstimate,
    /// The artifact trail: recall.
    pub trail_recall: IntervalEstimate,
    /// The artifact trail: precision.
    pub trail_precision: IntervalEstimate,
    /// Missteps.
    pub actions_missing_context: IntervalEstimate,
    /// Edit anchors.
    pub edits_that_apply: IntervalEstimate,
    /// Instructions.
    pub instructions_kept: f64,
    /// The part of the way to the clairvoyant with the best schedule, when that took part and there is a way.
    pub optimal_oracle_share: Option<IntervalEstimate>,
    /// The part of the way to the clairvoyant that creases when it pays, when that took part and there is a way.
    pub paying_oracle_share: Option<IntervalEstimate>,
    /// Calls that fit each of [`WINDOWS`].
    pub fits: [f64; WINDOW_TOKENS.len()],
    /// The sums.
    pub score: ReplayScore,
}

impl EngineComparison {
    /// The calls of all conversations.
    pub fn calls(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.runs[0].score.calls).sum()
    }

    /// The scores of a contestant, one for each conversation.
    fn scores(&self, contestant: usize) -> Vec<&ReplayScore> {
        self.outcomes.iter().map(|outcome| &outcome.runs[contestant].score).collect()
    }

    /// A contestant's bill and repaired bill at other prices than it decided by, relative to sending everything.
    pub fn relative_costs(&self, contestant: usize, prices: &Prices) -> [f64; 2] {
        let sum = |contestant: usize, of: fn(&ReplayScore, &Prices) -> f64| -> f64 {
            self.scores(contestant).into_iter().map(|score| of(score, prices)).sum()
        };
        let full = sum(0, ReplayScore::cost).max(f64::MIN_POSITIVE);
        [sum(contestant, ReplayScore::cost) / full, sum(contestant, ReplayScore::cost_with_retries) / full]
    }

    /// One contestant over all conversations.
    pub fn summary(&self, contestant: usize) -> EngineSummary {
        let full = self.scores(0);
        let ours = self.scores(contestant);
        let bound = |foresight: OracleSchedule| {
            self.engine_names.iter().position(|name| name == foresight.name()).map(|at| self.scores(at))
        };
        let count = self.outcomes.len();
        let sum = |scores: &[&ReplayScore], draw: &[usize], of: &dyn Fn(&ReplayScore) -> f64| -> f64 {
            draw.iter().map(|&at| of(scores[at])).sum()
        };
        let relative = |of: &dyn Fn(&ReplayScore) -> f64| {
            bootstrap(count, |draw| sum(&ours, draw, of) / sum(&full, draw, of).max(f64::MIN_POSITIVE))
        };
        let share = |of: &dyn Fn(&ReplayScore) -> crate::HitRatio| {
            bootstrap(count, |draw| {
                let all = sum(&ours, draw, &|score| of(score).total as f64);
                if all == 0.0 { 1.0 } else { sum(&ours, draw, &|score| of(score).hits as f64) / all }
            })
        };
        let prices = &self.prices;
        let repaired = |score: &ReplayScore| score.cost_with_retries(prices);
        let gap_closed = |foresight| {
            let closed = bound(foresight).map(|best| {
                bootstrap(count, |draw| {
                    let [full, ours, best] = [&full, &ours, &best].map(|scores| sum(scores, draw, &repaired));
                    (full - ours) / (full - best)
                })
            });
            closed.filter(|it| it.value.is_finite())
        };
        let relative_bills: Vec<f64> =
            ours.iter().zip(&full).map(|(ours, full)| ours.cost(prices) / full.cost(prices)).collect();
        let mut score = ReplayScore::default();
        ours.iter().for_each(|it| score.add(it));
        let sure = share(&|score| score.complete_actions);
        EngineSummary {
            name: self.engine_names[contestant].clone(),
            tokens: relative(&|score| score.tokens as f64),
            cost: relative(&|score| score.cost(prices)),
            cost_with_retries: relative(&repaired),
            worst_cost: relative_bills.iter().copied().fold(0.0, f64::max),
            costlier_sessions: relative_bills.iter().filter(|&&bill| bill > 1.005).count(),
            context_kept: share(&|score| score.context_kept),
            needed_context_kept: share(&|score| score.needed_context_kept),
            foreign: share(&|score| score.foreign),
            trail_recall: share(&|score| score.trail_recall),
            trail_precision: share(&|score| score.trail_precision),
            actions_missing_context: IntervalEstimate {
                value: 1.0 - sure.value,
                low: 1.0 - sure.high,
                high: 1.0 - sure.low,
            },
            edits_that_apply: share(&|score| score.edits_that_apply),
            instructions_kept: score.instructions_kept.ratio(),
            optimal_oracle_share: gap_closed(OracleSchedule::Optimal),
            paying_oracle_share: gap_closed(OracleSchedule::Profitable),
            fits: score.fits.map(|fits| fits as f64 / score.calls.max(1) as f64),
            score,
        }
    }
}
