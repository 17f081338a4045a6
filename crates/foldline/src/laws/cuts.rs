//! Points where a conversation may be cut without breaking a law that the whole conversation obeys.
//!
//! A cut never separates a call from its result, the items of one response, a server tool's call from
//! its result, or an approval from its request. The messages between two cuts may be dropped if the
//! messages that become adjacent are allowed to be. The newest turn always stays.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::conversation::{Conversation, Message, OpaqueBlock, Part, Role};
use crate::laws::law::Law;
use crate::laws::pairing::{is_server_call, is_server_result};
use crate::laws::profile::LawProfile;
use crate::wire::rules::ResultPlacement;

/// Returns the indices between any two of which the messages may be dropped together.
///
/// ```
/// use foldline::laws::{LawProfile, free_cuts};
/// use foldline::wire::Format;
/// use foldline::{Conversation, Message, Part, Role};
///
/// let round = |id: &'static str| {
///     let call = Message::new(Role::Assistant, vec![Part::call(id, "sh", "{}")]);
///     [call, Message::new(Role::User, vec![Part::result(id, "ok")])]
/// };
/// let mut messages = vec![Message::text(Role::User, "fix it")];
/// messages.extend(["a", "b", "c"].into_iter().flat_map(round));
/// let conversation = Conversation { messages, ..Conversation::default() };
///
/// // The first message stays because Claude requires a user message first; so does the newest round.
/// assert_eq!(free_cuts(&conversation, &LawProfile::for_model(Format::Anthropic, None)), vec![1, 3, 5]);
/// ```
pub fn free_cuts(conversation: &Conversation<'_>, profile: &LawProfile) -> Vec<usize> {
    CutPoints::for_conversation(conversation, profile).free_points()
}

/// All points where a conversation may be cut, and the rules for dropping runs between them.
#[derive(Clone, Debug)]
pub struct CutPoints {
    points: Vec<CutPoint>,
    adjacency: AdjacencyRule,
    /// Last of the messages that stay unless a run begins with the first message of the conversation.
    protected_until: Option<usize>,
    /// Index of the user message that the newest turn answers.
    last_prompt: Option<usize>,
    /// Index of the first assistant message after it, if that message must begin with thinking.
    first_reasoning: Option<usize>,
    /// True if dropping `last_prompt` would move the start of the newest turn to a message that breaks
    /// its laws.
    keeps_last_prompt: bool,
}

/// A point before a message.
#[derive(Clone, Copy, Debug)]
struct CutPoint {
    at: usize,
    before: Option<Role>,
    after: Role,
    /// True if the message begins with reasoning.
    starts_with_reasoning: bool,
}

/// Rule for messages that become adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdjacencyRule {
    /// Any two messages may be adjacent.
    Unrestricted,
    /// Runs begin and end at the start of an assistant turn, so that no new pair of roles is adjacent.
    WholeRounds,
    /// Results in user turns. Two adjacent assistant messages become one turn. This must not happen to thinking, nor to
    /// an unanswered server tool's call, which would be pending in the newest turn.
    Turns { keep_apart: bool },
    /// Results anywhere, with reused ids: two turns with the same id must not become one, because an id names one
    /// call in a turn.
    Items,
}

