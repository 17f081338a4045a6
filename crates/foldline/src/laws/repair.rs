//! Repairs broken pairs: orphaned, misplaced and duplicate results, and unanswered calls.
//!
//! A result without its call is removed; a misplaced result moves to its call; of two results the last
//! one stays; an unanswered call gets a placeholder result that states only that no result was
//! recorded. Trailing calls that wait for their results are in flight and stay unchanged. The order of
//! everything else is kept, and ids are never rewritten.

use std::collections::{HashMap, HashSet};

use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::laws::pairing::is_tool_search;
use crate::wire::result::AnsweredCall;
use crate::wire::rules::ResultPlacement;
use crate::wire::{Format, JsonValue, Request, RequestEdit};

/// Placeholder result of an unanswered call.
const MISSING_RESULT_TEXT: &str = "[no result was recorded for this call]";
/// User text that replaces an orphan which alone separated two assistant messages.
const REMOVED_ORPHAN_TEXT: &str = "[a tool result without its call was removed]";

/// Number of repairs of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct RepairCounts {
    /// Calls that got a placeholder result.
    pub unanswered: usize,
    /// Results removed because they have no call.
    pub orphans: usize,
    /// Results removed because a later one answers the same call.
    pub duplicates: usize,
    /// Results moved to their call.
    pub moved: usize,
}

impl RepairCounts {
    /// Returns the number of all repairs.
    pub fn total(&self) -> usize {
        self.unanswered + self.orphans + self.duplicates + self.moved
    }

    /// Returns the sum of two counts.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            unanswered: self.unanswered + other.unanswered,
            orphans: self.orphans + other.orphans,
            duplicates: self.duplicates + other.duplicates,
            moved: self.moved + other.moved,
        }
    }

    /// Returns true if nothing was repaired.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Repairs a conversation of unknown format: results go into user messages if one of them contains a
/// result, else into separate messages.
///
/// ```
/// use foldline::{Conversation, Message, Part, Role, laws};
///
/// let messages = vec![
///     Message::new(Role::Tool, vec![Part::result("gone", "an orphan")]),
///     Message::new(Role::Assistant, vec![Part::call("c1", "sh", "{}")]),
///     Message::text(Role::User, "stop"),
/// ];
/// let (repaired, repairs) = laws::repair(Conversation { messages, ..Conversation::default() });
/// assert_eq!((repairs.orphans, repairs.unanswered), (1, 1));
/// assert_eq!(repaired.messages[1].results().next().map(|result| &*result.call_id), Some("c1"));
/// assert_eq!(repaired.messages[2], Message::text(Role::User, "stop"));
/// ```
pub fn repair(conversation: Conversation<'_>) -> (Conversation<'_>, RepairCounts) {
    let format = guess_format(&conversation);
    repair_as(conversation, format)
}

/// Repairs a conversation and places results as the format requires.
pub fn repair_as(mut conversation: Conversation<'_>, format: Format) -> (Conversation<'_>, RepairCounts) {
    let placement = format.dialect().rules.result_placement;
    let plan = RepairPlan::new(&conversation, placement);
    if plan.repairs.is_empty() {
        return (conversation, plan.repairs);
    }
    let (repairs, mut insertions) = (plan.repairs, plan.insertions.into_iter().peekable());
    let mut moved: HashMap<PartId, Part<'_>> = HashMap::new();
    let mut kept = Vec::with_capacity(conversation.messages.len());
    for (at, message) in std::mem::take(&mut conversation.messages).into_iter().enumerate() {
        let had_parts = !message.parts.is_empty();
        let mut parts = Vec::with_capacity(message.parts.len());
        for (index, part) in message.parts.into_iter().enumerate() {
            let place = PartId::new(at, index);
            match plan.removed.contains(&place) {
                true => drop(moved.insert(place, part)),
                false => parts.push(part),
            }
        }
        kept.push((!had_parts || !parts.is_empty()).then_some(Message { role: message.role, parts }));
    }
    let end = kept.len();
    for (at, message) in kept.into_iter().chain([None]).enumerate().take(end + 1) {
        let mut results = Vec::new();
        while let Some((_, insertion)) = insertions.next_if(|(before, _)| *before == at) {
            match insertion {
                ResultInsertion::Moved(from) => results.extend(moved.remove(&from)),
                ResultInsertion::MissingResult { id, .. } => results.push(Part::result(id, MISSING_RESULT_TEXT)),
                ResultInsertion::RemovedOrphan => {
                    conversation.messages.push(Message::text(Role::User, REMOVED_ORPHAN_TEXT))
                }
            }
        }
        match placement {
            ResultPlacement::NextUserTurn if results.is_empty() => {}
            ResultPlacement::NextUserTurn => conversation.messages.push(Message::new(Role::User, results)),
            ResultPlacement::DirectlyAfter | ResultPlacement::AnywhereAfter => {
                let separate = results.into_iter().map(|result| Message::new(Role::Tool, vec![result]));
                conversation.messages.extend(separate);
            }
        }
        conversation.messages.extend(message);
    }
    (conversation, repairs)
}

