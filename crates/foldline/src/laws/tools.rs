//! Declared tools, the choice among them, and references to them.

use std::collections::HashSet;

use memchr::memmem;

use super::{Findings, Law, Place};
use crate::conversation::{Conversation, Message, Part, PartId, Tool};
use crate::wire::{Format, Object, Request, Value, document};

/// Most tools of a request (Chat).
const MOST_TOOLS: usize = 128;
/// Most tools that are loaded on demand (Anthropic).
const MOST_DEFERRED: usize = 10_000;
/// Longest name of a tool.
const LONGEST_NAME: usize = 64;
/// Longest name of a tool (Anthropic).
const LONGEST_NAME_ANTHROPIC: usize = 128;

pub(super) fn check(request: &Request<'_>, findings: &mut Findings<'_>) {
    let conversation = request.conversation();
    let tools = &conversation.tools;
    let field = request.top().get("tools").filter(|value| !value.is_null());
    if field.is_some() && tools.is_empty() {
        findings.broken(Law::ToolsNotEmpty, Place::Field("tools"), "`tools` is an empty list");
    }
    if tools.len() > MOST_TOOLS {
        findings.broken(Law::ToolCount, Place::Field("tools"), format_args!("{} tools", tools.len()));
    }
    names(tools, findings);
    match findings.format() {
        Format::Anthropic => {
            let uses = |message: &Message<'_>| message.has_results() || message.calls().next().is_some();
            if tools.is_empty() && !request.is_continuation() && conversation.messages.iter().any(uses) {
                findings.broken(Law::ToolsDeclared, Place::Field("tools"), "tools are used and none is declared");
            }
            references(conversation, findings);
            if field.is_some_and(|field| mentions(field.raw(), "\"defer_loading\"")) {
                deferred(tools, findings);
            }
            force(request, findings);
        }
        Format::OpenAiChat => choice(request, findings),
        Format::OpenAiResponses => {}
    }
    if findings.has(Law::StrictSchema) {
        strict(tools, findings);
    }
}

fn mentions(text: &str, word: &str) -> bool {
    memmem::find(text.as_bytes(), word.as_bytes()).is_some()
}

fn definition<'t>(tool: &'t Tool<'_>) -> Option<Object<'t>> {
    document(&tool.definition).ok().filter(|value| value.is_object()).map(Value::object)
}

fn names(tools: &[Tool<'_>], findings: &mut Findings<'_>) {
    let mut seen = HashSet::new();
    let longest = match findings.format() {
        Format::Anthropic => LONGEST_NAME_ANTHROPIC,
        Format::OpenAiChat | Format::OpenAiResponses => LONGEST_NAME,
    };
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    for (at, Tool { name, .. }) in tools.iter().enumerate() {
        let place = Place::Tool(at);
        if name.is_empty() {
            // Hosted tools may have no name.
            let kind = definition(&tools[at]).and_then(|it| it.string("type").map(|kind| kind.into_owned()));
            match kind.as_deref() {
                None | Some("custom") => findings.broken(Law::ToolName, place, "the tool has no name"),
                Some("function") => {
                    findings.broken(Law::ToolName, place, "the tool has no name");
                    findings.broken(Law::FunctionNamed, place, "the function has no name");
                }
                Some(_) => {}
            }
            continue;
        }
        if name.len() > longest || !name.bytes().all(letter) {
            findings.broken(Law::ToolName, place, format_args!("the name is `{name}`"));
        }
        if !seen.insert(&**name) {
            findings.broken(Law::ToolNameUnique, place, format_args!("another tool has the name `{name}`"));
        }
    }
}

fn references(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    let mut declared: Option<HashSet<&str>> = None;
    for (at, message) in conversation.messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let Part::ToolResult(result) = it else { continue };
            for (inner, piece) in result.content.iter().enumerate() {
                let Part::Opaque(it) = piece else { continue };
                if it.kind != "tool_reference" {
                    continue;
                }
                let Some(name) = document(&it.raw).ok().and_then(|value| value.object().string("tool_name")) else {
                    continue;
                };
                let declared =
                    declared.get_or_insert_with(|| conversation.tools.iter().map(|tool| &*tool.name).collect());
                if !declared.contains(&*name) {
                    let place = PartId::new(at, part).inner(inner);
                    findings.broken_part(Law::ReferenceDeclared, place, format_args!("no tool has the name `{name}`"));
                }
            }
        }
    }
}

