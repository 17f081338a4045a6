//! Stream editing for Anthropic Messages: indexed blocks, one `message_start`, one `message_delta` with the counts.

use crate::wire::client_stream::ErrorEvent;
use crate::wire::intercept::InjectedTool;
use crate::wire::intercept::positions::PositionMap;
use crate::wire::intercept::restore::{CopiedMessage, HiddenRound, assistant_copy};
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
    new_editor: |_| Box::new(AnthropicEditor::default()),
    keep_alive: b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
    body_turn,
    body_position: |bodies, tool| visible_blocks(bodies, tool).len() as u64,
    merged_body: |bodies, round, tool, _| {
        (!round.is_first() || round.hidden_calls > 0).then(|| merged_body(bodies, round, tool))
    },
    restore,
};

fn tool_declaration(tool: &InjectedTool<'_>) -> String {
    let (name, description, schema) = (quoted(tool.name), quoted(tool.description), tool.schema);
    format!(r#"{{"name":{name},"description":{description},"input_schema":{schema}}}"#)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AnthropicEditor {
    blocks: PositionMap,
    /// The prompt's token counts at the start of this round, as JSON.
    prompt_counts: Vec<(&'static str, String)>,
}

/// Token counts of a prompt. A client keeps those of its `message_start` unless the end of the stream has others.
const PROMPT_TOKEN_FIELDS: [&str; 3] = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl FrameEditor for AnthropicEditor {
    fn edit_frame(&mut self, kind: &str, data: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let index = data.u64(&["index"]);
        match (kind, index) {
            ("message_start", _) => self.edit_start(data, round),
            ("content_block_start", Some(index)) => {
                if data.object("content_block").is_some_and(|block| is_hidden_call(&block, tool)) {
                    self.blocks.hide(index);
                }
                self.edit_indexed(data, index)
            }
            ("content_block_delta" | "content_block_stop", Some(index)) => self.edit_indexed(data, index),
            ("message_delta" | "message_stop", _) if round.continues() => FrameAction::Withhold,
            ("message_delta", _) if !round.is_first() || round.is_exhausted() => self.edit_end(data, round),
            _ => FrameAction::Forward,
        }
    }

    fn next_round(&mut self) {
        self.blocks.next_round();
        self.prompt_counts.clear();
    }

    fn restart_round(&mut self) {
        self.blocks.restart_round();
        self.prompt_counts.clear();
    }

    fn position(&self) -> u64 {
        self.blocks.next
    }

    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent {
        let (kind, message) = (quoted(kind), quoted(&error.message));
        let data = format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#);
        ErrorEvent { name: Some("error"), data }
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl AnthropicEditor {
    fn edit_start(&mut self, data: &JsonObject<'_>, round: &RoundState) -> FrameAction {
        if round.is_first() {
            return FrameAction::Forward;
        }
        let usage = data.object("message").and_then(|message| message.object("usage"));
        self.prompt_counts = PROMPT_TOKEN_FIELDS
            .into_iter()
            .filter_map(|key| Some((key, usage.as_ref()?.u64(&[key])?.to_string())))
            .collect();
        FrameAction::Withhold
    }

    fn edit_indexed(&mut self, data: &JsonObject<'_>, index: u64) -> FrameAction {
        if self.blocks.is_hidden(index) {
            return FrameAction::Withhold;
        }
        match self.blocks.client_position(index) {
            position if position == index => FrameAction::Forward,
            position => {
                FrameAction::Rewrite(with_changed_fields(data, &[("index", FieldChange::Set(position.to_string()))]))
            }
        }
    }

    /// Edits the stop reason if the answer ends without the calls that it stopped for, and the final counts.
    fn edit_end(&self, data: &JsonObject<'_>, round: &RoundState) -> FrameAction {
        let mut fields: Vec<(&str, FieldChange)> = Vec::new();
        if let Some(delta) = data.object("delta").filter(|_| round.is_exhausted()) {
            fields.push(("delta", FieldChange::Set(with_changed_fields(&delta, &[end_turn()]))));
        }
        fields.extend(data.object("usage").map(|usage| ("usage", FieldChange::Set(self.final_usage(&usage, round)))));
        if fields.is_empty() { FrameAction::Forward } else { FrameAction::Rewrite(with_changed_fields(data, &fields)) }
    }

    /// Returns the final counts: the prompt is that of the last round, for a client that monitors its window; the output
    /// is the sum of all rounds.
    fn final_usage(&self, usage: &JsonObject<'_>, round: &RoundState) -> String {
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        if let Some(output) = summed_count(usage, &["output_tokens"], round.earlier_output_tokens()) {
            changes.push(("output_tokens", FieldChange::Set(output)));
        }
        for (key, count) in &self.prompt_counts {
            if usage.get_non_null(key).is_none() {
                changes.push((key, FieldChange::Set(count.clone())));
            }
        }
        with_changed_fields(usage, &changes)
    }
}

/// Returns the stop reason of an answer without calls.
fn end_turn() -> (&'static str, FieldChange) {
    ("stop_reason", FieldChange::Set(r#""end_turn""#.to_owned()))
}

fn is_hidden_call(block: &JsonObject<'_>, tool: &str) -> bool {
    block.string("type").as_deref() == Some("tool_use") && block.string("name").as_deref() == Some(tool)
}

/// Returns the blocks of all bodies that the client may see.
fn visible_blocks<'a>(bodies: &[JsonObject<'a>], tool: &str) -> Vec<&'a str> {
    let content = bodies.iter().flat_map(|body| body.elements("content").into_owned());
    content.filter(|block| !is_hidden_call(block, tool)).map(|block| block.value.raw()).collect()
}

/// Merges several bodies: id of the first, blocks of all, end of the last.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let (Some(first), Some(last)) = (bodies.first(), bodies.last()) else { return String::new() };
    let mut changes = vec![("content", FieldChange::Set(json_array(visible_blocks(bodies, tool))))];
    if round.is_exhausted() {
        changes.push(end_turn());
    }
    if bodies.len() == 1 {
        return with_changed_fields(last, &changes);
    }
    changes.extend(first.get("id").map(|id| ("id", FieldChange::Set(id.raw().to_owned()))));
    changes.extend(last.object("usage").map(|usage| {
        let output = summed_count(&usage, &["output_tokens"], round.earlier_output_tokens());
        let output: Vec<_> = output.map(|output| ("output_tokens", FieldChange::Set(output))).into_iter().collect();
        ("usage", FieldChange::Set(with_changed_fields(&usage, &output)))
    }));
    with_changed_fields(last, &changes)
}

/// Returns the model's output in a body, without empty texts, which the provider generates but does not accept.
fn body_turn(body: &JsonObject<'_>) -> Vec<String> {
    let blank = |block: &&JsonObject<'_>| {
        block.string("type").as_deref() == Some("text") && block.string("text").as_deref() == Some("")
    };
    let content = body.elements("content");
    let blocks = content.iter().filter(|block| !blank(block)).map(|block| block.value.raw());
    vec![format!(r#"{{"role":"assistant","content":{}}}"#, json_array(blocks))]
}

fn restore(request: &Request<'_>, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
    let copied = CopiedMessage { matches_round, final_round, mixed_results };
    let copy = assistant_copy(request, answer)?;
    let has_thinking = copy.elements("content").iter().any(is_thinking);
    let gaps = if has_thinking { gaps.to_vec() } else { without_thinking(gaps) };
    copied.restore(request, answer, &gaps).or_else(|| {
        let (json, gaps) = separated_copy(&copy, &gaps)?;
        copied.restore_copy(request, answer, &scan::parse_document(&json).ok()?.object(), &gaps)
    })
}

/// Returns a client's copy in the order of the rounds, and the rounds with their positions in it. litellm sends all
/// reasoning first, and the texts of all rounds as one. Returns `None` if the copy does not contain the rounds.
fn separated_copy(copy: &JsonObject<'_>, gaps: &[HiddenRound]) -> Option<(String, Vec<HiddenRound>)> {
    let blocks = content_blocks(copy)?;
    let blocks: Vec<JsonObject<'_>> =
        blocks.iter().filter_map(|block| scan::parse_document(block).ok()).map(|block| block.object()).collect();
    let is_text = |block: &&JsonObject<'_>| block.string("type").as_deref() == Some("text");
    let joined = blocks.iter().find(is_text)?;
    let text = joined.string("text")?;
    let mut text = &*text;
    let mut thinking = blocks.iter().filter(|block| is_thinking(block));
    let mut others = blocks.iter().filter(|block| !is_thinking(block) && !is_text(block));
    let (mut content, mut gaps) = (Vec::new(), gaps.to_vec());
    for gap in &mut gaps {
        let turn = scan::parse_document(gap.turn_json.first()?).ok()?.object();
        for recorded in turn.elements("content").iter() {
            if recorded.string("id").is_some_and(|id| gap.call_ids.iter().any(|call_id| *call_id == *id)) {
                continue;
            }
            if is_text(&recorded) {
                text = text.strip_prefix(&*recorded.string("text")?)?;
                content.push(recorded.value.raw().to_owned());
                continue;
            }
            let copied = if is_thinking(recorded) { thinking.next()? } else { others.next()? };
            content.push(copied.value.raw().to_owned());
        }
        gap.position = content.len() as u64;
    }
    content.extend(thinking.map(|block| block.value.raw().to_owned()));
    if !text.is_empty() {
        content.push(with_changed_fields(joined, &[("text", FieldChange::Set(quoted(text)))]));
    }
    content.extend(others.map(|block| block.value.raw().to_owned()));
    let content = json_array(content.iter().map(String::as_str));
    Some((with_changed_fields(copy, &[("content", FieldChange::Set(content))]), gaps))
}

fn matches_round(copy: &JsonObject<'_>, start: u64, gap: &HiddenRound) -> bool {
    let Some(turn) = gap.turn_json.first().and_then(|turn| scan::parse_document(turn).ok()) else { return false };
    let Some(copied) = content_blocks(copy) else { return false };
    let is_hidden = |block: &&JsonObject<'_>| {
        block.string("id").is_some_and(|id| gap.call_ids.iter().any(|call_id| *call_id == *id))
    };
    let turn = turn.object();
    let recorded = turn.elements("content");
    let mut recorded = recorded.iter().filter(|block| !is_hidden(block));
    let mut copied = copied.iter().skip(usize::try_from(start).unwrap_or(usize::MAX));
    recorded.all(|recorded| {
        let copied = copied.next().and_then(|block| scan::parse_document(block).ok()).map(|block| block.object());
        copied.is_some_and(|copied| is_same_block(recorded, &copied))
    })
}

fn final_round(copy: &JsonObject<'_>, start: u64) -> Option<String> {
    let blocks = content_blocks(copy)?;
    let rest = blocks.get(usize::try_from(start).ok()?..).filter(|rest| !rest.is_empty())?;
    let content = json_array(rest.iter().map(String::as_str));
    Some(with_changed_fields(copy, &[("content", FieldChange::Set(content))]))
}

/// Puts the hidden results into the client's message with its own results.
fn mixed_results(request: &Request<'_>, answer: usize, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
    let next = request.message_value(answer + 1)?.object();
    let hidden = gap.results.iter().filter_map(|message| scan::parse_document(message).ok());
    let hidden: Vec<_> = hidden.flat_map(|message| message.object().elements("content").into_owned()).collect();
    let visible = content_blocks(&next)?;
    let content = json_array(hidden.iter().map(|block| block.value.raw()).chain(visible.iter().map(String::as_str)));
    let json = with_changed_fields(&next, &[("content", FieldChange::Set(content))]);
    Some(vec![RequestEdit::DropMessage(answer + 1), RequestEdit::InsertJson { before: answer + 1, json }])
}

/// Returns the blocks of a message's content as JSON; a plain string is one text block.
fn content_blocks(message: &JsonObject<'_>) -> Option<Vec<String>> {
    if let Some(text) = message.string("content") {
        return Some(vec![format!(r#"{{"type":"text","text":{}}}"#, quoted(&text))]);
    }
    let content = message.get("content").filter(|value| value.is_array())?;
    Some(content.elements().iter().map(|block| block.value.raw().to_owned()).collect())
}

/// Types of blocks with reasoning.
const THINKING_BLOCK_TYPES: [&str; 2] = ["thinking", "redacted_thinking"];

fn is_thinking(block: &JsonObject<'_>) -> bool {
    block.string("type").is_some_and(|kind| THINKING_BLOCK_TYPES.contains(&&*kind))
}

/// Removes the reasoning from recorded rounds, for a client's copy without reasoning, as Claude Code sends some. What
/// the client removed stays removed, since reasoning must be one unbroken run (A3.8).
fn without_thinking(gaps: &[HiddenRound]) -> Vec<HiddenRound> {
    let mut removed = 0;
    let strip = |gap: &HiddenRound| {
        let mut gap = gap.clone();
        for element in &mut gap.turn_json {
            let Ok(turn) = scan::parse_document(element).map(|document| document.object()) else { continue };
            let blocks = turn.elements("content");
            let kept: Vec<&JsonObject<'_>> = blocks.iter().filter(|block| !is_thinking(block)).collect();
            if kept.len() < blocks.len() {
                removed += (blocks.len() - kept.len()) as u64;
                let content = json_array(kept.iter().map(|block| block.value.raw()));
                *element = with_changed_fields(&turn, &[("content", FieldChange::Set(content))]);
            }
        }
        gap.position = gap.position.saturating_sub(removed);
        gap
    };
    gaps.iter().map(strip).collect()
}

/// Returns true if two blocks have the same type and the same text, id and signature.
fn is_same_block(recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    ["type", "text", "id", "signature"].iter().all(|key| recorded.string(key) == copied.string(key))
}
