//! Anthropic Messages responses: a list of blocks, each with a start, deltas and a stop.

use std::collections::{BTreeMap, HashMap};

use crate::conversation::{CallArguments, Message, Part, Role};
use crate::wire::dialect::anthropic::request::block_part;
use crate::wire::dialect::anthropic::usage::AnthropicUsage;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, event_type, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "content",
    framing: FrameKind::Event,
    envelope_key: None,
    parse_body: parse_response,
    new_stream: || Box::new(AnthropicStream::default()),
};

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let parts = body.elements("content").iter().map(block_part).collect();
    let mut usage = AnthropicUsage::default();
    if let Some(counts) = body.object("usage") {
        usage.update(&counts);
    }
    Response {
        id: body.string("id"),
        model: body.string("model"),
        message: Message::new(Role::Assistant, without_empty_parts(parts)),
        stop: body.string("stop_reason").map(|raw| StopInfo::from_raw(&raw)),
        usage: usage.to_usage(),
        error: body.get_non_null("error").map(|error| ApiError::from_error_value(error, body)),
        ..Response::empty()
    }
}

/// State of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnthropicStream {
    usage: AnthropicUsage,
    blocks: Vec<StreamedBlock>,
    by_index: HashMap<u64, usize>,
}

impl StreamParser for AnthropicStream {
    fn read(
        &mut self,
        name: Option<&str>,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let kind = &*event_type(name, data);
        let index = data.u64(&["index"]).unwrap_or(0);
        let at = OutputPosition { choice: 0, index };
        let other = |out: &mut Vec<StreamEvent>, kind: &str| {
            out.push(StreamEvent::Other { at: Some(at), kind: kind.to_owned() })
        };
        match kind {
            "message_start" => {
                let message = data.object("message");
                if let Some(message) = &message {
                    builder.record_start(message, out);
                }
                self.update_usage(message.and_then(|message| message.object("usage")), builder, out);
            }
            "content_block_start" => {
                let Some(block) = data.object("content_block") else { return other(out, kind) };
                self.open_block(at, &block, builder, out);
                if out.is_empty() {
                    other(out, &block.string("type").unwrap_or_default());
                }
            }
            "content_block_delta" => {
                let Some(delta) = data.object("delta") else { return other(out, kind) };
                let kind = delta.string("type").unwrap_or_default();
                if let Some(&block) = self.by_index.get(&index) {
                    self.blocks[block].apply_delta(at, &kind, &delta, builder, out);
                }
                if out.is_empty() {
                    other(out, &kind);
                }
            }
            "content_block_stop" => match self.by_index.remove(&index).and_then(|block| self.blocks[block].call) {
                Some(call) => out.push(StreamEvent::ToolCallClosed { at, call }),
                None => other(out, kind),
            },
            "message_delta" => {
                self.update_usage(data.object("usage"), builder, out);
                let reason = data.object("delta").and_then(|delta| delta.string("stop_reason"));
                if let Some(raw) = reason {
                    builder.record_stop(0, StopInfo::from_raw(&raw), out);
                }
            }
            "message_stop" => builder.record_done(kind, out),
            "ping" => out.push(StreamEvent::Ping),
            "error" => builder.record_error(ApiError::find(data.value).unwrap_or_default(), out),
            _ => match data.get_non_null("error") {
                Some(error) => builder.record_error(ApiError::from_error_value(error, data), out),
                None => out.push(StreamEvent::Other { at: None, kind: kind.to_owned() }),
            },
        }
    }

