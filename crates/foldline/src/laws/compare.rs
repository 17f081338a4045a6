//! What a rewritten request owes to the client's: the checks before anything is sent.
//!
//! The rewritten request is checked like any other, and what the client broke itself is not held
//! against the rewriting. Beside that: the newest turn, ids, tools and all that is sealed are the
//! client's own.

use std::collections::{HashMap, HashSet};

use super::{Findings, Law, Place, Profile, Violation, check};
use crate::conversation::{Message, Part, PartId, Reasoning, Role};
use crate::wire::{Format, Request, Value};

/// What is known about a rewriting.
#[derive(Clone, Copy, Debug)]
pub struct Rewriting<'a> {
    /// The laws that apply.
    pub profile: &'a Profile,
    /// The declaration of the tool that was appended to the client's, if one was.
    pub tool: Option<&'a str>,
    /// What became of the thinking.
    pub thinking: Thinking,
    /// Index in the client's messages behind which thinking was produced after the newest edit, and so
    /// is bound to the rewritten history; none when the edit is made only now.
    pub settled: Option<usize>,
    /// Ids of calls that were put in beside the client's.
    pub own_calls: &'a [&'a str],
}

/// What became of the thinking of old turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// It was kept, but for whole blocks that went.
    Kept,
    /// All that stood behind the first edit went, that of the newest turn too.
    Stripped,
    /// It was kept, and the provider was asked to drop what no longer fits (`drop_block`).
    DropBlock,
}

impl<'a> Rewriting<'a> {
    /// A rewriting that adds nothing and keeps the thinking.
    pub fn new(profile: &'a Profile) -> Self {
        Self { profile, tool: None, thinking: Thinking::Kept, settled: None, own_calls: &[] }
    }
}

/// All laws that the rewritten request breaks and the client's does not.
///
/// ```
/// use foldline::laws::{Profile, Rewriting, compare};
/// use foldline::wire::{Edit, Format, Request};
///
/// let body = br#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
/// let client = Request::parse(Format::OpenAiChat, body)?;
/// let shorter = client.splice(&[Edit::DropMessage(2)])?;
/// let rewritten = Request::parse(Format::OpenAiChat, &shorter)?;
///
/// let profile = Profile::of_request(&client);
/// let broken = compare(&client, &rewritten, &Rewriting::new(&profile));
/// assert_eq!(broken[0].law.name(), "last-message-kept");
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn compare(client: &Request<'_>, rewritten: &Request<'_>, rewriting: &Rewriting<'_>) -> Vec<Violation> {
    let profile = rewriting.profile.clone().of_rewriting();
    let before = Side::of(client);
    let after = Side::of(rewritten);
    let mut found = check(rewritten, &profile);
    if !found.is_empty() {
        found = less(found, &after, &check(client, &profile), &before);
    }
    let mut findings = Findings { profile: &profile, found };
    newest_turn(&before, &after, rewriting, &mut findings);
    ids(&before, &after, rewriting, &mut findings);
    let same_tools = tools(&before, &after, rewriting, &mut findings);
    opaque(&before, &after, &mut findings);
    let edit = if same_tools && client.conversation().system == rewritten.conversation().system {
        first_edit(&before, &after)
    } else {
        Some(PartId::new(0, 0))
    };
    reasoning(&before, &after, edit, rewriting, &mut findings);
    match profile.format() {
        Format::Anthropic => merged_thinking(&before, &after, &mut findings),
        Format::OpenAiChat => reasoning_with_calls(&before, &after, &mut findings),
        Format::OpenAiResponses => atoms(&before, &after, &mut findings),
    }
    findings.found
}

/// What was found in our request less what is wrong in the client's too. Places move, so a violation is
/// known by its law, its words and the message that it is in; one of the request as a whole by its law.
fn less(found: Vec<Violation>, ours: &Side<'_, '_>, known: &[Violation], client: &Side<'_, '_>) -> Vec<Violation> {
    fn key<'k>(violation: &'k Violation, side: &'k Side<'_, '_>) -> (Law, &'k str, &'k str) {
        match violation.at {
            Place::Request | Place::Field(_) => (violation.law, "", ""),
            Place::Instruction(_) | Place::Tool(_) => (violation.law, &violation.detail, ""),
            Place::Message(at) | Place::Part(PartId { message: at, .. }) => {
                (violation.law, &violation.detail, side.mark(at))
            }
        }
    }
    let mut left: HashMap<(Law, &str, &str), usize> = HashMap::new();
    known.iter().for_each(|violation| *left.entry(key(violation, client)).or_default() += 1);
    let mut fresh = Vec::with_capacity(found.len());
    for violation in &found {
        let count = left.get_mut(&key(violation, ours)).filter(|count| **count > 0);
        fresh.push(count.is_none());
        if let Some(count) = count {
            *count -= 1;
        }
    }
    found.into_iter().zip(fresh).filter(|(_, fresh)| *fresh).map(|(violation, _)| violation).collect()
}

