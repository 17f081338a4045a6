//! The hidden tool: offered, called, answered, and invisible to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use foldline::testing::event_message;
use foldline::wire::{Format, Request, Response, StopReason, StreamReader};
use foldline::{Message, Meter, ModelTable, Part};
use foldline_archive::Archive;
use foldline_server::proxy::{ProxySettings, Timeouts};
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body, user_message};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};

pub(crate) const FORMATS: [Format; 3] = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];

/// The same, and formats whose streams are not server-sent events.
const STREAM_FORMATS: [Format; 6] =
    [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic, Format::Gemini, Format::Ollama, Format::Converse];

/// Returns the path of requests for a stream.
pub(crate) fn stream_endpoint(format: Format) -> &'static str {
    match format {
        Format::Gemini => "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        Format::Converse => "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream",
        _ => endpoint(format),
    }
}

/// A call in a scripted response.
pub(crate) struct ReplyCall {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) arguments: String,
}

impl ReplyCall {
    pub(crate) fn unfold(received: &ReceivedRequest) -> Self {
        let text = String::from_utf8(received.body.to_vec()).unwrap();
        let handle = foldline::engine::marker::handles(&text).next().expect("something is folded");
        Self { id: "call_hidden", name: "unfold", arguments: json!({ "handle": handle }).to_string() }
    }

    pub(crate) fn client_tool() -> Self {
        Self { id: "call_shell", name: "read_file", arguments: json!({ "path": "x" }).to_string() }
    }
}

