//! Declared tools, the tool choice, and references to tools.

use std::collections::HashSet;

use memchr::memmem;

use crate::conversation::{Conversation, Message, Part, PartId, ToolDefinition};
use crate::laws::law::Law;
use crate::laws::reasoning::thinking_mode;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::request::is_set;
use crate::wire::{JsonObject, JsonValue, Request, parse_document};

/// Maximum number of tools in a request (Chat).
const MAX_TOOLS: usize = 128;
/// Maximum number of tools that are loaded on demand (Anthropic).
const MAX_DEFERRED_TOOLS: usize = 10_000;

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let conversation = request.conversation();
    let tools = &conversation.tools;
    let field = request.top_level().get("tools").filter(|value| !value.is_null());
    if field.is_some() && tools.is_empty() {
        findings.report(Law::ToolsNotEmpty, RequestLocation::Field("tools"), "`tools` is an empty list");
    }
    if tools.len() > MAX_TOOLS {
        findings.report(Law::ToolCount, RequestLocation::Field("tools"), format_args!("{} tools", tools.len()));
    }
    check_names(tools, findings);
    if findings.has(Law::ToolsDeclared) {
        let uses_tools = |message: &Message<'_>| message.has_results() || message.calls().next().is_some();
        if tools.is_empty() && !request.is_partial() && conversation.messages.iter().any(uses_tools) {
            let place = RequestLocation::Field("tools");
            findings.report(Law::ToolsDeclared, place, "tools are used but none is declared");
        }
    }
    if findings.has(Law::CachedContentAlone) && is_set(request.top_level(), "cachedContent") {
        for key in ["systemInstruction", "tools", "toolConfig"] {
            if is_set(request.top_level(), key) {
                findings.report(
                    Law::CachedContentAlone,
                    RequestLocation::Field(key),
                    "it is part of the cached content",
                );
            }
        }
    }
    if findings.has(Law::ReferenceDeclared) {
        check_references(conversation, findings);
    }
    if findings.has(Law::SomeToolLoaded) && field.is_some_and(|field| contains(field.raw(), "\"defer_loading\"")) {
        check_deferred(tools, findings);
    }
    if findings.has_any(&[Law::NoForcedTool, Law::NoForcedToolWithThinking]) {
        check_forced_choice(request, findings);
    }
    if findings.has_any(&[Law::ChoiceNeedsTools, Law::ChoiceDeclared]) {
        check_choice(request, findings);
    }
    if findings.has(Law::StrictSchema) {
        check_strict_schemas(tools, findings);
    }
}

fn contains(text: &str, word: &str) -> bool {
    memmem::find(text.as_bytes(), word.as_bytes()).is_some()
}

fn parse_definition<'t>(tool: &'t ToolDefinition<'_>) -> Option<JsonObject<'t>> {
    parse_document(&tool.definition).ok().filter(|value| value.is_object()).map(JsonValue::object)
}

fn check_names(tools: &[ToolDefinition<'_>], findings: &mut ViolationCollector<'_>) {
    let mut seen = HashSet::new();
    let max_chars = findings.rules().max_tool_name_chars;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    for (at, ToolDefinition { name, .. }) in tools.iter().enumerate() {
        let place = RequestLocation::Tool(at);
        if name.is_empty() {
            // Hosted tools may have no name.
            let kind = parse_definition(&tools[at])
                .and_then(|definition| definition.string("type").map(|kind| kind.into_owned()));
            match kind.as_deref() {
                None | Some("custom") => findings.report(Law::ToolName, place, "the tool has no name"),
                Some("function") => {
                    findings.report(Law::ToolName, place, "the tool has no name");
                    findings.report(Law::FunctionNamed, place, "the function has no name");
                }
                Some(_) => {}
            }
            continue;
        }
        if name.len() > max_chars || !name.bytes().all(is_allowed) {
            findings.report(Law::ToolName, place, format_args!("the name is `{name}`"));
        }
        if !seen.insert(&**name) {
            findings.report(Law::ToolNameUnique, place, format_args!("another tool has the name `{name}`"));
        }
    }
}

fn check_references(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let mut declared: Option<HashSet<&str>> = None;
    for (at, message) in conversation.messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let Part::ToolResult(result) = part else { continue };
            for (inner, piece) in result.content.iter().enumerate() {
                let Part::Opaque(block) = piece else { continue };
                if block.kind != "tool_reference" {
                    continue;
                }
                let Some(name) = parse_document(&block.raw).ok().and_then(|value| value.object().string("tool_name"))
                else {
                    continue;
                };
                let declared =
                    declared.get_or_insert_with(|| conversation.tools.iter().map(|tool| &*tool.name).collect());
                if !declared.contains(&*name) {
                    let place = PartId::new(at, index).inner(inner);
                    findings.report_part(Law::ReferenceDeclared, place, format_args!("no tool has the name `{name}`"));
                }
            }
        }
    }
}

