//! Mends what breaks pairs: orphans, strays and doubles.
//!
//! A result whose call is gone goes; a result in the wrong place moves to its call; of two results the
//! last one stays; a call that was never answered gets a result that says so, and never claims that
//! something was left out. Calls at the end that wait for their results are in flight and left alone. The
//! order of everything else is kept, and ids are never rewritten.

use std::collections::{HashMap, HashSet};

use super::pairing::is_tool_search;
use crate::conversation::{Conversation, Message, Part, PartId, Role};
use crate::wire::{Format, JsonValue, Request, RequestEdit, encode};

/// What a call that was never answered is answered with.
const MISSING_RESULT_TEXT: &str = "[no result was recorded for this call]";
/// What stands between two assistant messages when all that stood there was an orphan.
const REMOVED_ORPHAN_TEXT: &str = "[a tool result without its call was removed]";

/// What was mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairCounts {
    /// Calls that got a result that says that there is none.
    pub unanswered: usize,
    /// Results that went because nothing called for them.
    pub orphans: usize,
    /// Results that went because a later one answers the same call.
    pub duplicates: usize,
    /// Results that moved to their call.
    pub moved: usize,
}

impl RepairCounts {
    /// Whether nothing was to be mended.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Mends a conversation of which the format is not known: results stand in user messages if one does,
/// else in messages of their own.
///
/// ```
/// use foldline::{Conversation, Message, Part, Role, laws};
///
/// let messages = vec![
///     Message::new(Role::Tool, vec![Part::result("gone", "an orphan")]),
///     Message::new(Role::Assistant, vec![Part::call("c1", "sh", "{}")]),
///     Message::text(Role::User, "stop"),
/// ];
/// let (mended, repairs) = laws::repair(Conversation { messages, ..Conversation::default() });
/// assert_eq!((repairs.orphans, repairs.unanswered), (1, 1));
/// assert_eq!(mended.messages[1].results().next().map(|result| &*result.call_id), Some("c1"));
/// assert_eq!(mended.messages[2], Message::text(Role::User, "stop"));
/// ```
pub fn repair(conversation: Conversation<'_>) -> (Conversation<'_>, RepairCounts) {
    let format = guess_format(&conversation);
    repair_as(conversation, format)
}

/// Mends a conversation, placing results as the format wants them.
pub fn repair_as(mut conversation: Conversation<'_>, format: Format) -> (Conversation<'_>, RepairCounts) {
    let plan = RepairPlan::new(&conversation, format);
    if plan.repairs.is_empty() {
        return (conversation, plan.repairs);
    }
    let (repairs, mut placed) = (plan.repairs, plan.insertions.into_iter().peekable());
    let mut moved: HashMap<PartId, Part<'_>> = HashMap::new();
    let mut kept = Vec::with_capacity(conversation.messages.len());
    for (at, message) in std::mem::take(&mut conversation.messages).into_iter().enumerate() {
        let had_parts = !message.parts.is_empty();
        let mut parts = Vec::with_capacity(message.parts.len());
        for (part, it) in message.parts.into_iter().enumerate() {
            let place = PartId::new(at, part);
            match plan.removed.contains(&place) {
                true => drop(moved.insert(place, it)),
                false => parts.push(it),
            }
        }
        kept.push((!had_parts || !parts.is_empty()).then_some(Message { role: message.role, parts }));
    }
    let end = kept.len();
    for (at, message) in kept.into_iter().chain([None]).enumerate().take(end + 1) {
        let mut results = Vec::new();
        while let Some((_, what)) = placed.next_if(|(before, _)| *before == at) {
            match what {
                ResultInsertion::Moved(from) => results.extend(moved.remove(&from)),
                ResultInsertion::MissingResult { id, .. } => results.push(Part::result(id, MISSING_RESULT_TEXT)),
                ResultInsertion::RemovedOrphan => {
                    conversation.messages.push(Message::text(Role::User, REMOVED_ORPHAN_TEXT))
                }
            }
        }
        match format {
            Format::Anthropic if results.is_empty() => {}
            Format::Anthropic => conversation.messages.push(Message::new(Role::User, results)),
            _ => {
                let alone = results.into_iter().map(|result| Message::new(Role::Tool, vec![result]));
                conversation.messages.extend(alone);
            }
        }
        conversation.messages.extend(message);
    }
    (conversation, repairs)
}

/// The same repair as edits of a request. A request without history of its own is left alone.
pub fn repair_edits(request: &Request<'_>) -> Vec<RequestEdit> {
    if request.is_continuation() {
        return Vec::new();
    }
    let conversation = request.conversation();
    let plan = RepairPlan::new(conversation, request.format());
    let mut edits = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        let places: Vec<PartId> = (0..message.parts.len()).map(|part| PartId::new(at, part)).collect();
        let gone = places.iter().filter(|place| plan.removed.contains(place));
        match gone.clone().count() {
            0 => {}
            all if all == places.len() => edits.push(RequestEdit::DropMessage(at)),
            _ => edits.extend(gone.map(|place| RequestEdit::DropPart(*place))),
        }
    }
    let mut placed = plan.insertions.iter().peekable();
    while let Some((before, what)) = placed.next() {
        let before = *before;
        let json = match (what, request.format()) {
            (ResultInsertion::RemovedOrphan, _) => {
                edits.push(RequestEdit::InsertMessage {
                    before,
                    role: Role::User,
                    text: REMOVED_ORPHAN_TEXT.to_owned(),
                });
                continue;
            }
            (what, Format::Anthropic) => {
                let mut blocks = result_json(request, what);
                while let Some((_, what)) =
                    placed.next_if(|(at, what)| *at == before && *what != ResultInsertion::RemovedOrphan)
                {
                    blocks.push(',');
                    blocks.push_str(&result_json(request, what));
                }
                format!(r#"{{"role":"user","content":[{blocks}]}}"#)
            }
            (what, _) => result_json(request, what),
        };
        edits.push(RequestEdit::InsertJson { before, json });
    }
    edits
}

/// A result in the provider's own words: a block of Anthropic's, else a message.
fn result_json(request: &Request<'_>, what: &ResultInsertion) -> String {
    let (id, call) = match what {
        ResultInsertion::RemovedOrphan => return String::new(),
        ResultInsertion::Moved(from) => {
            let whole = || request.message_value(from.message);
            let value = if request.format() == Format::Anthropic { request.block(*from) } else { whole() };
            return value.map(JsonValue::raw).unwrap_or_default().to_owned();
        }
        ResultInsertion::MissingResult { id, call } => (encode(id), call),
    };
    let text = encode(MISSING_RESULT_TEXT);
    let kind = request.message_field(call.message, "type").and_then(JsonValue::string).unwrap_or_default();
    match request.format() {
        Format::Anthropic => format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{text}}}"#),
        // The older way of calling, by name, has no element in a list of calls.
        Format::OpenAiChat if request.block(*call).is_none() => {
            format!(r#"{{"role":"function","name":{id},"content":{text}}}"#)
        }
        Format::OpenAiChat => format!(r#"{{"role":"tool","tool_call_id":{id},"content":{text}}}"#),
        Format::OpenAiResponses => match &*kind {
            "custom_tool_call" => format!(r#"{{"type":"custom_tool_call_output","call_id":{id},"output":{text}}}"#),
            "apply_patch_call" => {
                format!(r#"{{"type":"apply_patch_call_output","call_id":{id},"status":"failed","output":{text}}}"#)
            }
            "shell_call" => format!(
                r#"{{"type":"shell_call_output","call_id":{id},"output":[{{"stdout":"","stderr":{text},"outcome":{{"type":"exit","exit_code":1}}}}]}}"#
            ),
            _ => format!(r#"{{"type":"function_call_output","call_id":{id},"output":{text}}}"#),
        },
    }
}

/// Results inside user messages are Anthropic's way; calls in a row that are answered together, each in
/// a message of its own, are items of the Responses API; all else is read as Chat.
pub(crate) fn guess_format(conversation: &Conversation<'_>) -> Format {
    let messages = &conversation.messages;
    if messages.iter().any(|message| message.role == Role::User && message.has_results()) {
        return Format::Anthropic;
    }
    // The calls of the current turn: those of its newest message, and those of the ones before it.
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
            return Format::OpenAiResponses;
        }
        before = Some(message);
    }
    Format::OpenAiChat
}

/// What goes, and what comes where.
#[derive(Default)]
struct RepairPlan {
    removed: HashSet<PartId>,
    /// In the order of the messages before which they come.
    insertions: Vec<(usize, ResultInsertion)>,
    repairs: RepairCounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ResultInsertion {
    /// The result that stood there.
    Moved(PartId),
    /// A result that says that there is none.
    MissingResult { id: String, call: PartId },
    /// A user text where an orphan was all that kept two assistant messages apart.
    RemovedOrphan,
}

/// A call and the result that answers it.
struct MatchedCall<'c> {
    at: PartId,
    id: &'c str,
    turn: usize,
    answer: Option<PartId>,
}

/// The messages of a turn end where its results begin.
struct TurnBounds {
    end: usize,
    /// Where the messages that may hold its results end.
    results_end: usize,
    /// Anthropic: the first thing in them that is no result; results behind it are too late.
    first_non_result: Option<PartId>,
}

impl RepairPlan {
    fn new(conversation: &Conversation<'_>, format: Format) -> Self {
        let messages = &conversation.messages;
        let (calls, early, mut plan) = match_results(messages, format);
        let turns = turn_bounds(messages, format);
        let in_flight = in_flight_from(messages, format);
        for call in &calls {
            let turn = &turns[call.turn];
            let before = if format == Format::Anthropic { turn.end } else { turn.results_end };
            match call.answer {
                None if call.at.message >= in_flight => {}
                None => {
                    plan.repairs.unanswered += 1;
                    plan.insertions
                        .push((before, ResultInsertion::MissingResult { id: call.id.to_owned(), call: call.at }));
                }
                Some(answer) => {
                    let placed_well = match format {
                        Format::OpenAiResponses => answer > call.at,
                        _ => {
                            (turn.end..turn.results_end).contains(&answer.message)
                                && turn.first_non_result.is_none_or(|spoken| answer < spoken)
                        }
                    };
                    if !placed_well {
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
        if format == Format::Anthropic && !plan.removed.is_empty() {
            plan.separate_turns(messages);
        }
        plan
    }

    /// Puts a text where all that stood between two assistant messages, or before the first, goes.
    fn separate_turns(&mut self, messages: &[Message<'_>]) {
        let mut fillers = Vec::new();
        let mut placed = self.insertions.iter().map(|(before, _)| *before).peekable();
        let mut after_assistant = true;
        let mut emptied = false;
        for (at, message) in messages.iter().enumerate() {
            while placed.next_if(|before| *before <= at).is_some() {
                after_assistant = false;
            }
            let goes = !message.parts.is_empty()
                && (0..message.parts.len()).all(|part| self.removed.contains(&PartId::new(at, part)));
            if goes {
                // What the model itself held kept no turns apart.
                emptied |= after_assistant && !message.is_assistant();
                continue;
            }
            if emptied && after_assistant && message.is_assistant() {
                fillers.push((at, ResultInsertion::RemovedOrphan));
            }
            emptied = false;
            after_assistant = message.is_assistant();
        }
        self.insertions.extend(fillers);
        self.insertions.sort_by_key(|(before, _)| *before);
    }
}

/// Gives each call its result. What is left over are the results that nothing called for; results that
/// a later one replaces are gone already.
fn match_results<'c>(messages: &'c [Message<'_>], format: Format) -> (Vec<MatchedCall<'c>>, Vec<PartId>, RepairPlan) {
    let mut plan = RepairPlan::default();
    let mut calls: Vec<MatchedCall<'c>> = Vec::new();
    // Ids may be used again in a later turn: a result answers the latest call of its id.
    let mut latest: HashMap<&str, usize> = HashMap::new();
    let mut early: Vec<(PartId, &str)> = Vec::new();
    let mut turn = 0;
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &messages[before]);
        if at > 0 && starts_turn(message, before, format) {
            turn += 1;
        }
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                // What the model did not say is no call.
                Part::ToolCall(_) if !message.is_assistant() => {}
                // A tool search that the provider runs names no call.
                Part::ToolCall(call) if format == Format::OpenAiResponses && call.name == "tool_search" => {}
                Part::ToolResult(result) if format == Format::OpenAiResponses && is_tool_search(result) => {}
                Part::ToolCall(call) => {
                    let id = &*call.id;
                    // Items of one turn may be answered between each other; then the id is free again.
                    let is_known = |call: &MatchedCall<'_>| {
                        call.turn == turn && (format != Format::OpenAiResponses || call.answer.is_none())
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
    // A result that came before its call is the call's only when it can be no other's.
    let mut called: HashMap<&str, usize> = HashMap::new();
    calls.iter().for_each(|call| *called.entry(call.id).or_default() += 1);
    let mut came: HashMap<&str, usize> = HashMap::new();
    early.iter().for_each(|(_, id)| *came.entry(id).or_default() += 1);
    let orphans = early.into_iter().filter(|(place, id)| {
        let Some(&call) = latest.get(id) else { return true };
        let sure = called[id] == 1 && came[id] == 1 && calls[call].answer.is_none();
        if sure {
            calls[call].answer = Some(*place);
        }
        !sure
    });
    let orphans = orphans.map(|(place, _)| place).collect();
    (calls, orphans, plan)
}

/// Chat takes each message as a turn of its own; elsewhere neighbours that the model said are one.
fn starts_turn(message: &Message<'_>, before: Option<&Message<'_>>, format: Format) -> bool {
    format == Format::OpenAiChat || !(message.is_assistant() && before.is_some_and(Message::is_assistant))
}

fn turn_bounds(messages: &[Message<'_>], format: Format) -> Vec<TurnBounds> {
    let mut turns: Vec<TurnBounds> = Vec::new();
    // The turn whose results may still come.
    let mut open: Option<usize> = None;
    let holder = if format == Format::Anthropic { Role::User } else { Role::Tool };
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &messages[before]);
        if at > 0 && !starts_turn(message, before, format) {
            if let Some(turn) = turns.last_mut() {
                (turn.end, turn.results_end) = (at + 1, at + 1);
            }
            continue;
        }
        if message.role == holder {
            if let Some(turn) = open.map(|open| &mut turns[open]) {
                turn.results_end = at + 1;
                if format == Format::Anthropic && turn.first_non_result.is_none() {
                    let said = message.parts.iter().position(|part| !matches!(part, Part::ToolResult(_)));
                    turn.first_non_result = said.map(|part| PartId::new(at, part));
                }
            }
        } else {
            open = Some(turns.len());
        }
        turns.push(TurnBounds { end: at + 1, results_end: at + 1, first_non_result: None });
    }
    turns
}

/// From which message on calls without result are in flight.
fn in_flight_from(messages: &[Message<'_>], format: Format) -> usize {
    let results = |message: &Message<'_>| message.parts.iter().all(|part| matches!(part, Part::ToolResult(_)));
    let silent = |message: &&Message<'_>| match format {
        Format::OpenAiChat => message.role == Role::Tool,
        Format::OpenAiResponses => !message.is_assistant() && results(message),
        Format::Anthropic => message.role == Role::User && results(message),
    };
    let end = messages.len() - messages.iter().rev().take_while(silent).count();
    let said = messages[..end].iter().rev().take_while(|message| message.is_assistant()).count();
    match (said, format) {
        (0, _) => messages.len(),
        (_, Format::OpenAiChat) => end - 1,
        _ => end - said,
    }
}
