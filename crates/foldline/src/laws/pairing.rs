//! Calls and their results: every call answered, once, in the place that the format wants.

use std::collections::{HashMap, HashSet};

use memchr::memmem;

use super::{Ending, Findings, Law, Place};
use crate::conversation::{Arguments, Conversation, Message, Opaque, Part, PartId, Role, ToolResult};
use crate::wire::{Format, Request, Value};

/// Most characters of a call's id, as far as OpenAI's formats limit it.
const LONGEST_CALL_ID: [(Format, usize); 2] = [(Format::OpenAiChat, 40), (Format::OpenAiResponses, 64)];
/// Most characters of an item's id.
const LONGEST_ITEM_ID: usize = 64;

pub(super) fn check(conversation: &Conversation<'_>, ending: Ending, findings: &mut Findings<'_>) {
    match findings.format() {
        Format::Anthropic => {
            turns(conversation, ending, findings);
            server_pairs(conversation, findings);
        }
        Format::OpenAiChat => messages(conversation, ending, findings),
        Format::OpenAiResponses => {
            items(conversation, ending, findings);
            approvals(conversation, findings);
        }
    }
    call_ids(conversation, findings);
    result_contents(conversation, findings);
}

pub(super) fn check_wire(request: &Request<'_>, findings: &mut Findings<'_>) {
    match findings.format() {
        Format::Anthropic => {
            let mentions = |key: &str| memmem::find(request.body().as_bytes(), key.as_bytes()).is_some();
            if mentions("\"toolset_name\"") {
                toolsets(request, findings);
            }
            if mentions("\"caller\"") {
                programmatic(request, findings);
            }
        }
        Format::OpenAiChat => {}
        Format::OpenAiResponses => item_ids(request, findings),
    }
}

/// The calls that wait for their results.
#[derive(Default)]
struct Waiting<'c> {
    calls: Vec<(PartId, &'c str, Answer)>,
    by_id: HashMap<&'c str, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Missing,
    Given,
}

impl<'c> Waiting<'c> {
    /// Adds the calls of a message, if the model said it. Of calls that share an id only the first is
    /// waited for.
    fn add(&mut self, message: &'c Message<'_>, at: usize) {
        if !message.is_assistant() {
            return;
        }
        for (part, it) in message.parts.iter().enumerate() {
            if let Part::ToolCall(call) = it {
                let next = self.calls.len();
                if *self.by_id.entry(&call.id).or_insert(next) == next {
                    self.calls.push((PartId::new(at, part), &call.id, Answer::Missing));
                }
            }
        }
    }

    /// Takes a result; gives back whether a call waited for it.
    fn answer(&mut self, result: &ToolResult<'_>, at: PartId, findings: &mut Findings<'_>) -> bool {
        let id = &*result.call_id;
        match self.by_id.get(id).map(|&call| &mut self.calls[call].2) {
            Some(answer @ Answer::Missing) => {
                *answer = Answer::Given;
                return true;
            }
            Some(Answer::Given) => {
                findings.broken_part(Law::OneResult, at, format_args!("the call `{id}` has a result already"));
            }
            None if id.starts_with("srvtoolu_") && findings.has(Law::ServerCallUnanswered) => {
                findings.broken_part(Law::ServerCallUnanswered, at, format_args!("`{id}` is a server tool's call"));
            }
            None => {
                findings.broken_part(Law::ResultHasCall, at, format_args!("no call before it has the id `{id}`"));
            }
        }
        false
    }

    /// Ends the wait: what is not answered by now is not answered.
    fn end(&mut self, findings: &mut Findings<'_>) {
        for (at, id, answer) in self.calls.drain(..) {
            if answer == Answer::Missing {
                findings.broken_part(Law::CallAnswered, at, format_args!("no result answers the call `{id}`"));
            }
        }
        self.by_id.clear();
    }
}