fn deferred(tools: &[Tool<'_>], findings: &mut Findings<'_>) {
    let is_deferred = |tool: &Tool<'_>| {
        definition(tool).and_then(|it| it.get("defer_loading").and_then(Value::bool)).unwrap_or(false)
    };
    let deferred = tools.iter().filter(|tool| is_deferred(tool)).count();
    let place = Place::Field("tools");
    if deferred == tools.len() {
        findings.broken(Law::SomeToolAtHand, place, "all tools are deferred");
    }
    if deferred > MOST_DEFERRED {
        findings.broken(Law::SomeToolAtHand, place, format_args!("{deferred} tools are deferred"));
    }
}

/// Anthropic: a choice that forces a tool.
fn force(request: &Request<'_>, findings: &mut Findings<'_>) {
    let Some(kind) = request.top().object("tool_choice").and_then(|choice| choice.string("type")) else { return };
    if !matches!(&*kind, "any" | "tool") {
        return;
    }
    let place = Place::Field("tool_choice");
    findings.broken(Law::NoForce, place, format_args!("its type is `{kind}`"));
    if super::reasoning::thinking_mode(request).as_deref() == Some("enabled") {
        findings.broken(Law::NoForceWithThinking, place, format_args!("its type is `{kind}` and thinking is enabled"));
    }
}

/// Chat: a choice needs tools, and names one of them.
fn choice(request: &Request<'_>, findings: &mut Findings<'_>) {
    let tools = &request.conversation().tools;
    for key in ["tool_choice", "parallel_tool_calls"] {
        let set = request.top().get(key).is_some_and(|value| !value.is_null());
        if set && tools.is_empty() {
            findings.broken(Law::ChoiceNeedsTools, Place::Field(key), "no tools are declared");
        }
    }
    let Some(choice) = request.top().object("tool_choice") else { return };
    let named = ["function", "custom"].iter().find_map(|kind| choice.object(kind)?.string("name"));
    if let Some(name) = named.filter(|name| !tools.iter().any(|tool| tool.name == *name)) {
        let detail = format_args!("no tool has the name `{name}`");
        findings.broken(Law::ChoiceDeclared, Place::Field("tool_choice"), detail);
    }
}

fn strict(tools: &[Tool<'_>], findings: &mut Findings<'_>) {
    for (at, tool) in tools.iter().enumerate().filter(|(_, tool)| mentions(&tool.definition, "\"strict\"")) {
        let Some(it) = definition(tool) else { continue };
        let function = it.object("function").unwrap_or(it);
        if function.get("strict").and_then(Value::bool) != Some(true) {
            continue;
        }
        if let Some(detail) = function.object("parameters").and_then(|schema| lax(&schema)) {
            findings.broken(Law::StrictSchema, Place::Tool(at), detail);
        }
    }
}

/// What in a schema is not strict. Nesting is bounded by the depth that a body may have.
fn lax(schema: &Object<'_>) -> Option<String> {
    if let Some(properties) = schema.object("properties") {
        if schema.get("additionalProperties").and_then(Value::bool) != Some(false) {
            return Some("an object allows additional properties".to_owned());
        }
        let required: HashSet<_> = schema.elements("required").iter().filter_map(|name| name.value.string()).collect();
        for field in properties.fields() {
            if !required.contains(&field.key) {
                return Some(format!("the property `{}` is not required", field.key));
            }
        }
    }
    schema.fields().iter().find_map(|field| match &*field.key {
        "properties" | "$defs" | "definitions" if field.value.is_object() => {
            field.value.object().fields().iter().find_map(|inner| lax_value(inner.value))
        }
        "items" => lax_value(field.value),
        "anyOf" => field.value.elements().iter().find_map(lax),
        _ => None,
    })
}

fn lax_value(value: Value<'_>) -> Option<String> {
    value.is_object().then(|| lax(&value.object())).flatten()
}
