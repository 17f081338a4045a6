//! Scoring: one engine over one conversation.

use foldline::{Handle, Prices};
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::case::{Call, Case, Place};
use crate::engine::{Engine, Maker, Refusal, Setup};
use crate::rendering::{Rendering, Sent};
use crate::validity::laws_broken;

/// The windows at which survival is told, in tokens.
pub const WINDOWS: [u64; 5] = [8_000, 16_000, 32_000, 64_000, 128_000];

/// Tokens that the model writes to ask for an original.
const ASK: u64 = 60;

/// The artifact trail is looked at once in so many calls.
const TRAIL_STEP: usize = 8;

/// So many creases of a conversation are checked for broken laws; engines that crease at every call
/// would be checked for nothing else.
const LAWFUL_LOOKS: u64 = 24;

/// How many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many.
    pub have: u64,
    /// Of how many.
    pub of: u64,
}

impl Share {
    /// The share, 1 when there was nothing to have.
    pub fn ratio(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.have as f64 / self.of as f64 }
    }

    fn count(&mut self, has: bool) {
        self.of += 1;
        self.have += u64::from(has);
    }

    fn add(&mut self, other: Share) {
        self.have += other.have;
        self.of += other.of;
    }
}

/// Tokens by what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Read from the provider's cache.
    pub read: u64,
    /// Written to it.
    pub written: u64,
    /// Written by the model beyond what the recording has.
    pub output: u64,
}

impl Spent {
    /// What it costs, in input tokens.
    pub fn bill(self, prices: &Prices) -> f64 {
        self.read as f64 * prices.read + self.written as f64 * prices.write + self.output as f64 * prices.output
    }

    fn add(&mut self, other: Spent) {
        self.read += other.read;
        self.written += other.written;
        self.output += other.output;
    }
}

/// What an engine did to a conversation. Scores of conversations add up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Score {
    /// Calls replayed.
    pub calls: u64,
    /// Calls for which the engine gave no rendering.
    pub refused: u64,
    /// Input tokens over all calls.
    pub tokens: u64,
    /// The largest request.
    pub peak: u64,
    /// Calls at which bytes that were sent before have moved.
    pub creases: u64,
    /// Creases that the engine did not announce.
    pub unannounced: u64,
    /// What the requests cost.
    pub spent: Spent,
    /// What the round trips to get lost originals back cost on top.
    pub repair: Spent,
    /// Atoms that still stand.
    pub support: Share,
    /// Atoms that still stand, of those that recency does not give away.
    pub hard: Share,
    /// Hard atoms of another conversation's actions that still stand. An engine that keeps what this
    /// conversation needs does no better here than one that drops at random.
    pub foreign: Share,
    /// Actions without a hard atom gone.
    pub sure: Share,
    /// Replacement edits whose old text stands in one piece.
    pub anchors: Share,
    /// User and system texts that stand verbatim.
    pub instructions: Share,
    /// Rendered bytes that are neither verbatim nor in the marker grammar.
    pub invented: u64,
    /// Handles that gave the very bytes back that they are the address of: each when it came to stand in a
    /// request, and those of the last request once more of a fresh engine that saw the same messages.
    pub unfolded: Share,
    /// Laws that renderings break and the full requests do not, at creases and at the end.
    pub laws_broken: u64,
    /// What the artifact trail tells of the full request's, at every eighth call: recall.
    pub trail_recall: Share,
    /// What of that is so in the full request: precision.
    pub trail_precision: Share,
    /// Calls that fit each of [`WINDOWS`].
    pub fits: [u64; WINDOWS.len()],
}

impl Score {
    /// Adds the score of another conversation.
    pub fn add(&mut self, other: &Score) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.tokens += other.tokens;
        self.peak = self.peak.max(other.peak);
        self.creases += other.creases;
        self.unannounced += other.unannounced;
        self.spent.add(other.spent);
        self.repair.add(other.repair);
        self.support.add(other.support);
        self.hard.add(other.hard);
        self.foreign.add(other.foreign);
        self.sure.add(other.sure);
        self.anchors.add(other.anchors);
        self.instructions.add(other.instructions);
        self.laws_broken += other.laws_broken;
        self.invented += other.invented;
        self.unfolded.add(other.unfolded);
        self.trail_recall.add(other.trail_recall);
        self.trail_precision.add(other.trail_precision);
        for (fits, more) in self.fits.iter_mut().zip(other.fits) {
            *fits += more;
        }
    }

    /// What the requests cost.
    pub fn bill(&self, prices: &Prices) -> f64 {
        self.spent.bill(prices)
    }

    /// What the requests cost together with the round trips for what was missing.
    pub fn repaired(&self, prices: &Prices) -> f64 {
        self.spent.bill(prices) + self.repair.bill(prices)
    }

    /// The share of actions with a hard atom gone.
    pub fn missteps(&self) -> f64 {
        1.0 - self.sure.ratio()
    }
}