/// One of the two requests.
struct Side<'r, 'a> {
    request: &'r Request<'a>,
    messages: &'r [Message<'a>],
    /// Where the newest assistant turn begins.
    newest: Option<usize>,
}

impl<'r, 'a> Side<'r, 'a> {
    fn of(request: &'r Request<'a>) -> Self {
        let messages = request.conversation().messages.as_slice();
        let opens = |at: &usize| messages[*at].opens_round(at.checked_sub(1).map(|before| &messages[before]));
        Self { request, messages, newest: (0..messages.len()).rev().find(opens) }
    }

    fn raw(&self, at: usize) -> &'a str {
        self.request.raw_message(at).unwrap_or_default()
    }

    /// By what a message is known again after an edit: the id of a call or a result in it, else all of it.
    fn mark(&self, at: usize) -> &str {
        let Some(message) = self.messages.get(at) else { return "" };
        message.parts.iter().find_map(id).map_or_else(|| self.raw(at), |(_, id)| id)
    }

    fn parts(&self) -> impl Iterator<Item = (PartId, &'r Part<'a>)> {
        self.messages.iter().enumerate().flat_map(|(at, message)| {
            message.parts.iter().enumerate().map(move |(part, it)| (PartId::new(at, part), it))
        })
    }

    fn reasoning(&self) -> impl Iterator<Item = (PartId, &'r Reasoning<'a>)> {
        self.parts().filter_map(|(at, part)| match part {
            Part::Reasoning(reasoning) => Some((at, reasoning)),
            _ => None,
        })
    }
}

/// The id of a call or of a result, and whether it is a result's.
fn id<'p>(part: &'p Part<'_>) -> Option<(bool, &'p str)> {
    match part {
        Part::ToolCall(call) => Some((false, &call.id)),
        Part::ToolResult(result) => Some((true, &result.call_id)),
        _ => None,
    }
}

fn is_reasoning(part: &Part<'_>) -> bool {
    matches!(part, Part::Reasoning(_))
}

/// What messages say beside their thinking.
fn spoken<'m, 'a>(messages: &'m [Message<'a>]) -> impl DoubleEndedIterator<Item = (Role, &'m Part<'a>)> {
    messages
        .iter()
        .flat_map(|message| message.parts.iter().map(|part| (message.role, part)))
        .filter(|(_, part)| !is_reasoning(part))
}