/// Anthropic: neighbours of one role are one turn; the user turn behind a call answers it, results
/// first.
fn turns(conversation: &Conversation<'_>, ending: Ending, findings: &mut Findings<'_>) {
    #[derive(PartialEq)]
    enum Turn {
        Assistant,
        /// A user turn; whether something other than results was said in it.
        User {
            spoken: bool,
        },
        Other,
    }
    let mut waiting = Waiting::default();
    let mut turn = Turn::Other;
    for (at, message) in conversation.messages.iter().enumerate() {
        match message.role {
            Role::Assistant => {
                if turn != Turn::Assistant {
                    waiting.end(findings);
                    turn = Turn::Assistant;
                }
                waiting.add(message, at);
                misplaced(message, at, |part| matches!(part, Part::ToolResult(_)), findings);
                before_fallback(message, at, findings);
            }
            Role::User => {
                let mut spoken = turn == Turn::User { spoken: true };
                for (part, it) in message.parts.iter().enumerate() {
                    let place = PartId::new(at, part);
                    let Part::ToolResult(result) = it else {
                        spoken = true;
                        continue;
                    };
                    if waiting.answer(result, place, findings) && spoken {
                        findings.broken_part(Law::ResultsFirst, place, "something else stands before this result");
                    }
                }
                turn = Turn::User { spoken };
                misplaced(message, at, |part| matches!(part, Part::ToolCall(_)), findings);
            }
            _ => {
                waiting.end(findings);
                turn = Turn::Other;
                misplaced(message, at, |part| matches!(part, Part::ToolResult(_) | Part::ToolCall(_)), findings);
            }
        }
    }
    if ending == Ending::Sent || turn == (Turn::User { spoken: true }) {
        waiting.end(findings);
    }
}

fn misplaced(message: &Message<'_>, at: usize, is: impl Fn(&Part<'_>) -> bool, findings: &mut Findings<'_>) {
    for (part, _) in message.parts.iter().enumerate().filter(|(_, part)| is(part)) {
        let detail = format_args!("not in a message of the role {:?}", message.role);
        findings.broken_part(Law::CallSide, PartId::new(at, part), detail);
    }
}

fn before_fallback(message: &Message<'_>, at: usize, findings: &mut Findings<'_>) {
    let is_fallback = |part: &Part<'_>| matches!(part, Part::Opaque(it) if it.kind == "fallback");
    let Some(last) = message.parts.iter().rposition(is_fallback) else { return };
    for (part, it) in message.parts[..last].iter().enumerate() {
        if matches!(it, Part::ToolCall(_)) {
            findings.broken_part(Law::NoCallBeforeFallback, PartId::new(at, part), "a fallback block follows");
        }
    }
}

/// Chat: the tool messages right behind a message with calls answer it.
fn messages(conversation: &Conversation<'_>, ending: Ending, findings: &mut Findings<'_>) {
    let mut waiting = Waiting::default();
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.role != Role::Tool {
            waiting.end(findings);
            waiting.add(message, at);
        }
        for (part, it) in message.parts.iter().enumerate() {
            if let Part::ToolResult(result) = it {
                waiting.answer(result, PartId::new(at, part), findings);
            }
        }
    }
    if ending == Ending::Sent {
        waiting.end(findings);
    }
}

