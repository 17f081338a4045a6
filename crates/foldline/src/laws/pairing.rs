//! Calls and their results: every call is answered once, at the position that the format requires.

use std::collections::{HashMap, HashSet};

use memchr::memmem;

use crate::conversation::{CallArguments, Conversation, Message, OpaqueBlock, Part, PartId, Role, ToolResult};
use crate::laws::law::Law;
use crate::laws::violation::{RequestLocation, TrailingCalls, ViolationCollector};
use crate::wire::rules::{CallIdScope, EmptyResult, ResultPlacement};
use crate::wire::{JsonValue, Request};

/// Longest item id, in characters.
const MAX_ITEM_ID_CHARS: usize = 64;

pub(crate) fn check(conversation: &Conversation<'_>, ending: TrailingCalls, findings: &mut ViolationCollector<'_>) {
    match findings.rules().result_placement {
        ResultPlacement::NextUserTurn => check_user_turns(conversation, ending, findings),
        ResultPlacement::DirectlyAfter => check_following_messages(conversation, ending, findings),
        ResultPlacement::AnywhereAfter => check_later_items(conversation, ending, findings),
    }
    if findings.has_any(&[Law::ServerPair, Law::ServerPending]) {
        check_server_pairs(conversation, findings);
    }
    if findings.has(Law::ApprovalPair) {
        check_approvals(conversation, findings);
    }
    check_call_ids(conversation, findings);
    check_result_contents(conversation, findings);
}

pub(crate) fn check_request(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let mentions = |key: &str| memmem::find(request.body().as_bytes(), key.as_bytes()).is_some();
    if findings.has(Law::ToolsetEchoed) && mentions("\"toolset_name\"") {
        check_toolsets(request, findings);
    }
    if findings.has(Law::ProgrammaticResult) && mentions("\"caller\"") {
        check_programmatic_results(request, findings);
    }
    if findings.has_any(&[Law::ItemIdForm, Law::ItemIdUnique]) {
        check_item_ids(request, findings);
    }
}

/// The calls that wait for their results.
#[derive(Default)]
struct AwaitedResults<'c> {
    calls: Vec<(PartId, &'c str, AnswerState)>,
    by_id: HashMap<&'c str, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    Missing,
    Given,
}

impl<'c> AwaitedResults<'c> {
    /// Adds the calls of an assistant message. Of calls that share an id only the first awaits a result.
    fn add_calls(&mut self, message: &'c Message<'_>, at: usize) {
        if !message.is_assistant() {
            return;
        }
        for (index, part) in message.parts.iter().enumerate() {
            if let Part::ToolCall(call) = part {
                let next = self.calls.len();
                if *self.by_id.entry(&call.id).or_insert(next) == next {
                    self.calls.push((PartId::new(at, index), &call.id, AnswerState::Missing));
                }
            }
        }
    }

    /// Records a result; returns true if a call awaited it.
    fn record_result(&mut self, result: &ToolResult<'_>, at: PartId, findings: &mut ViolationCollector<'_>) -> bool {
        let id = &*result.call_id;
        match self.by_id.get(id).map(|&call| &mut self.calls[call].2) {
            Some(answer @ AnswerState::Missing) => {
                *answer = AnswerState::Given;
                return true;
            }
            Some(AnswerState::Given) => {
                findings.report_part(Law::OneResult, at, format_args!("the call `{id}` already has a result"));
            }
            None if id.starts_with("srvtoolu_") && findings.has(Law::NoServerCallResult) => {
                findings.report_part(Law::NoServerCallResult, at, format_args!("`{id}` is a server tool's call"));
            }
            None => {
                findings.report_part(Law::ResultHasCall, at, format_args!("no call before it has the id `{id}`"));
            }
        }
        false
    }

    /// Reports the calls that are not answered and clears the list.
    fn finish(&mut self, findings: &mut ViolationCollector<'_>) {
        for (at, id, answer) in self.calls.drain(..) {
            if answer == AnswerState::Missing {
                findings.report_part(Law::CallAnswered, at, format_args!("no result answers the call `{id}`"));
            }
        }
        self.by_id.clear();
    }
}

