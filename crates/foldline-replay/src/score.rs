//! Scoring: one engine over one conversation.

use foldline::{Handle, Prices};
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::case::{RecordedCall, ReplayCase, TextPosition};
use crate::engine::{EngineError, EngineSession, EngineSetup, ReplayEngine};
use crate::rendering::{SentTokens, TrackedRendering};
use crate::validity::count_new_violations;

/// The windows at which survival is told, in tokens.
pub const WINDOW_TOKENS: [u64; 5] = [8_000, 16_000, 32_000, 64_000, 128_000];

/// Tokens that the model writes to ask for an original.
const UNFOLD_CALL_TOKENS: u64 = 60;

/// The artifact trail is looked at once in so many calls.
const TRAIL_INTERVAL_CALLS: usize = 8;

/// So many creases of a conversation are checked for broken laws; engines that crease at every call
/// would be checked for nothing else.
const MAX_LAW_CHECKS: u64 = 24;

/// How many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitRatio {
    /// How many.
    pub hits: u64,
    /// Of how many.
    pub total: u64,
}

impl HitRatio {
    /// The share, 1 when there was nothing to have.
    pub fn ratio(self) -> f64 {
        if self.total == 0 { 1.0 } else { self.hits as f64 / self.total as f64 }
    }

    fn record(&mut self, has: bool) {
        self.total += 1;
        self.hits += u64::from(has);
    }

    fn add(&mut self, other: HitRatio) {
        self.hits += other.hits;
        self.total += other.total;
    }
}

/// Tokens by what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenSpend {
    /// Read from the provider's cache.
    pub read: u64,
    /// Written to it.
    pub written: u64,
    /// Written by the model beyond what the recording has.
    pub output: u64,
}

impl TokenSpend {
    /// What it costs, in input tokens.
    pub fn cost(self, prices: &Prices) -> f64 {
        self.read as f64 * prices.read + self.written as f64 * prices.write + self.output as f64 * prices.output
    }

    fn add(&mut self, other: TokenSpend) {
        self.read += other.read;
        self.written += other.written;
        self.output += other.output;
    }
}

/// What an engine did to a conversation. Scores of conversations add up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayScore {
    /// Calls replayed.
    pub calls: u64,
    /// Calls for which the engine gave no rendering.
    pub refused: u64,
    /// Input tokens over all calls.
    pub tokens: u64,
    /// The largest request.
    pub peak_tokens: u64,
    /// Calls at which bytes that were sent before have moved.
    pub creases: u64,
    /// Creases that the engine did not announce.
    pub unannounced: u64,
    /// What the requests cost.
    pub usage: TokenSpend,
    /// What the round trips to get lost originals back cost on top.
    pub retry_usage: TokenSpend,
    /// Atoms that still stand.
    pub context_kept: HitRatio,
    /// Atoms that still stand, of those that recency does not give away.
    pub needed_context_kept: HitRatio,
    /// Hard atoms of another conversation's actions that still stand. An engine that keeps what this
    /// conversation needs does no better here than one that drops at random.
    pub foreign: HitRatio,
    /// Actions without a hard atom gone.
    pub complete_actions: HitRatio,
    /// Replacement edits whose old text stands in one piece.
    pub edits_that_apply: HitRatio,
    /// User and system texts that stand verbatim.
    pub instructions_kept: HitRatio,
    /// Rendered bytes that are neither verbatim nor in the marker grammar.
    pub invented_bytes: u64,
    /// Handles that gave the very bytes back that they are the address of: each when it came to stand in a
    /// request, and those of the last request once more of a fresh engine that saw the same messages.
    pub unfolded: HitRatio,
    /// Laws that renderings break and the full requests do not, at creases and at the end.
    pub laws_broken: u64,
    /// What the artifact trail tells of the full request's, at every eighth call: recall.
    pub trail_recall: HitRatio,
    /// What of that is so in the full request: precision.
    pub trail_precision: HitRatio,
    /// Calls that fit each of [`WINDOWS`].
    pub fits: [u64; WINDOW_TOKENS.len()],
}

