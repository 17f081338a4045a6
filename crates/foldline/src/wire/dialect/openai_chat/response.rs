//! Chat Completions responses, from the many servers with this API.
//!
//! A chunk may contain text, reasoning, calls, the stop reason and counts at once, and servers deviate from OpenAI in
//! the fields that they use.

use std::collections::{BTreeMap, HashMap};

use crate::conversation::{Message, Part, Role};
use crate::wire::dialect::openai_chat::call_tracker::{CallDelta, CallShape, CallTracker};
use crate::wire::dialect::openai_chat::request::parse_message;
use crate::wire::dialect::openai_chat::usage::parse_usage;
use crate::wire::json::layout::BodyLayout;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::write::{json_array, quoted};
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "choices",
    framing: FrameKind::Event,
    envelope_key: None,
    parse_body: parse_response,
    new_stream: || Box::new(ChatStream::default()),
};

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let choices = body.elements("choices");
    let choice = choices.first();
    let parts =
        choice.and_then(|choice| choice.object("message")).map(|message| message_parts(&message)).unwrap_or_default();
    let any_call = parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
    let reason = choice.and_then(|choice| choice.string("finish_reason"));
    let error =
        |object: &JsonObject<'a>| object.get_non_null("error").map(|error| ApiError::from_error_value(error, object));
    Response {
        id: body.string("id"),
        model: body.string("model"),
        message: Message::new(Role::Assistant, without_empty_parts(parts)),
        stop: reason.map(|raw| StopInfo::from_raw(&raw).corrected_for_calls(any_call)),
        usage: parse_usage(body),
        error: error(body).or_else(|| choice.and_then(error)),
        ..Response::empty()
    }
}

fn message_parts<'a>(message: &JsonObject<'a>) -> Vec<Part<'a>> {
    let mut parts = parse_message(message, &mut BodyLayout::default()).parts;
    // The same reasoning may appear under two names.
    parts.dedup_by(|later, before| matches!(later, Part::Reasoning(_)) && later == before);
    parts
}

/// Field names of readable reasoning on different servers.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

/// State of a stream. The response keeps the first choice; events cover all choices.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatStream {
    text: String,
    refusal: String,
    reasoning: [String; REASONING_FIELDS.len()],
    /// Elements of `reasoning_details`, as JSON.
    details: Vec<String>,
    calls: Vec<StreamedCall>,
    tracker: CallTracker,
    /// The open calls of each choice.
    open_calls: HashMap<u64, Vec<usize>>,
}

#[derive(Clone, Debug, Default)]
struct StreamedCall {
    at: OutputPosition,
    id: String,
    name: String,
    arguments: String,
    shape: CallShape,
    /// Fields that belong to neither shape (Gemini's thought signatures), as JSON.
    extra: BTreeMap<String, String>,
    /// The number in the response, once the name is known.
    number: Option<usize>,
}

impl StreamParser for ChatStream {
    fn read(
        &mut self,
        _: Option<&str>,
        chunk: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let choices = chunk.elements("choices");
        if choices.is_empty() {
            if let Some(error) = ApiError::find(chunk.value) {
                return builder.record_error(error, out);
            }
        } else if let Some(error) = chunk.get_non_null("error") {
            builder.record_error(ApiError::from_error_value(error, chunk), out);
        }
        builder.record_start(chunk, out);
        for choice in choices.iter() {
            let number = choice.u64(&["index"]).unwrap_or(0);
            // Some servers send the whole message in place of a delta.
            if let Some(delta) = choice.object("delta").or_else(|| choice.object("message")) {
                self.apply_delta(number, &delta, builder, out);
            }
            if let Some(raw) = choice.string("finish_reason").filter(|raw| !raw.is_empty()) {
                self.finish_choice(number, &raw, builder, out);
            }
        }
        builder.record_usage(parse_usage(chunk), out);
        if out.is_empty() {
            let kind = chunk.string("object").unwrap_or_default().into_owned();
            out.push(StreamEvent::Other { at: None, kind });
        }
    }

