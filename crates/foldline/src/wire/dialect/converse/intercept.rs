//! Stream editing for Converse: indexed blocks, one start, one stop, and the counts after it.

use std::borrow::Cow;

use crate::wire::client_stream::ErrorEvent;
use crate::wire::intercept::InjectedTool;
use crate::wire::intercept::positions::PositionMap;
use crate::wire::intercept::restore::{CopiedMessage, HiddenRound};
use crate::wire::intercept::round::{FrameAction, FrameEditor, RoundState, summed_count};
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::Request;
use crate::wire::response::ApiError;

pub(crate) const INTERCEPT: InterceptSyntax = InterceptSyntax {
    tool_declaration,
    new_editor: |_| Box::new(ConverseEditor::default()),
    keep_alive: b"",
    body_turn: |body| message_of(body).map(|message| message.value.raw().to_owned()).into_iter().collect(),
    body_position: |bodies, tool| visible_blocks(bodies, tool).len() as u64,
    merged_body: |bodies, round, tool, _| {
        (!round.is_first() || round.hidden_calls > 0).then(|| merged_body(bodies, round, tool))
    },
    restore: |request, answer, gaps| COPIED_MESSAGE.restore(request, answer, gaps),
};

const COPIED_MESSAGE: CopiedMessage = CopiedMessage { matches_round, final_round, mixed_results };

fn tool_declaration(tool: &InjectedTool<'_>) -> String {
    let (name, description, schema) = (quoted(tool.name), quoted(tool.description), tool.schema);
    format!(r#"{{"toolSpec":{{"name":{name},"description":{description},"inputSchema":{{"json":{schema}}}}}}}"#)
}

#[derive(Clone, Debug, Default)]
struct ConverseEditor {
    blocks: PositionMap,
}

impl FrameEditor for ConverseEditor {
    fn edit_frame(&mut self, kind: &str, data: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let index = data.u64(&["contentBlockIndex"]);
        match (kind, index) {
            ("messageStart", _) if !round.is_first() => FrameAction::Withhold,
            ("contentBlockStart", Some(index)) => {
                if data.object("start").is_some_and(|start| is_hidden_call(&start, tool)) {
                    self.blocks.hide(index);
                }
                self.edit_indexed(data, index)
            }
            ("contentBlockDelta" | "contentBlockStop", Some(index)) => self.edit_indexed(data, index),
            ("messageStop" | "metadata", _) if round.continues() => FrameAction::Withhold,
            ("messageStop", _) if round.is_exhausted() => {
                FrameAction::Rewrite(with_changed_fields(data, &[end_turn()]))
            }
            ("metadata", _) if !round.is_first() => match data.object("usage") {
                Some(usage) => {
                    let usage = FieldChange::Set(summed_usage(&usage, round));
                    FrameAction::Rewrite(with_changed_fields(data, &[("usage", usage)]))
                }
                None => FrameAction::Forward,
            },
            _ => FrameAction::Forward,
        }
    }

    fn next_round(&mut self) {
        self.blocks.next_round();
    }

    fn restart_round(&mut self) {
        self.blocks.restart_round();
    }

    fn position(&self) -> u64 {
        self.blocks.next
    }

    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent {
        let data = format!(r#"{{"__type":{},"message":{}}}"#, quoted(kind), quoted(&error.message));
        ErrorEvent { name: None, data }
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl ConverseEditor {
    fn edit_indexed(&mut self, data: &JsonObject<'_>, index: u64) -> FrameAction {
        if self.blocks.is_hidden(index) {
            return FrameAction::Withhold;
        }
        match self.blocks.client_position(index) {
            position if position == index => FrameAction::Forward,
            position => {
                let index = FieldChange::Set(position.to_string());
                FrameAction::Rewrite(with_changed_fields(data, &[("contentBlockIndex", index)]))
            }
        }
    }
}

/// Returns the stop reason of an answer without calls.
fn end_turn() -> (&'static str, FieldChange) {
    ("stopReason", FieldChange::Set(r#""end_turn""#.to_owned()))
}

fn summed_usage(usage: &JsonObject<'_>, round: &RoundState) -> String {
    let sum = |key: &'static str| {
        let count = summed_count(usage, &[key], round.earlier_output_tokens())?;
        Some((key, FieldChange::Set(count)))
    };
    let changes: Vec<_> = ["outputTokens", "totalTokens"].into_iter().filter_map(sum).collect();
    with_changed_fields(usage, &changes)
}

/// Returns true for a block, or the start of one, that calls the tool.
fn is_hidden_call(block: &JsonObject<'_>, tool: &str) -> bool {
    block.object("toolUse").is_some_and(|call| call.string("name").as_deref() == Some(tool))
}

fn message_of<'a>(body: &JsonObject<'a>) -> Option<JsonObject<'a>> {
    body.object("output").and_then(|output| output.object("message"))
}

/// Returns the blocks of all bodies that the client may see.
fn visible_blocks<'a>(bodies: &[JsonObject<'a>], tool: &str) -> Vec<&'a str> {
    let messages = bodies.iter().filter_map(message_of);
    let blocks = messages.flat_map(|message| message.elements("content").into_owned());
    blocks.filter(|block| !is_hidden_call(block, tool)).map(|block| block.value.raw()).collect()
}

