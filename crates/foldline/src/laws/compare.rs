//! What a rewritten request owes to the client's: the checks before anything is sent.
//!
//! The rewritten request is checked like any other, and what the client broke itself is not held
//! against the rewriting. Beside that: the newest turn, ids, tools and all that is sealed are the
//! client's own.

use std::collections::{HashMap, HashSet};

use super::{Law, LawProfile, LawViolation, RequestLocation, ViolationCollector, check};
use crate::conversation::{Message, Part, PartId, ReasoningPart, Role};
use crate::wire::{Format, JsonValue, Request};

/// What is known about a rewriting.
#[derive(Clone, Copy, Debug)]
pub struct RewriteContext<'a> {
    /// The laws that apply.
    pub profile: &'a LawProfile,
    /// The declaration of the tool that was appended to the client's, if one was.
    pub injected_tool: Option<&'a str>,
    /// What became of the thinking.
    pub thinking: ThinkingTreatment,
    /// Index in the client's messages behind which thinking was produced after the newest edit, and so
    /// is bound to the rewritten history; none when the edit is made only now.
    pub thinking_valid_from: Option<usize>,
    /// Ids of calls that were put in beside the client's.
    pub injected_call_ids: &'a [&'a str],
}

/// What became of the thinking of old turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingTreatment {
    /// It was kept, but for whole blocks that went.
    Kept,
    /// All that stood behind the first edit went, that of the newest turn too.
    Stripped,
    /// It was kept, and the provider was asked to drop what no longer fits (`drop_block`).
    DropBlock,
}

impl<'a> RewriteContext<'a> {
    /// A rewriting that adds nothing and keeps the thinking.
    pub fn new(profile: &'a LawProfile) -> Self {
        Self {
            profile,
            injected_tool: None,
            thinking: ThinkingTreatment::Kept,
            thinking_valid_from: None,
            injected_call_ids: &[],
        }
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
pub fn compare(client: &Request<'_>, rewritten: &Request<'_>, rewriting: &RewriteContext<'_>) -> Vec<LawViolation> {
    let profile = rewriting.profile.clone().with_rewrite_laws();
    let before = RequestSide::new(client);
    let after = RequestSide::new(rewritten);
    let mut found = check(rewritten, &profile);
    if !found.is_empty() {
        found = without_known(found, &after, &check(client, &profile), &before);
    }
    let mut findings = ViolationCollector { profile: &profile, violations: found };
    check_newest_turn(&before, &after, rewriting, &mut findings);
    check_ids(&before, &after, rewriting, &mut findings);
    let same_tools = check_tools(&before, &after, rewriting, &mut findings);
    check_opaque(&before, &after, &mut findings);
    let edit = if same_tools && client.conversation().system == rewritten.conversation().system {
        first_edit(&before, &after)
    } else {
        Some(PartId::new(0, 0))
    };
    check_reasoning(&before, &after, edit, rewriting, &mut findings);
    match profile.format() {
        Format::Anthropic => check_merged_thinking(&before, &after, &mut findings),
        Format::OpenAiChat => check_call_reasoning(&before, &after, &mut findings),
        Format::OpenAiResponses => check_reasoning_pairs(&before, &after, &mut findings),
    }
    findings.violations
}

/// What was found in our request less what is wrong in the client's too. Places move, so a violation is
/// known by its law, its words and the message that it is in; one of the request as a whole by its law.
fn without_known(
    found: Vec<LawViolation>,
    ours: &RequestSide<'_, '_>,
    known: &[LawViolation],
    client: &RequestSide<'_, '_>,
) -> Vec<LawViolation> {
    fn violation_key<'k>(violation: &'k LawViolation, side: &'k RequestSide<'_, '_>) -> (Law, &'k str, &'k str) {
        match violation.at {
            RequestLocation::Request | RequestLocation::Field(_) => (violation.law, "", ""),
            RequestLocation::Instruction(_) | RequestLocation::Tool(_) => (violation.law, &violation.detail, ""),
            RequestLocation::Message(at) | RequestLocation::Part(PartId { message: at, .. }) => {
                (violation.law, &violation.detail, side.message_key(at))
            }
        }
    }
    let mut left: HashMap<(Law, &str, &str), usize> = HashMap::new();
    known.iter().for_each(|violation| *left.entry(violation_key(violation, client)).or_default() += 1);
    let mut fresh = Vec::with_capacity(found.len());
    for violation in &found {
        let count = left.get_mut(&violation_key(violation, ours)).filter(|count| **count > 0);
        fresh.push(count.is_none());
        if let Some(count) = count {
            *count -= 1;
        }
    }
    found.into_iter().zip(fresh).filter(|(_, fresh)| *fresh).map(|(violation, _)| violation).collect()
}

/// One of the two requests.
struct RequestSide<'r, 'a> {
    request: &'r Request<'a>,
    messages: &'r [Message<'a>],
    /// Where the newest assistant turn begins.
    newest_turn: Option<usize>,
}

