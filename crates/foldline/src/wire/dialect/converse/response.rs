//! Converse responses: a message of blocks, or a stream of indexed deltas of it. The counts follow the end of a stream.

use std::collections::BTreeMap;

use crate::conversation::{Message, Part, Role};
use crate::wire::dialect::converse::request::response_block;
use crate::wire::dialect::converse::usage::parse_usage;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{json_array, quoted};
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, StopReason, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "output",
    framing: FrameKind::Message,
    envelope_key: None,
    parse_body: parse_response,
    new_stream: || Box::new(ConverseStream::default()),
};

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let message = body.object("output").and_then(|output| output.object("message"));
    let parts = message.map(|message| message.elements("content").iter().map(response_block).collect());
    let message = Message::new(Role::Assistant, without_empty_parts(parts.unwrap_or_default()));
    Response {
        stop: body.string("stopReason").map(|raw| stop_info(&raw)),
        message,
        usage: parse_usage(body),
        ..Response::empty()
    }
}

fn stop_info(raw: &str) -> StopInfo {
    match raw {
        "guardrail_intervened" | "content_filtered" => StopInfo { reason: StopReason::Refused, raw: raw.to_owned() },
        raw => StopInfo::from_raw(raw),
    }
}

/// State of a stream: the blocks so far, by their index.
#[derive(Clone, Debug, Default)]
struct ConverseStream {
    blocks: BTreeMap<u64, ConverseBlock>,
}

#[derive(Clone, Debug)]
enum ConverseBlock {
    Text(String),
    ToolUse {
        number: usize,
        id: String,
        name: String,
        input: String,
    },
    Reasoning {
        text: String,
        signature: String,
    },
    Redacted(String),
    /// A kind that this version does not know.
    Other,
}

impl StreamParser for ConverseStream {
    fn read(
        &mut self,
        name: Option<&str>,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        if let Some(error) = data.get_non_null("error") {
            return builder.record_error(ApiError::from_error_value(error, data), out);
        }
        let at = OutputPosition { choice: 0, index: data.u64(&["contentBlockIndex"]).unwrap_or(0) };
        match name.unwrap_or_default() {
            "messageStart" => builder.record_identity(None, None, out),
            "contentBlockStart" => self.open_block(at, data, builder, out),
            "contentBlockDelta" => self.read_delta(at, data, builder, out),
            "contentBlockStop" => {
                if let Some(ConverseBlock::ToolUse { number, .. }) = self.blocks.get(&at.index) {
                    out.push(StreamEvent::ToolCallClosed { at, call: *number });
                }
            }
            "messageStop" => {
                let raw = data.string("stopReason").unwrap_or_default();
                builder.record_stop(0, stop_info(&raw), out);
            }
            "metadata" => {
                builder.record_usage(parse_usage(data), out);
                builder.record_done("metadata", out);
            }
            _ => {}
        }
    }

