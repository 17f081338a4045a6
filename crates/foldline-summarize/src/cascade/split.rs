//! Where a session is parted: what goes, what stays, and what is left of the budget for the words about what went.
//!
//! The cut is computed before any model is asked, from tokens, so that one summary is enough. Instructions, the words of
//! users and pinned rounds stay wherever they stand; a round goes whole or not at all; the newest one stays.

use foldline::laws::{CutPoints, Law};
use foldline::{Conversation, Message, Meter, Part, PartId, PinRules, Role, Tokens, ToolAction, ToolCall};

use crate::cascade::EnforceOptions;
use crate::cascade::record::ActionRecord;
use crate::cascade::summary_frame::SummaryFrame;

/// Tokens of a frame beside its summary and its record.
const FRAME_OVERHEAD_TOKENS: Tokens = 96;
/// A summary of fewer tokens says nothing.
const MIN_SUMMARY_TOKENS: Tokens = 256;

/// A session, parted.
#[derive(Clone, Debug)]
pub(crate) struct SessionSplit<'m> {
    /// Before this message.
    pub(crate) cut: usize,
    /// What stays of the messages before it.
    pub(crate) kept: Vec<Message<'m>>,
    /// What goes of them, without earlier frames.
    pub(crate) dropped: Vec<Message<'m>>,
    /// The summary that stood there before.
    pub(crate) earlier_frame: Option<SummaryFrame>,
    pub(crate) record: ActionRecord,
    /// Tokens that the record may have.
    pub(crate) record_budget: Tokens,
    /// Tokens that are left for a summary, below the target.
    pub(crate) summary_budget: Tokens,
}

/// The first parting, from those that keep the most messages to those that keep the least, after which the session is
/// below the target; else the one that keeps the least. `None` when there is nothing that could go.
pub(crate) fn choose_split<'m>(
    session: &Conversation<'m>,
    fixed: Tokens,
    with: &EnforceOptions<'_>,
) -> Option<SessionSplit<'m>> {
    let candidates = candidate_cuts(session, with);
    let mut last = None;
    for cut in candidates {
        let Some(parting) = SessionSplit::split_at(session, cut, fixed, with) else { continue };
        if parting.summary_budget >= MIN_SUMMARY_TOKENS.max(with.budget / 32) {
            return Some(parting);
        }
        last = Some(parting);
    }
    last.map(|parting| SessionSplit { summary_budget: parting.summary_budget.max(MIN_SUMMARY_TOKENS), ..parting })
}

/// Where the session may be cut, the oldest place first: before the last 16 messages, 12, 8, 6, and the newest round,
/// each moved to where a round begins.
pub(crate) fn candidate_cuts(session: &Conversation<'_>, with: &EnforceOptions<'_>) -> Vec<usize> {
    let length = session.messages.len();
    let lawful = CutPoints::for_conversation(session, &with.profile);
    let points: Vec<usize> = lawful.points().collect();
    let rounds: Vec<usize> = session.rounds().into_iter().map(|round| round.start).collect();
    let starts: Vec<usize> = rounds.iter().copied().filter(|start| points.binary_search(start).is_ok()).collect();
    // A frame is a user's message, so what comes behind it begins a turn; where a turn must begin with thinking, it does.
    let thinks = |&start: &usize| matches!(session.messages[start].parts.first(), Some(Part::Reasoning(_)));
    let must_think = with.profile.has(Law::ThinkingFirst) && !with.profile.has(Law::NoManualThinking);
    let starts = match starts.iter().copied().filter(|start| thinks(start)).collect::<Vec<_>>() {
        thinking if must_think && !thinking.is_empty() => thinking,
        _ => starts,
    };
    let Some(&newest) = starts.last() else { return Vec::new() };
    let mut cuts: Vec<usize> = with
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
    /// Parts the session before a message; `None` when nothing would go.
    pub(crate) fn split_at(
        session: &Conversation<'m>,
        cut: usize,
        fixed: Tokens,
        with: &EnforceOptions<'_>,
    ) -> Option<Self> {
        let messages = &session.messages;
        let mut pinned = vec![false; cut];
        for round in session.rounds().into_iter().filter(|round| round.end <= cut) {
            // A note of the operator in the middle must be followed by the answer to it.
            let before = round.start.checked_sub(1).map(|at| messages[at].role);
            let answers_a_note =
                with.profile.has(Law::SystemMessagePosition) && matches!(before, Some(Role::System | Role::Developer));
            if answers_a_note || round.clone().any(|at| is_pinned(&with.pins, at, &messages[at])) {
                pinned[round].fill(true);
            }
        }
        let (mut stays, mut goes) = (Vec::new(), Vec::new());
        let mut earlier: Option<SummaryFrame> = None;
        for (at, message) in messages[..cut].iter().enumerate() {
            if pinned[at] {
                stays.push(message.clone());
                continue;
            }
            if let Some(frame) = SummaryFrame::from_message(message) {
                earlier = Some(match earlier {
                    Some(before) => before.merged_with(frame),
                    None => frame,
                });
                continue;
            }
            match message.role {
                Role::Assistant | Role::Tool => goes.push(message.clone()),
                Role::User if message.has_results() => {
                    let is_result = |part: &Part<'_>| matches!(part, Part::ToolResult(_));
                    let (results, said): (Vec<_>, Vec<_>) = message.parts.iter().cloned().partition(is_result);
                    goes.push(Message::new(Role::User, results));
                    stays.extend((!said.is_empty()).then(|| Message::new(Role::User, said)));
                }
                _ => stays.push(message.clone()),
            }
        }
        if goes.is_empty() {
            return None;
        }
        let meter = &with.meter;
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| meter.message(message)).sum::<Tokens>();
        let before = earlier.as_ref().map(|frame| ActionRecord::parse(&frame.record)).unwrap_or_default();
        let record = before.merged_with(ActionRecord::from_messages(&goes.iter().collect::<Vec<_>>()));
        let record_room = with.budget / 10;
        let used = fixed
            + count(&stays)
            + count(&messages[cut..])
            + meter.text(&record.to_text(record_room, meter))
            + FRAME_OVERHEAD_TOKENS;
        let room = with.target_tokens().saturating_sub(used);
        Some(Self {
            cut,
            kept: stays,
            dropped: goes,
            earlier_frame: earlier,
            record,
            record_budget: record_room,
            summary_budget: room,
        })
    }

    /// What the user wants: their first words, and their last.
    pub(crate) fn goal(&self, session: &Conversation<'_>) -> String {
        user_goal(&session.messages)
    }

    /// The messages with a frame in the place of what went.
    pub(crate) fn with_frame(&self, session: &Conversation<'m>, frame: &SummaryFrame) -> Vec<Message<'m>> {
        let mut messages = self.kept.clone();
        messages.push(frame.to_message());
        messages.extend(session.messages[self.cut..].iter().cloned());
        messages
    }
}

impl SummaryFrame {
    /// Two frames that stand one behind the other, as one.
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

/// The first words of a user, and the last.
pub(crate) fn user_goal(messages: &[Message<'_>]) -> String {
    let said: Vec<String> = messages
        .iter()
        .filter(|message| message.role == Role::User && SummaryFrame::from_message(message).is_none())
        .map(|message| message.parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n"))
        .filter(|text| !text.trim().is_empty())
        .collect();
    match said.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first, .., last] => format!("{first}\n\n{last}"),
    }
}
