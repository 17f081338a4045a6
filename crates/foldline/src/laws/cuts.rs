//! Where a conversation may be cut, so that what is left breaks no law that the whole did not break.
//!
//! A cut never separates a call from its result, the items of one answer, the two halves of a server
//! tool's work, or an approval from its request. Between two cuts a run of messages may be dropped if
//! those who then meet may stand side by side. The newest turn always stays.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::pairing::{is_server_call, is_server_result};
use super::{Law, LawProfile};
use crate::conversation::{Conversation, Message, OpaqueBlock, Part, Role};
use crate::wire::Format;

/// The indices between any two of which the messages may be dropped together.
///
/// ```
/// use foldline::laws::{Profile, cuts};
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
/// // The first message stays, since Claude wants a user's first; so does the newest round.
/// assert_eq!(cuts(&conversation, &Profile::of(Format::Anthropic, None)), vec![1, 3, 5]);
/// ```
pub fn free_cuts(conversation: &Conversation<'_>, profile: &LawProfile) -> Vec<usize> {
    CutPoints::for_conversation(conversation, profile).free_points()
}

/// All places where a conversation may be cut, and which runs between them may go.
#[derive(Clone, Debug)]
pub struct CutPoints {
    points: Vec<CutPoint>,
    adjacency: AdjacencyRule,
    /// Messages up to this one stay when a run does not begin with the first message of all.
    protected_until: Option<usize>,
    /// The user message that the newest turn answers.
    last_prompt: Option<usize>,
    /// The first assistant message behind it begins with thinking, and must.
    first_reasoning: Option<usize>,
    /// Dropping `asked` would let the newest turn begin elsewhere, where its laws are not kept.
    keeps_last_prompt: bool,
}

/// A place before a message.
#[derive(Clone, Copy, Debug)]
struct CutPoint {
    at: usize,
    before: Option<Role>,
    after: Role,
    /// The message begins with reasoning.
    starts_with_reasoning: bool,
}

/// Who may stand side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdjacencyRule {
    /// Anyone.
    Unrestricted,
    /// Runs begin and end where the model begins to speak, so that nobody new meets.
    WholeRounds,
    /// Anthropic. Two assistant messages become one turn, which must not happen to thinking, nor to a server
    /// tool's call that nobody answered: it would be pending in the newest turn.
    Turns { keep_apart: bool },
    /// Responses, where an id is used again: two turns with it must not become one, in which it is one call's.
    Items,
}

impl CutPoints {
    /// Finds the cuts, in time that grows with the messages.
    pub fn for_conversation(conversation: &Conversation<'_>, profile: &LawProfile) -> Self {
        let messages = &conversation.messages;
        let reasoned = |message: &Message<'_>| matches!(message.parts.first(), Some(Part::Reasoning(_)));
        let meeting = if [Law::Alternation, Law::NoUserAfterTool, Law::OneAssistantAtEnd]
            .into_iter()
            .any(|law| profile.has(law))
        {
            AdjacencyRule::WholeRounds
        } else if profile.format() == Format::Anthropic {
            let thinks = |message: &Message<'_>| message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
            AdjacencyRule::Turns { keep_apart: messages.iter().any(thinks) || has_pending_server_call(messages) }
        } else if profile.format() == Format::OpenAiResponses && has_repeated_ids(messages) {
            AdjacencyRule::Items
        } else {
            AdjacencyRule::Unrestricted
        };

        let asks = |message: &Message<'_>| message.role == Role::User && !message.has_results();
        let asked = messages.iter().rposition(asks);
        let answers = |asked: usize| messages.iter().skip(asked + 1).position(Message::is_assistant);
        let first_answer = asked.and_then(|asked| answers(asked).map(|behind| asked + 1 + behind));
        let manual = profile.has(Law::ThinkingFirst) && !profile.has(Law::NoManualThinking);
        let thinks_at = first_answer.filter(|&at| manual && reasoned(&messages[at]));
        let all_think = || {
            let mut waits = false;
            messages.iter().all(|message| {
                let first = waits && message.is_assistant();
                waits = asks(message) || waits && !message.is_assistant();
                !first || reasoned(message)
            })
        };
        let anchored = profile.has(Law::ThoughtSignature) || thinks_at.is_some() && !all_think();

        Self {
            points: cut_points(messages, meeting),
            adjacency: meeting,
            protected_until: protected_prefix_end(messages, profile),
            last_prompt: asked,
            first_reasoning: thinks_at,
            keeps_last_prompt: anchored,
        }
    }

