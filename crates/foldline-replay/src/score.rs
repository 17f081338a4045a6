//! Scoring of one engine over one conversation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldline::{Handle, Prices};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::case::{ContextNeed, RecordedCall, ReplayCase, TextPosition};
use crate::engine::{EngineError, EngineSession, EngineSetup, ReplayEngine};
use crate::rendering::{SentTokens, TrackedRendering};
use crate::validity::new_violations;

/// The window sizes for which fitting calls are counted, in tokens.
pub const WINDOW_TOKENS: [u64; 5] = [8_000, 16_000, 32_000, 64_000, 128_000];

/// Tokens that the model writes to request an original.
const UNFOLD_CALL_TOKENS: u64 = 60;

/// The artifact trail is compared at every eighth call.
const TRAIL_INTERVAL_CALLS: usize = 8;

/// Maximum creases per conversation that are checked for law violations; engines that crease at every call
/// would otherwise spend most of the time in checks.
const MAX_LAW_CHECKS: u64 = 24;

/// A number of hits out of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitRatio {
    /// Number of hits.
    pub hits: u64,
    /// Number of attempts.
    pub total: u64,
}

impl HitRatio {
    /// Returns the ratio, or 1 if the total is 0.
    pub fn ratio(self) -> f64 {
        if self.total == 0 { 1.0 } else { self.hits as f64 / self.total as f64 }
    }

    fn record(&mut self, is_hit: bool) {
        self.total += 1;
        self.hits += u64::from(is_hit);
    }

    fn add(&mut self, other: HitRatio) {
        self.hits += other.hits;
        self.total += other.total;
    }
}

/// Tokens by price class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpend {
    /// Read from the provider's cache.
    pub read: u64,
    /// Written to the cache.
    pub written: u64,
    /// Output of the model beyond the recording.
    pub output: u64,
}

impl TokenSpend {
    /// Returns the cost, in input tokens.
    pub fn cost(self, prices: &Prices) -> f64 {
        self.read as f64 * prices.read + self.written as f64 * prices.write + self.output as f64 * prices.output
    }

    fn add(&mut self, other: TokenSpend) {
        self.read += other.read;
        self.written += other.written;
        self.output += other.output;
    }
}

/// Results of an engine on a conversation. Scores of conversations can be added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayScore {
    /// Calls replayed.
    pub calls: u64,
    /// Calls for which the engine returned no rendering.
    pub refused: u64,
    /// Input tokens over all calls.
    pub tokens: u64,
    /// Tokens of the largest request.
    pub peak_tokens: u64,
    /// Calls at which previously sent bytes changed.
    pub creases: u64,
    /// Creases that the engine did not announce.
    pub unannounced: u64,
    /// Tokens of the requests.
    pub usage: TokenSpend,
    /// Additional tokens of the retries that fetch missing originals, and of repeated reads of folded content.
    pub retry_usage: TokenSpend,
    /// Calls that repeat an earlier read of unchanged content which is not whole in the request.
    pub repeated_reads: u64,
    /// Needed identifiers that were kept.
    pub context_kept: HitRatio,
    /// Needed identifiers that were kept, of those that recency alone does not give.
    pub needed_context_kept: HitRatio,
    /// The same by whole strings: an independent definition of what an action refers to.
    pub needed_strings_kept: HitRatio,
    /// Distant identifiers of another conversation's actions that were kept. An engine that keeps what this
    /// conversation needs does no better here than a random drop.
    pub foreign: HitRatio,
    /// Actions that miss neither a distant identifier nor the old text of an edit.
    pub complete_actions: HitRatio,
    /// Replacement edits whose old text was sent in one piece.
    pub edits_that_apply: HitRatio,
    /// User and system texts that were sent verbatim.
    pub instructions_kept: HitRatio,
    /// Rendered bytes that are neither verbatim nor in the marker grammar.
    pub invented_bytes: u64,
    /// Handles that restored exactly the bytes they address: each when it first appeared in a
    /// request, and those of the last request again by a fresh engine that received the same messages.
    pub unfolded: HitRatio,
    /// Law violations of renderings that the full requests do not have, checked at creases and at the end.
    pub laws_broken: u64,
    /// The same violations by the name of the law.
    pub violations_by_law: BTreeMap<Cow<'static, str>, u64>,
    /// Recall of the artifact trail against that of the full request, at every eighth call.
    pub trail_recall: HitRatio,
    /// Precision of the artifact trail against that of the full request.
    pub trail_precision: HitRatio,
    /// Calls that fit each of [`WINDOW_TOKENS`].
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
        self.needed_strings_kept.add(other.needed_strings_kept);
        self.repeated_reads += other.repeated_reads;
        self.foreign.add(other.foreign);
        self.complete_actions.add(other.complete_actions);
        self.edits_that_apply.add(other.edits_that_apply);
        self.instructions_kept.add(other.instructions_kept);
        self.record_violations(&other.violations_by_law);
        self.invented_bytes += other.invented_bytes;
        self.unfolded.add(other.unfolded);
        self.trail_recall.add(other.trail_recall);
        self.trail_precision.add(other.trail_precision);
        for (fits, other) in self.fits.iter_mut().zip(other.fits) {
            *fits += other;
        }
    }

    /// Returns the cost of the requests.
    pub fn cost(&self, prices: &Prices) -> f64 {
        self.usage.cost(prices)
    }

    /// Returns the cost of the requests including retries for missing context and missing edit texts.
    pub fn cost_with_retries(&self, prices: &Prices) -> f64 {
        self.usage.cost(prices) + self.retry_usage.cost(prices)
    }

    /// Returns the share of actions that miss a distant identifier or the old text of an edit.
    pub fn missing_context_ratio(&self) -> f64 {
        1.0 - self.complete_actions.ratio()
    }
}