    /// Returns the assistant's message to send back: as generated, without empty texts, which the provider generates
    /// but does not accept.
    fn turn_json(&self) -> Vec<String> {
        let blocks: Vec<String> =
            self.blocks.iter().filter(|block| !block.is_empty_text()).filter_map(StreamedBlock::to_json).collect();
        vec![format!(r#"{{"role":"assistant","content":{}}}"#, json_array(blocks.iter().map(String::as_str)))]
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        self.blocks.into_iter().flat_map(|block| block.into_parts()).collect()
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl AnthropicStream {
    fn update_usage(
        &mut self,
        counts: Option<JsonObject<'_>>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        if let Some(counts) = counts {
            self.usage.update(&counts);
            builder.record_usage(self.usage.to_usage(), out);
        }
    }

    fn open_block(
        &mut self,
        at: OutputPosition,
        start: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let text = |key: &str| start.string(key).filter(|text| !text.is_empty()).map(|text| text.into_owned());
        let mut call = None;
        match start.string("type").as_deref() {
            Some("tool_use") => {
                let number = builder.next_call_number();
                call = Some(number);
                let (id, name) = (text("id").unwrap_or_default(), text("name").unwrap_or_default());
                out.push(StreamEvent::ToolCallOpened { at, call: number, id, name });
                // Some servers send the whole input at once and no delta.
                let input = start.object("input").filter(|input| !input.fields().is_empty());
                out.extend(input.map(|input| {
                    let arguments = input.value.raw().to_owned();
                    StreamEvent::ToolCallDelta { at, call: number, arguments }
                }));
            }
            Some("text") => out.extend(text("text").map(|text| StreamEvent::TextDelta { at, text })),
            Some("thinking") => out.extend(text("thinking").map(|text| StreamEvent::ReasoningDelta { at, text })),
            Some("redacted_thinking") => {
                out.extend(text("data").map(|signature| StreamEvent::ReasoningSignature { at, signature }))
            }
            _ => {}
        }
        let raw = start.value.raw();
        if builder.try_reserve(raw.len() + size_of::<StreamedBlock>()) {
            self.by_index.insert(at.index, self.blocks.len());
            self.blocks.push(StreamedBlock { start_json: raw.to_owned(), call, ..StreamedBlock::default() });
        }
    }
}

/// A started block, with its accumulated deltas.
#[derive(Clone, Debug, Default)]
struct StreamedBlock {
    start_json: String,
    call: Option<usize>,
    text: String,
    thinking: String,
    signature: Option<String>,
    /// JSON text, accumulated from fragments.
    input: String,
    citations: Vec<String>,
    /// Other fields that a delta sets, as JSON.
    other_fields: BTreeMap<String, String>,
}

impl StreamedBlock {
    fn apply_delta(
        &mut self,
        at: OutputPosition,
        kind: &str,
        delta: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let text = |key: &str| delta.string(key).unwrap_or_default();
        match kind {
            "text_delta" => {
                builder.append_text(&mut self.text, &text("text"));
                out.push(StreamEvent::TextDelta { at, text: text("text").into_owned() });
            }
            "thinking_delta" => {
                builder.append_text(&mut self.thinking, &text("thinking"));
                out.push(StreamEvent::ReasoningDelta { at, text: text("thinking").into_owned() });
            }
            "signature_delta" => {
                let signature = text("signature").into_owned();
                if builder.try_reserve(signature.len()) {
                    self.signature = Some(signature.clone());
                }
                out.push(StreamEvent::ReasoningSignature { at, signature });
            }
            "input_json_delta" => {
                let arguments = text("partial_json");
                builder.append_text(&mut self.input, &arguments);
                if let Some(call) = self.call {
                    out.push(StreamEvent::ToolCallDelta { at, call, arguments: arguments.into_owned() });
                }
            }
            "citations_delta" => {
                if let Some(citation) =
                    delta.get_non_null("citation").filter(|value| builder.try_reserve(value.raw().len()))
                {
                    self.citations.push(citation.raw().to_owned());
                }
            }
            _ => {
                for field in delta.fields().iter().filter(|field| field.key != "type") {
                    let (key, value) = (field.key.clone().into_owned(), field.value.raw().to_owned());
                    if builder.try_reserve(key.len() + value.len()) {
                        self.other_fields.insert(key, value);
                    }
                }
            }
        }
    }

    /// Returns the block in the form of a JSON body.
    fn to_json(&self) -> Option<String> {
        let document = scan::parse_document(&self.start_json).ok()?;
        let start = document.object();
        let extended = |key: &str, more: &str| quoted(&format!("{}{more}", start.string(key).unwrap_or_default()));
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        if !self.text.is_empty() {
            changes.push(("text", FieldChange::Set(extended("text", &self.text))));
        }
        if !self.thinking.is_empty() {
            changes.push(("thinking", FieldChange::Set(extended("thinking", &self.thinking))));
        }
        if let Some(signature) = &self.signature {
            changes.push(("signature", FieldChange::Set(quoted(signature))));
        }
        if !self.input.is_empty() && !self.has_truncated_input() {
            changes.push(("input", FieldChange::Set(self.input.clone())));
        }
        if !self.citations.is_empty() {
            changes.push(("citations", FieldChange::Set(json_array(self.citations.iter().map(String::as_str)))));
        }
        changes.extend(self.other_fields.iter().map(|(key, value)| (key.as_str(), FieldChange::Set(value.clone()))));
        Some(with_changed_fields(&start, &changes))
    }

    fn is_empty_text(&self) -> bool {
        self.text.is_empty()
            && scan::parse_document(&self.start_json).is_ok_and(|start| {
                let start = start.object();
                start.string("type").as_deref() == Some("text") && start.string("text").unwrap_or_default().is_empty()
            })
    }

    /// Returns true if the input never became valid JSON.
    fn has_truncated_input(&self) -> bool {
        !self.input.is_empty() && scan::parse_document(&self.input).is_err()
    }

    fn into_parts(self) -> Vec<Part<'static>> {
        let Some(json) = self.to_json() else { return Vec::new() };
        let mut parts = parse_owned_parts(&json, |block| vec![block_part(block).into_owned()]);
        if self.has_truncated_input() {
            for part in &mut parts {
                if let Part::ToolCall(call) = part {
                    call.arguments = CallArguments::Json(self.input.clone().into());
                }
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::Anthropic as ANTHROPIC;
    use crate::wire::response::testing::{assert_stream_matches_body, body_summary, stream_summary};

    const THINKING_AND_CALL_STREAM: &str = r#"
event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4-6","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":15,"ephemeral_1h_input_tokens":5},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"I should "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"look.","estimated_tokens":2}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Looking \ud83d\ude00"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"read","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"path\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":" \"a.rs\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":42}}

event: message_stop
data: {"type":"message_stop"}

"#;

    #[test]
    fn thinking_text_and_a_call_are_read() {
        let (events, response) = stream_summary(ANTHROPIC, THINKING_AND_CALL_STREAM);
        assert_eq!(
            events,
            "started msg_1 claude-opus-4-6 | usage in=123 read=100 write=20 write_1h=5 out=1 | (thinking 0) | ping \
             | thought 0 I should  | thought 0 look. | seal 0 c2ln | (content_block_stop 0) | (text 1) \
             | text 1 Looking 😀 | (content_block_stop 1) | call 0@2 toolu_1 read | call 0@2 + | call 0@2 +{\"path\": \
             | call 0@2 + \"a.rs\"} | call 0@2 closed | usage in=123 read=100 write=20 write_1h=5 out=42 \
             | stop ToolUse tool_use | done"
        );
        assert_eq!(
            response,
            "msg_1 claude-opus-4-6: thought I should look. [c2ln] + text Looking 😀 + call toolu_1 read {\"path\": \"a.rs\"} \
             | ToolUse tool_use | in=123 read=100 write=20 write_1h=5 out=42 | Complete"
        );
        assert_stream_matches_body(
            ANTHROPIC,
            THINKING_AND_CALL_STREAM,
            r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4-6","content":[
                {"type":"thinking","thinking":"I should look.","signature":"c2ln"},{"type":"text","text":"Looking 😀"},
                {"type":"tool_use","id":"toolu_1","name":"read","input":{"path": "a.rs"}}],"stop_reason":"tool_use","stop_sequence":null,
                "usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":15,"ephemeral_1h_input_tokens":5},"output_tokens":42}}"#,
        );
    }

    #[test]
    fn event_type_is_read_from_data_or_event_name() {
        let nameless: String = THINKING_AND_CALL_STREAM
            .lines()
            .filter(|line| !line.starts_with("event:"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(stream_summary(ANTHROPIC, &nameless), stream_summary(ANTHROPIC, THINKING_AND_CALL_STREAM));
        let (events, _) = stream_summary(ANTHROPIC, "event: message_stop\ndata: {}\n\n");
        assert_eq!(events, "done");
    }

    #[test]
    fn last_usage_replaces_earlier_counts() {
        let (_, response) = stream_summary(
            ANTHROPIC,
            r#"
data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":3}}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":700,"cache_creation_input_tokens":2,"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}}

data: {"type":"message_stop"}

"#,
        );
        assert_eq!(response, "m: | EndTurn end_turn | in=707 read=5 write=2 out=9 reasoning=4 | Complete");
    }

    #[test]
    fn uncounted_prompt_is_not_reported_as_zero_tokens() {
        let (events, _) = stream_summary(
            ANTHROPIC,
            r#"
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}

"#,
        );
        assert_eq!(events, "(text 0) | text 0 hi | stop EndTurn end_turn");
    }

    #[test]
    fn context_tokens_come_from_the_last_message_iteration() {
        let text = r#"{"id":"m","type":"message","content":[],"stop_reason":"end_turn","usage":{"input_tokens":30000,"output_tokens":90,
            "iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},
                {"type":"message","input_tokens":20000,"cache_read_input_tokens":1000,"output_tokens":40},
                {"type":"message","input_tokens":10000,"cache_read_input_tokens":12000,"output_tokens":50},
                {"type":"advisor_message","input_tokens":7,"output_tokens":1}]}}"#;
        assert_eq!(
            body_summary(ANTHROPIC, text),
            "m: | EndTurn end_turn | in=30000 out=90 last_input=22000 | Complete"
        );
    }

    #[test]
    fn server_tool_and_unknown_blocks_are_reassembled_unchanged() {
        let (events, response) = stream_summary(
            ANTHROPIC,
            r#"
data: {"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"srv","name":"web_search","input":{}}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"query\":\"x\"}"}}

data: {"type":"content_block_stop","index":0}

data: {"type":"content_block_start","index":1,"content_block":{"type":"web_search_tool_result","tool_use_id":"srv","content":[]}}

data: {"type":"content_block_stop","index":1}

data: {"type":"content_block_start","index":2,"content_block":{"type":"compaction"}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"compaction_delta","content":"short","encrypted_content":"e"}}

