//! Engines side by side over a set of conversations.
//!
//! Conversations are replayed in parallel and forgotten at once; what stays are the runs. All
//! numbers are relative to sending everything, with intervals over conversations.

use foldline::transcript::RecordedSession;
use foldline::{Meter, Prices};
use rayon::prelude::*;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::Survey;
use crate::bound::{Clairvoyant, Foresight};
use crate::case::{Case, actions};
use crate::engine::{Maker, Refusal};
use crate::interval::{Estimate, bootstrap};
use crate::policy::{self, Grain, RandomDrop};
use crate::score::{Run, Score, WINDOWS, replay};

/// Who takes part.
pub enum Contestant {
    /// An engine or policy.
    Engine(Box<dyn Maker>),
    /// The bound that knows the future.
    Clairvoyant(Foresight),
    /// Random drop with the tokens of an earlier contestant, by its index.
    RandomLike(usize, Grain),
}

impl Contestant {
    /// The name that tables show.
    pub fn name(&self) -> &str {
        match self {
            Contestant::Engine(maker) => maker.name(),
            Contestant::Clairvoyant(foresight) => foresight.name(),
            Contestant::RandomLike(_, grain) => grain.name(),
        }
    }
}

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens that a rendering may have.
    pub budget: u64,
    /// The prices by which engines decide and bills are made.
    pub prices: Prices,
    /// How tokens are counted.
    pub meter: Meter,
    /// Conversations with fewer calls are left out.
    pub calls: usize,
}

/// The runs of one conversation, in the order of the contestants; the first is sending everything.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The recording's name.
    pub id: String,
    /// Tokens of its last request when everything is sent.
    pub tokens: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// One for each contestant, behind that of sending everything.
    pub runs: Vec<Run>,
}

/// All runs, ready to be looked at.
pub struct Comparison {
    /// The names, `everything` first.
    pub names: Vec<String>,
    /// The conversations.
    pub outcomes: Vec<Outcome>,
    /// The prices of the bills.
    pub prices: Prices,
}

/// Replays recordings through every contestant. `done` is called after each conversation.
pub fn compare(
    recordings: impl Iterator<Item = RecordedSession> + Send,
    survey: &Survey,
    contestants: &[Contestant],
    options: &Options,
    done: impl Fn(&Outcome) + Sync,
) -> Result<Comparison, Refusal> {
    // A conversation is read when a thread is free for it, so only a few are in memory at a time.
    let mut outcomes = recordings
        .enumerate()
        .par_bridge()
        .filter(|(_, recording)| actions(&recording.conversation.messages).len() >= options.calls)
        .map(|(at, recording)| {
            let outcome = outcome(recording, survey, contestants, options)?;
            done(&outcome);
            Ok((at, outcome))
        })
        .collect::<Result<Vec<_>, Refusal>>()?;
    outcomes.sort_by_key(|&(at, _)| at);
    let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let mut names = vec![policy::ALL[0].name().to_owned()];
    names.extend(contestants.iter().map(|it| it.name().to_owned()));
    Ok(Comparison { names, outcomes, prices: options.prices })
}

fn outcome(
    recording: RecordedSession,
    survey: &Survey,
    contestants: &[Contestant],
    options: &Options,
) -> Result<Outcome, Refusal> {
    let case = Case::new(recording, survey, &options.meter);
    let play = |maker: &dyn Maker| {
        replay(&case, maker, options.budget, options.prices).map_err(|refusal| match refusal {
            Refusal::Broken(why) => Refusal::Broken(format!("{} in {}: {why}", maker.name(), case.id)),
            other => other,
        })
    };
    let mut runs = vec![play(&policy::ALL[0])?];
    for contestant in contestants {
        runs.push(match contestant {
            Contestant::Engine(maker) => play(&**maker)?,
            Contestant::Clairvoyant(foresight) => play(&Clairvoyant::new(&case, &options.prices, *foresight))?,
            Contestant::RandomLike(like, grain) => {
                play(&RandomDrop::like(&runs[like + 1].points, *grain, xxh3_64(case.id.as_bytes())))?
            }
        });
    }
    let tokens = runs[0].points.last().map_or(0, |point| point.tokens);
    let output = case.calls.iter().map(|call| call.output).sum();
    Ok(Outcome { id: case.id, tokens, output, runs })
}

/// Which half of a set a conversation is in: one to tune with (`true`), one to check with.
pub fn half(id: &str) -> bool {
    xxh3_64(id.as_bytes()) & 1 == 0
}