    fn turn_json(&self) -> Vec<String> {
        let blocks: Vec<String> = self.blocks.values().filter_map(ConverseBlock::to_json).collect();
        vec![format!(r#"{{"role":"assistant","content":{}}}"#, json_array(blocks.iter().map(String::as_str)))]
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        let blocks = self.blocks.values().filter_map(ConverseBlock::to_json);
        let read = |block: &JsonObject<'_>| vec![response_block(block).into_owned()];
        blocks.flat_map(|json| parse_owned_parts(&json, read)).collect()
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl ConverseStream {
    fn open_block(
        &mut self,
        at: OutputPosition,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let start = data.object("start");
        let Some(call) = start.as_ref().and_then(|start| start.object("toolUse")) else {
            let kind = start.and_then(|start| start.fields().first().map(|field| field.key.to_string()));
            self.blocks.insert(at.index, ConverseBlock::Other);
            return out.push(StreamEvent::Other { at: Some(at), kind: kind.unwrap_or_default() });
        };
        let id = call.string("toolUseId").unwrap_or_default().into_owned();
        let name = call.string("name").unwrap_or_default().into_owned();
        let number = builder.next_call_number();
        if builder.try_reserve(id.len() + name.len()) {
            let (id, name) = (id.clone(), name.clone());
            self.blocks.insert(at.index, ConverseBlock::ToolUse { number, id, name, input: String::new() });
        }
        out.push(StreamEvent::ToolCallOpened { at, call: number, id, name });
    }

    fn read_delta(
        &mut self,
        at: OutputPosition,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let Some(delta) = data.object("delta") else { return };
        if let Some(text) = delta.string("text") {
            let block = self.blocks.entry(at.index).or_insert_with(|| ConverseBlock::Text(String::new()));
            if let ConverseBlock::Text(kept) = block {
                builder.append_text(kept, &text);
            }
            return out.push(StreamEvent::TextDelta { at, text: text.into_owned() });
        }
        if let Some(piece) = delta.object("toolUse").and_then(|call| call.string("input")) {
            if let Some(ConverseBlock::ToolUse { number, input, .. }) = self.blocks.get_mut(&at.index) {
                builder.append_text(input, &piece);
                out.push(StreamEvent::ToolCallDelta { at, call: *number, arguments: piece.into_owned() });
            }
            return;
        }
        if let Some(reasoning) = delta.object("reasoningContent") {
            return self.read_reasoning(at, &reasoning, builder, out);
        }
        self.blocks.entry(at.index).or_insert(ConverseBlock::Other);
        let kind = delta.fields().first().map(|field| field.key.to_string()).unwrap_or_default();
        out.push(StreamEvent::Other { at: Some(at), kind });
    }

    fn read_reasoning(
        &mut self,
        at: OutputPosition,
        delta: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        if let Some(data) = delta.string("redactedContent") {
            let block = self.blocks.entry(at.index).or_insert_with(|| ConverseBlock::Redacted(String::new()));
            if let ConverseBlock::Redacted(kept) = block {
                builder.append_text(kept, &data);
            }
            return out.push(StreamEvent::ReasoningSignature { at, signature: data.into_owned() });
        }
        let empty = || ConverseBlock::Reasoning { text: String::new(), signature: String::new() };
        let ConverseBlock::Reasoning { text: kept_text, signature: kept_signature } =
            self.blocks.entry(at.index).or_insert_with(empty)
        else {
            return;
        };
        if let Some(text) = delta.string("text") {
            builder.append_text(kept_text, &text);
            out.push(StreamEvent::ReasoningDelta { at, text: text.into_owned() });
        }
        if let Some(signature) = delta.string("signature") {
            builder.append_text(kept_signature, &signature);
            out.push(StreamEvent::ReasoningSignature { at, signature: signature.into_owned() });
        }
    }
}

impl ConverseBlock {
    /// Returns the block as in a message; `None` if it is not known.
    fn to_json(&self) -> Option<String> {
        Some(match self {
            ConverseBlock::Text(text) => format!(r#"{{"text":{}}}"#, quoted(text)),
            ConverseBlock::ToolUse { id, name, input, .. } => {
                let input = if input.trim().is_empty() { "{}" } else { input };
                // Truncated arguments are kept as a text, so that the rest is valid.
                let input = match serde_json::from_str::<serde::de::IgnoredAny>(input) {
                    Ok(_) => input.to_owned(),
                    Err(_) => quoted(input),
                };
                let (id, name) = (quoted(id), quoted(name));
                format!(r#"{{"toolUse":{{"toolUseId":{id},"name":{name},"input":{input}}}}}"#)
            }
            ConverseBlock::Reasoning { text, signature } => {
                let signature = match signature.as_str() {
                    "" => String::new(),
                    signature => format!(r#","signature":{}"#, quoted(signature)),
                };
                format!(r#"{{"reasoningContent":{{"reasoningText":{{"text":{}{signature}}}}}}}"#, quoted(text))
            }
            ConverseBlock::Redacted(data) => {
                format!(r#"{{"reasoningContent":{{"redactedContent":{}}}}}"#, quoted(data))
            }
            ConverseBlock::Other => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::Converse;
    use crate::wire::event_stream::event_message;
    use crate::wire::response::testing::body_summary;
    use crate::wire::{StreamEvent, StreamReader};

    #[test]
    fn body_with_reasoning_text_and_call_is_read() {
        let body = r#"{"output":{"message":{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"hm","signature":"s"}}},{"text":"Let me look."},{"toolUse":{"toolUseId":"t1","name":"ls","input":{"path":"."}}}]}},"stopReason":"tool_use","usage":{"inputTokens":10,"outputTokens":7,"totalTokens":17,"cacheReadInputTokens":90,"cacheWriteInputTokens":5,"cacheDetails":[{"ttl":"1h","inputTokens":5}]},"metrics":{"latencyMs":1}}"#;
        let summary = body_summary(Converse, body);
        assert!(summary.contains(r#"text Let me look. + call t1 ls {"path":"."} | ToolUse tool_use"#), "{summary}");
        assert!(summary.contains("in=105 read=90"), "{summary}");
        let refused = r#"{"message":"Input is too long for requested model."}"#;
        assert!(body_summary(Converse, refused).contains("error Input is too long"));
    }

    #[test]
    fn exception_and_damaged_message_are_reported() {
        let mut stream = event_message("messageStart", r#"{"role":"assistant"}"#);
        crate::wire::event_stream::write_exception(
            "validationException",
            "prompt is too long: 210000 tokens > 200000 maximum",
            &mut stream,
        );
        let mut damaged = event_message("contentBlockDelta", r#"{"delta":{"text":"x"},"contentBlockIndex":0}"#);
        let last = damaged.len() - 6;
        damaged[last] ^= 1;
        stream.extend(damaged);
        let mut reader = StreamReader::new(Converse);
        let events: Vec<StreamEvent> = reader.push(&stream).into_iter().map(|(_, event)| event).collect();
        assert!(
            matches!(&events[1], StreamEvent::Error { error, .. } if error.kind.as_deref() == Some("validationException")),
            "{events:?}"
        );
        assert!(matches!(&events[2], StreamEvent::Unreadable(_)), "{events:?}");
    }
}
