//! Anthropic Messages: blocks with an index, one `message_start`, one `message_delta` that counts.

use super::{Pass, Positions, Round, summed};
use crate::wire::scan::Object;
use crate::wire::write::{Change, changed, list};

#[derive(Clone, Debug, Default)]
pub(super) struct Editor {
    blocks: Positions,
    /// The counts of the prompt with which this round began, as JSON.
    prompt: Vec<(&'static str, String)>,
}

/// The counts of a prompt. A client keeps those of its `message_start` unless the end of the stream
/// has others.
const PROMPT: [&str; 3] = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl Editor {
    pub(super) fn judge(&mut self, kind: &str, data: &Object<'_>, round: &Round, tool: &str) -> Pass {
        let index = data.u64(&["index"]);
        match (kind, index) {
            ("message_start", _) => self.begin(data, round),
            ("content_block_start", Some(index)) => {
                if data.object("content_block").is_some_and(|block| is_call(&block, tool)) {
                    self.blocks.hide(index);
                }
                self.placed(data, index)
            }
            ("content_block_delta" | "content_block_stop", Some(index)) => self.placed(data, index),
            ("message_delta" | "message_stop", _) if round.goes_on() => Pass::Withheld,
            ("message_delta", _) if !round.is_first() => self.end(data, round),
            _ => Pass::Whole,
        }
    }

    fn begin(&mut self, data: &Object<'_>, round: &Round) -> Pass {
        if round.is_first() {
            return Pass::Whole;
        }
        let usage = data.object("message").and_then(|message| message.object("usage"));
        self.prompt =
            PROMPT.into_iter().filter_map(|key| Some((key, usage.as_ref()?.u64(&[key])?.to_string()))).collect();
        Pass::Withheld
    }

    fn placed(&mut self, data: &Object<'_>, index: u64) -> Pass {
        if self.blocks.is_hidden(index) {
            return Pass::Withheld;
        }
        match self.blocks.of(index) {
            position if position == index => Pass::Whole,
            position => Pass::Changed(changed(data, &[("index", Change::Set(position.to_string()))])),
        }
    }

    /// The prompt is that of the last round, for a client that watches how full its window is; the
    /// answer is that of all rounds.
    fn end(&self, data: &Object<'_>, round: &Round) -> Pass {
        let Some(usage) = data.object("usage") else { return Pass::Whole };
        let mut changes: Vec<(&str, Change)> = Vec::new();
        if let Some(output) = summed(&usage, &["output_tokens"], round.output_before()) {
            changes.push(("output_tokens", Change::Set(output)));
        }
        for (key, count) in &self.prompt {
            if usage.set(key).is_none() {
                changes.push((key, Change::Set(count.clone())));
            }
        }
        Pass::Changed(changed(data, &[("usage", Change::Set(changed(&usage, &changes)))]))
    }

    pub(super) fn next_round(&mut self) {
        self.blocks.next_round();
        self.prompt.clear();
    }

    pub(super) fn restart_round(&mut self) {
        self.blocks.restart_round();
        self.prompt.clear();
    }

    pub(super) fn position(&self) -> u64 {
        self.blocks.next
    }
}

fn is_call(block: &Object<'_>, tool: &str) -> bool {
    block.string("type").as_deref() == Some("tool_use") && block.string("name").as_deref() == Some(tool)
}

/// The blocks of all bodies that the client may see.
pub(super) fn visible<'a>(bodies: &[Object<'a>], tool: &str) -> Vec<&'a str> {
    let content = bodies.iter().flat_map(|body| body.elements("content").into_owned());
    content.filter(|block| !is_call(block, tool)).map(|block| block.value.raw()).collect()
}

/// One body of several: the first one's name, everyone's blocks, the last one's end.
pub(super) fn merged(bodies: &[Object<'_>], round: &Round, tool: &str) -> String {
    let [first, .., last] = bodies else { return single(bodies, tool) };
    let mut changes = vec![("content", Change::Set(list(visible(bodies, tool))))];
    changes.extend(first.get("id").map(|id| ("id", Change::Set(id.raw().to_owned()))));
    changes.extend(last.object("usage").map(|usage| {
        let output = summed(&usage, &["output_tokens"], round.output_before());
        let output: Vec<_> = output.map(|output| ("output_tokens", Change::Set(output))).into_iter().collect();
        ("usage", Change::Set(changed(&usage, &output)))
    }));
    changed(last, &changes)
}

/// A body without the calls that the client must not see.
fn single(bodies: &[Object<'_>], tool: &str) -> String {
    let content = Change::Set(list(visible(bodies, tool)));
    bodies.first().map(|body| changed(body, &[("content", content)])).unwrap_or_default()
}