/// Returns one round of a response as a stream; an empty text is omitted.
pub(crate) fn streamed_reply(format: Format, text: &str, calls: &[ReplyCall]) -> UpstreamReply {
    let mut events: Vec<Value> = Vec::new();
    match format {
        Format::OpenAiChat => {
            let chunk = |delta: Value, finish: Value| json!({ "id": "c", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
            events.push(chunk(json!({ "role": "assistant", "content": text }), Value::Null));
            for (index, call) in calls.iter().enumerate() {
                events.push(chunk(json!({ "tool_calls": [{ "index": index, "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } }] }), Value::Null));
            }
            events.push(chunk(json!({}), json!(if calls.is_empty() { "stop" } else { "tool_calls" })));
        }
        Format::OpenAiResponses => {
            let mut items = Vec::new();
            events.push(
                json!({ "type": "response.created", "response": { "id": "r", "status": "in_progress", "output": [] } }),
            );
            let message = json!({ "type": "message", "id": format!("msg_{}", text.len()), "role": "assistant", "status": "completed", "content": [{ "type": "output_text", "text": text, "annotations": [] }] });
            items.extend((!text.is_empty()).then_some(message));
            for call in calls {
                items.push(json!({ "type": "function_call", "id": format!("fc_{}", call.id), "call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed" }));
            }
            for (index, item) in items.iter().enumerate() {
                events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
                events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
            }
            events.push(json!({ "type": "response.completed", "response": { "id": "r", "status": "completed", "output": items } }));
            for (number, event) in events.iter_mut().enumerate() {
                event["sequence_number"] = number.into();
            }
        }
        Format::Anthropic => {
            events.push(json!({ "type": "message_start", "message": { "id": "m", "role": "assistant", "content": [], "usage": { "input_tokens": 9, "output_tokens": 1 } } }));
            if !text.is_empty() {
                let (block, delta) =
                    (json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": text }));
                events.extend([
                    json!({ "type": "content_block_start", "index": 0, "content_block": block }),
                    json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
                    json!({ "type": "content_block_stop", "index": 0 }),
                ]);
            }
            for (index, call) in calls.iter().enumerate() {
                let index = index + usize::from(!text.is_empty());
                events.push(json!({ "type": "content_block_start", "index": index, "content_block": { "type": "tool_use", "id": call.id, "name": call.name, "input": {} } }));
                events.push(json!({ "type": "content_block_delta", "index": index, "delta": { "type": "input_json_delta", "partial_json": call.arguments } }));
                events.push(json!({ "type": "content_block_stop", "index": index }));
            }
            let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
            events.push(
                json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 5 } }),
            );
            events.push(json!({ "type": "message_stop" }));
        }
        Format::Ollama => {
            let line = |message: Value| json!({ "model": "qwen3:8b", "message": message, "done": false });
            events.push(line(json!({ "role": "assistant", "content": text })));
            for (index, call) in calls.iter().enumerate() {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                let call =
                    json!({ "id": call.id, "function": { "index": index, "name": call.name, "arguments": arguments } });
                events.push(line(json!({ "role": "assistant", "content": "", "tool_calls": [call] })));
            }
            let mut end = line(json!({ "role": "assistant", "content": "" }));
            (end["done"], end["done_reason"]) = (true.into(), "stop".into());
            (end["prompt_eval_count"], end["eval_count"]) = (0.into(), 5.into());
            events.push(end);
            let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
            return UpstreamReply::Body(200, "application/x-ndjson", lines);
        }
        Format::Converse => {
            let delta = |index: usize, delta: Value| json!({ "contentBlockIndex": index, "delta": delta });
            let mut messages = vec![("messageStart", json!({ "role": "assistant" }))];
            let mut index = 0;
            if !text.is_empty() {
                messages.push(("contentBlockDelta", delta(index, json!({ "text": text }))));
                messages.push(("contentBlockStop", json!({ "contentBlockIndex": index })));
                index += 1;
            }
            for call in calls {
                let start = json!({ "toolUse": { "toolUseId": call.id, "name": call.name } });
                messages.push(("contentBlockStart", json!({ "contentBlockIndex": index, "start": start })));
                messages.push(("contentBlockDelta", delta(index, json!({ "toolUse": { "input": call.arguments } }))));
                messages.push(("contentBlockStop", json!({ "contentBlockIndex": index })));
                index += 1;
            }
            let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
            messages.push(("messageStop", json!({ "stopReason": stop })));
            let usage = json!({ "inputTokens": 9, "outputTokens": 5, "totalTokens": 14 });
            messages.push(("metadata", json!({ "usage": usage, "metrics": { "latencyMs": 1 } })));
            let bytes = messages.iter().flat_map(|(name, data)| event_message(name, &data.to_string())).collect();
            return UpstreamReply::Binary("application/vnd.amazon.eventstream", bytes);
        }
        Format::Gemini => {
            let chunk = |parts: Value| json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "index": 0 }], "modelVersion": "gemini-2.5-pro", "responseId": "r" });
            events.extend((!text.is_empty()).then(|| chunk(json!([{ "text": text }]))));
            for call in calls {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                events
                    .push(chunk(json!([{ "functionCall": { "id": call.id, "name": call.name, "args": arguments } }])));
            }
            let mut end = chunk(json!([{ "text": "" }]));
            end["candidates"][0]["finishReason"] = "STOP".into();
            end["usageMetadata"] = json!({ "promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14 });
            events.push(end);
        }
    }
    let mut lines: Vec<String> = events
        .iter()
        .map(|event| match event["type"].as_str() {
            Some(name) => format!("event: {name}\ndata: {event}\n\n"),
            None => format!("data: {event}\n\n"),
        })
        .collect();
    if format == Format::OpenAiChat {
        lines.push("data: [DONE]\n\n".into());
    }
    UpstreamReply::stream(lines)
}

/// Returns true if the last message of a request is the result of the hidden call.
pub(crate) fn was_answered(format: Format, received: &ReceivedRequest) -> bool {
    let request = Request::parse(format, &received.body).unwrap();
    request.conversation().messages.last().unwrap().results().any(|result| result.call_id == "call_hidden")
}

pub(crate) fn small_window_settings() -> ProxySettings {
    ProxySettings { window: Some(16_000), ..settings() }
}

pub(crate) fn streaming_body(format: Format, messages: &[Value]) -> String {
    match format {
        // The path requests the stream.
        Format::Gemini | Format::Converse => request_body(format, messages),
        _ => request_body(format, messages).replacen('{', r#"{"stream":true,"#, 1),
    }
}

/// Parses a stream as a client's library does.
pub(crate) fn parse_stream(format: Format, stream: &[u8]) -> Response<'static> {
    let mut reader = StreamReader::new(format);
    reader.push(stream);
    reader.finish()
}

pub(crate) fn raw_messages(format: Format, received: &ReceivedRequest) -> Vec<String> {
    let request = Request::parse(format, &received.body).unwrap();
    (0..).map_while(|at| request.raw_message(at)).map(str::to_owned).collect()
}

pub(crate) fn sent_messages(format: Format, received: &ReceivedRequest) -> Vec<Message<'static>> {
    let request = Request::parse(format, &received.body).unwrap();
    request.conversation().messages.iter().map(|message| message.clone().into_owned()).collect()
}

/// Returns the response as the client adds it to its next request.
pub(crate) fn assistant_messages(format: Format, response: &Response<'_>) -> Vec<Value> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    match format {
        Format::OpenAiChat => {
            let calls: Vec<Value> = response.calls().map(|call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments.as_str() } })).collect();
            let mut message = json!({ "role": "assistant", "content": response.text() });
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            vec![message]
        }
        Format::OpenAiResponses => {
            let item = |part: &Part<'_>| match part {
                Part::ToolCall(call) => {
                    json!({ "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments.as_str() })
                }
                part => {
                    json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": part.as_text().unwrap() }] })
                }
            };
            response.message.parts.iter().map(item).collect()
        }
        Format::Anthropic => {
            let block = |part: &Part<'_>| match part {
                Part::ToolCall(call) => {
                    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": serde_json::from_str::<Value>(call.arguments.as_str()).unwrap() })
                }
                part => text(part.as_text().unwrap()),
            };
            let blocks: Vec<Value> = response.message.parts.iter().map(block).collect();
            vec![json!({ "role": "assistant", "content": blocks })]
        }
        Format::Ollama => {
            let arguments = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let calls: Vec<Value> = response
                .calls()
                .map(|call| json!({ "function": { "name": call.name, "arguments": arguments(call.arguments.as_str()) } }))
                .collect();
            let mut message = json!({ "role": "assistant", "content": response.text() });
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            vec![message]
        }
        Format::Converse => {
            let block = |part: &Part<'_>| match part {
                Part::ToolCall(call) => {
                    json!({ "toolUse": { "toolUseId": call.id, "name": call.name, "input": serde_json::from_str::<Value>(call.arguments.as_str()).unwrap() } })
                }
                part => json!({ "text": part.as_text().unwrap() }),
            };
            let blocks: Vec<Value> = response.message.parts.iter().map(block).collect();
            vec![json!({ "role": "assistant", "content": blocks })]
        }
        Format::Gemini => {
            let part = |part: &Part<'_>| match part {
                Part::ToolCall(call) => {
                    json!({ "functionCall": { "id": call.id, "name": call.name, "args": serde_json::from_str::<Value>(call.arguments.as_str()).unwrap() } })
                }
                part => json!({ "text": part.as_text().unwrap() }),
            };
            let parts: Vec<Value> = response.message.parts.iter().map(part).collect();
            vec![json!({ "role": "model", "parts": parts })]
        }
    }
}