data: {"type":"content_block_stop","index":2}

data: {"type":"content_block_start","index":3,"content_block":{"type":"hologram","x":1}}

data: {"type":"content_block_delta","index":3,"delta":{"type":"hologram_delta","y":[2]}}

data: {"type":"content_block_stop","index":3}

data: {"type":"new_event","index":3}

"#,
        );
        assert!(
            events.ends_with("(hologram 3) | (hologram_delta 3) | (content_block_stop 3) | (new_event)"),
            "{events}"
        );
        assert_eq!(
            response,
            r#": opaque server_tool_use {"type":"server_tool_use","id":"srv","name":"web_search","input":{"query":"x"}} + opaque web_search_tool_result {"type":"web_search_tool_result","tool_use_id":"srv","content":[]} + opaque compaction {"type":"compaction","content":"short","encrypted_content":"e"} + opaque hologram {"type":"hologram","x":1,"y":[2]} | Interrupted"#
        );
    }

    #[test]
    fn redacted_thinking_is_read_as_signature_only() {
        let (events, response) = stream_summary(
            ANTHROPIC,
            "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"redacted_thinking\",\"data\":\"abc\"}}\n\n",
        );
        assert_eq!(events, "seal 0 abc");
        assert_eq!(response, ": thought  [abc] | Interrupted");
    }

    #[test]
    fn truncated_call_keeps_partial_arguments() {
        let (_, response) = stream_summary(
            ANTHROPIC,
            r#"
data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"write","input":{}}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"text\": \"abc"}}