fn check_deferred(tools: &[ToolDefinition<'_>], findings: &mut ViolationCollector<'_>) {
    let is_deferred = |tool: &ToolDefinition<'_>| {
        parse_definition(tool)
            .and_then(|definition| definition.get("defer_loading").and_then(JsonValue::bool))
            .unwrap_or(false)
    };
    let deferred = tools.iter().filter(|tool| is_deferred(tool)).count();
    let place = RequestLocation::Field("tools");
    if deferred == tools.len() {
        findings.report(Law::SomeToolLoaded, place, "all tools are deferred");
    }
    if deferred > MAX_DEFERRED_TOOLS {
        findings.report(Law::SomeToolLoaded, place, format_args!("{deferred} tools are deferred"));
    }
}

/// Checks Anthropic's `tool_choice` that forces a tool.
fn check_forced_choice(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let Some(kind) = request.top_level().object("tool_choice").and_then(|choice| choice.string("type")) else { return };
    if !matches!(&*kind, "any" | "tool") {
        return;
    }
    let place = RequestLocation::Field("tool_choice");
    findings.report(Law::NoForcedTool, place, format_args!("its type is `{kind}`"));
    if thinking_mode(request).as_deref() == Some("enabled") {
        findings.report(
            Law::NoForcedToolWithThinking,
            place,
            format_args!("its type is `{kind}` and thinking is enabled"),
        );
    }
}

/// Checks that Chat's `tool_choice` comes with tools and names one of them.
fn check_choice(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let tools = &request.conversation().tools;
    for key in ["tool_choice", "parallel_tool_calls"] {
        let set = request.top_level().get(key).is_some_and(|value| !value.is_null());
        if set && tools.is_empty() {
            findings.report(Law::ChoiceNeedsTools, RequestLocation::Field(key), "no tools are declared");
        }
    }
    let Some(choice) = request.top_level().object("tool_choice") else { return };
    let named = ["function", "custom"].iter().find_map(|kind| choice.object(kind)?.string("name"));
    if let Some(name) = named.filter(|name| !tools.iter().any(|tool| tool.name == *name)) {
        let detail = format_args!("no tool has the name `{name}`");
        findings.report(Law::ChoiceDeclared, RequestLocation::Field("tool_choice"), detail);
    }
}

fn check_strict_schemas(tools: &[ToolDefinition<'_>], findings: &mut ViolationCollector<'_>) {
    for (at, tool) in tools.iter().enumerate().filter(|(_, tool)| contains(&tool.definition, "\"strict\"")) {
        let Some(definition) = parse_definition(tool) else { continue };
        let function = definition.object("function").unwrap_or(definition);
        if function.get("strict").and_then(JsonValue::bool) != Some(true) {
            continue;
        }
        if let Some(detail) = function.object("parameters").and_then(|schema| find_non_strict(&schema)) {
            findings.report(Law::StrictSchema, RequestLocation::Tool(at), detail);
        }
    }
}

/// Returns the first reason why a schema is not strict. Nesting is bounded by the depth of a body.
fn find_non_strict(schema: &JsonObject<'_>) -> Option<String> {
    if let Some(properties) = schema.object("properties") {
        if schema.get("additionalProperties").and_then(JsonValue::bool) != Some(false) {
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
            field.value.object().fields().iter().find_map(|inner| find_non_strict_value(inner.value))
        }
        "items" => find_non_strict_value(field.value),
        "anyOf" => field.value.elements().iter().find_map(find_non_strict),
        _ => None,
    })
}

fn find_non_strict_value(value: JsonValue<'_>) -> Option<String> {
    value.is_object().then(|| find_non_strict(&value.object())).flatten()
}