/// Returns the result of a call of `read_file`.
fn result_message(format: Format, id: &str, text: &str) -> Value {
    match format {
        Format::OpenAiChat => json!({ "role": "tool", "tool_call_id": id, "content": text }),
        Format::OpenAiResponses => json!({ "type": "function_call_output", "call_id": id, "output": text }),
        Format::Anthropic => {
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": text }] })
        }
        Format::Ollama => json!({ "role": "tool", "tool_name": "read_file", "content": text }),
        Format::Converse => {
            let result = json!({ "toolUseId": id, "content": [{ "text": text }] });
            json!({ "role": "user", "content": [{ "toolResult": result }] })
        }
        Format::Gemini => {
            let result = json!({ "id": id, "name": "read_file", "response": { "output": text } });
            json!({ "role": "user", "parts": [{ "functionResponse": result }] })
        }
    }
}

/// Starts a harness whose session has just creased, so that there is room for unfolded text. Returns it with the number
/// of turns. The model unfolds while `unfolds` is true.
async fn start_creased(format: Format, archive: Archive, unfolds: Arc<AtomicBool>) -> (ProxyHarness, usize) {
    let harness = ProxyHarness::start(small_window_settings(), Some(archive), move |received| {
        match unfolds.load(Ordering::SeqCst) && !was_answered(format, received) {
            true => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
            false => streamed_reply(format, "It is 42.", &[]),
        }
    })
    .await;
    let mut previous = Vec::new();
    for turns in 8..60 {
        harness.post(stream_endpoint(format), streaming_body(format, &agent_messages(format, turns))).await;
        let current = raw_messages(format, harness.received().last().unwrap());
        if !current.starts_with(&previous) {
            return (harness, turns);
        }
        previous = current;
    }
    panic!("no crease");
}