/// Returns the same repair as edits of a request; none for a request whose history the server stores.
pub fn repair_edits(request: &Request<'_>) -> Vec<RequestEdit> {
    if request.is_partial() {
        return Vec::new();
    }
    let conversation = request.conversation();
    let plan = RepairPlan::new(conversation, request.format().dialect().rules.result_placement);
    let mut edits = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        let places: Vec<PartId> = (0..message.parts.len()).map(|part| PartId::new(at, part)).collect();
        let removed = places.iter().filter(|place| plan.removed.contains(place));
        match removed.clone().count() {
            0 => {}
            all if all == places.len() => edits.push(RequestEdit::DropMessage(at)),
            _ => edits.extend(removed.map(|place| RequestEdit::DropPart(*place))),
        }
    }
    let mut insertions = plan.insertions.iter().peekable();
    while let Some((before, insertion)) = insertions.next() {
        let before = *before;
        if *insertion == ResultInsertion::RemovedOrphan {
            let text = REMOVED_ORPHAN_TEXT.to_owned();
            edits.push(RequestEdit::InsertMessage { before, role: Role::User, text });
            continue;
        }
        let mut results = vec![result_json(request, insertion)];
        while let Some((_, insertion)) =
            insertions.next_if(|(at, insertion)| *at == before && *insertion != ResultInsertion::RemovedOrphan)
        {
            results.push(result_json(request, insertion));
        }
        let elements = request.format().dialect().results.elements(results);
        edits.extend(elements.into_iter().map(|json| RequestEdit::InsertJson { before, json }));
    }
    edits
}

/// Writes a result as the provider's JSON: a block or a message.
fn result_json(request: &Request<'_>, insertion: &ResultInsertion) -> String {
    let syntax = &request.format().dialect().results;
    match insertion {
        ResultInsertion::RemovedOrphan => String::new(),
        ResultInsertion::Moved(from) => {
            let value = match syntax.message_of_blocks {
                Some(_) => request.block(*from),
                None => request.message_value(from.message),
            };
            value.map(JsonValue::raw).unwrap_or_default().to_owned()
        }
        ResultInsertion::MissingResult { id, call } => {
            let part =
                request.conversation().messages.get(call.message).and_then(|message| message.parts.get(call.part));
            let name = match part {
                Some(Part::ToolCall(call)) => &*call.name,
                _ => "",
            };
            (syntax.result_for_part)(request, *call, AnsweredCall { id, name }, MISSING_RESULT_TEXT)
        }
    }
}

/// Guesses the format by the position of results: inside user messages (Anthropic); after calls in separate messages
/// that are answered together (Responses); everything else is read as Chat.
pub(crate) fn guess_format(conversation: &Conversation<'_>) -> Format {
    let messages = &conversation.messages;
    if messages.iter().any(|message| message.role == Role::User && message.has_results()) {
        return Format::with_result_placement(ResultPlacement::NextUserTurn);
    }
    // The calls of the current turn: those of its newest message and those of the earlier ones.
    let mut newest: HashSet<&str> = HashSet::new();
    let mut earlier: HashSet<&str> = HashSet::new();
    let mut before = None;
    for message in messages {
        if message.opens_round(before) {
            earlier.clear();
            newest.clear();
        }
        if message.is_assistant() {
            earlier.extend(newest.drain());
            newest.extend(message.calls().map(|call| &*call.id));
        } else if message
            .results()
            .map(|result| &*result.call_id)
            .any(|id| earlier.contains(id) && !newest.contains(id))
        {
            return Format::with_result_placement(ResultPlacement::AnywhereAfter);
        }
        before = Some(message);
    }
    Format::with_result_placement(ResultPlacement::DirectlyAfter)
}