/// One contestant over all conversations. Shares are of 1.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The contestant.
    pub name: String,
    /// Input tokens, relative to sending everything.
    pub tokens: Estimate,
    /// The bill, relative to sending everything.
    pub bill: Estimate,
    /// The repaired bill, relative to sending everything.
    pub repaired: Estimate,
    /// The worst conversation's bill, relative to sending everything.
    pub worst: f64,
    /// Conversations whose bill is above that of sending everything, by more than half a percent.
    pub dearer: usize,
    /// Support.
    pub support: Estimate,
    /// Hard support.
    pub hard: Estimate,
    /// Hard support of another conversation's actions: a control.
    pub foreign: Estimate,
    /// The artifact trail: recall.
    pub trail_recall: Estimate,
    /// The artifact trail: precision.
    pub trail_precision: Estimate,
    /// Missteps.
    pub missteps: Estimate,
    /// Edit anchors.
    pub anchors: Estimate,
    /// Instructions.
    pub instructions: f64,
    /// The part of the way to the clairvoyant with the best schedule, when that took part and there is a way.
    pub gap_closed: Option<Estimate>,
    /// The part of the way to the clairvoyant that creases when it pays, when that took part and there is a way.
    pub gap_closed_paying: Option<Estimate>,
    /// Calls that fit each of [`WINDOWS`].
    pub fits: [f64; WINDOWS.len()],
    /// The sums.
    pub score: Score,
}

impl Comparison {
    /// The calls of all conversations.
    pub fn calls(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.runs[0].score.calls).sum()
    }

    /// The scores of a contestant, one for each conversation.
    fn scores(&self, contestant: usize) -> Vec<&Score> {
        self.outcomes.iter().map(|outcome| &outcome.runs[contestant].score).collect()
    }

    /// A contestant's bill and repaired bill at other prices than it decided by, relative to sending everything.
    pub fn billed(&self, contestant: usize, prices: &Prices) -> [f64; 2] {
        let sum = |contestant: usize, of: fn(&Score, &Prices) -> f64| -> f64 {
            self.scores(contestant).into_iter().map(|score| of(score, prices)).sum()
        };
        let full = sum(0, Score::bill).max(f64::MIN_POSITIVE);
        [sum(contestant, Score::bill) / full, sum(contestant, Score::repaired) / full]
    }

    /// One contestant over all conversations.
    pub fn summary(&self, contestant: usize) -> Summary {
        let full = self.scores(0);
        let ours = self.scores(contestant);
        let bound = |foresight: Foresight| {
            self.names.iter().position(|name| name == foresight.name()).map(|at| self.scores(at))
        };
        let count = self.outcomes.len();
        let sum = |scores: &[&Score], draw: &[usize], of: &dyn Fn(&Score) -> f64| -> f64 {
            draw.iter().map(|&at| of(scores[at])).sum()
        };
        let relative = |of: &dyn Fn(&Score) -> f64| {
            bootstrap(count, |draw| sum(&ours, draw, of) / sum(&full, draw, of).max(f64::MIN_POSITIVE))
        };
        let share = |of: &dyn Fn(&Score) -> crate::Share| {
            bootstrap(count, |draw| {
                let all = sum(&ours, draw, &|score| of(score).of as f64);
                if all == 0.0 { 1.0 } else { sum(&ours, draw, &|score| of(score).have as f64) / all }
            })
        };
        let prices = &self.prices;
        let repaired = |score: &Score| score.repaired(prices);
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
            ours.iter().zip(&full).map(|(ours, full)| ours.bill(prices) / full.bill(prices)).collect();
        let mut score = Score::default();
        ours.iter().for_each(|it| score.add(it));
        let sure = share(&|score| score.sure);
        Summary {
            name: self.names[contestant].clone(),
            tokens: relative(&|score| score.tokens as f64),
            bill: relative(&|score| score.bill(prices)),
            repaired: relative(&repaired),
            worst: relative_bills.iter().copied().fold(0.0, f64::max),
            dearer: relative_bills.iter().filter(|&&bill| bill > 1.005).count(),
            support: share(&|score| score.support),
            hard: share(&|score| score.hard),
            foreign: share(&|score| score.foreign),
            trail_recall: share(&|score| score.trail_recall),
            trail_precision: share(&|score| score.trail_precision),
            missteps: Estimate { value: 1.0 - sure.value, low: 1.0 - sure.high, high: 1.0 - sure.low },
            anchors: share(&|score| score.anchors),
            instructions: score.instructions.ratio(),
            gap_closed: gap_closed(Foresight::BestSchedule),
            gap_closed_paying: gap_closed(Foresight::WhenItPays),
            fits: score.fits.map(|fits| fits as f64 / score.calls.max(1) as f64),
            score,
        }
    }
}
