//! Breakpoints that control a provider's prompt cache.

use memchr::memmem;

use crate::conversation::PartId;
use crate::laws::law::Law;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::{JsonObject, JsonValue, Request, parse_document};

const CACHE_CONTROL_FIELD: &str = "cache_control";
/// Maximum number of breakpoints in a request.
const MAX_CACHE_BREAKPOINTS: usize = 4;

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if findings.has_any(&[Law::CacheBreakpointCount, Law::CacheBreakpointOrder, Law::CacheBreakpointPosition]) {
        check_breakpoints(request, findings);
    }
    if findings.has(Law::CacheTtl) {
        let ttl = request.top_level().object("prompt_cache_options").and_then(|options| options.string("ttl"));
        if let Some(ttl) = ttl.filter(|ttl| ttl != "30m") {
            let place = RequestLocation::Field("prompt_cache_options");
            findings.report(Law::CacheTtl, place, format_args!("`ttl` is `{ttl}`"));
        }
    }
}

/// Counter of breakpoints, visited in the order in which the provider processes them.
#[derive(Default)]
struct BreakpointCounter {
    count: usize,
    seen_five_minute: bool,
}

impl BreakpointCounter {
    /// Records the breakpoint of a block; returns false if it has none.
    fn record(
        &mut self,
        block: &JsonObject<'_>,
        place: RequestLocation,
        findings: &mut ViolationCollector<'_>,
    ) -> bool {
        let Some(breakpoint) = block.get(CACHE_CONTROL_FIELD).filter(|breakpoint| !breakpoint.is_null()) else {
            return false;
        };
        self.count += 1;
        if is_one_hour(breakpoint) {
            if self.seen_five_minute {
                findings.report(Law::CacheBreakpointOrder, place, "a one-hour breakpoint after a five-minute one");
            }
        } else {
            self.seen_five_minute = true;
        }
        true
    }
}

fn is_one_hour(breakpoint: JsonValue<'_>) -> bool {
    breakpoint.is_object() && breakpoint.object().string("ttl").as_deref() == Some("1h")
}

fn check_breakpoints(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let body = request.body();
    // Most requests have few breakpoints in few messages, so only the blocks around them are parsed again.
    let finder = memmem::Finder::new("\"cache_control\"");
    let mut places = finder.find_iter(body.as_bytes()).peekable();
    if places.peek().is_none() {
        return;
    }
    let mentions = |raw: &str| finder.find(raw.as_bytes()).is_some();
    let mut counter = BreakpointCounter::default();
    for (at, tool) in request.conversation().tools.iter().enumerate() {
        if mentions(&tool.definition)
            && let Ok(value) = parse_document(&tool.definition)
        {
            counter.record(&value.object(), RequestLocation::Tool(at), findings);
        }
    }
    for (at, block) in request.top_level().elements("system").iter().enumerate() {
        if counter.record(block, RequestLocation::Instruction(at), findings) {
            check_placement(block, RequestLocation::Instruction(at), findings);
        }
    }
    let mut last_seen = None;
    let mut last_breakpoint = None;
    for byte in places {
        let Some(at) = request.message_at_offset(byte).filter(|at| Some(*at) != last_seen) else { continue };
        last_seen = Some(at);
        let Some(message) = request.message_value(at).map(JsonValue::object) else { continue };
        let turn_scoped = message.get("clear_at").is_some();
        for (index, block) in
            message.elements("content").iter().enumerate().filter(|(_, block)| mentions(block.value.raw()))
        {
            let place = RequestLocation::Part(PartId::new(at, index));
            if block.string("type").as_deref() == Some("tool_result") {
                for (inner, piece) in block.elements("content").iter().enumerate() {
                    let place = RequestLocation::Part(PartId::new(at, index).inner(inner));
                    if counter.record(piece, place, findings) {
                        check_placement(piece, place, findings);
                    }
                }
            }
            if counter.record(block, place, findings) {
                check_placement(block, place, findings);
                last_breakpoint = block.get(CACHE_CONTROL_FIELD).map(|breakpoint| (at, index, is_one_hour(breakpoint)));
                if turn_scoped {
                    findings.report(Law::CacheBreakpointPosition, place, "on a turn-scoped system message");
                }
            }
            for piece in block.elements("citations").iter().filter(|piece| piece.get(CACHE_CONTROL_FIELD).is_some()) {
                let detail = format_args!("on a {}", piece.string("type").unwrap_or_default());
                findings.report(Law::CacheBreakpointPosition, place, detail);
            }
        }
    }
    if let Some(breakpoint) = request.top_level().get(CACHE_CONTROL_FIELD).filter(|breakpoint| !breakpoint.is_null()) {
        let messages = &request.conversation().messages;
        let last = messages.len().saturating_sub(1);
        let last_part = messages.last().map_or(0, |message| message.parts.len().saturating_sub(1));
        let field = RequestLocation::Field(CACHE_CONTROL_FIELD);
        match last_breakpoint {
            // The automatic breakpoint is on a block that already has one.
            Some((at, part, long)) if (at, part) == (last, last_part) && long != is_one_hour(breakpoint) => {
                findings.report(
                    Law::CacheBreakpointPosition,
                    field,
                    "the last block has a breakpoint with another TTL",
                );
            }
            Some((at, part, _)) if (at, part) == (last, last_part) => {}
            _ if is_one_hour(breakpoint) && counter.seen_five_minute => {
                findings.report(Law::CacheBreakpointOrder, field, "a one-hour breakpoint after a five-minute one");
            }
            _ => {}
        }
        counter.count += 1;
    }
    if counter.count > MAX_CACHE_BREAKPOINTS {
        findings.report(
            Law::CacheBreakpointCount,
            RequestLocation::Request,
            format_args!("{} breakpoints", counter.count),
        );
    }
}

/// Reports a breakpoint on a block that must not carry one.
fn check_placement(block: &JsonObject<'_>, place: RequestLocation, findings: &mut ViolationCollector<'_>) {
    match block.string("type").as_deref() {
        Some("thinking" | "redacted_thinking") => findings.report(Law::CacheBreakpointPosition, place, "on thinking"),
        Some("text") if block.string("text").is_some_and(|text| text.is_empty()) => {
            findings.report(Law::CacheBreakpointPosition, place, "on an empty text");
        }
        _ => {}
    }
}