/// The results to remove and to insert.
#[derive(Default)]
struct RepairPlan {
    removed: HashSet<PartId>,
    /// Insertions with the index of the message before which they go, in order.
    insertions: Vec<(usize, ResultInsertion)>,
    repairs: RepairCounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ResultInsertion {
    /// The result that was at this part.
    Moved(PartId),
    /// A placeholder result.
    MissingResult { id: String, call: PartId },
    /// A user text in place of an orphan that alone separated two assistant messages.
    RemovedOrphan,
}

/// A call and the result that answers it.
struct MatchedCall<'c> {
    at: PartId,
    id: &'c str,
    turn: usize,
    answer: Option<PartId>,
}

/// The bounds of a turn and of its results.
struct TurnBounds {
    /// End of the turn's messages, where its results begin.
    end: usize,
    /// End of the messages that may contain its results.
    results_end: usize,
    /// Anthropic: the first part in them that is not a result; results after it are misplaced.
    first_non_result: Option<PartId>,
}

impl RepairPlan {
    fn new(conversation: &Conversation<'_>, placement: ResultPlacement) -> Self {
        let messages = &conversation.messages;
        let (calls, early, mut plan) = match_results(messages, placement);
        let turns = turn_bounds(messages, placement);
        let in_flight = in_flight_from(messages, placement);
        for call in &calls {
            let turn = &turns[call.turn];
            let before = if placement == ResultPlacement::NextUserTurn { turn.end } else { turn.results_end };
            match call.answer {
                None if call.at.message >= in_flight => {}
                None => {
                    plan.repairs.unanswered += 1;
                    plan.insertions
                        .push((before, ResultInsertion::MissingResult { id: call.id.to_owned(), call: call.at }));
                }
                Some(answer) => {
                    let is_in_place = match placement {
                        ResultPlacement::AnywhereAfter => answer > call.at,
                        _ => {
                            (turn.end..turn.results_end).contains(&answer.message)
                                && turn.first_non_result.is_none_or(|other| answer < other)
                        }
                    };
                    if !is_in_place {
                        plan.repairs.moved += 1;
                        plan.removed.insert(answer);
                        plan.insertions.push((before, ResultInsertion::Moved(answer)));
                    }
                }
            }
        }
        plan.repairs.orphans = early.len();
        plan.removed.extend(early);
        // Stable, so that results keep the order of their calls.
        plan.insertions.sort_by_key(|(before, _)| *before);
        if placement == ResultPlacement::NextUserTurn && !plan.removed.is_empty() {
            plan.separate_turns(messages);
        }
        plan
    }

    /// Inserts a text where everything between two assistant messages, or before the first, is removed.
    fn separate_turns(&mut self, messages: &[Message<'_>]) {
        let mut separators = Vec::new();
        let mut insertions = self.insertions.iter().map(|(before, _)| *before).peekable();
        let mut after_assistant = true;
        let mut emptied = false;
        for (at, message) in messages.iter().enumerate() {
            while insertions.next_if(|before| *before <= at).is_some() {
                after_assistant = false;
            }
            let is_removed = !message.parts.is_empty()
                && (0..message.parts.len()).all(|index| self.removed.contains(&PartId::new(at, index)));
            if is_removed {
                // A removed assistant message did not separate turns.
                emptied |= after_assistant && !message.is_assistant();
                continue;
            }
            if emptied && after_assistant && message.is_assistant() {
                separators.push((at, ResultInsertion::RemovedOrphan));
            }
            emptied = false;
            after_assistant = message.is_assistant();
        }
        self.insertions.extend(separators);
        self.insertions.sort_by_key(|(before, _)| *before);
    }
}

/// Matches each call with its result. Returns the calls, the orphaned results, and a plan that already
/// removes duplicate results.
fn match_results<'c>(
    messages: &'c [Message<'_>],
    placement: ResultPlacement,
) -> (Vec<MatchedCall<'c>>, Vec<PartId>, RepairPlan) {
    let mut plan = RepairPlan::default();
    let mut calls: Vec<MatchedCall<'c>> = Vec::new();
    // Later turns may reuse ids: a result answers the latest call of its id.
    let mut latest: HashMap<&str, usize> = HashMap::new();
    let mut early: Vec<(PartId, &str)> = Vec::new();
    let mut turn = 0;
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &messages[before]);
        if at > 0 && starts_turn(message, before, placement) {
            turn += 1;
        }
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
                // Only assistant messages make calls.
                Part::ToolCall(_) if !message.is_assistant() => {}
                // A tool search run by the provider has no call id.
                Part::ToolCall(call) if placement == ResultPlacement::AnywhereAfter && call.name == "tool_search" => {}
                Part::ToolResult(result) if placement == ResultPlacement::AnywhereAfter && is_tool_search(result) => {}
                Part::ToolCall(call) => {
                    let id = &*call.id;
                    // An item may be answered within its turn; then the id is free again.
                    let is_known = |call: &MatchedCall<'_>| {
                        call.turn == turn && (placement != ResultPlacement::AnywhereAfter || call.answer.is_none())
                    };
                    if !latest.get(id).is_some_and(|&other| is_known(&calls[other])) {
                        latest.insert(id, calls.len());
                        calls.push(MatchedCall { at: place, id, turn, answer: None });
                    }
                }
                Part::ToolResult(result) => match latest.get(&*result.call_id) {
                    None => early.push((place, &result.call_id)),
                    Some(&call) => {
                        if let Some(replaced) = calls[call].answer.replace(place) {
                            plan.repairs.duplicates += 1;
                            plan.removed.insert(replaced);
                        }
                    }
                },
                _ => {}
            }
        }
    }
    if early.is_empty() {
        return (calls, Vec::new(), plan);
    }
    // A result before its call belongs to the call only if the match is unambiguous.
    let mut call_counts: HashMap<&str, usize> = HashMap::new();
    calls.iter().for_each(|call| *call_counts.entry(call.id).or_default() += 1);
    let mut early_counts: HashMap<&str, usize> = HashMap::new();
    early.iter().for_each(|(_, id)| *early_counts.entry(id).or_default() += 1);
    let orphans = early.into_iter().filter(|(place, id)| {
        let Some(&call) = latest.get(id) else { return true };
        let is_unambiguous = call_counts[id] == 1 && early_counts[id] == 1 && calls[call].answer.is_none();
        if is_unambiguous {
            calls[call].answer = Some(*place);
        }
        !is_unambiguous
    });
    let orphans = orphans.map(|(place, _)| place).collect();
    (calls, orphans, plan)
}

