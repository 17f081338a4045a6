//! The split of a session: what is dropped, what is kept, and the tokens left for the summary.
//!
//! The cut is computed from token counts before any model is called, so that one summary is enough. Instructions, user
//! texts and pinned rounds are kept wherever they are; a round is dropped whole or not at all; the newest one is kept.

use foldline::conversation::{PartId, ToolCall};
use foldline::engine::{PinRules, ToolAction};
use foldline::laws::{CutPoints, Law};
use foldline::tokens::Tokens;
use foldline::{Conversation, Message, Meter, Part, Role};

use crate::cascade::options::EnforceOptions;
use crate::cascade::record::ActionRecord;
use crate::cascade::summary_frame::SummaryFrame;

/// Tokens of a frame without its summary and record.
const FRAME_OVERHEAD_TOKENS: Tokens = 96;
/// A summary with fewer tokens is not useful.
const MIN_SUMMARY_TOKENS: Tokens = 256;

/// A split session.
#[derive(Clone, Debug)]
pub(crate) struct SessionSplit<'m> {
    /// The index of the first message after the cut.
    pub(crate) cut: usize,
    /// The messages before the cut that are kept.
    pub(crate) kept: Vec<Message<'m>>,
    /// The messages before the cut that are dropped, without earlier frames.
    pub(crate) dropped: Vec<Message<'m>>,
    /// The earlier summary, if there was one.
    pub(crate) earlier_frame: Option<SummaryFrame>,
    pub(crate) record: ActionRecord,
    /// Maximum tokens of the record.
    pub(crate) record_budget: Tokens,
    /// Tokens that are left for a summary, below the target.
    pub(crate) summary_budget: Tokens,
}

/// Returns the first split, from most to fewest messages kept, that brings the session below the target; otherwise
/// the one that keeps the fewest. `None` if nothing can be dropped.
pub(crate) fn choose_split<'m>(
    session: &Conversation<'m>,
    fixed: Tokens,
    options: &EnforceOptions,
) -> Option<SessionSplit<'m>> {
    let candidates = candidate_cuts(session, options);
    let mut last = None;
    for cut in candidates {
        let Some(split) = SessionSplit::split_at(session, cut, fixed, options) else { continue };
        if split.summary_budget >= MIN_SUMMARY_TOKENS.max(options.budget / 32) {
            return Some(split);
        }
        last = Some(split);
    }
    last.map(|split| SessionSplit { summary_budget: split.summary_budget.max(MIN_SUMMARY_TOKENS), ..split })
}

