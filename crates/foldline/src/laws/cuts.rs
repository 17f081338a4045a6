//! Where a conversation may be cut, so that what is left breaks no law that the whole did not break.
//!
//! A cut never separates a call from its result, the items of one answer, the two halves of a server
//! tool's work, or an approval from its request. Between two cuts a run of messages may be dropped if
//! those who then meet may stand side by side. The newest turn always stays.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::pairing::{is_server_call, is_server_result};
use super::{Law, Profile};
use crate::conversation::{Conversation, Message, Opaque, Part, Role};
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
pub fn cuts(conversation: &Conversation<'_>, profile: &Profile) -> Vec<usize> {
    Cuts::of(conversation, profile).free()
}

/// All places where a conversation may be cut, and which runs between them may go.
#[derive(Clone, Debug)]
pub struct Cuts {
    points: Vec<Point>,
    meeting: Meeting,
    /// Messages up to this one stay when a run does not begin with the first message of all.
    floor: Option<usize>,
    /// The user message that the newest turn answers.
    asked: Option<usize>,
    /// The first assistant message behind it begins with thinking, and must.
    thinks_at: Option<usize>,
    /// Dropping `asked` would let the newest turn begin elsewhere, where its laws are not kept.
    anchored: bool,
}

/// A place before a message.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: usize,
    before: Option<Role>,
    after: Role,
    /// The message begins with reasoning.
    reasons: bool,
}

/// Who may stand side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// Anyone.
    Free,
    /// Runs begin and end where the model begins to speak, so that nobody new meets.
    Rounds,
    /// Anthropic. Two assistant messages become one turn, which must not happen to thinking, nor to a server
    /// tool's call that nobody answered: it would be pending in the newest turn.
    Turns { apart: bool },
    /// Responses, where an id is used again: two turns with it must not become one, in which it is one call's.
    Items,
}

impl Cuts {
    /// Finds the cuts, in time that grows with the messages.
    pub fn of(conversation: &Conversation<'_>, profile: &Profile) -> Self {
        let messages = &conversation.messages;
        let reasoned = |message: &Message<'_>| matches!(message.parts.first(), Some(Part::Reasoning(_)));
        let meeting = if [Law::Alternation, Law::NoUserAfterTool, Law::OneAssistantAtEnd]
            .into_iter()
            .any(|law| profile.has(law))
        {
            Meeting::Rounds
        } else if profile.format() == Format::Anthropic {
            let thinks = |message: &Message<'_>| message.parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
            Meeting::Turns { apart: messages.iter().any(thinks) || server_waits(messages) }
        } else if profile.format() == Format::OpenAiResponses && repeats_ids(messages) {
            Meeting::Items
        } else {
            Meeting::Free
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

        Self { points: points(messages, meeting), meeting, floor: floor(messages, profile), asked, thinks_at, anchored }
    }

    /// The indices, in order. Not every run between two of them may go: see [`Cuts::may_drop`].
    pub fn points(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|point| point.at)
    }

    /// Whether these messages may be dropped together, with nothing put in their place.
    pub fn may_drop(&self, run: Range<usize>) -> bool {
        let point = |at: usize| self.points.binary_search_by_key(&at, |point| point.at).ok().map(|at| self.points[at]);
        let (Some(start), Some(end)) = (point(run.start), point(run.end)) else { return false };
        let holds = |at: Option<usize>| at.is_some_and(|at| run.contains(&at));
        if run.is_empty() || self.anchored && holds(self.asked) || holds(self.thinks_at) && !end.reasons {
            return false;
        }
        let kept = match (self.floor, start.before) {
            (None, _) => true,
            (Some(_), None) => self.meeting != Meeting::Rounds && end.after == Role::User,
            (Some(floor), Some(_)) => start.at > floor,
        };
        kept && match (self.meeting, start.before, end.after) {
            (Meeting::Free | Meeting::Rounds, ..) => true,
            (Meeting::Items, before, after) => (before, after) != (Some(Role::Assistant), Role::Assistant),
            // An instruction among Anthropic's messages follows a user and is followed by the assistant.
            (Meeting::Turns { .. }, Some(Role::System), after) => matches!(after, Role::Assistant | Role::System),
            (Meeting::Turns { .. }, before, Role::System) => before == Some(Role::User),
            (Meeting::Turns { apart }, Some(Role::Assistant), Role::Assistant) => !apart,
            (Meeting::Turns { .. }, ..) => true,
        }
    }

    /// The points between any two of which a run may go.
    fn free(&self) -> Vec<usize> {
        let fits = |point: &&Point| {
            let first = self.floor.is_some_and(|floor| point.at <= floor);
            let thoughtless = self.thinks_at.is_some_and(|at| point.at > at) && !point.reasons;
            let meets = match (self.meeting, point.before, point.after) {
                (Meeting::Turns { .. }, Some(Role::System), _) | (Meeting::Turns { .. }, _, Role::System) => false,
                (Meeting::Turns { apart }, Some(Role::Assistant), _) => !apart,
                (Meeting::Items, Some(Role::Assistant), _) => false,
                _ => true,
            };
            !first && !thoughtless && meets
        };
        let free: Vec<usize> = self.points.iter().filter(fits).map(|point| point.at).collect();
        let Some(asked) = self.asked.filter(|_| self.anchored) else { return free };
        // No run may hold the message that was asked last: take the longer side.
        let (before, behind) = free.split_at(free.partition_point(|&at| at <= asked));
        if before.len() > behind.len() { before.to_vec() } else { behind.to_vec() }
    }
}

fn points(messages: &[Message<'_>], meeting: Meeting) -> Vec<Point> {
    let split = splits(messages);
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
            Meeting::Rounds => opens && speaker == Some(Role::User),
            _ => opens || !message.is_assistant() && !message.has_results(),
        };
        if open == 0 && begins {
            points.push(Point {
                at,
                before: before.map(|before| before.role),
                after: message.role,
                reasons: matches!(message.parts.first(), Some(Part::Reasoning(_))),
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
fn splits(messages: &[Message<'_>]) -> Vec<isize> {
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

fn repeats_ids(messages: &[Message<'_>]) -> bool {
    let mut seen = HashSet::new();
    !messages
        .iter()
        .filter(|message| message.is_assistant())
        .flat_map(Message::calls)
        .all(|call| seen.insert(&*call.id))
}

/// Whether the call of a server tool has no result.
fn server_waits(messages: &[Message<'_>]) -> bool {
    let mut waiting = HashSet::new();
    for part in messages.iter().flat_map(|message| &message.parts) {
        if let Part::Opaque(Opaque { kind, pair: Some(id), .. }) = part {
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
fn floor(messages: &[Message<'_>], profile: &Profile) -> Option<usize> {
    let first = profile.has(Law::FirstIsUser).then(|| {
        let instructs = |message: &Message<'_>| matches!(message.role, Role::System | Role::Developer);
        messages.iter().position(|message| !instructs(message)).unwrap_or(0)
    });
    let says = |part: &Part<'_>| matches!(part, Part::Text { text } if !text.is_blank());
    let speaks = |message: &Message<'_>| message.role == Role::User && message.parts.iter().any(says);
    let text = profile.has(Law::SomeUserText).then(|| messages.iter().position(speaks)).flatten();
    first.max(text)
}