/// Returns true if a message starts a turn. If results follow directly, each message is a turn; elsewhere adjacent
/// assistant messages are one.
fn starts_turn(message: &Message<'_>, before: Option<&Message<'_>>, placement: ResultPlacement) -> bool {
    placement == ResultPlacement::DirectlyAfter
        || !(message.is_assistant() && before.is_some_and(Message::is_assistant))
}

fn turn_bounds(messages: &[Message<'_>], placement: ResultPlacement) -> Vec<TurnBounds> {
    let mut turns: Vec<TurnBounds> = Vec::new();
    // The turn whose results may follow.
    let mut open: Option<usize> = None;
    let holder = if placement == ResultPlacement::NextUserTurn { Role::User } else { Role::Tool };
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &messages[before]);
        if at > 0 && !starts_turn(message, before, placement) {
            if let Some(turn) = turns.last_mut() {
                (turn.end, turn.results_end) = (at + 1, at + 1);
            }
            continue;
        }
        if message.role == holder {
            if let Some(turn) = open.map(|open| &mut turns[open]) {
                turn.results_end = at + 1;
                if placement == ResultPlacement::NextUserTurn && turn.first_non_result.is_none() {
                    let other = message.parts.iter().position(|part| !matches!(part, Part::ToolResult(_)));
                    turn.first_non_result = other.map(|part| PartId::new(at, part));
                }
            }
        } else {
            open = Some(turns.len());
        }
        turns.push(TurnBounds { end: at + 1, results_end: at + 1, first_non_result: None });
    }
    turns
}

/// Returns the index of the message from which calls without a result are in flight.
fn in_flight_from(messages: &[Message<'_>], placement: ResultPlacement) -> usize {
    let only_results = |message: &Message<'_>| message.parts.iter().all(|part| matches!(part, Part::ToolResult(_)));
    let is_result_message = |message: &&Message<'_>| match placement {
        ResultPlacement::DirectlyAfter => message.role == Role::Tool,
        ResultPlacement::AnywhereAfter => !message.is_assistant() && only_results(message),
        ResultPlacement::NextUserTurn => message.role == Role::User && only_results(message),
    };
    let end = messages.len() - messages.iter().rev().take_while(is_result_message).count();
    let assistant_count = messages[..end].iter().rev().take_while(|message| message.is_assistant()).count();
    match (assistant_count, placement) {
        (0, _) => messages.len(),
        (_, ResultPlacement::DirectlyAfter) => end - 1,
        _ => end - assistant_count,
    }
}