impl ReplayScore {
    /// Adds the score of another conversation.
    pub fn add(&mut self, other: &ReplayScore) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.tokens += other.tokens;
        self.peak_tokens = self.peak_tokens.max(other.peak_tokens);
        self.creases += other.creases;
        self.unannounced += other.unannounced;
        self.usage.add(other.usage);
        self.retry_usage.add(other.retry_usage);
        self.context_kept.add(other.context_kept);
        self.needed_context_kept.add(other.needed_context_kept);
        self.foreign.add(other.foreign);
        self.complete_actions.add(other.complete_actions);
        self.edits_that_apply.add(other.edits_that_apply);
        self.instructions_kept.add(other.instructions_kept);
        self.laws_broken += other.laws_broken;
        self.invented_bytes += other.invented_bytes;
        self.unfolded.add(other.unfolded);
        self.trail_recall.add(other.trail_recall);
        self.trail_precision.add(other.trail_precision);
        for (fits, more) in self.fits.iter_mut().zip(other.fits) {
            *fits += more;
        }
    }

    /// What the requests cost.
    pub fn cost(&self, prices: &Prices) -> f64 {
        self.usage.cost(prices)
    }

    /// What the requests cost together with the round trips for what was missing.
    pub fn cost_with_retries(&self, prices: &Prices) -> f64 {
        self.usage.cost(prices) + self.retry_usage.cost(prices)
    }

    /// The share of actions with a hard atom gone.
    pub fn missing_context_ratio(&self) -> f64 {
        1.0 - self.complete_actions.ratio()
    }
}

/// A hard atom that was gone when an action needed it.
#[derive(Clone, Debug, Serialize)]
pub struct MissingContext {
    /// Which call, counted from 0.
    pub call: usize,
    /// What was missing.
    pub identifier: String,
    /// Where it had stood last.
    pub position: TextPosition,
    /// The tool whose call or result that was, if it was one.
    pub tool: String,
    /// The beginning of what that tool was asked.
    pub arguments: String,
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
pub struct CallPoint {
    /// Tokens of the request.
    pub tokens: u64,
    /// Tokens that the provider had cached.
    pub cached_tokens: u64,
    /// Whether bytes that were sent before have moved.
    pub is_crease: bool,
}

/// A score with what it is made of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayRun {
    /// The sums.
    pub score: ReplayScore,
    /// Every call.
    pub points: Vec<CallPoint>,
    /// Every hard atom that was gone.
    pub missing_context: Vec<MissingContext>,
}

/// Replays a conversation through an engine.
pub fn replay(
    case: &ReplayCase,
    maker: &dyn ReplayEngine,
    budget: u64,
    prices: Prices,
) -> Result<ReplayRun, EngineError> {
    let setup = EngineSetup {
        budget,
        model: case.model.clone(),
        prices,
        tools: case.tools.clone(),
        system: case.system.clone(),
        meter: case.meter.clone(),
    };
    let mut engine = maker.open(&setup)?;
    let mut rendering = TrackedRendering::new(case);
    let mut run = ReplayRun::default();
    let mut pushed = 0;
    let mut trail = ArtifactTrail::new(case);
    for (index, call) in case.calls.iter().enumerate() {
        engine.push(&case.messages[pushed..call.start])?;
        pushed = call.start;
        run.score.calls += 1;
        let delta = match engine.request() {
            Ok(delta) => delta,
            Err(EngineError::CannotFit { .. }) => {
                run.score.record_refusal(call, case.tokens_before(call.start));
                continue;
            }
            Err(broken) => return Err(broken),
        };
        let announced = delta.is_crease;
        let sent = rendering.apply(delta)?;
        run.score.record_request(&sent, announced);
        run.points.push(CallPoint {
            tokens: sent.tokens,
            cached_tokens: sent.cached_tokens,
            is_crease: sent.is_crease,
        });
        for handle in rendering.take_new_handles() {
            run.score.unfolded.record(unfolds_exactly(&mut *engine, handle)?);
        }
        let gone = run.record_context(case, index, &rendering);
        run.score.record_retry(case, gone, sent.tokens);
        let score = &mut run.score;
        // Between creases a rendering only grows by what the recording adds.
        let at_end = index + 1 == case.calls.len();
        if at_end || (sent.is_crease && score.creases <= MAX_LAW_CHECKS) {
            score.laws_broken += count_new_violations(case, call.start, rendering.messages());
        }
        if (case.calls.len() - 1 - index).is_multiple_of(TRAIL_INTERVAL_CALLS) {
            let (full, rendered) = (trail.advance_to(call.start), rendering.artifact_trail());
            let both = full.intersection(&rendered).count() as u64;
            score.trail_recall.add(HitRatio { hits: both, total: full.len() as u64 });
            score.trail_precision.add(HitRatio { hits: both, total: rendered.len() as u64 });
        }
    }
    run.score.invented_bytes = rendering.invented_bytes;
    let last: Vec<Handle> = rendering.current_handles().collect();
    if !last.is_empty() {
        let mut restarted = maker.open(&setup)?;
        restarted.push(&case.messages[..pushed])?;
        if let Err(broken @ EngineError::Failed(_)) = restarted.request() {
            return Err(broken);
        }
        for handle in last {
            run.score.unfolded.record(unfolds_exactly(&mut *restarted, handle)?);
        }
    }
    Ok(run)
}