data: {"type":"content_block_stop","index":0}

data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":5}}

data: {"type":"message_stop"}

"#,
        );
        assert_eq!(response, ": call t write {\"text\": \"abc | MaxTokens max_tokens | Complete");
    }

    #[test]
    fn complete_input_at_block_start_gives_one_delta() {
        let (events, response) = stream_summary(
            ANTHROPIC,
            "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{\"a\":1}}}\n\n",
        );
        assert_eq!(events, "call 0@0 t f | call 0@0 +{\"a\":1}");
        assert_eq!(response, ": call t f {\"a\":1} | Interrupted");
    }

    #[test]
    fn every_stop_reason_is_mapped() {
        for (raw, reason) in [
            ("end_turn", "EndTurn"),
            ("max_tokens", "MaxTokens"),
            ("stop_sequence", "StopSequence"),
            ("tool_use", "ToolUse"),
            ("pause_turn", "Paused"),
            ("refusal", "Refused"),
            ("model_context_window_exceeded", "ContextFull"),
            ("compaction", "Compacted"),
            ("tomorrow", "Other"),
        ] {
            let text = format!(r#"{{"content":[],"stop_reason":"{raw}"}}"#);
            assert_eq!(body_summary(ANTHROPIC, &text), format!(": | {reason} {raw} | Complete"));
        }
    }

    #[test]
    fn error_event_is_classified() {
        let (events, _) = stream_summary(
            ANTHROPIC,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
        );
        assert_eq!(events, "error overloaded_error: Overloaded [other]");
        let (events, _) = stream_summary(
            ANTHROPIC,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 210000 tokens > 200000 maximum\"}}\n\n",
        );
        assert!(events.ends_with("[overflow 200000]"), "{events}");
    }
}