/// Checks results in user turns: adjacent messages of one role are one turn; the user turn after a call
/// answers it, results first.
fn check_user_turns(conversation: &Conversation<'_>, ending: TrailingCalls, findings: &mut ViolationCollector<'_>) {
    #[derive(PartialEq)]
    enum TurnKind {
        Assistant,
        /// A user turn.
        User {
            /// True if it contains anything besides results.
            has_other_content: bool,
        },
        Other,
    }
    let mut waiting = AwaitedResults::default();
    let mut turn = TurnKind::Other;
    for (at, message) in conversation.messages.iter().enumerate() {
        match message.role {
            Role::Assistant => {
                if turn != TurnKind::Assistant {
                    waiting.finish(findings);
                    turn = TurnKind::Assistant;
                }
                waiting.add_calls(message, at);
                check_call_roles(message, at, |part| matches!(part, Part::ToolResult(_)), findings);
                check_fallback(message, at, findings);
            }
            Role::User => {
                let mut has_other_content = turn == TurnKind::User { has_other_content: true };
                for (index, part) in message.parts.iter().enumerate() {
                    let place = PartId::new(at, index);
                    let Part::ToolResult(result) = part else {
                        has_other_content = true;
                        continue;
                    };
                    if waiting.record_result(result, place, findings) && has_other_content {
                        findings.report_part(Law::ResultsFirst, place, "a part that is not a result comes before it");
                    }
                }
                turn = TurnKind::User { has_other_content };
                check_call_roles(message, at, |part| matches!(part, Part::ToolCall(_)), findings);
            }
            _ => {
                waiting.finish(findings);
                turn = TurnKind::Other;
                check_call_roles(message, at, |part| matches!(part, Part::ToolResult(_) | Part::ToolCall(_)), findings);
            }
        }
    }
    if ending == TrailingCalls::Unanswered || turn == (TurnKind::User { has_other_content: true }) {
        waiting.finish(findings);
    }
}

fn check_call_roles(
    message: &Message<'_>,
    at: usize,
    is_misplaced: impl Fn(&Part<'_>) -> bool,
    findings: &mut ViolationCollector<'_>,
) {
    for (index, _) in message.parts.iter().enumerate().filter(|(_, part)| is_misplaced(part)) {
        let detail = format_args!("not allowed in a message with the role {:?}", message.role);
        findings.report_part(Law::CallRole, PartId::new(at, index), detail);
    }
}

fn check_fallback(message: &Message<'_>, at: usize, findings: &mut ViolationCollector<'_>) {
    let is_fallback = |part: &Part<'_>| matches!(part, Part::Opaque(block) if block.kind == "fallback");
    let Some(last) = message.parts.iter().rposition(is_fallback) else { return };
    for (index, part) in message.parts[..last].iter().enumerate() {
        if matches!(part, Part::ToolCall(_)) {
            findings.report_part(Law::NoCallBeforeFallback, PartId::new(at, index), "a fallback block follows it");
        }
    }
}

/// Checks results in separate messages: those directly after a message with calls answer it.
fn check_following_messages(
    conversation: &Conversation<'_>,
    ending: TrailingCalls,
    findings: &mut ViolationCollector<'_>,
) {
    let mut waiting = AwaitedResults::default();
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.role != Role::Tool {
            waiting.finish(findings);
            waiting.add_calls(message, at);
        }
        for (index, part) in message.parts.iter().enumerate() {
            if let Part::ToolResult(result) = part {
                waiting.record_result(result, PartId::new(at, index), findings);
            }
        }
    }
    if ending == TrailingCalls::Unanswered {
        waiting.finish(findings);
    }
}

