//! The left fold: a state that grows with the conversation and decides at request points.
//!
//! A decision at a point may depend only on the messages before it, the options and the ledger. So
//! new messages cannot change earlier decisions, every replica computes the same bytes, and a
//! conversation first seen at turn 400 is folded as if it had been folded from the start.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::conversation;
use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::engine::archive::{Original, OriginalStore, StoreError};
use crate::engine::handle::Handle;
use crate::engine::identifiers::index::IdentifierIndex;
use crate::engine::line_index::{LineHashes, LineOwners};
use crate::engine::marker;
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::overlay::{AppliedFold, FoldSet, PartEdit, RemovedOriginal};
use crate::engine::passes::{prose, repeated_lines, terminal_codes};
use crate::engine::planner;
use crate::engine::planner::{CreasePlan, Stage, Trigger};
use crate::engine::policy::CreaseMode;
use crate::engine::rendering::FoldedConversation;
use crate::engine::schedule::CreaseSchedule;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment, SegmentKind};
use crate::engine::superseded::LatestResults;
use crate::error::{Error, ErrorKind};
use crate::tokens::Tokens;

/// The state of a fold after some messages. Holds no text except that of markers and excerpts.
#[derive(Clone, Default)]
pub struct FoldState {
    pub(crate) segments: Vec<Segment>,
    /// Index of the first segment of each message.
    pub(crate) first_segment: Vec<usize>,
    pub(crate) folds: FoldSet,
    pub(crate) identifiers: IdentifierIndex,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// Tokens of all rendered messages.
    pub(crate) rendered_tokens: Tokens,
    /// Tokens of each rendered message.
    pub(crate) message_tokens: Vec<Tokens>,
    pub(crate) raw_tokens: Tokens,
    verbatim: VerbatimTokens,
    /// Messages of each round.
    rounds: Vec<Range<usize>>,
    /// First user message: the task.
    task: Option<usize>,
    /// Newest user message without tool results.
    pub(crate) last_user_message: usize,
    after_assistant: bool,
    pending_calls: PendingCalls,
    /// Messages paired with a message of another round.
    cross_round_messages: BTreeSet<usize>,
    pairs: HashMap<String, usize>,
    latest_results: LatestResults,
    /// Newest result with each text, by text hash.
    results_by_hash: HashMap<u128, usize>,
    /// Owners of the lines of the first `indexed_segments` segments.
    line_owners: LineOwners,
    indexed_segments: usize,
    pub(crate) schedule: CreaseSchedule,
    creases: Vec<Crease>,
    /// Numbers of creases and folded parts when the originals were last stored. Every fold increases one of them.
    pub(crate) archived_counts: (usize, usize),
}

/// Tokens of texts that are never shortened.
#[derive(Clone, Copy, Debug, Default)]
struct VerbatimTokens {
    /// System and developer messages.
    operator: Tokens,
    /// First user message.
    task: Tokens,
    /// Newest user message; 0 while it is the task.
    newest: Tokens,
}

/// A crease and its cost.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Crease {
    /// Request point of the crease.
    pub request_point: usize,
    /// Reason for the crease.
    pub trigger: Trigger,
    /// Tokens removed.
    pub saved_tokens: Tokens,
    /// Tokens after the first changed byte that had been sent, before the change. The rest of them is written to the
    /// provider's cache again.
    pub suffix_tokens: Tokens,
    /// Cost of writing them again, in tokens at base price.
    pub rewrite_cost: Tokens,
    /// First changed message of the conversation.
    pub first_message: usize,
}

/// The previous values of everything that a crease changed.
#[derive(Clone)]
pub(crate) struct CreaseUndo {
    folds: FoldSet,
    message_tokens: Vec<Tokens>,
    touched_messages: BTreeSet<usize>,
}

