//! Ollama responses: one object, or a stream of lines of which the last has the end and the counts.
//!
//! A call arrives whole. The stop reason does not mention calls.

use crate::conversation::{Message, Part, Role};
use crate::wire::dialect::ollama::request::parse_call;
use crate::wire::dialect::ollama::usage::parse_usage;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::write::{json_array, quoted};
use crate::wire::request::number_calls;
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "message",
    framing: FrameKind::Line,
    envelope_key: None,
    parse_body: parse_response,
    new_stream: || Box::new(OllamaStream::default()),
};

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let message = body.object("message");
    let parts = message.map(|message| message_parts(&message)).unwrap_or_default();
    let mut message = Message::new(Role::Assistant, without_empty_parts(parts));
    number_calls(std::slice::from_mut(&mut message));
    let any_call = message.calls().next().is_some();
    Response {
        model: body.string("model"),
        stop: body.string("done_reason").map(|raw| StopInfo::from_raw(&raw).corrected_for_calls(any_call)),
        message,
        usage: parse_usage(body),
        error: body.get_non_null("error").map(|error| ApiError::from_error_value(error, body)),
        ..Response::empty()
    }
}

fn message_parts<'a>(message: &JsonObject<'a>) -> Vec<Part<'a>> {
    let thinking = message.text("thinking").map(Part::reasoning);
    let text = message.text("content").map(Part::text);
    let calls = message.elements("tool_calls").iter().map(|call| parse_call(call).0).collect::<Vec<_>>();
    thinking.into_iter().chain(text).chain(calls).collect()
}

/// State of a stream.
#[derive(Clone, Debug, Default)]
struct OllamaStream {
    thinking: String,
    text: String,
    /// The calls as JSON.
    calls: Vec<String>,
}

impl StreamParser for OllamaStream {
    fn read(
        &mut self,
        _: Option<&str>,
        line: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        if let Some(error) = line.get_non_null("error") {
            return builder.record_error(ApiError::from_error_value(error, line), out);
        }
        builder.record_identity(None, line.string("model"), out);
        let at = OutputPosition::default();
        if let Some(message) = line.object("message") {
            if let Some(text) = message.string("thinking").filter(|text| !text.is_empty()) {
                builder.append_text(&mut self.thinking, &text);
                out.push(StreamEvent::ReasoningDelta { at, text: text.into_owned() });
            }
            if let Some(text) = message.string("content").filter(|text| !text.is_empty()) {
                builder.append_text(&mut self.text, &text);
                out.push(StreamEvent::TextDelta { at, text: text.into_owned() });
            }
            message.elements("tool_calls").iter().for_each(|call| self.read_call(call, builder, out));
        }
        if line.get("done").and_then(JsonValue::bool) == Some(true) {
            builder.record_usage(parse_usage(line), out);
            if let Some(raw) = line.string("done_reason") {
                let stop = StopInfo::from_raw(&raw).corrected_for_calls(!self.calls.is_empty());
                builder.record_stop(0, stop, out);
            }
            builder.record_done("done", out);
        }
    }