    /// Returns the assistant's message to send back, as generated.
    fn turn_json(&self) -> Vec<String> {
        vec![self.to_json()]
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        parse_owned_parts(&self.to_json(), |message| message_parts(message).into_iter().map(Part::into_owned).collect())
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl ChatStream {
    fn apply_delta(
        &mut self,
        choice: u64,
        delta: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let at = OutputPosition { choice, index: 0 };
        let kept = choice == 0;
        let mut reasoning = None;
        for (key, sum) in REASONING_FIELDS.iter().zip(&mut self.reasoning) {
            if let Some(text) = delta.string(key).filter(|text| !text.is_empty()) {
                if kept {
                    builder.append_text(sum, &text);
                }
                reasoning.get_or_insert(text.into_owned());
            }
        }
        out.extend(reasoning.map(|text| StreamEvent::ReasoningDelta { at, text }));
        for detail in delta.elements("reasoning_details").iter().filter(|_| kept) {
            if builder.try_reserve(detail.value.raw().len()) {
                self.details.push(detail.value.raw().to_owned());
            }
        }
        if let Some(content) = delta.get_non_null("content") {
            self.apply_content(at, content, builder, out);
        }
        if let Some(refusal) = delta.string("refusal").filter(|_| kept) {
            builder.append_text(&mut self.refusal, &refusal);
        }
        for call in delta.elements("tool_calls").iter() {
            let (shape, function) = match call.object("custom") {
                Some(custom) => (CallShape::Custom, Some(custom)),
                None => (CallShape::Function, call.object("function")),
            };
            self.apply_call_delta(choice, call, function, shape, builder, out);
        }
        if let Some(function) = delta.object("function_call") {
            self.apply_call_delta(choice, &function.clone(), Some(function), CallShape::LegacyFunction, builder, out);
        }
    }

    /// Reads content: a text, or a list of texts and reasoning (Mistral).
    fn apply_content(
        &mut self,
        at: OutputPosition,
        content: JsonValue<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let mut emit = |text: &str, kept: &mut String, event: fn(OutputPosition, String) -> StreamEvent| {
            if text.is_empty() {
                return;
            }
            if at.choice == 0 {
                builder.append_text(kept, text);
            }
            out.push(event(at, text.to_owned()));
        };
        let output: fn(OutputPosition, String) -> StreamEvent = |at, text| StreamEvent::TextDelta { at, text };
        let reasoning: fn(OutputPosition, String) -> StreamEvent = |at, text| StreamEvent::ReasoningDelta { at, text };
        if let Some(text) = content.string() {
            return emit(&text, &mut self.text, output);
        }
        for part in content.elements() {
            match part.string("thinking") {
                Some(text) => emit(&text, &mut self.reasoning[0], reasoning),
                None => part.elements("thinking").iter().filter_map(|piece| piece.string("text")).for_each(|text| {
                    emit(&text, &mut self.reasoning[0], reasoning);
                }),
            }
            if let Some(text) = part.string("text") {
                emit(&text, &mut self.text, output);
            }
        }
    }

    fn apply_call_delta(
        &mut self,
        choice: u64,
        delta: &JsonObject<'_>,
        function: Option<JsonObject<'_>>,
        shape: CallShape,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let text = |key: &str| function.as_ref().and_then(|function| function.string(key)).unwrap_or_default();
        let (id, name) = (delta.string("id").unwrap_or_default(), text("name"));
        let written = function
            .as_ref()
            .and_then(|function| function.get_non_null(if shape == CallShape::Custom { "input" } else { "arguments" }));
        // Some servers send the arguments as an object instead of JSON text.
        let arguments = written.map(|value| value.string().unwrap_or(value.raw().into())).unwrap_or_default();
        let mention = CallDelta { choice, index: delta.u64(&["index"]), id: &id, name: &name, shape };
        let slot = match self.tracker.find(mention) {
            Some(slot) => slot,
            None if builder.try_reserve(size_of::<StreamedCall>() + id.len()) => {
                let at = OutputPosition { choice, index: mention.index.unwrap_or(0) };
                self.calls.push(StreamedCall { at, shape, ..StreamedCall::default() });
                let slot = self.tracker.add(mention);
                self.open_calls.entry(choice).or_default().push(slot);
                slot
            }
            None => return,
        };
        self.tracker.record_delta(slot, mention);
        let call = &mut self.calls[slot];
        if call.id.is_empty() {
            builder.append_text(&mut call.id, &id);
        }
        if !name.is_empty() && call.name != *name {
            builder.append_text(&mut call.name, &name);
        }
        builder.append_text(&mut call.arguments, &arguments);
        for field in delta.fields().iter().filter(|_| shape != CallShape::LegacyFunction) {
            let known = ["index", "id", "type", "function", "custom"].contains(&field.key.as_ref());
            let (key, value) = (field.key.as_ref(), field.value.raw());
            if !known && !call.extra.contains_key(key) && builder.try_reserve(key.len() + value.len()) {
                call.extra.insert(key.to_owned(), value.to_owned());
            }
        }
        let at = call.at;
        match call.number {
            Some(number) if !arguments.is_empty() => {
                out.push(StreamEvent::ToolCallDelta { at, call: number, arguments: arguments.into_owned() });
            }
            None if !call.name.is_empty() => {
                let number = builder.next_call_number();
                call.number = Some(number);
                out.push(StreamEvent::ToolCallOpened {
                    at,
                    call: number,
                    id: call.id.clone(),
                    name: call.name.clone(),
                });
                if !call.arguments.is_empty() {
                    out.push(StreamEvent::ToolCallDelta { at, call: number, arguments: call.arguments.clone() });
                }
            }
            _ => {}
        }
    }

    fn finish_choice(&mut self, choice: u64, raw: &str, builder: &mut ResponseBuilder, out: &mut Vec<StreamEvent>) {
        for slot in self.open_calls.remove(&choice).unwrap_or_default() {
            let call = &mut self.calls[slot];
            let number = *call.number.get_or_insert_with(|| {
                let number = builder.next_call_number();
                let (id, name) = (call.id.clone(), String::new());
                out.push(StreamEvent::ToolCallOpened { at: call.at, call: number, id, name });
                number
            });
            out.push(StreamEvent::ToolCallClosed { at: call.at, call: number });
        }
        builder.record_stop(choice, StopInfo::from_raw(raw).corrected_for_calls(self.tracker.has_calls(choice)), out);
    }

    /// Returns the message in the form of a JSON body.
    fn to_json(&self) -> String {
        let content = if self.text.is_empty() { "null".to_owned() } else { quoted(&self.text) };
        let mut json = format!(r#"{{"role":"assistant","content":{content}"#);
        let mut write = |key: &str, value: String| json.push_str(&format!(",{}:{value}", quoted(key)));
        for (key, text) in REASONING_FIELDS.iter().zip(&self.reasoning).filter(|(_, text)| !text.is_empty()) {
            write(key, quoted(text));
        }
        if !self.details.is_empty() {
            write("reasoning_details", json_array(self.details.iter().map(String::as_str)));
        }
        if !self.refusal.is_empty() {
            write("refusal", quoted(&self.refusal));
        }
        let calls = || self.calls.iter().filter(|call| call.at.choice == 0);
        if let Some(call) = calls().find(|call| call.shape == CallShape::LegacyFunction) {
            write("function_call", call.function_json());
        }
        let listed: Vec<String> =
            calls().filter(|call| call.shape != CallShape::LegacyFunction).map(StreamedCall::to_json).collect();
        if !listed.is_empty() {
            write("tool_calls", json_array(listed.iter().map(String::as_str)));
        }
        json.push('}');
        json
    }
}

impl StreamedCall {
    fn to_json(&self) -> String {
        let kind = if self.shape == CallShape::Custom { "custom" } else { "function" };
        let mut json = format!(r#"{{"id":{},"type":"{kind}","{kind}":{}"#, quoted(&self.id), self.function_json());
        for (key, value) in &self.extra {
            json.push_str(&format!(",{}:{value}", quoted(key)));
        }
        json.push('}');
        json
    }

    fn function_json(&self) -> String {
        let key = if self.shape == CallShape::Custom { "input" } else { "arguments" };
        format!(r#"{{"name":{},"{key}":{}}}"#, quoted(&self.name), quoted(&self.arguments))
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::OpenAiChat as CHAT;
    use crate::wire::response::testing::{assert_stream_matches_body, body_summary, stream_summary};

    #[test]
    fn openai_text_stream_is_read() {
        let stream = r#"
data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"c1","model":"gpt-4o","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}],"usage":null,"obfuscation":"xx"}

data: {"id":"c1","model":"gpt-4o","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}],"usage":null}

data: {"id":"c1","model":"gpt-4o","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}

data: {"id":"c1","model":"gpt-4o","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":9,"total_tokens":109,"prompt_tokens_details":{"cached_tokens":64,"cache_write_tokens":30},"completion_tokens_details":{"reasoning_tokens":4}}}

data: [DONE]

"#;
        let (events, response) = stream_summary(CHAT, stream);
        assert_eq!(
            events,
            "started c1 gpt-4o | text 0 Hel | text 0 lo | stop EndTurn stop \
             | usage in=100 read=64 write=30 out=9 reasoning=4 | done"
        );
        assert_eq!(
            response,
            "c1 gpt-4o: text Hello | EndTurn stop | in=100 read=64 write=30 out=9 reasoning=4 | Complete"
        );
        assert_stream_matches_body(
            CHAT,
            stream,
            r#"{"id":"c1","object":"chat.completion","model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"finish_reason":"stop"}],
                "usage":{"prompt_tokens":100,"completion_tokens":9,"total_tokens":109,"prompt_tokens_details":{"cached_tokens":64,"cache_write_tokens":30},"completion_tokens_details":{"reasoning_tokens":4}}}"#,
        );
    }

    #[test]
    fn parallel_calls_are_assembled_by_index() {
        let stream = r#"
data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"read","arguments":""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"list","arguments":""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"index":1,"function":{"arguments":"{}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;
        let (events, _) = stream_summary(CHAT, stream);
        assert_eq!(
            events,
            r#"started c m | call 0@0 a read | call 0@0 +{"p": | call 1@1 b list | call 0@0 +1} | call 1@1 +{} | call 0@0 closed | call 1@1 closed | stop ToolUse tool_calls | done"#
        );
        assert_stream_matches_body(
            CHAT,
            stream,
            r#"{"id":"c","model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[
                {"id":"a","type":"function","function":{"name":"read","arguments":"{\"p\":1}"}},{"id":"b","type":"function","function":{"name":"list","arguments":"{}"}}]}}]}"#,
        );
    }

    #[test]
    fn complete_calls_in_one_chunk_need_no_index() {
        // Ollama and Gemini's compatible API; the stop reason does not mention the calls.
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"read","arguments":"{\"x\":2}"}}]},"finish_reason":"stop"}]}