/// A distant identifier that was missing when an action needed it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MissingContext {
    /// Index of the call, from 0.
    pub call: usize,
    /// The missing identifier.
    pub identifier: String,
    /// Its last position in the full request.
    pub position: TextPosition,
    /// The tool of the call or result at that position, if any.
    pub tool: String,
    /// The beginning of that tool call's arguments.
    pub arguments: String,
    /// The beginning of the line.
    pub line: String,
    /// Number of calls since then.
    pub age: usize,
    /// True if an earlier action used it too.
    pub used_before: bool,
    /// The handle in the request that restores the original; `None` if a note replaces whole rounds, or nothing does.
    pub handle: Option<Handle>,
}

/// One call of a scored conversation.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CallPoint {
    /// Tokens of the request.
    pub tokens: u64,
    /// Tokens that the provider had cached.
    pub cached_tokens: u64,
    /// True if previously sent bytes changed.
    pub is_crease: bool,
    /// True if the engine returned no rendering; then the full request is counted.
    pub is_refused: bool,
}

/// A score with its details.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayRun {
    /// The sums.
    pub score: ReplayScore,
    /// Every call.
    pub points: Vec<CallPoint>,
    /// Every missing distant identifier.
    pub missing_context: Vec<MissingContext>,
}

/// Replays a conversation through an engine.
///
/// # Errors
///
/// Fails if the engine fails; a conversation that cannot fit is counted instead.
pub fn replay(
    case: &ReplayCase,
    engine: &dyn ReplayEngine,
    budget: u64,
    prices: Prices,
) -> Result<ReplayRun, EngineError> {
    let setup = EngineSetup {
        format: case.format,
        budget,
        model: case.model.clone(),
        prices,
        tools: case.tools.clone(),
        system: case.system.clone(),
        meter: case.meter.clone(),
    };
    let mut session = engine.open(&setup)?;
    let mut rendering = TrackedRendering::new(case);
    let mut run = ReplayRun::default();
    let mut pushed = 0;
    let mut trail = ArtifactTrail::new(case);
    for (index, call) in case.calls.iter().enumerate() {
        session.push(&case.messages[pushed..call.start])?;
        pushed = call.start;
        run.score.calls += 1;
        let delta = match session.request() {
            Ok(delta) => delta,
            Err(EngineError::CannotFit { .. }) => {
                let tokens = case.tokens_before(call.start);
                run.score.record_refusal(call, tokens);
                run.points.push(CallPoint { tokens, is_refused: true, ..CallPoint::default() });
                continue;
            }
            Err(error) => return Err(error),
        };
        let announced = delta.is_crease;
        let sent = rendering.apply(delta)?;
        run.score.record_request(&sent, announced);
        run.points.push(CallPoint {
            tokens: sent.tokens,
            cached_tokens: sent.cached_tokens,
            is_crease: sent.is_crease,
            is_refused: false,
        });
        for handle in rendering.take_new_handles() {
            run.score.unfolded.record(unfolds_exactly(&mut *session, handle)?);
        }
        let missing = run.record_context(case, index, &rendering);
        run.score.record_retry(case, call, missing, sent.tokens);
        let score = &mut run.score;
        // Between creases a rendering only grows by the recorded messages.
        let at_end = index + 1 == case.calls.len();
        if at_end || (sent.is_crease && score.creases <= MAX_LAW_CHECKS) {
            score.record_violations(&new_violations(case, call.start, rendering.messages()));
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
        let mut restarted = engine.open(&setup)?;
        restarted.push(&case.messages[..pushed])?;
        if let Err(error @ EngineError::Failed(_)) = restarted.request() {
            return Err(error);
        }
        for handle in last {
            run.score.unfolded.record(unfolds_exactly(&mut *restarted, handle)?);
        }
    }
    Ok(run)
}

impl ReplayScore {
    fn record_violations(&mut self, violations: &BTreeMap<Cow<'static, str>, u64>) {
        for (law, count) in violations {
            self.laws_broken += count;
            *self.violations_by_law.entry(law.clone()).or_default() += count;
        }
    }

    /// Records a refused request: it is sent in full, and all needed context counts as missing.
    fn record_refusal(&mut self, call: &RecordedCall, tokens: u64) {
        self.refused += 1;
        self.usage.written += tokens;
        let distant = call.needs.iter().filter(|need| need.is_distant).count() as u64;
        self.context_kept.add(HitRatio { hits: 0, total: call.needs.len() as u64 });
        self.needed_context_kept.add(HitRatio { hits: 0, total: distant });
        self.needed_strings_kept.add(HitRatio { hits: 0, total: call.distant_strings.len() as u64 });
        self.edits_that_apply.add(HitRatio { hits: 0, total: call.anchors.len() as u64 });
        self.complete_actions.record(false);
    }

    /// Records a sent request.
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

    /// Records one retry that fetches everything that was missing from a request of `tokens` tokens.
    ///
    /// A repeated read of folded content is charged as it happened: with the recorded output of its action
    /// instead of the tokens of an unfold.
    fn record_retry(&mut self, case: &ReplayCase, call: &RecordedCall, missing: MissingParts, tokens: u64) {
        self.complete_actions.record(missing.needed.is_empty());
        self.repeated_reads += missing.repeated.len() as u64;
        if missing.needed.is_empty() && missing.repeated.is_empty() {
            return;
        }
        let output = if missing.repeated.is_empty() { UNFOLD_CALL_TOKENS } else { call.output_tokens };
        let mut parts = [missing.needed, missing.repeated].concat();
        parts.sort_unstable();
        parts.dedup();
        let originals = parts.iter().map(|&(message, part)| case.meter.part(&case.messages[message].parts[part]));
        self.retry_usage.read += tokens;
        self.retry_usage.written += originals.sum::<u64>();
        self.retry_usage.output += output;
    }
}

/// The parts of the full request that an action lacks, by message and part.
#[derive(Default)]
struct MissingParts {
    /// Parts with a needed identifier or the old text of an edit.
    needed: Vec<(usize, usize)>,
    /// Parts that a call of the action reads again.
    repeated: Vec<(usize, usize)>,
}

impl ReplayRun {
    /// Records the needed context of an action. Returns what is missing.
    fn record_context(&mut self, case: &ReplayCase, index: usize, rendering: &TrackedRendering<'_>) -> MissingParts {
        let (call, score) = (&case.calls[index], &mut self.score);
        let mut missing = MissingParts::default();
        for need in &call.needs {
            let is_kept = rendering.has_identifier(need.identifier);
            score.context_kept.record(is_kept);
            if !need.is_distant {
                continue;
            }
            score.needed_context_kept.record(is_kept);
            if !is_kept {
                missing.needed.push((need.position.message, need.position.part));
                self.missing_context.push(describe_missing(case, index, need, rendering));
            }
        }
        for anchor in &call.anchors {
            let is_kept = rendering.has_anchor(anchor);
            score.edits_that_apply.record(is_kept);
            if let Some(&message) = anchor.messages.last().filter(|_| !is_kept) {
                missing.needed.push((message, anchor.part));
            }
        }
        let folded = call.repeats.iter().filter(|repeat| !rendering.has_result(repeat.key));
        missing.repeated.extend(folded.map(|repeat| repeat.earlier));
        call.distant_strings.iter().for_each(|&id| score.needed_strings_kept.record(rendering.has_identifier(id)));
        call.foreign_identifiers.iter().for_each(|&id| score.foreign.record(rendering.has_identifier(id)));
        let instructions = case.instructions.iter().take_while(|(at, _)| *at < call.start);
        instructions.for_each(|&(_, key)| score.instructions_kept.record(rendering.has_instruction(key)));
        missing
    }
}

/// Describes a needed identifier that is not in the rendering.
fn describe_missing(
    case: &ReplayCase,
    index: usize,
    need: &ContextNeed,
    rendering: &TrackedRendering<'_>,
) -> MissingContext {
    MissingContext {
        call: index,
        identifier: case.identifier_text(need).to_owned(),
        position: need.position,
        tool: case.tool_at(need.position).to_owned(),
        arguments: truncated(&case.arguments_at(need.position)),
        line: truncated(&case.line_at(need.position)),
        age: case.calls[..index].iter().rev().take_while(|call| call.start > need.position.message).count(),
        used_before: need.used_before,
        handle: match rendering.has_handles() {
            true => case.original_handles_at(need.position).find(|handle| rendering.has_handle(*handle)),
            false => None,
        },
    }
}

/// Returns true if a handle restores the bytes that it addresses.
fn unfolds_exactly(session: &mut dyn EngineSession, handle: Handle) -> Result<bool, EngineError> {
    Ok(session.unfold(handle)?.is_some_and(|bytes| Handle::for_content(&bytes) == handle))
}

/// The artifact trail of the growing full request.
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
        for metrics in &self.case.metrics[self.next_message..end] {
            self.files.extend(metrics.trail_facts.files.iter().copied());
            self.test = metrics.trail_facts.test.or(self.test);
            self.error = metrics.trail_facts.error.or(self.error);
        }
        self.next_message = end;
        self.files.iter().copied().chain(self.test).chain(self.error).collect()
    }
}

fn truncated(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 160;
    text.trim().chars().take(MAX_SHOWN_CHARS).collect()
}