/// The model produces text, unfolds, and answers; the client sees one response. In its next request the hidden call is
/// restored at its position, and what was sent before is sent again byte for byte.
#[tokio::test]
async fn call_is_answered_in_stream_and_restored_in_next_request() {
    for format in STREAM_FORMATS {
        let kept = temp_archive();
        let unfolds = Arc::new(AtomicBool::new(false));
        let (harness, turns) = start_creased(format, kept.archive.clone(), unfolds.clone()).await;
        unfolds.store(true, Ordering::SeqCst);
        let sent_before = harness.received().len();
        let mut messages = agent_messages(format, turns);
        let got = harness.post(stream_endpoint(format), streaming_body(format, &messages)).await;
        assert!(
            got.is_complete && !got.lossy_text().contains("unfold") && !got.lossy_text().contains("call_hidden"),
            "{}",
            got.lossy_text()
        );
        let response = parse_stream(format, &got.body);
        assert_eq!(response.text(), "Let me see. It is 42.", "{format:?}");
        assert_eq!(response.stop.as_ref().unwrap().reason, StopReason::EndTurn, "{format:?}");
        let received = harness.received().split_off(sent_before);
        assert_eq!(received.len(), 2, "{format:?}");
        let (first, second) = (raw_messages(format, &received[0]), raw_messages(format, &received[1]));
        assert!(second.starts_with(&first), "{format:?}");
        assert!(second.last().unwrap().contains("let value_"), "the original: {:?}", second.last());

        unfolds.store(false, Ordering::SeqCst);
        messages.extend(assistant_messages(format, &response));
        messages.push(user_message(format, "And twice that?"));
        harness.post(stream_endpoint(format), streaming_body(format, &messages)).await;
        let third = raw_messages(format, harness.received().last().unwrap());
        assert!(third.starts_with(&first), "{format:?}");
        // The client's own copy of an item may be formatted differently from the provider's.
        let (previous, current) =
            (sent_messages(format, &received[1]), sent_messages(format, harness.received().last().unwrap()));
        assert!(current.starts_with(&previous), "{format:?}: {:#?}", &third[first.len()..]);
        assert!(third[second.len()].contains("It is 42."), "{:?}", third[second.len()]);
        // Hidden rounds are durable: another proxy restores them as well.
        let other = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |_| {
            streamed_reply(format, "84.", &[])
        })
        .await;
        other.post(stream_endpoint(format), streaming_body(format, &messages)).await;
        let again = raw_messages(format, &other.only_request());
        let differs = again.iter().zip(&third).find(|(again, third)| again != third);
        assert!(again == third, "{format:?}: {} and {} messages; {differs:#?}", again.len(), third.len());
    }
}

