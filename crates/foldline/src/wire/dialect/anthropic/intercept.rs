//! Stream editing for Anthropic Messages: indexed blocks, one `message_start`, one `message_delta` with the counts.

use crate::wire::intercept::{FrameAction, PositionMap, RoundState, summed_count};
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{FieldChange, json_array, with_changed_fields};

#[derive(Clone, Debug, Default)]
pub(crate) struct AnthropicEditor {
    blocks: PositionMap,
    /// The prompt's token counts at the start of this round, as JSON.
    prompt_counts: Vec<(&'static str, String)>,
}

/// Token counts of a prompt. A client keeps those of its `message_start` unless the end of the stream has others.
const PROMPT_TOKEN_FIELDS: [&str; 3] = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl AnthropicEditor {
    pub(crate) fn edit_frame(
        &mut self,
        kind: &str,
        data: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
    ) -> FrameAction {
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
            ("message_delta", _) if !round.is_first() => self.edit_end(data, round),
            _ => FrameAction::Forward,
        }
    }

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

    /// Edits the final counts: the prompt is that of the last round, for a client that monitors its window; the output
    /// is the sum of all rounds.
    fn edit_end(&self, data: &JsonObject<'_>, round: &RoundState) -> FrameAction {
        let Some(usage) = data.object("usage") else { return FrameAction::Forward };
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        if let Some(output) = summed_count(&usage, &["output_tokens"], round.earlier_output_tokens()) {
            changes.push(("output_tokens", FieldChange::Set(output)));
        }
        for (key, count) in &self.prompt_counts {
            if usage.get_non_null(key).is_none() {
                changes.push((key, FieldChange::Set(count.clone())));
            }
        }
        FrameAction::Rewrite(with_changed_fields(
            data,
            &[("usage", FieldChange::Set(with_changed_fields(&usage, &changes)))],
        ))
    }

    pub(crate) fn next_round(&mut self) {
        self.blocks.next_round();
        self.prompt_counts.clear();
    }

    pub(crate) fn restart_round(&mut self) {
        self.blocks.restart_round();
        self.prompt_counts.clear();
    }

    pub(crate) fn position(&self) -> u64 {
        self.blocks.next
    }
}

fn is_hidden_call(block: &JsonObject<'_>, tool: &str) -> bool {
    block.string("type").as_deref() == Some("tool_use") && block.string("name").as_deref() == Some(tool)
}

/// Returns the blocks of all bodies that the client may see.
pub(crate) fn visible_blocks<'a>(bodies: &[JsonObject<'a>], tool: &str) -> Vec<&'a str> {
    let content = bodies.iter().flat_map(|body| body.elements("content").into_owned());
    content.filter(|block| !is_hidden_call(block, tool)).map(|block| block.value.raw()).collect()
}

/// Merges several bodies: id of the first, blocks of all, end of the last.
pub(crate) fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let [first, .., last] = bodies else { return single_body(bodies, tool) };
    let mut changes = vec![("content", FieldChange::Set(json_array(visible_blocks(bodies, tool))))];
    changes.extend(first.get("id").map(|id| ("id", FieldChange::Set(id.raw().to_owned()))));
    changes.extend(last.object("usage").map(|usage| {
        let output = summed_count(&usage, &["output_tokens"], round.earlier_output_tokens());
        let output: Vec<_> = output.map(|output| ("output_tokens", FieldChange::Set(output))).into_iter().collect();
        ("usage", FieldChange::Set(with_changed_fields(&usage, &output)))
    }));
    with_changed_fields(last, &changes)
}

/// Returns a body without the hidden calls.
fn single_body(bodies: &[JsonObject<'_>], tool: &str) -> String {
    let content = FieldChange::Set(json_array(visible_blocks(bodies, tool)));
    bodies.first().map(|body| with_changed_fields(body, &[("content", content)])).unwrap_or_default()
}