/// A hard atom that was gone when an action needed it.
#[derive(Clone, Debug, Serialize)]
pub struct Misstep {
    /// Which call, counted from 0.
    pub call: usize,
    /// What was missing.
    pub atom: String,
    /// Where it had stood last.
    pub place: Place,
    /// The tool whose call or result that was, if it was one.
    pub tool: String,
    /// The beginning of what that tool was asked.
    pub asked: String,
    /// The beginning of the line.
    pub line: String,
    /// How many calls lie between.
    pub age: usize,
    /// Whether an earlier action had it too.
    pub used_before: bool,
    /// The handle in the request that gives the original back; none where a note stands for whole rounds, or nothing.
    pub handle: Option<Handle>,
}

/// One call of a scored conversation.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Point {
    /// Tokens of the request.
    pub tokens: u64,
    /// Tokens that the provider had cached.
    pub read: u64,
    /// Whether bytes that were sent before have moved.
    pub moved: bool,
}

/// A score with what it is made of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The sums.
    pub score: Score,
    /// Every call.
    pub points: Vec<Point>,
    /// Every hard atom that was gone.
    pub missteps: Vec<Misstep>,
}

/// Replays a conversation through an engine.
pub fn replay(case: &Case, maker: &dyn Maker, budget: u64, prices: Prices) -> Result<Run, Refusal> {
    let setup = Setup {
        budget,
        model: case.model.clone(),
        prices,
        tools: case.tools.clone(),
        system: case.system.clone(),
        meter: case.meter.clone(),
    };
    let mut engine = maker.open(&setup)?;
    let mut rendering = Rendering::new(case);
    let mut run = Run::default();
    let mut pushed = 0;
    let mut trail = Trail::new(case);
    for (index, call) in case.calls.iter().enumerate() {
        engine.push(&case.messages[pushed..call.at])?;
        pushed = call.at;
        run.score.calls += 1;
        let delta = match engine.request() {
            Ok(delta) => delta,
            Err(Refusal::CannotFit { .. }) => {
                run.score.refuse(call, case.tokens_before(call.at));
                continue;
            }
            Err(broken) => return Err(broken),
        };
        let announced = delta.creased;
        let sent = rendering.apply(delta)?;
        run.score.send(&sent, announced);
        run.points.push(Point { tokens: sent.tokens, read: sent.read, moved: sent.moved });
        for handle in rendering.fresh_handles() {
            run.score.unfolded.count(unfolds(&mut *engine, handle)?);
        }
        let gone = run.look(case, index, &rendering);
        run.score.mend(case, gone, sent.tokens);
        let score = &mut run.score;
        // Between creases a rendering only grows by what the recording adds.
        let at_end = index + 1 == case.calls.len();
        if at_end || (sent.moved && score.creases <= LAWFUL_LOOKS) {
            score.laws_broken += laws_broken(case, call.at, rendering.messages());
        }
        if (case.calls.len() - 1 - index).is_multiple_of(TRAIL_STEP) {
            let (full, rendered) = (trail.at(call.at), rendering.trail());
            let both = full.intersection(&rendered).count() as u64;
            score.trail_recall.add(Share { have: both, of: full.len() as u64 });
            score.trail_precision.add(Share { have: both, of: rendered.len() as u64 });
        }
    }
    run.score.invented = rendering.invented;
    let last: Vec<Handle> = rendering.standing_handles().collect();
    if !last.is_empty() {
        let mut restarted = maker.open(&setup)?;
        restarted.push(&case.messages[..pushed])?;
        if let Err(broken @ Refusal::Broken(_)) = restarted.request() {
            return Err(broken);
        }
        for handle in last {
            run.score.unfolded.count(unfolds(&mut *restarted, handle)?);
        }
    }
    Ok(run)
}