/// The same without a stream.
#[tokio::test]
async fn call_is_answered_in_a_buffered_response() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        let content = match was_answered(format, received) {
            false => {
                let call = ReplyCall::unfold(received);
                let input: Value = serde_json::from_str(&call.arguments).unwrap();
                json!([{ "type": "text", "text": "Let me see." }, { "type": "tool_use", "id": call.id, "name": call.name, "input": input }])
            }
            true => json!([{ "type": "text", "text": "42." }]),
        };
        let stop = if content.as_array().unwrap().len() > 1 { "tool_use" } else { "end_turn" };
        UpstreamReply::json(json!({ "id": "m", "type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": { "input_tokens": 5, "output_tokens": 5 } }).to_string())
    })
    .await;
    let got = harness.post("/v1/messages", request_body(format, &agent_messages(format, 40))).await;
    assert!(!got.lossy_text().contains("unfold"), "{}", got.lossy_text());
    let response = Response::parse(format, &got.body).unwrap();
    assert_eq!((response.text().as_str(), response.calls().count()), ("Let me see.42.", 0));
    assert_eq!(harness.received().len(), 2);
}

/// The model calls the client's tool and ours in one turn: the client answers its own, and both results are sent
/// together.
#[tokio::test]
async fn call_mixed_with_client_call_is_answered_next_request() {
    for format in STREAM_FORMATS {
        let kept = temp_archive();
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
            let text = String::from_utf8_lossy(&received.body).into_owned();
            match text.contains("call_shell") {
                false => streamed_reply(format, "Both. ", &[ReplyCall::unfold(received), ReplyCall::client_tool()]),
                true => streamed_reply(format, "Done.", &[]),
            }
        })
        .await;
        let mut messages = agent_messages(format, 40);
        let got = harness.post(stream_endpoint(format), streaming_body(format, &messages)).await;
        let response = parse_stream(format, &got.body);
        let calls: Vec<&str> = response.calls().map(|call| call.name.as_ref()).collect();
        assert_eq!(calls, ["read_file"], "{format:?}: {}", got.lossy_text());
        assert_eq!(harness.received().len(), 1);

        messages.extend(assistant_messages(format, &response));
        messages.push(result_message(format, "call_shell", "ok"));
        let got = harness.post(stream_endpoint(format), streaming_body(format, &messages)).await;
        assert_eq!(parse_stream(format, &got.body).text(), "Done.", "{format:?}");
        let received = harness.received();
        let request = Request::parse(format, &received[1].body).unwrap();
        let results: Vec<String> = request
            .conversation()
            .messages
            .iter()
            .flat_map(|message| message.results())
            .map(|result| result.call_id.to_string())
            .filter(|id| id == "call_hidden" || id == "call_shell")
            .collect();
        assert_eq!(results, ["call_hidden", "call_shell"], "{format:?}");
    }
}

