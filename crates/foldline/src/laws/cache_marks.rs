//! Marks that steer a provider's prompt cache.

use memchr::memmem;

use super::{Findings, Law, Place};
use crate::conversation::PartId;
use crate::wire::{Format, Object, Request, Value, document};

const MARK: &str = "cache_control";
/// Most marks of a request.
const MOST_MARKS: usize = 4;

pub(super) fn check(request: &Request<'_>, findings: &mut Findings<'_>) {
    match findings.format() {
        Format::Anthropic => marks(request, findings),
        Format::OpenAiChat | Format::OpenAiResponses => {
            let life = request.top().object("prompt_cache_options").and_then(|options| options.string("ttl"));
            if let Some(life) = life.filter(|life| life != "30m") {
                let place = Place::Field("prompt_cache_options");
                findings.broken(Law::CacheLife, place, format_args!("`ttl` is `{life}`"));
            }
        }
    }
}

/// The marks in the order in which the provider processes them, with the life that they ask for.
#[derive(Default)]
struct Marks {
    count: usize,
    short_before: bool,
}

impl Marks {
    /// Looks for a mark among the fields of a block; gives back whether it has one.
    fn note(&mut self, block: &Object<'_>, place: Place, findings: &mut Findings<'_>) -> bool {
        let Some(mark) = block.get(MARK).filter(|mark| !mark.is_null()) else { return false };
        self.count += 1;
        if is_long(mark) {
            if self.short_before {
                findings.broken(Law::CacheMarkOrder, place, "a mark of an hour behind one of five minutes");
            }
        } else {
            self.short_before = true;
        }
        true
    }
}

fn is_long(mark: Value<'_>) -> bool {
    mark.is_object() && mark.object().string("ttl").as_deref() == Some("1h")
}

fn marks(request: &Request<'_>, findings: &mut Findings<'_>) {
    let body = request.body();
    // Most requests have a few marks in a few messages, so only the blocks around them are read again.
    let finder = memmem::Finder::new("\"cache_control\"");
    let mut places = finder.find_iter(body.as_bytes()).peekable();
    if places.peek().is_none() {
        return;
    }
    let mentions = |raw: &str| finder.find(raw.as_bytes()).is_some();
    let mut marks = Marks::default();
    for (at, tool) in request.conversation().tools.iter().enumerate() {
        if mentions(&tool.definition)
            && let Ok(value) = document(&tool.definition)
        {
            marks.note(&value.object(), Place::Tool(at), findings);
        }
    }
    for (at, block) in request.top().elements("system").iter().enumerate() {
        if marks.note(block, Place::Instruction(at), findings) {
            misplaced(block, Place::Instruction(at), findings);
        }
    }
    let mut last_seen = None;
    let mut last_mark = None;
    for byte in places {
        let Some(at) = request.message_at(byte).filter(|at| Some(*at) != last_seen) else { continue };
        last_seen = Some(at);
        let Some(message) = request.message_value(at).map(Value::object) else { continue };
        let turn_scoped = message.get("clear_at").is_some();
        for (part, block) in message.elements("content").iter().enumerate().filter(|(_, it)| mentions(it.value.raw())) {
            let place = Place::Part(PartId::new(at, part));
            if block.string("type").as_deref() == Some("tool_result") {
                for (inner, piece) in block.elements("content").iter().enumerate() {
                    let place = Place::Part(PartId::new(at, part).inner(inner));
                    if marks.note(piece, place, findings) {
                        misplaced(piece, place, findings);
                    }
                }
            }
            if marks.note(block, place, findings) {
                misplaced(block, place, findings);
                last_mark = block.get(MARK).map(|mark| (at, part, is_long(mark)));
                if turn_scoped {
                    findings.broken(Law::CacheMarkPlace, place, "on a turn-scoped system message");
                }
            }
            for piece in block.elements("citations").iter().filter(|piece| piece.get(MARK).is_some()) {
                let detail = format_args!("on a {}", piece.string("type").unwrap_or_default());
                findings.broken(Law::CacheMarkPlace, place, detail);
            }
        }
    }
    if let Some(mark) = request.top().get(MARK).filter(|mark| !mark.is_null()) {
        let messages = &request.conversation().messages;
        let last = messages.len().saturating_sub(1);
        let last_part = messages.last().map_or(0, |message| message.parts.len().saturating_sub(1));
        let field = Place::Field(MARK);
        match last_mark {
            // The automatic mark falls on a block that has one.
            Some((at, part, long)) if (at, part) == (last, last_part) && long != is_long(mark) => {
                findings.broken(Law::CacheMarkPlace, field, "the last block has a mark of another life");
            }
            Some((at, part, _)) if (at, part) == (last, last_part) => {}
            _ if is_long(mark) && marks.short_before => {
                findings.broken(Law::CacheMarkOrder, field, "a mark of an hour behind one of five minutes");
            }
            _ => {}
        }
        marks.count += 1;
    }
    if marks.count > MOST_MARKS {
        findings.broken(Law::CacheMarkCount, Place::Request, format_args!("{} marks", marks.count));
    }
}

/// A block that may not carry a mark, and does.
fn misplaced(block: &Object<'_>, place: Place, findings: &mut Findings<'_>) {
    match block.string("type").as_deref() {
        Some("thinking" | "redacted_thinking") => findings.broken(Law::CacheMarkPlace, place, "on thinking"),
        Some("text") if block.string("text").is_some_and(|text| text.is_empty()) => {
            findings.broken(Law::CacheMarkPlace, place, "on an empty text");
        }
        _ => {}
    }
}
