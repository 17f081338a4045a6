//! Checks of a rewritten request against the client's, made before anything is sent.
//!
//! The rewritten request is checked like any other, and violations that the client's request has too
//! are ignored. In addition, the newest turn, ids, tools, and encrypted or signed blocks must be the
//! client's.

use std::collections::{HashMap, HashSet};

use crate::conversation::{Message, Part, PartId, ReasoningPart, Role};
use crate::laws::check::check;
use crate::laws::law::Law;
use crate::laws::profile::LawProfile;
use crate::laws::violation::{LawViolation, RequestLocation, ViolationCollector};
use crate::wire::request::is_synthetic_id;
use crate::wire::{JsonValue, Request};

/// Facts about a rewritten request.
#[derive(Clone, Copy, Debug)]
pub struct RewriteContext<'a> {
    /// The laws that apply.
    pub profile: &'a LawProfile,
    /// The definition of the tool that was appended to the client's, if any.
    pub injected_tool: Option<&'a str>,
    /// Treatment of the thinking of old turns.
    pub thinking: ThinkingTreatment,
    /// Index in the client's messages from which thinking was produced after the newest edit, and so is
    /// bound to the rewritten history; none if the edit is new in this request.
    pub thinking_valid_from: Option<usize>,
    /// Ids of calls that were added to the client's.
    pub injected_call_ids: &'a [&'a str],
}

/// Treatment of the thinking of old turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingTreatment {
    /// Kept, except for whole blocks that were removed.
    Kept,
    /// All thinking after the first edit was removed, including that of the newest turn.
    Stripped,
    /// Kept, and the provider drops blocks that no longer match (`drop_block`).
    DropBlock,
}

impl<'a> RewriteContext<'a> {
    /// Creates the context of a rewrite that adds nothing and keeps the thinking.
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

/// Returns the violations of the rewritten request that the client's request does not have.
///
/// ```
/// use foldline::laws::{LawProfile, RewriteContext, compare};
/// use foldline::wire::{Format, Request, RequestEdit};
///
/// let body = br#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
/// let client = Request::parse(Format::OpenAiChat, body)?;
/// let shorter = client.splice(&[RequestEdit::DropMessage(2)])?;
/// let rewritten = Request::parse(Format::OpenAiChat, &shorter)?;
///
/// let profile = LawProfile::for_request(&client);
/// let violations = compare(&client, &rewritten, &RewriteContext::new(&profile));
/// assert_eq!(violations[0].law.name(), "last-message-kept");
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn compare(client: &Request<'_>, rewritten: &Request<'_>, rewrite: &RewriteContext<'_>) -> Vec<LawViolation> {
    let profile = rewrite.profile.clone().with_rewrite_laws();
    let before = RequestSide::new(client);
    let after = RequestSide::new(rewritten);
    let mut found = check(rewritten, &profile);
    if !found.is_empty() {
        found = without_known(found, &after, &check(client, &profile), &before);
    }
    let mut findings = ViolationCollector { profile: &profile, violations: found };
    check_newest_turn(&before, &after, rewrite, &mut findings);
    check_ids(&before, &after, rewrite, &mut findings);
    let same_tools = check_tools(&before, &after, rewrite, &mut findings);
    check_opaque(&before, &after, &mut findings);
    let edit = if same_tools && client.conversation().system == rewritten.conversation().system {
        first_edit(&before, &after)
    } else {
        Some(PartId::new(0, 0))
    };
    check_reasoning(&before, &after, edit, rewrite, &mut findings);
    if profile.has(Law::NoMergedThinking) {
        check_merged_thinking(&before, &after, &mut findings);
    }
    if profile.has(Law::CallReasoningKept) {
        check_call_reasoning(&before, &after, &mut findings);
    }
    if profile.has(Law::ReasoningPairKept) {
        check_reasoning_pairs(&before, &after, &mut findings);
    }
    findings.violations
}

/// Removes the violations that the client's request has too. Locations move, so a violation is
/// identified by its law, its detail and its message; one of the whole request by its law.
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
    let mut known_counts: HashMap<(Law, &str, &str), usize> = HashMap::new();
    known.iter().for_each(|violation| *known_counts.entry(violation_key(violation, client)).or_default() += 1);
    let mut is_new = Vec::with_capacity(found.len());
    for violation in &found {
        let count = known_counts.get_mut(&violation_key(violation, ours)).filter(|count| **count > 0);
        is_new.push(count.is_none());
        if let Some(count) = count {
            *count -= 1;
        }
    }
    found.into_iter().zip(is_new).filter(|(_, is_new)| *is_new).map(|(violation, _)| violation).collect()
}