/// Checks results in any later message.
fn check_later_items(conversation: &Conversation<'_>, ending: TrailingCalls, findings: &mut ViolationCollector<'_>) {
    let mut waiting = AwaitedResults::default();
    let mut early = Vec::new();
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut turn = 0;
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
            turn = at;
        }
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
                // A tool search run by the provider has no call id.
                Part::ToolCall(call) if message.is_assistant() && call.name != "tool_search" => {
                    let id = &*call.id;
                    let next = waiting.calls.len();
                    // Of calls of one turn that share an id only the first awaits a result, until it is answered.
                    let is_known = |&other: &usize| {
                        let (place, _, answer) = &waiting.calls[other];
                        place.message >= turn && *answer == AnswerState::Missing
                    };
                    if !waiting.by_id.get(id).is_some_and(is_known) {
                        waiting.calls.push((place, id, AnswerState::Missing));
                        waiting.by_id.insert(id, next);
                        first.entry(id).or_insert(next);
                    }
                }
                Part::ToolResult(result) if waiting.by_id.contains_key(&*result.call_id) => {
                    waiting.record_result(result, place, findings);
                }
                Part::ToolResult(result) if !is_tool_search(result) => early.push((place, result)),
                _ => {}
            }
        }
    }
    // A result before its call belongs to the first call with its id, not to one that reuses the id.
    waiting.by_id = first;
    for (place, result) in early {
        if waiting.by_id.contains_key(&*result.call_id) {
            let detail = format_args!("the call `{}` comes after it", result.call_id);
            findings.report_part(Law::ResultAfterCall, place, detail);
        }
        waiting.record_result(result, place, findings);
    }
    if ending == TrailingCalls::InFlight {
        let in_flight = in_flight_from(conversation);
        waiting.calls.retain(|(place, ..)| place.message < in_flight);
    }
    waiting.finish(findings);
}

/// Returns true if the result answers a tool search, which the provider may have run itself.
pub(crate) fn is_tool_search(result: &ToolResult<'_>) -> bool {
    matches!(result.content.as_slice(), [Part::Opaque(block)] if block.kind == "tools")
}

/// Returns the index from which calls without a result are in flight: the start of the last assistant
/// turn if only results follow it, else the end.
fn in_flight_from(conversation: &Conversation<'_>) -> usize {
    let messages = &conversation.messages;
    let has_other_content =
        |message: &Message<'_>| message.parts.iter().any(|part| !matches!(part, Part::ToolResult(_)));
    let Some(last) = messages.iter().rposition(|message| message.is_assistant() || has_other_content(message)) else {
        return 0;
    };
    if !messages[last].is_assistant() {
        return messages.len();
    }
    messages[..last].iter().rposition(|message| !message.is_assistant()).map_or(0, |before| before + 1)
}

/// Checks Anthropic's calls of server and MCP tools and their results, which are assistant blocks.
fn check_server_pairs(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let mut calls: HashMap<&str, (PartId, AnswerState)> = HashMap::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let Part::Opaque(OpaqueBlock { kind, pair: Some(id), .. }) = part else { continue };
            let place = PartId::new(at, index);
            if is_server_call(kind) {
                calls.insert(id, (place, AnswerState::Missing));
            } else if is_server_result(kind) {
                match calls.get_mut(&**id) {
                    Some((_, answer)) => *answer = AnswerState::Given,
                    None => {
                        let detail = format_args!("no server call before this {kind} has the id `{id}`");
                        findings.report_part(Law::ServerPair, place, detail);
                    }
                }
            }
        }
    }
    if calls.values().all(|(_, answer)| *answer == AnswerState::Given) {
        return;
    }
    let messages = &conversation.messages;
    let last_assistant = messages.iter().rposition(Message::is_assistant).unwrap_or(0);
    let turn =
        messages[..last_assistant].iter().rposition(|message| !message.is_assistant()).map_or(0, |before| before + 1);
    let mut missing: Vec<_> = calls.into_iter().filter(|(_, (_, answer))| *answer == AnswerState::Missing).collect();
    missing.sort_by_key(|(_, (place, _))| *place);
    for (id, (place, _)) in &missing {
        if place.message < turn {
            findings.report_part(Law::ServerPair, *place, format_args!("the server call `{id}` has no result"));
        }
    }
    if missing.iter().any(|(_, (place, _))| place.message >= turn) {
        for (at, message) in messages.iter().enumerate().skip(last_assistant + 1) {
            for (index, _) in message.parts.iter().enumerate().filter(|(_, part)| !matches!(part, Part::ToolResult(_)))
            {
                findings.report_part(Law::ServerPending, PartId::new(at, index), "a server tool's call is pending");
            }
        }
    }
}