/// Claude Code sends some responses back without their reasoning. The hidden call is restored anyway, and the reasoning
/// stays where the client put it.
#[tokio::test]
async fn call_is_restored_when_client_dropped_reasoning() {
    let format = Format::Anthropic;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        let message = |content: Value, stop: &str| {
            UpstreamReply::json(json!({ "id": "m", "type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": { "input_tokens": 5, "output_tokens": 5 } }).to_string())
        };
        if String::from_utf8_lossy(&received.body).contains("call_shell") {
            return message(json!([{ "type": "text", "text": "Done." }]), "end_turn");
        }
        let hidden = ReplyCall::unfold(received);
        let input: Value = serde_json::from_str(&hidden.arguments).unwrap();
        let reasoning = json!({ "type": "thinking", "thinking": "both, then", "signature": "sealed" });
        let hidden = json!({ "type": "tool_use", "id": hidden.id, "name": hidden.name, "input": input });
        let client_call = json!({ "type": "tool_use", "id": "call_shell", "name": "read_file", "input": { "path": "x" } });
        message(json!([reasoning, hidden, client_call]), "tool_use")
    })
    .await;
    for drops in [false, true] {
        let mut messages = agent_messages(format, 40);
        messages[0] = json!({ "role": "user", "content": format!("Mend the parser. It drops thoughts: {drops}.") });
        let got = harness.post(endpoint(format), request_body(format, &messages)).await;
        let mut content = serde_json::from_str::<Value>(got.text()).unwrap()["content"].take();
        assert!(!got.text().contains("unfold") && content[0]["type"] == "thinking", "{}", got.text());
        if drops {
            content.as_array_mut().unwrap().remove(0);
        }
        messages.push(json!({ "role": "assistant", "content": content }));
        let result = json!({ "type": "tool_result", "tool_use_id": "call_shell", "content": "ok" });
        messages.push(json!({ "role": "user", "content": [result] }));
        harness.post(endpoint(format), request_body(format, &messages)).await;
        let sent = raw_messages(format, harness.received().last().unwrap());
        let [.., answer, results] = sent.as_slice() else { panic!("{sent:?}") };
        assert!(answer.contains("call_hidden") && answer.contains("call_shell"), "{answer}");
        assert_eq!(answer.contains("both, then"), !drops, "{answer}");
        assert!(results.contains("call_hidden") && results.contains("let value_"), "{results}");
    }
}

/// The second round fails: it is retried, and then the client gets the error.
#[tokio::test]
async fn failed_second_round_is_reported() {
    let format = Format::OpenAiChat;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        match was_answered(format, received) {
            false => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
            true => UpstreamReply::Headed(
                529,
                vec![("retry-after-ms", "10")],
                r#"{"error":{"message":"overloaded"}}"#.into(),
            ),
        }
    })
    .await;
    let got = harness.post(stream_endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
    assert!(got.text().contains("Let me see. ") && got.text().contains("overloaded"), "{}", got.text());
    assert!(!got.text().contains("[DONE]"), "it must not look complete");
}

/// The tool is offered from the first request, always last and always the same; never if it is disabled.
#[tokio::test]
async fn tool_is_offered_from_the_first_request() {
    for format in FORMATS {
        let kept = temp_archive();
        let harness =
            ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}"))
                .await;
        for turns in [0, 1, 40] {
            harness.post(endpoint(format), request_body(format, &agent_messages(format, turns))).await;
        }
        let offered: Vec<String> = harness
            .received()
            .iter()
            .map(|received| {
                let request = Request::parse(format, &received.body).unwrap();
                let tools = &request.conversation().tools;
                assert_eq!((tools.len(), tools[1].name.as_ref()), (2, "unfold"));
                tools[1].definition.to_string()
            })
            .collect();
        assert!(offered.iter().all(|tool| *tool == offered[0]));

        let off = ProxyHarness::start(
            ProxySettings { offer_unfold_tool: false, ..small_window_settings() },
            Some(kept.archive.clone()),
            |_| UpstreamReply::json("{}"),
        )
        .await;
        let sent = request_body(format, &agent_messages(format, 1));
        off.post(endpoint(format), sent.clone()).await;
        assert_eq!(off.only_request().body, sent);
    }
    let kept = temp_archive();
    let harness =
        ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    let without_tools =
        json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "Name this chat." }] }).to_string();
    harness.post("/v1/chat/completions", without_tools.clone()).await;
    assert_eq!(harness.only_request().body, without_tools);
}