impl ReplayScore {
    /// The agent is left alone with its request: all is lost, and all is paid.
    fn record_refusal(&mut self, call: &RecordedCall, tokens: u64) {
        self.refused += 1;
        self.usage.written += tokens;
        let hard = call.needs.iter().filter(|need| need.is_distant).count() as u64;
        self.context_kept.add(HitRatio { hits: 0, total: call.needs.len() as u64 });
        self.needed_context_kept.add(HitRatio { hits: 0, total: hard });
        self.complete_actions.record(false);
    }

    /// A request is sent.
    fn record_request(&mut self, sent: &SentTokens, announced: bool) {
        self.tokens += sent.tokens;
        self.peak_tokens = self.peak_tokens.max(sent.tokens);
        self.creases += u64::from(sent.is_crease);
        self.unannounced += u64::from(sent.is_crease && !announced);
        self.usage.read += sent.cached_tokens;
        self.usage.written += sent.tokens - sent.cached_tokens;
        for (fits, window) in self.fits.iter_mut().zip(WINDOW_TOKENS) {
            *fits += u64::from(sent.tokens <= window);
        }
    }

    /// What was gone from a request of so many tokens is asked for, all of it in one round trip.
    fn record_retry(&mut self, case: &ReplayCase, mut gone: Vec<TextPosition>, tokens: u64) {
        self.complete_actions.record(gone.is_empty());
        if gone.is_empty() {
            return;
        }
        gone.sort_by_key(|place| (place.message, place.part));
        gone.dedup_by_key(|place| (place.message, place.part));
        let originals = gone.iter().map(|place| case.meter.part(&case.messages[place.message].parts[place.part]));
        self.retry_usage.read += tokens;
        self.retry_usage.written += originals.sum::<u64>();
        self.retry_usage.output += UNFOLD_CALL_TOKENS;
    }
}

impl ReplayRun {
    /// Looks for what an action needs, and for what it does not. Gives the places of hard atoms that are gone.
    fn record_context(
        &mut self,
        case: &ReplayCase,
        index: usize,
        rendering: &TrackedRendering<'_>,
    ) -> Vec<TextPosition> {
        let (call, score) = (&case.calls[index], &mut self.score);
        let mut gone: Vec<TextPosition> = Vec::new();
        for need in &call.needs {
            let stands = rendering.has_identifier(need.identifier);
            score.context_kept.record(stands);
            if !need.is_distant {
                continue;
            }
            score.needed_context_kept.record(stands);
            if !stands {
                gone.push(need.position);
                self.missing_context.push(MissingContext {
                    call: index,
                    identifier: case.identifier_text(need).to_owned(),
                    position: need.position,
                    tool: case.tool_at(need.position).to_owned(),
                    arguments: truncated(&case.arguments_at(need.position)),
                    line: truncated(&case.line_at(need.position)),
                    age: case.calls[..index].iter().rev().take_while(|call| call.start > need.position.message).count(),
                    used_before: need.used_before,
                    handle: case.original_handles_at(need.position).find(|handle| rendering.has_handle(*handle)),
                });
            }
        }
        call.foreign_identifiers.iter().for_each(|&atom| score.foreign.record(rendering.has_identifier(atom)));
        call.anchors.iter().for_each(|anchor| score.edits_that_apply.record(rendering.has_anchor(anchor)));
        let instructions = case.instructions.iter().take_while(|(at, _)| *at < call.start);
        instructions.for_each(|&(_, key)| score.instructions_kept.record(rendering.has_instruction(key)));
        gone
    }
}

/// Whether a handle gives the bytes back that it is the address of.
fn unfolds_exactly(engine: &mut dyn EngineSession, handle: Handle) -> Result<bool, EngineError> {
    Ok(engine.unfold(handle)?.is_some_and(|bytes| Handle::for_content(&bytes) == handle))
}

/// The artifact trail of the full request, as it grows.
struct ArtifactTrail<'c> {
    case: &'c ReplayCase,
    next_message: usize,
    files: FxHashSet<u64>,
    test: Option<u64>,
    error: Option<u64>,
}

impl<'c> ArtifactTrail<'c> {
    fn new(case: &'c ReplayCase) -> Self {
        Self { case, next_message: 0, files: FxHashSet::default(), test: None, error: None }
    }

    fn advance_to(&mut self, end: usize) -> FxHashSet<u64> {
        for measured in &self.case.metrics[self.next_message..end] {
            self.files.extend(measured.trail_facts.files.iter().copied());
            self.test = measured.trail_facts.test.or(self.test);
            self.error = measured.trail_facts.error.or(self.error);
        }
        self.next_message = end;
        self.files.iter().copied().chain(self.test).chain(self.error).collect()
    }
}

fn truncated(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 160;
    text.trim().chars().take(MAX_SHOWN_CHARS).collect()
}