pub(crate) fn is_server_call(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use")
}

pub(crate) fn is_server_result(kind: &str) -> bool {
    kind.ends_with("_tool_result")
}

/// Checks that a Responses approval response comes after its request.
fn check_approvals(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let mut requests = HashSet::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        let [Part::Opaque(OpaqueBlock { kind, pair: Some(id), .. })] = message.parts.as_slice() else { continue };
        match &**kind {
            "mcp_approval_request" => {
                requests.insert(&**id);
            }
            "mcp_approval_response" if !requests.contains(&**id) => {
                let detail = format_args!("no approval request before it has the id `{id}`");
                findings.report_part(Law::ApprovalPair, PartId::new(at, 0), detail);
            }
            _ => {}
        }
    }
}

fn check_call_ids(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let limit = findings.rules().max_call_id_chars;
    let within_message = findings.rules().call_id_scope == CallIdScope::Message;
    let unique = findings.has(Law::CallIdUnique);
    let check_suffixes = findings.has(Law::CallIdSuffixUnique);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut seen_suffixes: HashMap<&str, &str> = HashMap::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        if within_message {
            seen.clear();
        }
        for (index, part) in message.parts.iter().enumerate() {
            let Part::ToolCall(call) = part else { continue };
            let (place, id) = (PartId::new(at, index), &*call.id);
            if unique && !seen.insert(id) {
                findings.report_part(Law::CallIdUnique, place, format_args!("another call has the id `{id}`"));
            }
            if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
                findings.report_part(Law::CallIdCharacters, place, format_args!("the id is `{id}`"));
            }
            if limit.is_some_and(|limit| exceeds_chars(id, limit)) || id.is_empty() {
                findings.report_part(Law::CallIdLength, place, format_args!("the id `{id}` has {} bytes", id.len()));
            }
            if id.len() != 9 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                findings.report_part(Law::CallIdNineCharacters, place, format_args!("the id is `{id}`"));
            }
            if check_suffixes {
                let suffix = id.char_indices().rev().nth(8).map_or(id, |(start, _)| &id[start..]);
                if let Some(other) = seen_suffixes.insert(suffix, id).filter(|other| *other != id) {
                    findings.report_part(
                        Law::CallIdSuffixUnique,
                        place,
                        format_args!("`{id}` has the same suffix as `{other}`"),
                    );
                }
            }
        }
    }
}

/// Returns true if the text has more characters than this; counts them only if it has more bytes.
pub(crate) fn exceeds_chars(text: &str, characters: usize) -> bool {
    text.len() > characters && text.chars().count() > characters
}

fn check_result_contents(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let rules = findings.rules();
    for (at, message) in conversation.messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let Part::ToolResult(result) = part else { continue };
            let place = PartId::new(at, index);
            if result.content.is_empty() && rules.empty_result == EmptyResult::Rejected {
                findings.report_part(Law::ResultContent, place, "the result has no content");
            }
            for (inner, piece) in result.content.iter().enumerate() {
                if !(rules.allows_in_result)(piece) {
                    let detail = format_args!("a {} is not allowed in a result", part_kind_name(piece));
                    findings.report_part(Law::ResultContent, place.inner(inner), detail);
                }
                if matches!(piece, Part::Image(_) | Part::File(_)) {
                    findings.report_part(Law::ResultTextOnly, place.inner(inner), part_kind_name(piece));
                }
            }
        }
    }
}

pub(crate) fn part_kind_name<'p>(part: &'p Part<'_>) -> &'p str {
    match part {
        Part::Text { .. } => "text",
        Part::Reasoning(_) => "reasoning",
        Part::ToolCall(_) => "tool call",
        Part::ToolResult(_) => "tool result",
        Part::Image(_) => "image",
        Part::File(_) => "file",
        Part::Opaque(block) => &block.kind,
    }
}