/// Whether thinking stands among or right before the last so many parts that are none.
fn thinks_among_the_last(messages: &[Message<'_>], mut parts: usize) -> bool {
    for message in messages.iter().rev() {
        let thinks = message.parts.iter().any(is_reasoning);
        let speaks = message.parts.iter().filter(|part| !is_reasoning(part)).count();
        if parts == 0 && (speaks > 0 || !thinks) {
            return false;
        }
        if thinks {
            return true;
        }
        parts = parts.saturating_sub(speaks);
    }
    false
}

/// P1 and P6.
fn newest_turn(before: &Side<'_, '_>, after: &Side<'_, '_>, rewriting: &Rewriting<'_>, findings: &mut Findings<'_>) {
    // The messages of the client's from here on, and as many of ours at the end.
    let kept = |from: usize| {
        let tail = &before.messages[from..];
        let bytes = |to: usize| (0..tail.len()).all(|at| before.raw(from + at) == after.raw(to + at));
        let stripped = || {
            let said = spoken(tail).count();
            let same = spoken(tail).rev().eq(spoken(after.messages).rev().take(said));
            same && !thinks_among_the_last(after.messages, said)
        };
        after.messages.len().checked_sub(tail.len()).is_some_and(bytes)
            || rewriting.thinking == Thinking::Stripped && stripped()
    };
    let (Some(last), Some(ours)) = (before.messages.len().checked_sub(1), after.messages.len().checked_sub(1)) else {
        if !before.messages.is_empty() {
            findings.broken(Law::LastMessageKept, Place::Request, "no message is left");
        }
        return;
    };
    if !kept(last) {
        findings.broken(Law::LastMessageKept, Place::Message(ours), "the last message is not the client's");
    }
    if before.newest.is_some_and(|newest| !kept(newest)) {
        let detail = "the newest turn and what is behind it are not the client's";
        findings.broken(Law::NewestTurnKept, Place::Message(ours), detail);
    }
}

/// P5.
fn ids(before: &Side<'_, '_>, after: &Side<'_, '_>, rewriting: &Rewriting<'_>, findings: &mut Findings<'_>) {
    let own: HashSet<&str> = rewriting.own_calls.iter().copied().collect();
    let mut left: HashMap<(bool, &str), usize> = HashMap::new();
    before.parts().filter_map(|(_, part)| id(part)).for_each(|id| *left.entry(id).or_default() += 1);
    for (at, part) in after.parts() {
        let Some(id) = id(part) else { continue };
        match left.get_mut(&id) {
            Some(count) if *count > 0 => *count -= 1,
            _ if own.contains(id.1) => {}
            _ => findings.broken_part(Law::IdsKept, at, format_args!("the client has no `{}` here", id.1)),
        }
    }
}

/// P8; whether the tools are the client's and the one that was announced.
fn tools(before: &Side<'_, '_>, after: &Side<'_, '_>, rewriting: &Rewriting<'_>, findings: &mut Findings<'_>) -> bool {
    let client = &before.request.conversation().tools;
    let ours = &after.request.conversation().tools;
    let wanted = client.iter().map(|tool| &*tool.definition).chain(rewriting.tool);
    let same = wanted.eq(ours.iter().map(|tool| &*tool.definition));
    if !same {
        let detail = format_args!("{} tools where the client has {}, or not the same", ours.len(), client.len());
        findings.broken(Law::ToolsKept, Place::Field("tools"), detail);
    }
    same
}

/// P10.
fn opaque(before: &Side<'_, '_>, after: &Side<'_, '_>, findings: &mut Findings<'_>) {
    fn sealed<'p, 'a>(parts: &'p [Part<'a>]) -> impl Iterator<Item = &'p str> {
        parts.iter().flat_map(|part| {
            let inner = match part {
                Part::ToolResult(result) => result.content.as_slice(),
                other => std::slice::from_ref(other),
            };
            inner.iter().filter_map(|part| match part {
                Part::Opaque(it) => Some(&*it.raw),
                _ => None,
            })
        })
    }
    let mut client = before.messages.iter().flat_map(|message| sealed(&message.parts));
    for (at, message) in after.messages.iter().enumerate() {
        for raw in sealed(&message.parts) {
            if !client.any(|other| other == raw) {
                let detail = "a block that is not to be touched is not the client's";
                findings.broken(Law::OpaqueKept, Place::Message(at), detail);
                return;
            }
        }
    }
}

/// The first part of ours that differs from the client's, thinking left aside.
fn first_edit(before: &Side<'_, '_>, after: &Side<'_, '_>) -> Option<PartId> {
    for (at, ours) in after.messages.iter().enumerate() {
        let Some(client) = before.messages.get(at) else { return Some(PartId::new(at, 0)) };
        if before.raw(at) == after.raw(at) {
            continue;
        }
        let mut theirs = client.parts.iter().filter(|part| !is_reasoning(part));
        let mut own = ours.parts.iter().enumerate().filter(|(_, part)| !is_reasoning(part));
        let differs = own.find(|(_, part)| theirs.next() != Some(part)).map(|(part, _)| part);
        let shorter = || theirs.next().is_some().then_some(ours.parts.len());
        if client.role != ours.role {
            return Some(PartId::new(at, 0));
        }
        if let Some(part) = differs.or_else(shorter) {
            return Some(PartId::new(at, part));
        }
    }
    None
}