data: [DONE]

"#,
        );
        assert_eq!(
            events,
            r#"started c m | call 0@0 a read | call 0@0 +{} | call 1@0 b read | call 1@0 +{"x":2} | call 0@0 closed | call 1@0 closed | stop ToolUse stop | done"#
        );
        assert_eq!(response, r#"c m: call a read {} + call b read {"x":2} | ToolUse stop | Complete"#);
    }

    #[test]
    fn calls_without_index_and_id_are_separated_by_name() {
        let (_, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"read","arguments":"{\"a\":1}"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"read","arguments":"{\"b\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":":2}"}}]},"finish_reason":"tool_calls"}]}

"#,
        );
        assert_eq!(response, r#": call  read {"a":1} + call  read {"b":2} | ToolUse tool_calls | Complete"#);
    }

    #[test]
    fn changed_id_at_same_index_starts_a_new_call() {
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"{}"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"list","arguments":"{"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"list","arguments":"}"}}]},"finish_reason":"tool_calls"}]}

"#,
        );
        assert!(events.contains("call 1@0 b list"), "{events}");
        assert_eq!(response, r#": call a read {} + call b list {} | ToolUse tool_calls | Complete"#);
    }

    #[test]
    fn same_id_at_another_index_is_another_call() {
        let (_, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":"{}"}},{"index":1,"id":"x","function":{"name":"list","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}

"#,
        );
        assert_eq!(response, ": call x read {} + call x list {} | ToolUse tool_calls | Complete");
    }

    #[test]
    fn repeated_id_and_name_open_one_call() {
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"{\"p\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":":1}"}}]}}]}