    /// The indices, in order. Not every run between two of them may go: see [`CutPoints::may_drop`].
    pub fn points(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|point| point.at)
    }

    /// Whether these messages may be dropped together, with nothing put in their place.
    pub fn may_drop(&self, run: Range<usize>) -> bool {
        let point = |at: usize| self.points.binary_search_by_key(&at, |point| point.at).ok().map(|at| self.points[at]);
        let (Some(start), Some(end)) = (point(run.start), point(run.end)) else { return false };
        let holds = |at: Option<usize>| at.is_some_and(|at| run.contains(&at));
        if run.is_empty()
            || self.keeps_last_prompt && holds(self.last_prompt)
            || holds(self.first_reasoning) && !end.starts_with_reasoning
        {
            return false;
        }
        let kept = match (self.protected_until, start.before) {
            (None, _) => true,
            (Some(_), None) => self.adjacency != AdjacencyRule::WholeRounds && end.after == Role::User,
            (Some(floor), Some(_)) => start.at > floor,
        };
        kept && match (self.adjacency, start.before, end.after) {
            (AdjacencyRule::Unrestricted | AdjacencyRule::WholeRounds, ..) => true,
            (AdjacencyRule::Items, before, after) => (before, after) != (Some(Role::Assistant), Role::Assistant),
            // An instruction among Anthropic's messages follows a user and is followed by the assistant.
            (AdjacencyRule::Turns { .. }, Some(Role::System), after) => matches!(after, Role::Assistant | Role::System),
            (AdjacencyRule::Turns { .. }, before, Role::System) => before == Some(Role::User),
            (AdjacencyRule::Turns { keep_apart: apart }, Some(Role::Assistant), Role::Assistant) => !apart,
            (AdjacencyRule::Turns { .. }, ..) => true,
        }
    }

    /// The points between any two of which a run may go.
    fn free_points(&self) -> Vec<usize> {
        let fits = |point: &&CutPoint| {
            let first = self.protected_until.is_some_and(|floor| point.at <= floor);
            let thoughtless = self.first_reasoning.is_some_and(|at| point.at > at) && !point.starts_with_reasoning;
            let meets = match (self.adjacency, point.before, point.after) {
                (AdjacencyRule::Turns { .. }, Some(Role::System), _)
                | (AdjacencyRule::Turns { .. }, _, Role::System) => false,
                (AdjacencyRule::Turns { keep_apart: apart }, Some(Role::Assistant), _) => !apart,
                (AdjacencyRule::Items, Some(Role::Assistant), _) => false,
                _ => true,
            };
            !first && !thoughtless && meets
        };
        let free: Vec<usize> = self.points.iter().filter(fits).map(|point| point.at).collect();
        let Some(asked) = self.last_prompt.filter(|_| self.keeps_last_prompt) else { return free };
        // No run may hold the message that was asked last: take the longer side.
        let (before, behind) = free.split_at(free.partition_point(|&at| at <= asked));
        if before.len() > behind.len() { before.to_vec() } else { behind.to_vec() }
    }
}

fn cut_points(messages: &[Message<'_>], meeting: AdjacencyRule) -> Vec<CutPoint> {
    let split = split_pair_counts(messages);
    let mut points = Vec::new();
    let mut open = 0;
    // Who spoke last, calls and results left aside.
    let mut speaker = None;
    // The newest turn stays, or the newest message when the model has not spoken.
    let mut newest = messages.len().saturating_sub(1);
    for (at, message) in messages.iter().enumerate() {
        open += split[at];
        let before = at.checked_sub(1).map(|before| &messages[before]);
        let opens = message.opens_round(before);
        if opens {
            newest = at;
        }
        let begins = match meeting {
            AdjacencyRule::WholeRounds => opens && speaker == Some(Role::User),
            _ => opens || !message.is_assistant() && !message.has_results(),
        };
        if open == 0 && begins {
            points.push(CutPoint {
                at,
                before: before.map(|before| before.role),
                after: message.role,
                starts_with_reasoning: matches!(message.parts.first(), Some(Part::Reasoning(_))),
            });
        }
        if message.role == Role::User || message.is_assistant() && message.calls().next().is_none() {
            speaker = Some(message.role);
        }
    }
    points.truncate(points.partition_point(|point| point.at <= newest));
    points
}

/// For each index how many pairs begin to be split by a cut before it, less those that end to be.
fn split_pair_counts(messages: &[Message<'_>]) -> Vec<isize> {
    let mut split = vec![0; messages.len() + 1];
    let mut tie = |from: usize, to: usize| {
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
                        tie(result, at);
                    }
                    calls.insert(&call.id, at);
                }
                Part::ToolResult(result) => match calls.get(&*result.call_id) {
                    Some(&call) => tie(call, at),
                    None => {
                        early.entry(&result.call_id).or_insert(at);
                    }
                },
                Part::Opaque(it) => {
                    if let Some(pair) = &it.pair {
                        tie(*pairs.entry(pair).or_insert(at), at);
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

/// Whether the call of a server tool has no result.
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

/// The last of the messages that must stay at the beginning.
fn protected_prefix_end(messages: &[Message<'_>], profile: &LawProfile) -> Option<usize> {
    let first = profile.has(Law::FirstIsUser).then(|| {
        let instructs = |message: &Message<'_>| matches!(message.role, Role::System | Role::Developer);
        messages.iter().position(|message| !instructs(message)).unwrap_or(0)
    });
    let says = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
    let speaks = |message: &Message<'_>| message.role == Role::User && message.parts.iter().any(says);
    let text = profile.has(Law::HasUserText).then(|| messages.iter().position(speaks)).flatten();
    first.max(text)
}