/// The model is slow after an unfold: meanwhile the client gets keep-alives.
#[tokio::test]
async fn keep_alive_is_sent_during_later_rounds() {
    for format in FORMATS {
        let kept = temp_archive();
        let timeouts = Timeouts { keep_alive: Duration::from_millis(100), ..Timeouts::default() };
        let harness = ProxyHarness::start(
            ProxySettings { timeouts, ..small_window_settings() },
            Some(kept.archive.clone()),
            move |received| match was_answered(format, received) {
                false => streamed_reply(format, "Let me see. ", &[ReplyCall::unfold(received)]),
                true => streamed_reply(format, "It is 42.", &[]).delayed(Duration::from_millis(500)),
            },
        )
        .await;
        let got = harness.post(stream_endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
        let keep_alive = match format {
            Format::Anthropic => "event: ping",
            _ => ": keep-alive",
        };
        let (before, after) = got.text().split_once("Let me see. ").unwrap();
        assert!(!before.contains(keep_alive) && after.matches(keep_alive).count() >= 3, "{format:?}: {}", got.text());
        assert_eq!(parse_stream(format, &got.body).text(), "Let me see. It is 42.");
    }
}

/// Unfolded text must leave room for the response: in a small window only its start is returned.
#[tokio::test]
async fn unfolded_text_fits_the_window() {
    for format in FORMATS {
        let kept = temp_archive();
        let small = ProxySettings { window: Some(6_000), ..settings() };
        let harness = ProxyHarness::start(small, Some(kept.archive.clone()), move |received| {
            let request = Request::parse(format, &received.body).unwrap();
            let meter = Meter::for_model(ModelTable::builtin(), request.conversation().model.as_deref());
            let sent = meter.conversation(request.conversation());
            assert!(sent <= 6_000, "{format:?}: {sent}");
            // The model unfolds endlessly, each time with another text and another call.
            let id: &'static str = format!("call_{}", received.body.len()).leak();
            let text = ".".repeat(received.body.len() % 997);
            streamed_reply(format, &text, &[ReplyCall { id, ..ReplyCall::unfold(received) }])
        })
        .await;
        harness.post(stream_endpoint(format), streaming_body(format, &agent_messages(format, 40))).await;
        assert!(harness.received().len() > 3, "{format:?}");
    }
}

/// Forty turns of an agent whose model unfolds the same text in every third: every body that is sent, including those of
/// later rounds, extends the previous one except at a reported crease.
#[tokio::test]
async fn rounds_and_requests_share_a_stable_prefix() {
    for format in STREAM_FORMATS {
        let kept = temp_archive();
        let reply_count = AtomicUsize::new(0);
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
            let number = reply_count.fetch_add(1, Ordering::SeqCst);
            let (id, text): (&'static str, String) = (format!("call_{number}").leak(), "so ".repeat(number + 1));
            let is_folded = raw_messages(format, received)
                .iter()
                .any(|message| foldline::engine::marker::handles(message).next().is_some());
            match is_folded && number.is_multiple_of(3) {
                true => {
                    let raw = raw_messages(format, received).join("\n");
                    let handle = foldline::engine::marker::handles(&raw).next().unwrap();
                    let arguments = json!({ "handle": handle }).to_string();
                    streamed_reply(format, &text, &[ReplyCall { id, name: "unfold", arguments }])
                }
                false => streamed_reply(format, &text, &[ReplyCall { id, ..ReplyCall::client_tool() }]),
            }
        })
        .await;
        let mut messages = agent_messages(format, 0);
        for turn in 0..40 {
            let got = harness.post(stream_endpoint(format), streaming_body(format, &messages)).await;
            let response = parse_stream(format, &got.body);
            messages.extend(assistant_messages(format, &response));
            let lines = (0..40).map(|line| format!("    let value_{turn}_{line} = compute({turn}, {line});\n"));
            let (id, source) = (response.calls().next().unwrap().id.to_string(), lines.collect::<String>());
            messages.push(result_message(format, &id, &source));
        }
        let received = harness.received();
        assert!(received.len() > 45, "{format:?}: nothing was unfolded");
        let bodies: Vec<Vec<Message<'_>>> = received.iter().map(|received| sent_messages(format, received)).collect();
        let moved = bodies.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count();
        let creases = harness.metric("foldline_creases_total").await;
        assert!(moved > 1, "{format:?}: nothing was folded");
        assert_eq!(moved as f64, creases, "{format:?}");
    }
}