/// Returns the possible cuts, oldest first: before the last 16, 12, 8 and 6 messages and the newest round, each
/// moved to the start of a round.
pub(crate) fn candidate_cuts(session: &Conversation<'_>, options: &EnforceOptions) -> Vec<usize> {
    let length = session.messages.len();
    let lawful = CutPoints::for_conversation(session, &options.profile);
    let points: Vec<usize> = lawful.points().collect();
    let rounds: Vec<usize> = session.rounds().into_iter().map(|round| round.start).collect();
    let starts: Vec<usize> = rounds.iter().copied().filter(|start| points.binary_search(start).is_ok()).collect();
    // A frame is a user message, so the next message starts a turn. If turns must start with thinking, the cut must
    // too.
    let thinks = |&start: &usize| matches!(session.messages[start].parts.first(), Some(Part::Reasoning(_)));
    let must_think = options.profile.has(Law::ThinkingFirst) && !options.profile.has(Law::NoManualThinking);
    let starts = match starts.iter().copied().filter(|start| thinks(start)).collect::<Vec<_>>() {
        thinking if must_think && !thinking.is_empty() => thinking,
        _ => starts,
    };
    let Some(&newest) = starts.last() else { return Vec::new() };
    let mut cuts: Vec<usize> = options
        .keep_last
        .iter()
        .map(|&keep| length.saturating_sub(keep))
        .map(|from| starts.iter().copied().find(|&start| start >= from).unwrap_or(newest))
        .chain([newest])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

impl<'m> SessionSplit<'m> {
    /// Splits the session before a message; `None` if nothing would be dropped.
    pub(crate) fn split_at(
        session: &Conversation<'m>,
        cut: usize,
        fixed: Tokens,
        options: &EnforceOptions,
    ) -> Option<Self> {
        let messages = &session.messages;
        let mut pinned = vec![false; cut];
        for round in session.rounds().into_iter().filter(|round| round.end <= cut) {
            // An operator message inside the conversation must be followed by its answer.
            let before = round.start.checked_sub(1).map(|at| messages[at].role);
            let answers_operator = options.profile.has(Law::SystemMessagePosition)
                && matches!(before, Some(Role::System | Role::Developer));
            if answers_operator || round.clone().any(|at| is_pinned(&options.pins, at, &messages[at])) {
                pinned[round].fill(true);
            }
        }
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        let mut earlier_frame: Option<SummaryFrame> = None;
        for (at, message) in messages[..cut].iter().enumerate() {
            if pinned[at] {
                kept.push(message.clone());
                continue;
            }
            if let Some(frame) = SummaryFrame::from_message(message) {
                earlier_frame = Some(match earlier_frame {
                    Some(before) => before.merged_with(frame),
                    None => frame,
                });
                continue;
            }
            match message.role {
                Role::Assistant | Role::Tool => dropped.push(message.clone()),
                Role::User if message.has_results() => {
                    let is_result = |part: &Part<'_>| matches!(part, Part::ToolResult(_));
                    let (results, texts): (Vec<_>, Vec<_>) = message.parts.iter().cloned().partition(is_result);
                    dropped.push(Message::new(Role::User, results));
                    kept.extend((!texts.is_empty()).then(|| Message::new(Role::User, texts)));
                }
                _ => kept.push(message.clone()),
            }
        }
        if dropped.is_empty() {
            return None;
        }
        let meter = &options.meter;
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| meter.message(message)).sum::<Tokens>();
        let before = earlier_frame.as_ref().map(|frame| ActionRecord::parse(&frame.record)).unwrap_or_default();
        let record =
            before.merged_with(ActionRecord::from_messages(&dropped.iter().collect::<Vec<_>>(), &options.tools));
        let record_budget = options.budget / 10;
        let used = fixed
            + count(&kept)
            + count(&messages[cut..])
            + meter.text(&record.to_text(record_budget, meter))
            + FRAME_OVERHEAD_TOKENS;
        let summary_budget = options.target_tokens().saturating_sub(used);
        Some(Self { cut, kept, dropped, earlier_frame, record, record_budget, summary_budget })
    }

    /// Returns the user's goal: their first text, and their last.
    pub(crate) fn goal(&self, session: &Conversation<'_>) -> String {
        user_goal(&session.messages)
    }

    /// Returns the messages with a frame in place of the dropped ones.
    pub(crate) fn with_frame(&self, session: &Conversation<'m>, frame: &SummaryFrame) -> Vec<Message<'m>> {
        let mut messages = self.kept.clone();
        messages.push(frame.to_message());
        messages.extend(session.messages[self.cut..].iter().cloned());
        messages
    }
}

impl SummaryFrame {
    /// Merges two consecutive frames.
    fn merged_with(self, later: SummaryFrame) -> SummaryFrame {
        let record = ActionRecord::parse(&self.record).merged_with(ActionRecord::parse(&later.record));
        SummaryFrame {
            message_count: self.message_count + later.message_count,
            summary: format!("{}\n\n{}", self.summary, later.summary),
            record: record.to_text(Tokens::MAX, &Meter::for_byte_estimate()),
            ..later
        }
    }
}

fn is_pinned(pins: &PinRules, at: usize, message: &Message<'_>) -> bool {
    let by_place = |part: usize| pins.parts.as_ref().is_some_and(|pinned| pinned(PartId::new(at, part)));
    let by_call = |call: &ToolCall<'_>| {
        let named = |name: &String| ToolAction::from_call(call).target.contains(name.as_str());
        pins.tools.iter().any(|tool| *tool == call.name) || pins.targets.iter().any(named)
    };
    pins.roles.contains(&message.role) || message.calls().any(by_call) || (0..message.parts.len()).any(by_place)
}

/// Returns the first text of the user, and the last.
pub(crate) fn user_goal(messages: &[Message<'_>]) -> String {
    let texts: Vec<String> = messages
        .iter()
        .filter(|message| message.role == Role::User && SummaryFrame::from_message(message).is_none())
        .map(|message| message.parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n"))
        .filter(|text| !text.trim().is_empty())
        .collect();
    match texts.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first, .., last] => format!("{first}\n\n{last}"),
    }
}