impl CutPoints {
    /// Finds the cut points, in time linear in the number of messages.
    pub fn for_conversation(conversation: &Conversation<'_>, profile: &LawProfile) -> Self {
        let messages = &conversation.messages;
        let starts_with_reasoning = |message: &Message<'_>| matches!(message.parts.first(), Some(Part::Reasoning(_)));
        let placement = profile.rules().result_placement;
        let adjacency = if [Law::Alternation, Law::NoUserAfterTool, Law::OneAssistantAtEnd]
            .into_iter()
            .any(|law| profile.has(law))
        {
            AdjacencyRule::WholeRounds
        } else if placement == ResultPlacement::NextUserTurn {
            let thinks = |message: &Message<'_>| message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
            AdjacencyRule::Turns { keep_apart: messages.iter().any(thinks) || has_pending_server_call(messages) }
        } else if placement == ResultPlacement::AnywhereAfter && has_repeated_ids(messages) {
            AdjacencyRule::Items
        } else {
            AdjacencyRule::Unrestricted
        };

        let is_prompt = |message: &Message<'_>| message.role == Role::User && !message.has_results();
        let last_prompt = messages.iter().rposition(is_prompt);
        let answer_offset = |prompt: usize| messages.iter().skip(prompt + 1).position(Message::is_assistant);
        let first_answer = last_prompt.and_then(|prompt| answer_offset(prompt).map(|offset| prompt + 1 + offset));
        let manual = profile.has(Law::ThinkingFirst) && !profile.has(Law::NoManualThinking);
        let first_reasoning = first_answer.filter(|&at| manual && starts_with_reasoning(&messages[at]));
        let all_turns_start_with_reasoning = || {
            let mut awaits_answer = false;
            messages.iter().all(|message| {
                let first = awaits_answer && message.is_assistant();
                awaits_answer = is_prompt(message) || awaits_answer && !message.is_assistant();
                !first || starts_with_reasoning(message)
            })
        };
        let keeps_last_prompt =
            profile.has(Law::ThoughtSignature) || first_reasoning.is_some() && !all_turns_start_with_reasoning();

        Self {
            points: cut_points(messages, adjacency),
            adjacency,
            protected_until: protected_prefix_end(messages, profile),
            last_prompt,
            first_reasoning,
            keeps_last_prompt,
        }
    }

    /// Returns the indices, in order. Not every run between two of them may be dropped: see
    /// [`CutPoints::may_drop`].
    pub fn points(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|point| point.at)
    }

    /// Returns true if these messages may be dropped together without a replacement.
    pub fn may_drop(&self, run: Range<usize>) -> bool {
        let point = |at: usize| self.points.binary_search_by_key(&at, |point| point.at).ok().map(|at| self.points[at]);
        let (Some(start), Some(end)) = (point(run.start), point(run.end)) else { return false };
        let contains = |at: Option<usize>| at.is_some_and(|at| run.contains(&at));
        if run.is_empty()
            || self.keeps_last_prompt && contains(self.last_prompt)
            || contains(self.first_reasoning) && !end.starts_with_reasoning
        {
            return false;
        }
        let keeps_prefix = match (self.protected_until, start.before) {
            (None, _) => true,
            (Some(_), None) => self.adjacency != AdjacencyRule::WholeRounds && end.after == Role::User,
            (Some(floor), Some(_)) => start.at > floor,
        };
        keeps_prefix
            && match (self.adjacency, start.before, end.after) {
                (AdjacencyRule::Unrestricted | AdjacencyRule::WholeRounds, ..) => true,
                (AdjacencyRule::Items, before, after) => (before, after) != (Some(Role::Assistant), Role::Assistant),
                // A system message among Anthropic's messages follows a user and is followed by the assistant.
                (AdjacencyRule::Turns { .. }, Some(Role::System), after) => {
                    matches!(after, Role::Assistant | Role::System)
                }
                (AdjacencyRule::Turns { .. }, before, Role::System) => before == Some(Role::User),
                (AdjacencyRule::Turns { keep_apart }, Some(Role::Assistant), Role::Assistant) => !keep_apart,
                (AdjacencyRule::Turns { .. }, ..) => true,
            }
    }

    /// Returns the points between any two of which a run may be dropped.
    fn free_points(&self) -> Vec<usize> {
        let is_free = |point: &&CutPoint| {
            let is_protected = self.protected_until.is_some_and(|floor| point.at <= floor);
            let lacks_reasoning = self.first_reasoning.is_some_and(|at| point.at > at) && !point.starts_with_reasoning;
            let may_be_adjacent = match (self.adjacency, point.before, point.after) {
                (AdjacencyRule::Turns { .. }, Some(Role::System), _)
                | (AdjacencyRule::Turns { .. }, _, Role::System) => false,
                (AdjacencyRule::Turns { keep_apart }, Some(Role::Assistant), _) => !keep_apart,
                (AdjacencyRule::Items, Some(Role::Assistant), _) => false,
                _ => true,
            };
            !is_protected && !lacks_reasoning && may_be_adjacent
        };
        let free: Vec<usize> = self.points.iter().filter(is_free).map(|point| point.at).collect();
        let Some(prompt) = self.last_prompt.filter(|_| self.keeps_last_prompt) else { return free };
        // No run may contain the last prompt: take the longer side.
        let (before, after) = free.split_at(free.partition_point(|&at| at <= prompt));
        if before.len() > after.len() { before.to_vec() } else { after.to_vec() }
    }
}