    fn turn_json(&self) -> Vec<String> {
        let mut json = format!(r#"{{"role":"assistant","content":{}"#, quoted(&self.text));
        if !self.thinking.is_empty() {
            json += &format!(r#","thinking":{}"#, quoted(&self.thinking));
        }
        if !self.calls.is_empty() {
            json += &format!(r#","tool_calls":{}"#, json_array(self.calls.iter().map(String::as_str)));
        }
        json.push('}');
        vec![json]
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        let read = |message: &JsonObject<'_>| message_parts(message).into_iter().map(Part::into_owned).collect();
        let parts = self.turn_json().iter().flat_map(|json| parse_owned_parts(json, read)).collect();
        let mut message = Message::new(Role::Assistant, parts);
        number_calls(std::slice::from_mut(&mut message));
        message.parts
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl OllamaStream {
    fn read_call(&mut self, call: &JsonObject<'_>, builder: &mut ResponseBuilder, out: &mut Vec<StreamEvent>) {
        let function = call.object("function");
        let number = builder.next_call_number();
        let index = function.as_ref().and_then(|function| function.u64(&["index"])).unwrap_or(0);
        let at = OutputPosition { choice: 0, index };
        let name = function.as_ref().and_then(|function| function.string("name")).unwrap_or_default().into_owned();
        let id = call.string("id").unwrap_or_default().into_owned();
        out.push(StreamEvent::ToolCallOpened { at, call: number, id, name });
        let arguments =
            function.as_ref().and_then(|function| function.get("arguments")).map_or("{}", |value| value.raw());
        out.push(StreamEvent::ToolCallDelta { at, call: number, arguments: arguments.to_owned() });
        out.push(StreamEvent::ToolCallClosed { at, call: number });
        if builder.try_reserve(call.value.raw().len()) {
            self.calls.push(call.value.raw().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::Ollama;
    use crate::wire::response::testing::{assert_stream_matches_body, body_summary, stream_summary};

    const STREAM: &str = r#"{"model":"qwen3:8b","created_at":"2026-11-18T00:00:00Z","message":{"role":"assistant","content":"","thinking":"Think"},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:01Z","message":{"role":"assistant","content":"Let me "},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:02Z","message":{"role":"assistant","content":"look.","tool_calls":[{"id":"call_1","function":{"index":0,"name":"ls","arguments":{"path":"."}}}]},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-18T00:00:03Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":9,"prompt_eval_count":100,"eval_count":12}
"#;
    const BODY: &str = r#"{"model":"qwen3:8b","created_at":"2026-11-18T00:00:03Z","message":{"role":"assistant","content":"Let me look.","thinking":"Think","tool_calls":[{"id":"call_1","function":{"index":0,"name":"ls","arguments":{"path":"."}}}]},"done":true,"done_reason":"stop","total_duration":9,"prompt_eval_count":100,"eval_count":12}"#;

    #[test]
    fn stream_with_thinking_text_and_call_is_read() {
        let (events, response) = stream_summary(Ollama, STREAM);
        assert_eq!(
            events,
            concat!(
                "started qwen3:8b | thought 0 Think | text 0 Let me  | text 0 look. | call 0@0 call_1 ls",
                r#" | call 0@0 +{"path":"."} | call 0@0 closed | usage in=100 out=12 | stop ToolUse stop | done"#
            )
        );
        assert_eq!(
            response,
            concat!(
                r#"qwen3:8b: thought Think + text Let me look. + call call_1 ls {"path":"."} | ToolUse stop"#,
                " | in=100 out=12 | Complete"
            )
        );
        assert_stream_matches_body(Ollama, STREAM, BODY);
    }

    #[test]
    fn error_line_ends_an_interrupted_response() {
        let stream = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"done\":false}\n{\"error\":\"llama runner process has terminated\"}\n";
        let (events, response) = stream_summary(Ollama, stream);
        assert!(events.ends_with("error llama runner process has terminated [other]"), "{events}");
        assert!(response.contains("Interrupted"), "{response}");
        let refused = r#"{"error":"the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the context length in settings, or use a model with a longer context length"}"#;
        let (events, _) = stream_summary(Ollama, &format!("{refused}\n"));
        assert!(events.contains("overflow"), "{events}");
        assert!(body_summary(Ollama, refused).contains("error"));
    }

    #[test]
    fn length_and_load_are_read() {
        for (raw, reason) in [("stop", "EndTurn"), ("length", "MaxTokens"), ("load", "Other")] {
            let body = format!(
                r#"{{"model":"m","message":{{"role":"assistant","content":"x"}},"done":true,"done_reason":"{raw}"}}"#
            );
            assert!(body_summary(Ollama, &body).contains(&format!("{reason} {raw}")), "{raw}");
        }
    }
}