impl<'r, 'a> RequestSide<'r, 'a> {
    fn new(request: &'r Request<'a>) -> Self {
        let messages = request.conversation().messages.as_slice();
        let opens = |at: &usize| messages[*at].opens_round(at.checked_sub(1).map(|before| &messages[before]));
        Self { request, messages, newest_turn: (0..messages.len()).rev().find(opens) }
    }

    fn raw(&self, at: usize) -> &'a str {
        self.request.raw_message(at).unwrap_or_default()
    }

    /// By what a message is known again after an edit: the id of a call or a result in it, else all of it.
    fn message_key(&self, at: usize) -> &str {
        let Some(message) = self.messages.get(at) else { return "" };
        message.parts.iter().find_map(call_or_result_id).map_or_else(|| self.raw(at), |(_, id)| id)
    }

    fn parts(&self) -> impl Iterator<Item = (PartId, &'r Part<'a>)> {
        self.messages.iter().enumerate().flat_map(|(at, message)| {
            message.parts.iter().enumerate().map(move |(part, it)| (PartId::new(at, part), it))
        })
    }

    fn reasoning(&self) -> impl Iterator<Item = (PartId, &'r ReasoningPart<'a>)> {
        self.parts().filter_map(|(at, part)| match part {
            Part::Reasoning(reasoning) => Some((at, reasoning)),
            _ => None,
        })
    }
}

/// The id of a call or of a result, and whether it is a result's.
fn call_or_result_id<'p>(part: &'p Part<'_>) -> Option<(bool, &'p str)> {
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
fn non_reasoning_parts<'m, 'a>(messages: &'m [Message<'a>]) -> impl DoubleEndedIterator<Item = (Role, &'m Part<'a>)> {
    messages
        .iter()
        .flat_map(|message| message.parts.iter().map(|part| (message.role, part)))
        .filter(|(_, part)| !is_reasoning(part))
}