/// Responses: a call is answered anywhere behind it.
fn items(conversation: &Conversation<'_>, ending: Ending, findings: &mut Findings<'_>) {
    let mut waiting = Waiting::default();
    let mut early = Vec::new();
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut turn = 0;
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
            turn = at;
        }
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                // A tool search that the provider runs names no call.
                Part::ToolCall(call) if message.is_assistant() && call.name != "tool_search" => {
                    let id = &*call.id;
                    let next = waiting.calls.len();
                    // Of calls of one turn that share an id only the first is waited for, until it is answered.
                    let is_known = |&other: &usize| {
                        let (place, _, answer) = &waiting.calls[other];
                        place.message >= turn && *answer == Answer::Missing
                    };
                    if !waiting.by_id.get(id).is_some_and(is_known) {
                        waiting.calls.push((place, id, Answer::Missing));
                        waiting.by_id.insert(id, next);
                        first.entry(id).or_insert(next);
                    }
                }
                Part::ToolResult(result) if waiting.by_id.contains_key(&*result.call_id) => {
                    waiting.answer(result, place, findings);
                }
                Part::ToolResult(result) if !is_search(result) => early.push((place, result)),
                _ => {}
            }
        }
    }
    // A result that came too early is that of the first call of its id, not of one that used the id again.
    waiting.by_id = first;
    for (place, result) in early {
        if waiting.by_id.contains_key(&*result.call_id) {
            let detail = format_args!("the call `{}` comes later", result.call_id);
            findings.broken_part(Law::ResultBehindCall, place, detail);
        }
        waiting.answer(result, place, findings);
    }
    if ending == Ending::Open {
        let settled = in_flight(conversation);
        waiting.calls.retain(|(place, ..)| place.message < settled);
    }
    waiting.end(findings);
}

/// Whether it answers a tool search, which the provider may have run by itself.
pub(super) fn is_search(result: &ToolResult<'_>) -> bool {
    matches!(result.content.as_slice(), [Part::Opaque(it)] if it.kind == "tools")
}

/// From where on calls without result are in flight: the start of the last assistant turn, if nothing
/// but results stands behind it; else the end.
fn in_flight(conversation: &Conversation<'_>) -> usize {
    let messages = &conversation.messages;
    let spoken = |message: &Message<'_>| message.parts.iter().any(|part| !matches!(part, Part::ToolResult(_)));
    let Some(last) = messages.iter().rposition(|message| message.is_assistant() || spoken(message)) else { return 0 };
    if !messages[last].is_assistant() {
        return messages.len();
    }
    messages[..last].iter().rposition(|message| !message.is_assistant()).map_or(0, |before| before + 1)
}

/// Anthropic: calls of server and MCP tools, and their results, are blocks of the assistant.
fn server_pairs(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    let mut calls: HashMap<&str, (PartId, Answer)> = HashMap::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let Part::Opaque(Opaque { kind, pair: Some(id), .. }) = it else { continue };
            let place = PartId::new(at, part);
            if is_server_call(kind) {
                calls.insert(id, (place, Answer::Missing));
            } else if is_server_result(kind) {
                match calls.get_mut(&**id) {
                    Some((_, answer)) => *answer = Answer::Given,
                    None => {
                        let detail = format_args!("no server call before this {kind} has the id `{id}`");
                        findings.broken_part(Law::ServerPair, place, detail);
                    }
                }
            }
        }
    }
    if calls.values().all(|(_, answer)| *answer == Answer::Given) {
        return;
    }
    let messages = &conversation.messages;
    let newest = messages.iter().rposition(Message::is_assistant).unwrap_or(0);
    let turn = messages[..newest].iter().rposition(|message| !message.is_assistant()).map_or(0, |before| before + 1);
    let mut missing: Vec<_> = calls.into_iter().filter(|(_, (_, answer))| *answer == Answer::Missing).collect();
    missing.sort_by_key(|(_, (place, _))| *place);
    for (id, (place, _)) in &missing {
        if place.message < turn {
            findings.broken_part(Law::ServerPair, *place, format_args!("the server call `{id}` has no result"));
        }
    }
    if missing.iter().any(|(_, (place, _))| place.message >= turn) {
        for (at, message) in messages.iter().enumerate().skip(newest + 1) {
            for (part, _) in message.parts.iter().enumerate().filter(|(_, it)| !matches!(it, Part::ToolResult(_))) {
                findings.broken_part(Law::ServerPending, PartId::new(at, part), "a server tool's call is pending");
            }
        }
    }
}

pub(super) fn is_server_call(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use")
}

pub(super) fn is_server_result(kind: &str) -> bool {
    kind.ends_with("_tool_result")
}