/// Pass name of folds of repeated results, made at ingest.
const DUPLICATE_PASS: &str = "duplicate_at_ingest";
/// Pass name of folds of terminal control codes, made at ingest.
const TERMINAL_CODES_PASS: &str = "terminal_codes";
/// Names of the passes that run at ingest.
pub(crate) const AT_INGEST: [&str; 2] = [DUPLICATE_PASS, TERMINAL_CODES_PASS];

/// Name suffix of tools with which a model unfolds originals.
const UNFOLD_TOOL_SUFFIX: &str = "unfold";

impl FoldState {
    /// Returns the number of messages ingested.
    pub fn len(&self) -> usize {
        self.message_tokens.len()
    }

    /// Returns true if no message was ingested.
    pub fn is_empty(&self) -> bool {
        self.message_tokens.is_empty()
    }

    /// Writes the originals of all folds to a store.
    pub(crate) fn store_originals(
        &self,
        messages: &[Message<'_>],
        store: &dyn OriginalStore,
    ) -> Result<(), StoreError> {
        let removed = self.folds.removed_originals(messages);
        let metadata = |original: &RemovedOriginal<'_>| {
            let segment = self.segment(original.at).filter(|_| original.rounds.is_empty());
            let call = segment.and_then(|segment| segment.tool_call.as_ref());
            let in_rounds = original.rounds.iter().flat_map(|round| self.segments_of(round.clone()));
            let tokens = segment.into_iter().chain(in_rounds).map(|segment| segment.tokens).sum();
            (
                Handle::for_content(&original.bytes),
                call.map(|call| (call.tool.clone(), call.action.target.clone())),
                tokens,
            )
        };
        let metadata: Vec<_> = removed.iter().map(metadata).collect();
        let originals: Vec<Original<'_>> = removed
            .iter()
            .zip(&metadata)
            .map(|(original, (handle, call, tokens))| Original {
                handle: *handle,
                bytes: &original.bytes,
                tool: call.as_ref().map(|(tool, _)| tool.as_str()),
                arguments: call.as_ref().map(|(_, target)| target.as_str()),
                message: original.rounds.first().map_or(original.at.message, |round| round.start),
                tokens: *tokens,
            })
            .collect();
        store.store(&originals)
    }

    pub(crate) fn segment(&self, at: PartId) -> Option<&Segment> {
        self.segments_of(at.message..at.message + 1).iter().find(|segment| segment.at == at)
    }

    pub(crate) fn segments_of(&self, messages: Range<usize>) -> &[Segment] {
        &self.segments[self.segment_range(messages)]
    }

    /// Returns the segment indices of some messages.
    pub(crate) fn segment_range(&self, messages: Range<usize>) -> Range<usize> {
        let index = |message: usize| self.first_segment.get(message).copied().unwrap_or(self.segments.len());
        index(messages.start)..index(messages.end)
    }

    /// Returns true if the message is the task or the newest user message, whose texts are never shortened.
    pub(crate) fn is_verbatim(&self, message: usize) -> bool {
        self.task.is_some_and(|task| message == task || message == self.last_user_message)
    }

    /// Returns the first message of the newest round. The model has not seen its results yet.
    pub(crate) fn newest_round_start(&self) -> usize {
        self.rounds.last().map_or(0, |round| round.start)
    }

    /// Returns the rounds, oldest first.
    pub(crate) fn rounds(&self) -> &[Range<usize>] {
        &self.rounds
    }