data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}

"#,
        );
        assert_eq!(events.matches("call 0@0 a read").count(), 1);
        assert_eq!(response, r#": call a read {"p":1} | ToolUse tool_calls | Complete"#);
    }

    #[test]
    fn late_name_opens_the_call() {
        let (events, _) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"read","arguments":"}"}}]}}]}

data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}

"#,
        );
        assert_eq!(events, "started | call 0@0 a read | call 0@0 +{} | call 0@0 closed | stop ToolUse tool_calls");
    }

    #[test]
    fn reasoning_is_read_from_three_fields_without_duplicates() {
        for key in ["reasoning_content", "reasoning", "reasoning_text"] {
            let stream = r#"
data: {"choices":[{"delta":{"KEY":"hm"}}]}

data: {"choices":[{"delta":{"content":"so"},"finish_reason":"stop"}]}

"#;
            let (events, response) = stream_summary(CHAT, &stream.replace("KEY", key));
            assert_eq!(events, "started | thought 0 hm | text 0 so | stop EndTurn stop");
            assert_eq!(response, ": thought hm + text so | EndTurn stop | Complete");
        }
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm","signature":"s"}]},"finish_reason":"stop"}]}

"#,
        );
        assert_eq!(events, "started | thought 0 hm | stop EndTurn stop");
        assert_eq!(
            response,
            r#": thought hm + opaque reasoning_details [{"type":"reasoning.text","text":"hm","signature":"s"}] | EndTurn stop | Complete"#
        );
    }

    #[test]
    fn content_may_be_a_list_of_thinking_and_text() {
        let (events, _) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}}]}