/// One of the two requests.
struct RequestSide<'r, 'a> {
    request: &'r Request<'a>,
    messages: &'r [Message<'a>],
    /// Index of the first message of the newest assistant turn.
    newest_turn: Option<usize>,
}

impl<'r, 'a> RequestSide<'r, 'a> {
    fn new(request: &'r Request<'a>) -> Self {
        let messages = request.conversation().messages.as_slice();
        let opens_round = |at: &usize| messages[*at].opens_round(at.checked_sub(1).map(|before| &messages[before]));
        Self { request, messages, newest_turn: (0..messages.len()).rev().find(opens_round) }
    }

    fn raw(&self, at: usize) -> &'a str {
        self.request.raw_message(at).unwrap_or_default()
    }

    /// Returns the key that identifies a message after an edit: the id of a call or a result in it, else
    /// its raw JSON.
    fn message_key(&self, at: usize) -> &str {
        let Some(message) = self.messages.get(at) else { return "" };
        message.parts.iter().find_map(call_or_result_id).map_or_else(|| self.raw(at), |(_, id)| id)
    }

    fn parts(&self) -> impl Iterator<Item = (PartId, &'r Part<'a>)> {
        self.messages.iter().enumerate().flat_map(|(at, message)| {
            message.parts.iter().enumerate().map(move |(index, part)| (PartId::new(at, index), part))
        })
    }

    fn reasoning(&self) -> impl Iterator<Item = (PartId, &'r ReasoningPart<'a>)> {
        self.parts().filter_map(|(at, part)| match part {
            Part::Reasoning(reasoning) => Some((at, reasoning)),
            _ => None,
        })
    }
}

/// Returns the id of a call or a result, with true for a result.
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

/// Returns the parts of messages that are not reasoning.
fn non_reasoning_parts<'m, 'a>(messages: &'m [Message<'a>]) -> impl DoubleEndedIterator<Item = (Role, &'m Part<'a>)> {
    messages
        .iter()
        .flat_map(|message| message.parts.iter().map(|part| (message.role, part)))
        .filter(|(_, part)| !is_reasoning(part))
}

