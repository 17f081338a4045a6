//! Marks that steer a provider's prompt cache.

use memchr::memmem;

use crate::conversation::PartId;
use crate::laws::{Law, RequestLocation, ViolationCollector};
use crate::wire::{Format, JsonObject, JsonValue, Request, parse_document};

const CACHE_CONTROL_FIELD: &str = "cache_control";
/// Most marks of a request.
const MAX_CACHE_BREAKPOINTS: usize = 4;

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    match findings.format() {
        Format::Anthropic => check_breakpoints(request, findings),
        Format::OpenAiChat | Format::OpenAiResponses => {
            let life = request.top_level().object("prompt_cache_options").and_then(|options| options.string("ttl"));
            if let Some(life) = life.filter(|life| life != "30m") {
                let place = RequestLocation::Field("prompt_cache_options");
                findings.report(Law::CacheTtl, place, format_args!("`ttl` is `{life}`"));
            }
        }
    }
}

/// The marks in the order in which the provider processes them, with the life that they ask for.
#[derive(Default)]
struct BreakpointCounter {
    count: usize,
    seen_five_minute: bool,
}

impl BreakpointCounter {
    /// Looks for a mark among the fields of a block; gives back whether it has one.
    fn record(
        &mut self,
        block: &JsonObject<'_>,
        place: RequestLocation,
        findings: &mut ViolationCollector<'_>,
    ) -> bool {
        let Some(mark) = block.get(CACHE_CONTROL_FIELD).filter(|mark| !mark.is_null()) else { return false };
        self.count += 1;
        if is_one_hour(mark) {
            if self.seen_five_minute {
                findings.report(Law::CacheBreakpointOrder, place, "a mark of an hour behind one of five minutes");
            }
        } else {
            self.seen_five_minute = true;
        }
        true
    }
}

fn is_one_hour(mark: JsonValue<'_>) -> bool {
    mark.is_object() && mark.object().string("ttl").as_deref() == Some("1h")
}

fn check_breakpoints(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let body = request.body();
    // Most requests have a few marks in a few messages, so only the blocks around them are read again.
    let finder = memmem::Finder::new("\"cache_control\"");
    let mut places = finder.find_iter(body.as_bytes()).peekable();
    if places.peek().is_none() {
        return;
    }
    let mentions = |raw: &str| finder.find(raw.as_bytes()).is_some();
    let mut marks = BreakpointCounter::default();
    for (at, tool) in request.conversation().tools.iter().enumerate() {
        if mentions(&tool.definition)
            && let Ok(value) = parse_document(&tool.definition)
        {
            marks.record(&value.object(), RequestLocation::Tool(at), findings);
        }
    }
    for (at, block) in request.top_level().elements("system").iter().enumerate() {
        if marks.record(block, RequestLocation::Instruction(at), findings) {
            check_placement(block, RequestLocation::Instruction(at), findings);
        }
    }
    let mut last_seen = None;
    let mut last_mark = None;
    for byte in places {
        let Some(at) = request.message_at_offset(byte).filter(|at| Some(*at) != last_seen) else { continue };
        last_seen = Some(at);
        let Some(message) = request.message_value(at).map(JsonValue::object) else { continue };
        let turn_scoped = message.get("clear_at").is_some();
        for (part, block) in message.elements("content").iter().enumerate().filter(|(_, it)| mentions(it.value.raw())) {
            let place = RequestLocation::Part(PartId::new(at, part));
            if block.string("type").as_deref() == Some("tool_result") {
                for (inner, piece) in block.elements("content").iter().enumerate() {
                    let place = RequestLocation::Part(PartId::new(at, part).inner(inner));
                    if marks.record(piece, place, findings) {
                        check_placement(piece, place, findings);
                    }
                }
            }
            if marks.record(block, place, findings) {
                check_placement(block, place, findings);
                last_mark = block.get(CACHE_CONTROL_FIELD).map(|mark| (at, part, is_one_hour(mark)));
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
    if let Some(mark) = request.top_level().get(CACHE_CONTROL_FIELD).filter(|mark| !mark.is_null()) {
        let messages = &request.conversation().messages;
        let last = messages.len().saturating_sub(1);
        let last_part = messages.last().map_or(0, |message| message.parts.len().saturating_sub(1));
        let field = RequestLocation::Field(CACHE_CONTROL_FIELD);
        match last_mark {
            // The automatic mark falls on a block that has one.
            Some((at, part, long)) if (at, part) == (last, last_part) && long != is_one_hour(mark) => {
                findings.report(Law::CacheBreakpointPosition, field, "the last block has a mark of another life");
            }
            Some((at, part, _)) if (at, part) == (last, last_part) => {}
            _ if is_one_hour(mark) && marks.seen_five_minute => {
                findings.report(Law::CacheBreakpointOrder, field, "a mark of an hour behind one of five minutes");
            }
            _ => {}
        }
        marks.count += 1;
    }
    if marks.count > MAX_CACHE_BREAKPOINTS {
        findings.report(Law::CacheBreakpointCount, RequestLocation::Request, format_args!("{} marks", marks.count));
    }
}

/// A block that may not carry a mark, and does.
fn check_placement(block: &JsonObject<'_>, place: RequestLocation, findings: &mut ViolationCollector<'_>) {
    match block.string("type").as_deref() {
        Some("thinking" | "redacted_thinking") => findings.report(Law::CacheBreakpointPosition, place, "on thinking"),
        Some("text") if block.string("text").is_some_and(|text| text.is_empty()) => {
            findings.report(Law::CacheBreakpointPosition, place, "on an empty text");
        }
        _ => {}
    }
}