fn cut_points(messages: &[Message<'_>], adjacency: AdjacencyRule) -> Vec<CutPoint> {
    let split = split_pair_counts(messages);
    let mut points = Vec::new();
    let mut open = 0;
    // Role of the last message, ignoring calls and results.
    let mut last_role = None;
    // The newest turn stays, or the newest message if there is no assistant message.
    let mut newest = messages.len().saturating_sub(1);
    for (at, message) in messages.iter().enumerate() {
        open += split[at];
        let before = at.checked_sub(1).map(|before| &messages[before]);
        let opens_round = message.opens_round(before);
        if opens_round {
            newest = at;
        }
        let is_boundary = match adjacency {
            AdjacencyRule::WholeRounds => opens_round && last_role == Some(Role::User),
            _ => opens_round || !message.is_assistant() && !message.has_results(),
        };
        if open == 0 && is_boundary {
            points.push(CutPoint {
                at,
                before: before.map(|before| before.role),
                after: message.role,
                starts_with_reasoning: matches!(message.parts.first(), Some(Part::Reasoning(_))),
            });
        }
        if message.role == Role::User || message.is_assistant() && message.calls().next().is_none() {
            last_role = Some(message.role);
        }
    }
    points.truncate(points.partition_point(|point| point.at <= newest));
    points
}

/// Returns for each index the change in the number of pairs that a cut before it would split,
/// compared with a cut one message earlier.
fn split_pair_counts(messages: &[Message<'_>]) -> Vec<isize> {
    let mut split = vec![0; messages.len() + 1];
    let mut add_pair = |from: usize, to: usize| {
        split[from + 1] += 1;
        split[to + 1] -= 1;
    };
    let mut calls: HashMap<&str, usize> = HashMap::new();
    let mut early: HashMap<&str, usize> = HashMap::new();
    let mut pairs: HashMap<&str, usize> = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        for part in &message.parts {
            match part {
                Part::ToolCall(call) if message.is_assistant() => {
                    if let Some(result) = early.remove(&*call.id) {
                        add_pair(result, at);
                    }
                    calls.insert(&call.id, at);
                }
                Part::ToolResult(result) => match calls.get(&*result.call_id) {
                    Some(&call) => add_pair(call, at),
                    None => {
                        early.entry(&result.call_id).or_insert(at);
                    }
                },
                Part::Opaque(block) => {
                    if let Some(pair) = &block.pair {
                        add_pair(*pairs.entry(pair).or_insert(at), at);
                    }
                }
                _ => {}
            }
        }
    }
    split
}

fn has_repeated_ids(messages: &[Message<'_>]) -> bool {
    let mut seen = HashSet::new();
    !messages
        .iter()
        .filter(|message| message.is_assistant())
        .flat_map(Message::calls)
        .all(|call| seen.insert(&*call.id))
}

/// Returns true if a server tool's call has no result.
fn has_pending_server_call(messages: &[Message<'_>]) -> bool {
    let mut waiting = HashSet::new();
    for part in messages.iter().flat_map(|message| &message.parts) {
        if let Part::Opaque(OpaqueBlock { kind, pair: Some(id), .. }) = part {
            if is_server_call(kind) {
                waiting.insert(id);
            } else if is_server_result(kind) {
                waiting.remove(id);
            }
        }
    }
    !waiting.is_empty()
}

/// Returns the index of the last message that must stay at the beginning.
fn protected_prefix_end(messages: &[Message<'_>], profile: &LawProfile) -> Option<usize> {
    let first = profile.has(Law::FirstIsUser).then(|| {
        let is_instruction = |message: &Message<'_>| matches!(message.role, Role::System | Role::Developer);
        messages.iter().position(|message| !is_instruction(message)).unwrap_or(0)
    });
    let is_text = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
    let has_text = |message: &Message<'_>| message.role == Role::User && message.parts.iter().any(is_text);
    let first_text = profile.has(Law::HasUserText).then(|| messages.iter().position(has_text)).flatten();
    first.max(first_text)
}