/// Merges several bodies: blocks of all, end of the last, output of all.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let Some(last) = bodies.last() else { return String::new() };
    let (Some(output), Some(message)) = (last.object("output"), message_of(last)) else {
        return last.value.raw().to_owned();
    };
    let content = FieldChange::Set(json_array(visible_blocks(bodies, tool)));
    let message = FieldChange::Set(with_changed_fields(&message, &[("content", content)]));
    let mut changes = vec![("output", FieldChange::Set(with_changed_fields(&output, &[("message", message)])))];
    if round.is_exhausted() {
        changes.push(end_turn());
    }
    if let Some(usage) = last.object("usage").filter(|_| !round.is_first()) {
        changes.push(("usage", FieldChange::Set(summed_usage(&usage, round))));
    }
    with_changed_fields(last, &changes)
}

fn matches_round(copy: &JsonObject<'_>, start: u64, gap: &HiddenRound) -> bool {
    let Some(turn) = gap.turn_json.first().and_then(|turn| scan::parse_document(turn).ok()) else { return false };
    let turn = turn.object();
    let is_hidden =
        |block: &&JsonObject<'_>| call_id(block).is_some_and(|id| gap.call_ids.iter().any(|call_id| *call_id == *id));
    let (recorded, copied) = (turn.elements("content"), copy.elements("content"));
    let mut copied = copied.iter().skip(usize::try_from(start).unwrap_or(usize::MAX));
    recorded
        .iter()
        .filter(|block| !is_hidden(block))
        .all(|recorded| copied.next().is_some_and(|copied| is_same_block(recorded, copied)))
}

/// Returns true if two blocks have the same text, call or reasoning.
fn is_same_block(recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    recorded.string("text") == copied.string("text")
        && call_id(recorded) == call_id(copied)
        && seal(recorded) == seal(copied)
}

fn call_id<'a>(block: &JsonObject<'a>) -> Option<Cow<'a, str>> {
    block.object("toolUse")?.string("toolUseId")
}

/// Returns what the provider checks of a block with reasoning.
fn seal<'a>(block: &JsonObject<'a>) -> Option<Cow<'a, str>> {
    let reasoning = block.object("reasoningContent")?;
    let text = reasoning.object("reasoningText");
    text.and_then(|text| text.string("signature")).or_else(|| reasoning.string("redactedContent"))
}

fn final_round(copy: &JsonObject<'_>, start: u64) -> Option<String> {
    let blocks = copy.elements("content");
    let rest = blocks.get(usize::try_from(start).ok()?..).filter(|rest| !rest.is_empty())?;
    let content = json_array(rest.iter().map(|block| block.value.raw()));
    Some(with_changed_fields(copy, &[("content", FieldChange::Set(content))]))
}

/// Puts the hidden results into the client's message with its own results.
fn mixed_results(request: &Request<'_>, answer: usize, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
    let next = request.message_value(answer + 1)?.object();
    let hidden = gap.results.iter().filter_map(|message| scan::parse_document(message).ok());
    let hidden: Vec<_> = hidden.flat_map(|message| message.object().elements("content").into_owned()).collect();
    let visible = next.elements("content");
    let content = json_array(hidden.iter().chain(visible.iter()).map(|block| block.value.raw()));
    let json = with_changed_fields(&next, &[("content", FieldChange::Set(content))]);
    Some(vec![RequestEdit::DropMessage(answer + 1), RequestEdit::InsertJson { before: answer + 1, json }])
}