/// Responses: the answer to an approval request stands behind it.
fn approvals(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    let mut requests = HashSet::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        let [Part::Opaque(Opaque { kind, pair: Some(id), .. })] = message.parts.as_slice() else { continue };
        match &**kind {
            "mcp_approval_request" => {
                requests.insert(&**id);
            }
            "mcp_approval_response" if !requests.contains(&**id) => {
                let detail = format_args!("no approval request before it has the id `{id}`");
                findings.broken_part(Law::ApprovalPair, PartId::new(at, 0), detail);
            }
            _ => {}
        }
    }
}

fn call_ids(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    let limit = LONGEST_CALL_ID.iter().find(|(format, _)| *format == findings.format()).map(|(_, limit)| *limit);
    let within_message = findings.format() == Format::OpenAiChat;
    let unique = findings.has(Law::CallIdUnique);
    let tails = findings.has(Law::CallIdTail);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut seen_tails: HashMap<&str, &str> = HashMap::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        if within_message {
            seen.clear();
        }
        for (part, it) in message.parts.iter().enumerate() {
            let Part::ToolCall(call) = it else { continue };
            let (place, id) = (PartId::new(at, part), &*call.id);
            if unique && !seen.insert(id) {
                findings.broken_part(Law::CallIdUnique, place, format_args!("another call has the id `{id}`"));
            }
            if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
                findings.broken_part(Law::CallIdLetters, place, format_args!("the id is `{id}`"));
            }
            if limit.is_some_and(|limit| longer_than(id, limit)) || id.is_empty() {
                findings.broken_part(Law::CallIdLength, place, format_args!("the id `{id}` has {} bytes", id.len()));
            }
            if id.len() != 9 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                findings.broken_part(Law::CallIdNine, place, format_args!("the id is `{id}`"));
            }
            if tails {
                let tail = id.char_indices().rev().nth(8).map_or(id, |(start, _)| &id[start..]);
                if let Some(other) = seen_tails.insert(tail, id).filter(|other| *other != id) {
                    findings.broken_part(Law::CallIdTail, place, format_args!("`{id}` ends as `{other}` does"));
                }
            }
        }
    }
}

/// Whether a text has more characters than this; looks at them only when it has more bytes.
pub(super) fn longer_than(text: &str, characters: usize) -> bool {
    text.len() > characters && text.chars().count() > characters
}

fn result_contents(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    for (at, message) in conversation.messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let Part::ToolResult(result) = it else { continue };
            let place = PartId::new(at, part);
            if result.content.is_empty() && findings.format() == Format::OpenAiChat {
                findings.broken_part(Law::ResultContent, place, "the result has no content");
            }
            for (inner, piece) in result.content.iter().enumerate() {
                let allowed = match (findings.format(), piece) {
                    (_, Part::Text { .. }) => true,
                    (Format::OpenAiChat, _) => false,
                    (_, Part::Image(_) | Part::File(_)) => true,
                    (Format::Anthropic, Part::Opaque(it)) => {
                        matches!(&*it.kind, "search_result" | "tool_reference" | "browser_state")
                    }
                    // What a tool search found.
                    (Format::OpenAiResponses, Part::Opaque(it)) => it.kind == "tools",
                    _ => false,
                };
                if !allowed {
                    let detail = format_args!("a {} may not stand in a result", kind_of(piece));
                    findings.broken_part(Law::ResultContent, place.inner(inner), detail);
                }
                if matches!(piece, Part::Image(_) | Part::File(_)) {
                    findings.broken_part(Law::ResultTextOnly, place.inner(inner), kind_of(piece));
                }
            }
        }
    }
}

pub(super) fn kind_of<'p>(part: &'p Part<'_>) -> &'p str {
    match part {
        Part::Text { .. } => "text",
        Part::Reasoning(_) => "reasoning",
        Part::ToolCall(_) => "tool call",
        Part::ToolResult(_) => "tool result",
        Part::Image(_) => "image",
        Part::File(_) => "file",
        Part::Opaque(it) => &it.kind,
    }
}