/// Whether thinking stands among or right before the last so many parts that are none.
fn has_reasoning_in_tail(messages: &[Message<'_>], mut parts: usize) -> bool {
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
fn check_newest_turn(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewriting: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    // The messages of the client's from here on, and as many of ours at the end.
    let kept = |from: usize| {
        let tail = &before.messages[from..];
        let bytes = |to: usize| (0..tail.len()).all(|at| before.raw(from + at) == after.raw(to + at));
        let stripped = || {
            let said = non_reasoning_parts(tail).count();
            let same = non_reasoning_parts(tail).rev().eq(non_reasoning_parts(after.messages).rev().take(said));
            same && !has_reasoning_in_tail(after.messages, said)
        };
        after.messages.len().checked_sub(tail.len()).is_some_and(bytes)
            || rewriting.thinking == ThinkingTreatment::Stripped && stripped()
    };
    let (Some(last), Some(ours)) = (before.messages.len().checked_sub(1), after.messages.len().checked_sub(1)) else {
        if !before.messages.is_empty() {
            findings.report(Law::LastMessageKept, RequestLocation::Request, "no message is left");
        }
        return;
    };
    if !kept(last) {
        findings.report(Law::LastMessageKept, RequestLocation::Message(ours), "the last message is not the client's");
    }
    if before.newest_turn.is_some_and(|newest| !kept(newest)) {
        let detail = "the newest turn and what is behind it are not the client's";
        findings.report(Law::NewestTurnKept, RequestLocation::Message(ours), detail);
    }
}

/// P5.
fn check_ids(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewriting: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    let own: HashSet<&str> = rewriting.injected_call_ids.iter().copied().collect();
    let mut left: HashMap<(bool, &str), usize> = HashMap::new();
    before.parts().filter_map(|(_, part)| call_or_result_id(part)).for_each(|id| *left.entry(id).or_default() += 1);
    for (at, part) in after.parts() {
        let Some(id) = call_or_result_id(part) else { continue };
        match left.get_mut(&id) {
            Some(count) if *count > 0 => *count -= 1,
            _ if own.contains(id.1) => {}
            _ => findings.report_part(Law::IdsKept, at, format_args!("the client has no `{}` here", id.1)),
        }
    }
}

/// P8; whether the tools are the client's and the one that was announced.
fn check_tools(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewriting: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) -> bool {
    let client = &before.request.conversation().tools;
    let ours = &after.request.conversation().tools;
    let wanted = client.iter().map(|tool| &*tool.definition).chain(rewriting.injected_tool);
    let same = wanted.eq(ours.iter().map(|tool| &*tool.definition));
    if !same {
        let detail = format_args!("{} tools where the client has {}, or not the same", ours.len(), client.len());
        findings.report(Law::ToolsKept, RequestLocation::Field("tools"), detail);
    }
    same
}

/// P10.
fn check_opaque(before: &RequestSide<'_, '_>, after: &RequestSide<'_, '_>, findings: &mut ViolationCollector<'_>) {
    fn opaque_blocks<'p, 'a>(parts: &'p [Part<'a>]) -> impl Iterator<Item = &'p str> {
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
    let mut client = before.messages.iter().flat_map(|message| opaque_blocks(&message.parts));
    for (at, message) in after.messages.iter().enumerate() {
        for raw in opaque_blocks(&message.parts) {
            if !client.any(|other| other == raw) {
                let detail = "a block that is not to be touched is not the client's";
                findings.report(Law::OpaqueKept, RequestLocation::Message(at), detail);
                return;
            }
        }
    }
}

/// The first part of ours that differs from the client's, thinking left aside.
fn first_edit(before: &RequestSide<'_, '_>, after: &RequestSide<'_, '_>) -> Option<PartId> {
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
fn check_reasoning(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    edit: Option<PartId>,
    rewriting: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    let settled = rewriting.thinking_valid_from.unwrap_or(before.messages.len());
    let mut client = before.reasoning().enumerate();
    let mut last = None;
    let (mut broken_run, mut unbound) = (false, false);
    for (at, ours) in after.reasoning() {
        let Some((position, (from, _))) = client.find(|(_, (_, theirs))| *theirs == ours) else {
            findings.report_part(Law::ReasoningKept, at, "the client sent no such reasoning, or not in this order");
            return;
        };
        if last.is_some_and(|last| position != last + 1) && !broken_run {
            findings.report_part(
                Law::ReasoningContiguous,
                at,
                "thinking before it is gone, and some before that is kept",
            );
            broken_run = true;
        }
        last = Some(position);
        let blind = edit.is_some_and(|edit| at >= edit) && from.message < settled;
        if blind && rewriting.thinking != ThinkingTreatment::DropBlock && !unbound {
            findings.report_part(Law::ReasoningAfterEdit, at, "what stands before it was edited after it was thought");
            unbound = true;
        }
    }
}

/// A2.2: neighbours become one turn, in which thinking no longer stands where it stood.
fn check_merged_thinking(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    findings: &mut ViolationCollector<'_>,
) {
    fn adjacent_thinking<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = usize> + 'm {
        let thinks = |message: &Message<'_>| message.parts.iter().any(is_reasoning);
        let meet = move |pair: &[Message<'_>]| pair.iter().all(Message::is_assistant) && pair.iter().any(thinks);
        messages.windows(2).enumerate().filter(move |(_, pair)| meet(pair)).map(|(at, _)| at)
    }
    if let Some(at) = adjacent_thinking(after.messages).nth(adjacent_thinking(before.messages).count()) {
        findings.report(
            Law::NoMergedThinking,
            RequestLocation::Message(at),
            "it meets an assistant message, and one thinks",
        );
    }
}

/// C3.1: a message with calls keeps its reasoning.
fn check_call_reasoning(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    findings: &mut ViolationCollector<'_>,
) {
    if !findings.has(Law::CallReasoningKept) {
        return;
    }
    let mut reasoned = HashSet::new();
    for message in before.messages.iter().filter(|message| message.parts.iter().any(is_reasoning)) {
        reasoned.extend(message.calls().map(|call| &*call.id));
    }
    for (at, message) in after.messages.iter().enumerate() {
        let lacks = message.calls().any(|call| reasoned.contains(&*call.id));
        if lacks && !message.parts.iter().any(is_reasoning) {
            findings.report(Law::CallReasoningKept, RequestLocation::Message(at), "its calls lost their reasoning");
        }
    }
}

/// P11: a reasoning item and the item behind it, where both have ids.
fn check_reasoning_pairs(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    findings: &mut ViolationCollector<'_>,
) {
    fn item_ids<'a>(side: &RequestSide<'_, 'a>) -> Vec<Option<std::borrow::Cow<'a, str>>> {
        (0..side.messages.len()).map(|at| side.request.message_field(at, "id").and_then(JsonValue::string)).collect()
    }
    let sent = item_ids(before);
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
    let ids = item_ids(after);
    for (at, own) in ids.iter().enumerate() {
        let Some(own) = own else { continue };
        let neighbour = |at: Option<usize>| at.and_then(|at| ids.get(at)).and_then(Option::as_deref);
        if behind.get(&**own).is_some_and(|wanted| neighbour(Some(at + 1)) != Some(wanted)) {
            findings.report(
                Law::ReasoningPairKept,
                RequestLocation::Message(at),
                format_args!("`{own}` lost the item behind it"),
            );
        }
        if ahead.get(&**own).is_some_and(|wanted| neighbour(at.checked_sub(1)) != Some(wanted)) {
            findings.report(
                Law::ReasoningPairKept,
                RequestLocation::Message(at),
                format_args!("`{own}` lost its reasoning"),
            );
        }
    }
}