    /// Returns true if nothing in a round is paired with something outside of it: a result with its
    /// call, or a system note in the conversation with its answer.
    pub(crate) fn is_self_contained(&self, round: &Range<usize>, messages: &[Message<'_>]) -> bool {
        !conversation::answers_system_note(messages, round.start)
            && self.cross_round_messages.range(round.clone()).next().is_none()
    }

    /// Returns the message before which all messages are old, because newer ones fill the policy's `keep_share` of
    /// the space left by protected parts.
    pub(crate) fn keep_share_start(&self, options: &FoldOptions, newest: usize, protected: Tokens) -> usize {
        let space = options.message_budget(1.0).saturating_sub(protected);
        let mut space = (space as f64 * options.policy.keep_share) as Tokens;
        for at in (0..newest).rev() {
            match space.checked_sub(self.message_tokens[at]) {
                Some(left) => space = left,
                None => return at + 1,
            }
        }
        0
    }

    /// Returns the tokens from a message on that were sent before. The newest round is written in any case.
    pub(crate) fn suffix_tokens(&self, first: usize) -> Tokens {
        let newest = self.newest_round_start();
        self.message_tokens[first.min(newest)..newest].iter().sum()
    }

    /// Adds the next message to the state.
    pub(crate) fn ingest(&mut self, options: &FoldOptions, message: &Message<'_>) {
        let at = self.message_tokens.len();
        if message.is_assistant() && !self.after_assistant {
            self.calls += 1;
            self.rounds.push(at..at);
        }
        // A round ends at a message that is neither the assistant's nor has results.
        let in_round = message.is_assistant() || message.has_results();
        if let Some(round) = self.rounds.last_mut().filter(|round| in_round && round.end == at) {
            round.end = at + 1;
        }
        self.after_assistant = message.is_assistant();
        // User text next to results does not end the turn.
        if message.role == Role::User && !message.has_results() {
            self.task.get_or_insert(at);
            self.last_user_message = at;
        }
        self.link_across_rounds(at, message);
        let first = self.segments.len();
        self.first_segment.push(first);
        self.segments.extend(segment::message_segments(
            at,
            message,
            self.calls,
            &mut self.pending_calls,
            &options.meter,
        ));
        let in_segments: Tokens = self.segments[first..].iter().map(|segment| segment.tokens).sum();
        let tokens = in_segments + segment::overhead_tokens(message, &options.meter);
        debug_assert_eq!(tokens, options.meter.message(message));
        self.message_tokens.push(tokens);
        self.rendered_tokens += tokens;
        self.raw_tokens += tokens;
        if !message.has_results() {
            let texts = self.segments[first..].iter().filter(|segment| segment.kind == SegmentKind::InputText);
            let texts: Tokens = texts.map(|segment| segment.tokens).sum();
            match message.role {
                Role::System | Role::Developer => self.verbatim.operator += texts,
                Role::User if self.task == Some(at) => self.verbatim.task = texts,
                Role::User => self.verbatim.newest = texts,
                _ => {}
            }
        }
        for index in first..self.segments.len() {
            if let Some(before) = self.latest_results.record(&self.segments, index) {
                self.segments[before].superseded = true;
            }
            if options.policy.crease_mode != CreaseMode::Never {
                self.fold_at_ingest(options, message, index);
            }
        }
    }

    /// Folds a result before it is first sent, if it repeats an earlier result or contains terminal control codes.
    /// Nothing else that the model has not seen yet may be folded.
    fn fold_at_ingest(&mut self, options: &FoldOptions, message: &Message<'_>, index: usize) {
        let segment = &self.segments[index];
        if segment.kind != SegmentKind::Result
            || segment.tokens < segment::MIN_COUNTED_TOKENS
            || options.pins.matches(segment)
        {
            return;
        }
        // A model that unfolds an original and receives a marker would call the tool again.
        if segment.tool_call.as_ref().is_some_and(|call| call.tool.ends_with(UNFOLD_TOOL_SUFFIX)) {
            return;
        }
        let text = segment::text_in_message(message, segment.at);
        let handle = || options.handles.then(|| Handle::for_content(text.as_bytes()));
        let above = self
            .results_by_hash
            .insert(segment.text_hash, index)
            .filter(|&above| self.folds.stage(self.segments[above].at).is_none());
        let (folded, stage, pass_name) = if let Some(above) = above {
            self.results_by_hash.insert(segment.text_hash, above);
            (marker::duplicate_text(text, handle()), Stage::Duplicates, DUPLICATE_PASS)
        } else if let Some(shown) = terminal_codes::strip_terminal_codes(text) {
            (terminal_codes::with_marker(&shown, handle()), Stage::Repack, TERMINAL_CODES_PASS)
        } else {
            return;
        };
        let tokens = options.meter.text(&folded);
        let Some(saved) = segment.tokens.checked_sub(tokens).filter(|&saved| saved > 0) else { return };
        let at = segment.at;
        if let Some(above) = above {
            // The model requested it again, so its age restarts.
            self.segments[above].call_index = self.calls;
            self.segments[above].superseded = false;
        }
        self.message_tokens[at.message] -= saved;
        self.rendered_tokens -= saved;
        self.folds.set_part(at, AppliedFold { edit: PartEdit::Text(folded), tokens, stage, pass_name });
    }

    /// Records messages that are paired across rounds, which must not be dropped separately.
    fn link_across_rounds(&mut self, at: usize, message: &Message<'_>) {
        let round = self.newest_round_start();
        for part in &message.parts {
            let partner = match part {
                Part::ToolResult(result) => self.pending_calls.get(result.call_id.as_ref()).map(|(_, call)| *call),
                Part::Opaque(block) => block.pair.as_ref().and_then(|pair| self.pairs.insert(pair.to_string(), at)),
                _ => None,
            };
            if let Some(partner) = partner.filter(|&partner| partner < round) {
                self.cross_round_messages.extend([partner, at]);
            }
        }
    }

    /// Caches per-segment facts that passes query on every planning run: which new results repeat lines of earlier
    /// ones, and which prose contains noise.
    fn index_new_results(&mut self, options: &FoldOptions, messages: &[Message<'_>]) -> Result<(), Error> {
        let for_lines = repeated_lines::is_enabled(&options.policy);
        for index in self.indexed_segments..self.segments.len() {
            self.indexed_segments = index;
            options.cancel.check()?;
            let segment = &self.segments[index];
            let text = segment::segment_text(messages, segment.at);
            match segment.kind {
                SegmentKind::Result if for_lines && segment.tokens >= repeated_lines::MIN_RESULT_TOKENS => {
                    let hashes = LineHashes::new(text);
                    self.line_owners.record(index as u32, &hashes, |before| {
                        let before = &mut self.segments[before as usize];
                        before
                            .line_hashes
                            .get_or_insert_with(|| LineHashes::new(segment::segment_text(messages, before.at)));
                        before.repeated_later = true;
                        self.segments[index].repeats_earlier_lines = true;
                    });
                    self.segments[index].line_hashes = self.segments[index].repeats_earlier_lines.then_some(hashes);
                }
                SegmentKind::Prose if segment.tokens >= prose::MIN_PROSE_TOKENS => {
                    self.segments[index].has_noise = prose::without_noise(text).is_some();
                }
                _ => {}
            }
        }
        self.indexed_segments = self.segments.len();
        Ok(())
    }

    /// Decides at a past request point. A request that could not fit was refused or sent unfolded, so that is not an
    /// error here.
    pub(crate) fn decide_past(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Option<Crease> {
        let options = options_at(options, ledger, messages.len());
        // If the verbatim texts alone exceed the budget, no plan can fit.
        let VerbatimTokens { operator, task, newest } = self.verbatim;
        if operator + task + newest > options.message_budget(1.0) {
            self.accrue_carrying_cost(&options);
            return None;
        }
        self.decide(&options, ledger, messages).ok().flatten()
    }

    /// Decides at the request point after the last ingested message.
    pub(crate) fn decide(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<Crease>, Error> {
        let planned = self.plan_crease(options, ledger, messages)?;
        Ok(planned.map(|(plan, trigger)| self.apply_plan(options, messages, plan, trigger).0))
    }

    /// Returns the plan of a crease at this request point, if there is to be one. Changes only the schedule and caches.
    pub(crate) fn plan_crease(
        &mut self,
        options: &FoldOptions,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<(CreasePlan, Trigger)>, Error> {
        options.cancel.check()?;
        let at = messages.len();
        let options = &*options_at(options, ledger, at);
        self.accrue_carrying_cost(options);
        let Some(trigger) = self.crease_trigger(options, ledger.cold_points.contains(&at), messages) else {
            return Ok(None);
        };
        self.index_new_results(options, messages)?;
        let mut identifiers = std::mem::take(&mut self.identifiers);
        let kind_of = |at| self.segment(at).and_then(|segment| segment.text_kind);
        let from = self.crease_start(options, trigger);
        let plan = identifiers.index_messages(messages, &self.folds, &options.cancel, kind_of).and_then(|()| {
            planner::choose_folds(self, &mut identifiers, options, messages, trigger, from, ledger.summary_at(at))
        });
        self.identifiers = identifiers;
        let plan = plan?;
        if trigger == Trigger::OverBudget {
            let left = plan.as_ref().map_or(self.rendered_tokens, |plan| self.rendered_tokens - plan.saved_tokens);
            if left > options.message_budget(1.0) {
                return Err(self.cannot_fit_error(options, left, plan.as_ref()));
            }
            self.schedule.record_forced(left);
        }
        match plan {
            Some(plan) if trigger == Trigger::OverBudget || plan.expected_gain > 0.0 => Ok(Some((plan, trigger))),
            _ => {
                self.schedule.record_unprofitable(self.calls, plan.as_ref(), options);
                Ok(None)
            }
        }
    }

    /// Applies a plan. Returns the previous values for [`FoldState::undo_crease`].
    pub(crate) fn apply_plan(
        &mut self,
        options: &FoldOptions,
        messages: &[Message<'_>],
        plan: CreasePlan,
        trigger: Trigger,
    ) -> (Crease, CreaseUndo) {
        let rewrite_cost = match trigger {
            Trigger::ColdCache => 0,
            _ => options.prices.rewrite_cost(plan.suffix_tokens, plan.saved_tokens).round() as Tokens,
        };
        let at = self.message_tokens.len();
        for &at in &plan.touched_messages {
            self.identifiers.update_message(at, &messages[at], &self.folds, &plan.folds);
            // Line hashes and counts are not needed for text that is cut.
            let end = self.first_segment.get(at + 1).copied().unwrap_or(self.segments.len());
            let segments = &mut self.segments[self.first_segment[at]..end];
            for segment in segments {
                let stage = plan.folds.stage(segment.at);
                segment.line_hashes.take_if(|_| stage.is_some());
                segment.line_counts.take_if(|_| stage >= Some(Stage::Excerpts));
            }
        }
        let folds = std::mem::replace(&mut self.folds, plan.folds);
        let message_tokens = std::mem::replace(&mut self.message_tokens, plan.message_tokens);
        self.rendered_tokens -= plan.saved_tokens;
        self.schedule.record_crease(plan.saved_tokens);
        let crease = Crease {
            request_point: at,
            trigger,
            saved_tokens: plan.saved_tokens,
            suffix_tokens: plan.suffix_tokens,
            rewrite_cost,
            first_message: plan.first_message,
        };
        (crease, CreaseUndo { folds, message_tokens, touched_messages: plan.touched_messages })
    }

    /// Reverts the last crease, except for the schedule.
    pub(crate) fn undo_crease(&mut self, messages: &[Message<'_>], crease: &Crease, before: CreaseUndo) {
        for &at in &before.touched_messages {
            self.identifiers.update_message(at, &messages[at], &self.folds, &before.folds);
        }
        self.folds = before.folds;
        self.message_tokens = before.message_tokens;
        self.rendered_tokens += crease.saved_tokens;
    }

    fn cannot_fit_error(&self, options: &FoldOptions, left: Tokens, plan: Option<&CreasePlan>) -> Error {
        let (floor, budget) = (left + options.overhead_tokens, options.budget);
        let folds = plan.map_or(&self.folds, |plan| &plan.folds);
        let left = self.segments.iter().filter(|segment| !folds.is_dropped(segment.at.message));
        let sizes = left.map(|segment| (segment.at, folds.part_tokens(segment.at).unwrap_or(segment.tokens)));
        let largest = sizes.max_by_key(|(_, tokens)| *tokens);
        let what = match largest {
            Some((at, tokens)) if tokens > options.overhead_tokens => {
                format!("the largest part left is {at} with {tokens} tokens")
            }
            _ => format!("system and tools alone are {} tokens", options.overhead_tokens),
        };
        let message = format!(
            "cannot fit: the floor is {floor} tokens and the budget is {budget}; {what}; use a larger window or send less"
        );
        Error::new(ErrorKind::CannotFit { floor, budget, largest }, message)
    }
}

/// Returns the options with the budget of a request point.
fn options_at<'s>(options: &'s FoldOptions, ledger: &Ledger, at: usize) -> Cow<'s, FoldOptions> {
    match ledger.budget_at(at, options) {
        budget if budget == options.budget => Cow::Borrowed(options),
        budget => Cow::Owned(FoldOptions { budget, ..options.clone() }),
    }
}

/// Folds a conversation for the request that is to be sent now.
///
/// # Errors
///
/// [`ErrorKind::CannotFit`] if the conversation cannot be folded to the budget, [`ErrorKind::Cancelled`] if the caller
/// cancelled the fold.
pub fn fold(
    conversation: &Conversation<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
) -> Result<FoldedConversation, Error> {
    resume(FoldState::default(), conversation, options, ledger)
}

/// Folds a conversation whose first messages were folded before; only the new messages are processed. `state` comes
/// from [`FoldedConversation::into_state`] after those messages, with the same options and ledger. The result is the
/// same as that of [`fold`].
///
/// # Errors
///
/// The same as for [`fold`].
pub fn resume(
    mut state: FoldState,
    conversation: &Conversation<'_>,
    options: &FoldOptions,
    ledger: &Ledger,
) -> Result<FoldedConversation, Error> {
    let messages = &conversation.messages;
    let mut decided = state.len();
    let answered = |next: &Message<'_>| next.opens_round(messages[..decided].last());
    if decided > 0 && !messages.get(decided).is_none_or(answered) {
        // The last decision assumed an answer that was not given.
        (state, decided) = (FoldState::default(), 0);
    }
    for (at, message) in messages.iter().enumerate().skip(decided) {
        options.cancel.check()?;
        if at > decided && message.opens_round(Some(&messages[at - 1])) {
            let crease = state.decide_past(options, ledger, &messages[..at]);
            state.creases.extend(crease);
        }
        state.ingest(options, message);
    }
    if messages.len() > decided || decided == 0 {
        let crease = state.decide(options, ledger, messages)?;
        state.creases.extend(crease);
    }
    Ok(FoldedConversation {
        tokens: state.rendered_tokens + options.overhead_tokens,
        raw_tokens: state.raw_tokens + options.overhead_tokens,
        creases: state.creases.clone(),
        state,
        alternate_roles: options.alternate_roles,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{FoldSession, Meter, ModelTable, Prices};

    fn options(budget: Tokens) -> FoldOptions {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some("gpt-4o"));
        FoldOptions {
            handles: true,
            ..FoldOptions::new(meter, Prices::for_model(table, Some("claude-opus-4-6")), budget)
        }
    }

    fn source_text(seed: usize, lines: usize) -> String {
        (0..lines).map(|at| format!("    let value_{seed}_{at} = compute_{at}(input_{seed}, {at});\n")).collect()
    }

    fn agent_session(rounds: usize, lines: usize) -> Conversation<'static> {
        let mut messages = vec![
            Message::text(Role::System, "You are a careful engineer."),
            Message::text(Role::User, "Please make the parser faster."),
        ];
        for at in 0..rounds {
            let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
            messages.push(Message::new(Role::Assistant, vec![Part::text(format!("Reading file {at}.")), call]));
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source_text(at, lines))]));
        }
        Conversation { messages, ..Conversation::default() }
    }

    #[test]
    fn rendering_fits_the_budget() {
        let conversation = agent_session(60, 60);
        for budget in [4_000, 8_000, 16_000, 32_000] {
            let options = options(budget);
            let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
            assert!(folded.tokens <= budget, "{} > {budget}", folded.tokens);
            let sent: Tokens =
                folded.messages(&conversation).iter().map(|message| options.meter.message(message)).sum();
            assert_eq!(sent, folded.tokens);
            assert!(folded.raw_tokens > 3 * 16_000);
        }
    }

    /// At every request point, a session and the fold of the whole conversation give the same rendering.
    #[test]
    fn session_equals_fold() {
        let conversation = agent_session(40, 40);
        let options = options(12_000);
        let mut session = FoldSession::new(options.clone());
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
                session.plan_request().unwrap();
                let whole = Conversation { messages: conversation.messages[..at].to_vec(), ..Conversation::default() };
                let folded = fold(&whole, &options, &Ledger::default()).unwrap();
                assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&whole), "at {at}");
                assert_eq!(session.tokens(), folded.tokens);
            }
            session.push(message.clone());
        }
    }

    /// Resuming from any request equals folding the whole conversation, also if the request had no answer.
    #[test]
    fn resume_equals_fold() {
        let conversation = agent_session(40, 40);
        let options = options(12_000);
        let ledger = Ledger { budgets: BTreeMap::from([(41, 9_000)]), ..Ledger::default() };
        let mut state = FoldState::default();
        for end in (1..=conversation.messages.len()).filter(|end| end % 3 != 0) {
            let seen = Conversation { messages: conversation.messages[..end].to_vec(), ..Conversation::default() };
            let resumed = resume(state, &seen, &options, &ledger).unwrap();
            let folded = fold(&seen, &options, &ledger).unwrap();
            assert_eq!(resumed.messages(&seen), folded.messages(&seen), "at {end}");
            assert_eq!((resumed.tokens, &resumed.creases), (folded.tokens, &folded.creases), "at {end}");
            state = resumed.into_state();
            assert_eq!(state.len(), end);
        }
    }

    /// If system messages alone exceed the budget for a while, a fold of the whole equals a session that planned at every
    /// point.
    #[test]
    fn unfittable_request_points_are_skipped() {
        let mut conversation = agent_session(40, 40);
        conversation.messages[0] = Message::text(Role::System, source_text(0, 100));
        let options = options(16_000);
        let ledger = Ledger {
            budgets: BTreeMap::from([(1, 1_000), (31, 12_000), (61, 1_000), (71, 9_000)]),
            ..Ledger::default()
        };
        let mut session = FoldSession::new(options.clone());
        *session.ledger_mut() = ledger.clone();
        let mut refused = 0;
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
                refused += usize::from(session.plan_request().is_err());
            }
            session.push(message.clone());
        }
        session.plan_request().unwrap();
        let folded = fold(&conversation, &options, &ledger).unwrap();
        assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&conversation));
        assert!(refused > 10 && !folded.creases.is_empty(), "{refused}");
    }

    /// Planning, adding a message and planning again equals planning once.
    #[test]
    fn unanswered_request_leaves_no_trace() {
        let conversation = agent_session(40, 40);
        let options = options(12_000);
        let mut session = FoldSession::new(options.clone());
        for message in &conversation.messages {
            drop(session.plan_request());
            session.push(message.clone());
        }
        session.plan_request().unwrap();
        let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
        assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&conversation));
    }

    /// A crease that was unprofitable is planned again once more calls are expected, although no text grew old.
    #[test]
    fn unprofitable_crease_is_retried_later() {
        let mut conversation = agent_session(0, 0);
        for at in 0..80 {
            let (call, output) = (format!("c{at}"), if at < 4 { source_text(at, 400) } else { at.to_string() });
            let run = Part::call(call.clone(), "run", format!(r#"{{"command":"make {at}"}}"#));
            conversation.messages.push(Message::new(Role::Assistant, vec![run]));
            conversation.messages.push(Message::new(Role::Tool, vec![Part::result(call, output)]));
        }
        let after = |rounds: usize| {
            let messages = conversation.messages[..2 + 2 * rounds].to_vec();
            fold(&Conversation { messages, ..Conversation::default() }, &options(200_000), &Ledger::default()).unwrap()
        };
        let was_unprofitable = |rounds: &usize| after(*rounds).into_state().schedule.retry_at_call > 0;
        let first = (1..80).find(was_unprofitable).expect("a planning run without a profitable crease");
        assert_eq!(after(first).creases, []);
        let end = after(80);
        assert_eq!(end.creases.len(), 1);
        assert!(end.tokens < end.raw_tokens / 2, "{} of {}", end.tokens, end.raw_tokens);
    }

    /// Builds a conversation from the tool and the result lines of each round.
    fn rounds(rounds: impl Iterator<Item = (&'static str, usize)>) -> Conversation<'static> {
        let mut conversation = agent_session(0, 0);
        for (at, (tool, lines)) in rounds.enumerate() {
            let call = Part::call(format!("c{at}"), tool, format!(r#"{{"path":"src/file_{at}.rs"}}"#));
            conversation.messages.push(Message::new(Role::Assistant, vec![call]));
            let output = if lines == 0 { at.to_string() } else { source_text(at, lines) };
            conversation.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), output)]));
        }
        conversation
    }

    /// A profitable crease leaves everything before it unchanged, so that it is not written again.
    #[test]
    fn profitable_crease_starts_after_the_previous_one() {
        let lines = |at: usize| if at.is_multiple_of(40) { 1_200 } else { 0 };
        let folded =
            fold(&rounds((0..160).map(|at| ("run", lines(at)))), &options(200_000), &Ledger::default()).unwrap();
        let firsts: Vec<usize> = folded.creases.iter().map(|crease| crease.first_message).collect();
        assert!(firsts.len() > 2 && firsts.is_sorted_by(|one, next| one < next), "{firsts:?}");
    }

    /// A crease waits for a file that will be old within a few calls, and folds it together with older text.
    #[test]
    fn crease_waits_for_segments_about_to_age() {
        let creases = |read_at: usize| {
            let round = |at: usize| match at {
                30 => ("run", 1_200),
                at if at == read_at => ("read_file", 1_200),
                _ => ("run", 0),
            };
            fold(&rounds((0..80).map(round)), &options(200_000), &Ledger::default()).unwrap().creases
        };
        let (alone, waited) = (creases(usize::MAX), creases(28));
        assert_eq!((alone.len(), waited.len()), (1, 1));
        assert!(
            waited[0].request_point > alone[0].request_point,
            "{} {}",
            waited[0].request_point,
            alone[0].request_point
        );
    }

    /// Each rendering begins with the previous one, unless there is a crease.
    #[test]
    fn rendering_is_stable_between_creases() {
        let conversation = agent_session(60, 40);
        let mut session = FoldSession::new(options(16_000));
        let mut sent: Vec<Message<'static>> = Vec::new();
        let mut creases = 0;
        for (at, message) in conversation.messages.iter().enumerate() {
            if at > 0 && message.is_assistant() {
                let creased = session.plan_request().unwrap().is_some();
                let now: Vec<_> = session.rendered_messages(0).collect();
                assert!(creased || now.starts_with(&sent), "at {at}");
                creases += usize::from(creased);
                sent = now;
            }
            session.push(message.clone());
        }
        assert!((2..20).contains(&creases), "{creases}");
    }

    #[test]
    fn cannot_fit_error_states_the_floor() {
        let mut conversation = agent_session(1, 10);
        conversation.messages[0] = Message::text(Role::System, source_text(0, 400));
        let error = fold(&conversation, &options(2_000), &Ledger::default()).err().unwrap();
        let ErrorKind::CannotFit { floor, budget, largest } = error.kind() else { panic!("{error}") };
        assert_eq!((*budget, largest.unwrap().0), (2_000, PartId::new(0, 0)));
        assert!(*floor > 2_000, "{error}");
    }
}