/// Anthropic: calls of a toolset and their results carry the same `toolset_name`.
fn toolsets(request: &Request<'_>, findings: &mut Findings<'_>) {
    let messages = &request.conversation().messages;
    let name = |at: PartId| request.block(at).and_then(|block| block.object().string("toolset_name"));
    let mut called = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                Part::ToolCall(call) => {
                    if let Some(toolset) = name(place) {
                        called.insert(&*call.id, toolset);
                    }
                }
                Part::ToolResult(result) => {
                    let Some(wanted) = called.get(&*result.call_id) else { continue };
                    if name(place).as_ref() != Some(wanted) {
                        let detail = format_args!("the call has the toolset `{wanted}`");
                        findings.broken_part(Law::ToolsetEchoed, place, detail);
                    }
                    let odd = |piece: &Part<'_>| match piece {
                        Part::Text { .. } | Part::Image(_) => false,
                        Part::Opaque(it) => it.kind != "browser_state",
                        _ => true,
                    };
                    let states = result.content.iter().filter(|piece| matches!(piece, Part::Opaque(_))).count();
                    if states > 1 || result.content.iter().any(odd) {
                        let detail = "a toolset's result holds text, images and one browser state";
                        findings.broken_part(Law::ToolsetEchoed, place, detail);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Anthropic: calls made by code are answered by results alone, of text alone.
fn programmatic(request: &Request<'_>, findings: &mut Findings<'_>) {
    let messages = &request.conversation().messages;
    let by_code = |block: Value<'_>| {
        let caller = block.object().object("caller")?.string("type")?;
        caller.starts_with("code_execution").then_some(())
    };
    let mut called = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            if let Part::ToolCall(call) = it
                && request.block(PartId::new(at, part)).and_then(by_code).is_some()
            {
                called.insert(&*call.id);
            }
        }
        if called.is_empty() || !message.results().any(|result| called.contains(&*result.call_id)) {
            continue;
        }
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                Part::ToolResult(result) if !called.contains(&*result.call_id) => {}
                Part::ToolResult(result) => {
                    for (inner, piece) in
                        result.content.iter().enumerate().filter(|(_, it)| !matches!(it, Part::Text { .. }))
                    {
                        let detail = format_args!("a {} answers a call made by code", kind_of(piece));
                        findings.broken_part(Law::ProgrammaticResult, place.inner(inner), detail);
                    }
                }
                _ => {
                    findings.broken_part(Law::ProgrammaticResult, place, "not a result, beside one for a call by code")
                }
            }
        }
    }
}

/// Responses: ids of items.
fn item_ids(request: &Request<'_>, findings: &mut Findings<'_>) {
    let messages = &request.conversation().messages;
    let mut seen = HashSet::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let place = Place::Message(at);
        let Some(id) = request.message_field(at, "id").and_then(Value::string) else { continue };
        let wanted = |prefix: &str| match message.parts.as_slice() {
            [Part::Reasoning(_)] => prefix == "rs",
            [Part::ToolCall(call)] => prefix == if matches!(call.arguments, Arguments::Text(_)) { "ctc" } else { "fc" },
            _ => prefix == "msg",
        };
        // The type is looked up only for an id that looks wrong: it may be that of a rarer kind.
        if !["fc", "ctc", "rs", "msg"].into_iter().any(|prefix| wanted(prefix) && id.starts_with(prefix)) {
            let prefix = match request.message_field(at, "type").and_then(Value::string).as_deref() {
                Some("function_call") => "fc",
                Some("custom_tool_call") => "ctc",
                Some("reasoning") => "rs",
                Some("message") => "msg",
                _ => "",
            };
            if !id.starts_with(prefix) {
                findings.broken(Law::ItemIdForm, place, format_args!("`{id}` does not begin with `{prefix}`"));
            }
        }
        if longer_than(&id, LONGEST_ITEM_ID) {
            findings.broken(Law::ItemIdForm, place, format_args!("`{id}` has more than {LONGEST_ITEM_ID} characters"));
        }
        if let Some(id) = seen.replace(id) {
            findings.broken(Law::ItemIdUnique, place, format_args!("another item has the id `{id}`"));
        }
    }
}