/// Returns true if there is thinking among or directly before the last `parts` parts that are not
/// thinking.
fn has_reasoning_in_tail(messages: &[Message<'_>], mut parts: usize) -> bool {
    for message in messages.iter().rev() {
        let has_reasoning = message.parts.iter().any(is_reasoning);
        let other_parts = message.parts.iter().filter(|part| !is_reasoning(part)).count();
        if parts == 0 && (other_parts > 0 || !has_reasoning) {
            return false;
        }
        if has_reasoning {
            return true;
        }
        parts = parts.saturating_sub(other_parts);
    }
    false
}

/// Checks that the last message and the newest turn are kept (P1, P6).
fn check_newest_turn(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewrite: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    // Compares the client's messages from this index with as many at the end of the rewritten request.
    let kept = |from: usize| {
        let tail = &before.messages[from..];
        let same_bytes = |to: usize| (0..tail.len()).all(|at| before.raw(from + at) == after.raw(to + at));
        let is_stripped = || {
            let count = non_reasoning_parts(tail).count();
            let same = non_reasoning_parts(tail).rev().eq(non_reasoning_parts(after.messages).rev().take(count));
            same && !has_reasoning_in_tail(after.messages, count)
        };
        after.messages.len().checked_sub(tail.len()).is_some_and(same_bytes)
            || rewrite.thinking == ThinkingTreatment::Stripped && is_stripped()
    };
    let (Some(last), Some(ours)) = (before.messages.len().checked_sub(1), after.messages.len().checked_sub(1)) else {
        if !before.messages.is_empty() {
            findings.report(Law::LastMessageKept, RequestLocation::Request, "no message is left");
        }
        return;
    };
    if !kept(last) {
        findings.report(
            Law::LastMessageKept,
            RequestLocation::Message(ours),
            "the last message differs from the client's",
        );
    }
    if before.newest_turn.is_some_and(|newest| !kept(newest)) {
        let detail = "the newest turn and the messages after it differ from the client's";
        findings.report(Law::NewestTurnKept, RequestLocation::Message(ours), detail);
    }
}

/// Checks that ids of calls and results are the client's or injected (P5).
fn check_ids(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewrite: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    let injected: HashSet<&str> = rewrite.injected_call_ids.iter().copied().collect();
    let mut client_counts: HashMap<(bool, &str), usize> = HashMap::new();
    before
        .parts()
        .filter_map(|(_, part)| call_or_result_id(part))
        .for_each(|id| *client_counts.entry(id).or_default() += 1);
    for (at, part) in after.parts() {
        // Ids that the request does not contain are numbers, which change when a call is removed.
        let Some(id) = call_or_result_id(part).filter(|(_, id)| !is_synthetic_id(id)) else { continue };
        match client_counts.get_mut(&id) {
            Some(count) if *count > 0 => *count -= 1,
            _ if injected.contains(id.1) => {}
            _ => findings.report_part(
                Law::IdsKept,
                at,
                format_args!("the client's request does not have the id `{}`", id.1),
            ),
        }
    }
}

/// Checks that the tools are the client's followed by the injected one (P8); returns true if they are.
fn check_tools(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    rewrite: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) -> bool {
    let client = &before.request.conversation().tools;
    let ours = &after.request.conversation().tools;
    let expected = client.iter().map(|tool| &*tool.definition).chain(rewrite.injected_tool);
    let same = expected.eq(ours.iter().map(|tool| &*tool.definition));
    if !same {
        let detail = format_args!("{} tools; the client's request has {}, or other ones", ours.len(), client.len());
        findings.report(Law::ToolsKept, RequestLocation::Field("tools"), detail);
    }
    same
}

/// Checks that opaque blocks are the client's, in order (P10).
fn check_opaque(before: &RequestSide<'_, '_>, after: &RequestSide<'_, '_>, findings: &mut ViolationCollector<'_>) {
    fn opaque_blocks<'p, 'a>(parts: &'p [Part<'a>]) -> impl Iterator<Item = &'p str> {
        parts.iter().flat_map(|part| {
            let inner = match part {
                Part::ToolResult(result) => result.content.as_slice(),
                other => std::slice::from_ref(other),
            };
            inner.iter().filter_map(|part| match part {
                Part::Opaque(block) => Some(&*block.raw),
                _ => None,
            })
        })
    }
    let mut client = before.messages.iter().flat_map(|message| opaque_blocks(&message.parts));
    for (at, message) in after.messages.iter().enumerate() {
        for raw in opaque_blocks(&message.parts) {
            if !client.any(|other| other == raw) {
                let detail = "an opaque block differs from the client's";
                findings.report(Law::OpaqueKept, RequestLocation::Message(at), detail);
                return;
            }
        }
    }
}