/// Checks that Anthropic's calls of a toolset and their results carry the same `toolset_name`.
fn check_toolsets(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    let name = |at: PartId| request.block(at).and_then(|block| block.object().string("toolset_name"));
    let mut called = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
                Part::ToolCall(call) => {
                    if let Some(toolset) = name(place) {
                        called.insert(&*call.id, toolset);
                    }
                }
                Part::ToolResult(result) => {
                    let Some(expected) = called.get(&*result.call_id) else { continue };
                    if name(place).as_ref() != Some(expected) {
                        let detail = format_args!("the call has the toolset `{expected}`");
                        findings.report_part(Law::ToolsetEchoed, place, detail);
                    }
                    let is_not_allowed = |piece: &Part<'_>| match piece {
                        Part::Text { .. } | Part::Image(_) => false,
                        Part::Opaque(block) => block.kind != "browser_state",
                        _ => true,
                    };
                    let states = result.content.iter().filter(|piece| matches!(piece, Part::Opaque(_))).count();
                    if states > 1 || result.content.iter().any(is_not_allowed) {
                        let detail = "a toolset's result may contain only text, images and one browser state";
                        findings.report_part(Law::ToolsetEchoed, place, detail);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Checks that messages which answer Anthropic's calls made by code contain only text results.
fn check_programmatic_results(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    let by_code = |block: JsonValue<'_>| {
        let caller = block.object().object("caller")?.string("type")?;
        caller.starts_with("code_execution").then_some(())
    };
    let mut called = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            if let Part::ToolCall(call) = part
                && request.block(PartId::new(at, index)).and_then(by_code).is_some()
            {
                called.insert(&*call.id);
            }
        }
        if called.is_empty() || !message.results().any(|result| called.contains(&*result.call_id)) {
            continue;
        }
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
                Part::ToolResult(result) if !called.contains(&*result.call_id) => {}
                Part::ToolResult(result) => {
                    for (inner, piece) in
                        result.content.iter().enumerate().filter(|(_, part)| !matches!(part, Part::Text { .. }))
                    {
                        let detail = format_args!("a {} answers a call made by code", part_kind_name(piece));
                        findings.report_part(Law::ProgrammaticResult, place.inner(inner), detail);
                    }
                }
                _ => findings.report_part(
                    Law::ProgrammaticResult,
                    place,
                    "not a result, next to the result of a call made by code",
                ),
            }
        }
    }
}

/// Checks the ids of Responses items.
fn check_item_ids(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    let mut seen = HashSet::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let place = RequestLocation::Message(at);
        let Some(id) = request.message_field(at, "id").and_then(JsonValue::string) else { continue };
        let has_prefix = |prefix: &str| match message.parts.as_slice() {
            [Part::Reasoning(_)] => prefix == "rs",
            [Part::ToolCall(call)] => {
                prefix == if matches!(call.arguments, CallArguments::Text(_)) { "ctc" } else { "fc" }
            }
            _ => prefix == "msg",
        };
        // The type is looked up only if the prefix does not match: the item may be of a rarer kind.
        if !["fc", "ctc", "rs", "msg"].into_iter().any(|prefix| has_prefix(prefix) && id.starts_with(prefix)) {
            let prefix = match request.message_field(at, "type").and_then(JsonValue::string).as_deref() {
                Some("function_call") => "fc",
                Some("custom_tool_call") => "ctc",
                Some("reasoning") => "rs",
                Some("message") => "msg",
                _ => "",
            };
            if !id.starts_with(prefix) {
                findings.report(Law::ItemIdForm, place, format_args!("`{id}` does not begin with `{prefix}`"));
            }
        }
        if exceeds_chars(&id, MAX_ITEM_ID_CHARS) {
            findings.report(
                Law::ItemIdForm,
                place,
                format_args!("`{id}` has more than {MAX_ITEM_ID_CHARS} characters"),
            );
        }
        if let Some(id) = seen.replace(id) {
            findings.report(Law::ItemIdUnique, place, format_args!("another item has the id `{id}`"));
        }
    }
}