impl Score {
    /// The agent is left alone with its request: all is lost, and all is paid.
    fn refuse(&mut self, call: &Call, tokens: u64) {
        self.refused += 1;
        self.spent.written += tokens;
        let hard = call.needs.iter().filter(|need| need.hard).count() as u64;
        self.support.add(Share { have: 0, of: call.needs.len() as u64 });
        self.hard.add(Share { have: 0, of: hard });
        self.sure.count(false);
    }

    /// A request is sent.
    fn send(&mut self, sent: &Sent, announced: bool) {
        self.tokens += sent.tokens;
        self.peak = self.peak.max(sent.tokens);
        self.creases += u64::from(sent.moved);
        self.unannounced += u64::from(sent.moved && !announced);
        self.spent.read += sent.read;
        self.spent.written += sent.tokens - sent.read;
        for (fits, window) in self.fits.iter_mut().zip(WINDOWS) {
            *fits += u64::from(sent.tokens <= window);
        }
    }

    /// What was gone from a request of so many tokens is asked for, all of it in one round trip.
    fn mend(&mut self, case: &Case, mut gone: Vec<Place>, tokens: u64) {
        self.sure.count(gone.is_empty());
        if gone.is_empty() {
            return;
        }
        gone.sort_by_key(|place| (place.message, place.part));
        gone.dedup_by_key(|place| (place.message, place.part));
        let originals = gone.iter().map(|place| case.meter.part(&case.messages[place.message].parts[place.part]));
        self.repair.read += tokens;
        self.repair.written += originals.sum::<u64>();
        self.repair.output += ASK;
    }
}

impl Run {
    /// Looks for what an action needs, and for what it does not. Gives the places of hard atoms that are gone.
    fn look(&mut self, case: &Case, index: usize, rendering: &Rendering<'_>) -> Vec<Place> {
        let (call, score) = (&case.calls[index], &mut self.score);
        let mut gone: Vec<Place> = Vec::new();
        for need in &call.needs {
            let stands = rendering.stands(need.atom);
            score.support.count(stands);
            if !need.hard {
                continue;
            }
            score.hard.count(stands);
            if !stands {
                gone.push(need.place);
                self.missteps.push(Misstep {
                    call: index,
                    atom: case.atom(need).to_owned(),
                    place: need.place,
                    tool: case.tool_at(need.place).to_owned(),
                    asked: head(&case.asked_at(need.place)),
                    line: head(&case.line_at(need.place)),
                    age: case.calls[..index].iter().rev().take_while(|call| call.at > need.place.message).count(),
                    used_before: need.used_before,
                    handle: case.originals_at(need.place).find(|handle| rendering.offers(*handle)),
                });
            }
        }
        call.foreign.iter().for_each(|&atom| score.foreign.count(rendering.stands(atom)));
        call.anchors.iter().for_each(|anchor| score.anchors.count(rendering.has_anchor(anchor)));
        let instructions = case.instructions.iter().take_while(|(at, _)| *at < call.at);
        instructions.for_each(|&(_, key)| score.instructions.count(rendering.has_instruction(key)));
        gone
    }
}

/// Whether a handle gives the bytes back that it is the address of.
fn unfolds(engine: &mut dyn Engine, handle: Handle) -> Result<bool, Refusal> {
    Ok(engine.unfold(handle)?.is_some_and(|bytes| Handle::for_content(&bytes) == handle))
}

/// The artifact trail of the full request, as it grows.
struct Trail<'c> {
    case: &'c Case,
    read: usize,
    files: FxHashSet<u64>,
    test: Option<u64>,
    error: Option<u64>,
}

impl<'c> Trail<'c> {
    fn new(case: &'c Case) -> Self {
        Self { case, read: 0, files: FxHashSet::default(), test: None, error: None }
    }

    fn at(&mut self, end: usize) -> FxHashSet<u64> {
        for measured in &self.case.measured[self.read..end] {
            self.files.extend(measured.facts.files.iter().copied());
            self.test = measured.facts.test.or(self.test);
            self.error = measured.facts.error.or(self.error);
        }
        self.read = end;
        self.files.iter().copied().chain(self.test).chain(self.error).collect()
    }
}

fn head(text: &str) -> String {
    const SHOWN: usize = 160;
    text.trim().chars().take(SHOWN).collect()
}