/// Returns the first rewritten part that differs from the client's, ignoring thinking.
fn first_edit(before: &RequestSide<'_, '_>, after: &RequestSide<'_, '_>) -> Option<PartId> {
    for (at, ours) in after.messages.iter().enumerate() {
        let Some(client) = before.messages.get(at) else { return Some(PartId::new(at, 0)) };
        if before.raw(at) == after.raw(at) {
            continue;
        }
        let mut theirs = client.parts.iter().filter(|part| !is_reasoning(part));
        let mut rewritten = ours.parts.iter().enumerate().filter(|(_, part)| !is_reasoning(part));
        let differs = rewritten.find(|(_, part)| theirs.next() != Some(part)).map(|(part, _)| part);
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

/// Checks that reasoning is the client's, contiguous, and bound to the sent history (P7).
fn check_reasoning(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    edit: Option<PartId>,
    rewrite: &RewriteContext<'_>,
    findings: &mut ViolationCollector<'_>,
) {
    let valid_from = rewrite.thinking_valid_from.unwrap_or(before.messages.len());
    let mut client = before.reasoning().enumerate();
    let mut last = None;
    let (mut reported_gap, mut reported_edit) = (false, false);
    for (at, ours) in after.reasoning() {
        let Some((position, (from, _))) = client.find(|(_, (_, theirs))| *theirs == ours) else {
            findings.report_part(
                Law::ReasoningKept,
                at,
                "the client's request does not have this reasoning, or has another order",
            );
            return;
        };
        if last.is_some_and(|last| position != last + 1) && !reported_gap {
            findings.report_part(
                Law::ReasoningContiguous,
                at,
                "the thinking before it was removed, but earlier thinking was kept",
            );
            reported_gap = true;
        }
        last = Some(position);
        let is_before_edit = edit.is_some_and(|edit| at >= edit) && from.message < valid_from;
        if is_before_edit && rewrite.thinking != ThinkingTreatment::DropBlock && !reported_edit {
            findings.report_part(Law::ReasoningAfterEdit, at, "the history before it was edited after it was produced");
            reported_edit = true;
        }
    }
}

/// Checks that no assistant messages with thinking are merged into one turn, where the thinking would
/// have another position (A2.2).
fn check_merged_thinking(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    findings: &mut ViolationCollector<'_>,
) {
    fn adjacent_thinking<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = usize> + 'm {
        let has_reasoning = |message: &Message<'_>| message.parts.iter().any(is_reasoning);
        let are_merged =
            move |pair: &[Message<'_>]| pair.iter().all(Message::is_assistant) && pair.iter().any(has_reasoning);
        messages.windows(2).enumerate().filter(move |(_, pair)| are_merged(pair)).map(|(at, _)| at)
    }
    if let Some(at) = adjacent_thinking(after.messages).nth(adjacent_thinking(before.messages).count()) {
        findings.report(
            Law::NoMergedThinking,
            RequestLocation::Message(at),
            "it is next to an assistant message, and one of them has thinking",
        );
    }
}

/// Checks that a message with calls keeps its reasoning (C3.1).
fn check_call_reasoning(
    before: &RequestSide<'_, '_>,
    after: &RequestSide<'_, '_>,
    findings: &mut ViolationCollector<'_>,
) {
    let mut reasoned_calls = HashSet::new();
    for message in before.messages.iter().filter(|message| message.parts.iter().any(is_reasoning)) {
        reasoned_calls.extend(message.calls().map(|call| &*call.id));
    }
    for (at, message) in after.messages.iter().enumerate() {
        let had_reasoning = message.calls().any(|call| reasoned_calls.contains(&*call.id));
        if had_reasoning && !message.parts.iter().any(is_reasoning) {
            findings.report(Law::CallReasoningKept, RequestLocation::Message(at), "its calls lost their reasoning");
        }
    }
}

/// Checks that a reasoning item and the item after it, if both have ids, stay together (P11).
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
    // The item after each reasoning item, and the reasoning item before each such item. An id that the
    // client sent twice is ambiguous.
    let (mut followers, mut reasoning_of) = (HashMap::new(), HashMap::new());
    for (pair, ids) in before.messages.windows(2).zip(sent.windows(2)) {
        if pair[0].parts.first().is_some_and(is_reasoning)
            && pair[1].is_assistant()
            && let [Some(reasoning), Some(next)] = ids
            && count[&**reasoning] == 1
            && count[&**next] == 1
        {
            followers.insert(&**reasoning, &**next);
            reasoning_of.insert(&**next, &**reasoning);
        }
    }
    if followers.is_empty() {
        return;
    }
    let ids = item_ids(after);
    for (at, id) in ids.iter().enumerate() {
        let Some(id) = id else { continue };
        let neighbor = |at: Option<usize>| at.and_then(|at| ids.get(at)).and_then(Option::as_deref);
        if followers.get(&**id).is_some_and(|expected| neighbor(Some(at + 1)) != Some(expected)) {
            findings.report(
                Law::ReasoningPairKept,
                RequestLocation::Message(at),
                format_args!("`{id}` lost the item after it"),
            );
        }
        if reasoning_of.get(&**id).is_some_and(|expected| neighbor(at.checked_sub(1)) != Some(expected)) {
            findings.report(
                Law::ReasoningPairKept,
                RequestLocation::Message(at),
                format_args!("`{id}` lost its reasoning"),
            );
        }
    }
}