data: {"choices":[{"delta":{"content":[{"type":"text","text":"so"}]}}]}

"#,
        );
        assert_eq!(events, "started | thought 0 hm | text 0 so");
    }

    #[test]
    fn usage_is_read_from_every_known_field() {
        let usage = |chunk: &str| {
            let (events, _) = stream_summary(CHAT, &format!("data: {chunk}\n\n"));
            events.split(" | ").filter(|event| event.starts_with("usage")).collect::<Vec<_>>().join(" | ")
        };
        // vLLM: on every chunk, with its cache writes.
        assert_eq!(
            usage(
                r#"{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":10,"total_tokens":11,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4,"created_cache_tokens":6}}}"#
            ),
            "usage in=10 read=4 write=6 out=1"
        );
        // Moonshot: inside the choice, next to the stop reason.
        assert_eq!(
            usage(
                r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":8}}]}"#
            ),
            "usage in=10 read=8 out=2"
        );
        // DeepSeek.
        assert_eq!(
            usage(
                r#"{"choices":[],"usage":{"prompt_tokens":30,"prompt_cache_hit_tokens":20,"prompt_cache_miss_tokens":10,"completion_tokens":5}}"#
            ),
            "usage in=30 read=20 out=5"
        );
        // OpenRouter.
        assert_eq!(
            usage(
                r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5,"cost":0.01,"prompt_tokens_details":{"cached_tokens":1,"cache_write_tokens":2}}}"#
            ),
            "usage in=30 read=1 write=2 out=5"
        );
        // llama.cpp: `timings` contain the cache reads, and may be the only counts.
        assert_eq!(
            usage(
                r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5},"timings":{"cache_n":25,"prompt_n":5,"predicted_n":5}}"#
            ),
            "usage in=30 read=25 out=5"
        );
        assert_eq!(
            usage(r#"{"choices":[],"timings":{"cache_n":25,"prompt_n":5,"predicted_n":7}}"#),
            "usage in=30 read=25 out=7"
        );
        // xAI: reasoning is not part of the completion count.
        assert_eq!(
            usage(
                r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5,"total_tokens":45,"completion_tokens_details":{"reasoning_tokens":10}}}"#
            ),
            "usage in=30 out=15 reasoning=10"
        );
        assert_eq!(usage(r#"{"choices":[],"usage":null}"#), "");
    }

    #[test]
    fn error_in_the_stream_is_classified() {
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"id":"c","model":"m","choices":[{"delta":{"content":"x"}}]}

data: {"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}

"#,
        );
        assert!(
            events.contains("| error context_length_exceeded: This model's") && events.ends_with("[overflow 8192]")
        );
        assert!(response.ends_with("| Interrupted"), "{response}");

        let (events, _) = stream_summary(CHAT, "data: {\"error\":\"model crashed\"}\n\n");
        assert_eq!(events, "error model crashed [other]");
        let (events, _) = stream_summary(CHAT, "data: {\"object\":\"error\",\"message\":\"bad\",\"code\":400}\n\n");
        assert_eq!(events, "error 400: bad [other]");
    }

    #[test]
    fn first_choice_is_kept_events_carry_their_choice() {
        let (events, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{"content":"a"}}]}