/// P7.
fn reasoning(
    before: &Side<'_, '_>,
    after: &Side<'_, '_>,
    edit: Option<PartId>,
    rewriting: &Rewriting<'_>,
    findings: &mut Findings<'_>,
) {
    let settled = rewriting.settled.unwrap_or(before.messages.len());
    let mut client = before.reasoning().enumerate();
    let mut last = None;
    let (mut broken_run, mut unbound) = (false, false);
    for (at, ours) in after.reasoning() {
        let Some((position, (from, _))) = client.find(|(_, (_, theirs))| *theirs == ours) else {
            findings.broken_part(Law::ReasoningKept, at, "the client sent no such reasoning, or not in this order");
            return;
        };
        if last.is_some_and(|last| position != last + 1) && !broken_run {
            findings.broken_part(Law::ReasoningRun, at, "thinking before it is gone, and some before that is kept");
            broken_run = true;
        }
        last = Some(position);
        let blind = edit.is_some_and(|edit| at >= edit) && from.message < settled;
        if blind && rewriting.thinking != Thinking::DropBlock && !unbound {
            findings.broken_part(Law::ReasoningBound, at, "what stands before it was edited after it was thought");
            unbound = true;
        }
    }
}

/// A2.2: neighbours become one turn, in which thinking no longer stands where it stood.
fn merged_thinking(before: &Side<'_, '_>, after: &Side<'_, '_>, findings: &mut Findings<'_>) {
    fn meetings<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = usize> + 'm {
        let thinks = |message: &Message<'_>| message.parts.iter().any(is_reasoning);
        let meet = move |pair: &[Message<'_>]| pair.iter().all(Message::is_assistant) && pair.iter().any(thinks);
        messages.windows(2).enumerate().filter(move |(_, pair)| meet(pair)).map(|(at, _)| at)
    }
    if let Some(at) = meetings(after.messages).nth(meetings(before.messages).count()) {
        findings.broken(Law::NoMergedThinking, Place::Message(at), "it meets an assistant message, and one thinks");
    }
}

/// C3.1: a message with calls keeps its reasoning.
fn reasoning_with_calls(before: &Side<'_, '_>, after: &Side<'_, '_>, findings: &mut Findings<'_>) {
    if !findings.has(Law::ReasoningWithCalls) {
        return;
    }
    let mut reasoned = HashSet::new();
    for message in before.messages.iter().filter(|message| message.parts.iter().any(is_reasoning)) {
        reasoned.extend(message.calls().map(|call| &*call.id));
    }
    for (at, message) in after.messages.iter().enumerate() {
        let lacks = message.calls().any(|call| reasoned.contains(&*call.id));
        if lacks && !message.parts.iter().any(is_reasoning) {
            findings.broken(Law::ReasoningWithCalls, Place::Message(at), "its calls lost their reasoning");
        }
    }
}

/// P11: a reasoning item and the item behind it, where both have ids.
fn atoms(before: &Side<'_, '_>, after: &Side<'_, '_>, findings: &mut Findings<'_>) {
    fn items<'a>(side: &Side<'_, 'a>) -> Vec<Option<std::borrow::Cow<'a, str>>> {
        (0..side.messages.len()).map(|at| side.request.message_field(at, "id").and_then(Value::string)).collect()
    }
    let sent = items(before);
    let mut count: HashMap<&str, usize> = HashMap::new();
    sent.iter().flatten().for_each(|id| *count.entry(id).or_default() += 1);
    // What stands behind a reasoning item, and before the item behind one. An id that the client sent
    // twice does not say which of its items is meant.
    let (mut behind, mut ahead) = (HashMap::new(), HashMap::new());
    for (pair, ids) in before.messages.windows(2).zip(sent.windows(2)) {
        if pair[0].parts.first().is_some_and(is_reasoning)
            && pair[1].is_assistant()
            && let [Some(reasoning), Some(next)] = ids
            && count[&**reasoning] == 1
            && count[&**next] == 1
        {
            behind.insert(&**reasoning, &**next);
            ahead.insert(&**next, &**reasoning);
        }
    }
    if behind.is_empty() {
        return;
    }
    let ids = items(after);
    for (at, own) in ids.iter().enumerate() {
        let Some(own) = own else { continue };
        let neighbour = |at: Option<usize>| at.and_then(|at| ids.get(at)).and_then(Option::as_deref);
        if behind.get(&**own).is_some_and(|wanted| neighbour(Some(at + 1)) != Some(wanted)) {
            findings.broken(Law::AtomWhole, Place::Message(at), format_args!("`{own}` lost the item behind it"));
        }
        if ahead.get(&**own).is_some_and(|wanted| neighbour(at.checked_sub(1)) != Some(wanted)) {
            findings.broken(Law::AtomWhole, Place::Message(at), format_args!("`{own}` lost its reasoning"));
        }
    }
}