data: {"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

"#,
        );
        assert_eq!(events, "started | text 1.0 b | text 0 a | stop#1 MaxTokens length | stop EndTurn stop");
        assert_eq!(response, ": text a | EndTurn stop | Complete");
    }

    #[test]
    fn legacy_and_unusual_bodies_are_read() {
        for (text, expected) in [
            (
                r#"{"choices":[{"message":{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},"finish_reason":"function_call"}]}"#,
                ": call f f {} | ToolUse function_call | Complete",
            ),
            (
                r#"{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"x","type":"custom","custom":{"name":"patch","input":"*** a"}}]},"finish_reason":"stop"}]}"#,
                ": call x patch *** a | ToolUse stop | Complete",
            ),
            (
                r#"{"choices":[{"message":{"content":"cut"},"finish_reason":"model_context_window_exceeded"}]}"#,
                ": text cut | ContextFull model_context_window_exceeded | Complete",
            ),
            (
                r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#,
                r#": opaque refusal "no" | EndTurn stop | Complete"#,
            ),
            (
                r#"{"choices":[{"message":{"content":""},"finish_reason":"error","error":{"code":502,"message":"gone"}}]}"#,
                ": | Other error | error 502: gone | Complete",
            ),
            (r#"{"choices":[]}"#, ": | Complete"),
            (r#"{"error":{"message":"no","code":"c"}}"#, ": | error c: no | Complete"),
        ] {
            assert_eq!(body_summary(CHAT, text), expected, "{text}");
        }
    }

    #[test]
    fn legacy_function_call_streams_as_one_call() {
        let (_, response) = stream_summary(
            CHAT,
            r#"
data: {"choices":[{"delta":{"role":"assistant","function_call":{"name":"f","arguments":""}}}]}

data: {"choices":[{"delta":{"function_call":{"arguments":"{}"}}}]}

data: {"choices":[{"delta":{},"finish_reason":"function_call"}]}

"#,
        );
        assert_eq!(response, ": call f f {} | ToolUse function_call | Complete");
    }
}
