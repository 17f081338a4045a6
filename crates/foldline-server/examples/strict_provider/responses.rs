//! Responses in the dialects of the script, buffered and streamed.

use foldline::wire::Format;
use serde_json::{Value, json};

/// A response of the scripted model.
#[derive(Default)]
pub(crate) struct ScriptedAnswer {
    /// Kind of the response, for the record.
    pub(crate) kind: &'static str,
    pub(crate) reasoning: Option<String>,
    /// Signature of the reasoning, or of the first call.
    pub(crate) signature: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<ScriptedToolCall>,
}

/// A tool call.
pub(crate) struct ScriptedToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// Returns the response as one body. Clients treat responses with the same id as one, so each has a number.
pub(crate) fn body(format: Format, number: usize, answer: &ScriptedAnswer, tokens: u64) -> Value {
    let output = 20 + answer.text.len() as u64 / 4;
    match format {
        Format::OpenAiChat => {
            let mut message = json!({ "role": "assistant", "content": answer.text });
            if let Some(reasoning) = &answer.reasoning {
                message["reasoning_content"] = json!(reasoning);
            }
            if !answer.calls.is_empty() {
                message["tool_calls"] = answer.calls.iter().map(|call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments.to_string() } })).collect();
            }
            let finish = if answer.calls.is_empty() { "stop" } else { "tool_calls" };
            json!({ "id": format!("chatcmpl-{number}"), "object": "chat.completion", "created": 1, "model": "scripted",
                "choices": [{ "index": 0, "message": message, "finish_reason": finish, "logprobs": null }],
                "usage": { "prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output } })
        }
        Format::OpenAiResponses => {
            let mut items = Vec::new();
            let id = |kind: &str| format!("{kind}_{number}");
            if let Some(reasoning) = &answer.reasoning {
                items.push(json!({ "type": "reasoning", "id": id("rs"), "summary": [{ "type": "summary_text", "text": reasoning }], "encrypted_content": answer.signature }));
            }
            if !answer.text.is_empty() {
                items.push(json!({ "type": "message", "id": id("msg"), "role": "assistant", "status": "completed", "content": [{ "type": "output_text", "text": answer.text, "annotations": [], "logprobs": [] }] }));
            }
            items.extend(answer.calls.iter().map(|call| json!({ "type": "function_call", "id": format!("fc_{}", call.id), "call_id": call.id, "name": call.name, "arguments": call.arguments.to_string(), "status": "completed" })));
            json!({ "id": id("resp"), "object": "response", "created_at": 1, "status": "completed", "model": "scripted", "output": items,
                "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "error": null, "incomplete_details": null, "instructions": null, "metadata": {},
                "usage": { "input_tokens": tokens, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
                    "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": tokens + output } })
        }
        Format::Anthropic => {
            let mut blocks = Vec::new();
            if let Some(reasoning) = &answer.reasoning {
                blocks.push(json!({ "type": "thinking", "thinking": reasoning, "signature": answer.signature }));
            }
            if !answer.text.is_empty() {
                blocks.push(json!({ "type": "text", "text": answer.text }));
            }
            blocks.extend(
                answer.calls.iter().map(
                    |call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments }),
                ),
            );
            let stop = if answer.calls.is_empty() { "end_turn" } else { "tool_use" };
            json!({ "id": format!("msg_{number}"), "type": "message", "role": "assistant", "model": "scripted", "content": blocks,
                "stop_reason": stop, "stop_sequence": null,
                "usage": { "input_tokens": tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": output } })
        }
        Format::Gemini => {
            let mut parts = Vec::new();
            if let Some(reasoning) = &answer.reasoning {
                parts.push(json!({ "text": reasoning, "thought": true }));
            }
            if !answer.text.is_empty() {
                parts.push(json!({ "text": answer.text }));
            }
            let first_call = parts.len();
            parts.extend(
                answer.calls.iter().map(
                    |call| json!({ "functionCall": { "id": call.id, "name": call.name, "args": call.arguments } }),
                ),
            );
            // Of parallel calls only the first is signed.
            if let Some(call) = parts.get_mut(first_call) {
                call["thoughtSignature"] = json!(answer.signature);
            }
            json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": "STOP", "index": 0 }],
                "usageMetadata": { "promptTokenCount": tokens, "candidatesTokenCount": output, "totalTokenCount": tokens + output },
                "modelVersion": "scripted", "responseId": format!("response-{number}") })
        }
        other => panic!("no script for {other:?}"),
    }
}

/// The choice whether a Chat Completions stream reports usage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageReporting {
    Included,
    Omitted,
}

/// Returns the same response as the events of a stream.
pub(crate) fn events(format: Format, body: &Value, usage: UsageReporting) -> Vec<String> {
    match format {
        Format::OpenAiChat => chat_events(body, usage),
        Format::OpenAiResponses => responses_events(body),
        Format::Anthropic => anthropic_events(body),
        Format::Gemini => gemini_events(body),
        other => panic!("no script for {other:?}"),
    }
}

/// Returns a stream that starts with success and then reports that the prompt does not fit.
pub(crate) fn overflow_events(message: &str) -> Vec<String> {
    let response = json!({ "id": "resp_refused", "object": "response", "status": "in_progress", "output": [] });
    let mut failed = response.clone();
    failed["status"] = json!("failed");
    failed["error"] = json!({ "code": "context_length_exceeded", "message": message });
    numbered_events(vec![
        json!({ "type": "response.created", "response": response }),
        json!({ "type": "response.failed", "response": failed }),
    ])
}

fn chat_events(body: &Value, usage: UsageReporting) -> Vec<String> {
    let chunk = |delta: Value, finish: &Value| json!({ "id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"], "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
    let message = &body["choices"][0]["message"];
    let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), &Value::Null)];
    if let Some(reasoning) = message["reasoning_content"].as_str() {
        events.extend(halves(reasoning).map(|half| chunk(json!({ "reasoning_content": half }), &Value::Null)));
    }
    let text = message["content"].as_str().unwrap_or_default();
    events.extend(halves(text).map(|half| chunk(json!({ "content": half }), &Value::Null)));
    for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let opened = json!({ "index": index, "id": call["id"], "type": "function", "function": { "name": call["function"]["name"], "arguments": "" } });
        events.push(chunk(json!({ "tool_calls": [opened] }), &Value::Null));
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let piece = |half| json!({ "tool_calls": [{ "index": index, "function": { "arguments": half } }] });
        events.extend(halves(arguments).map(|half| chunk(piece(half), &Value::Null)));
    }
    events.push(chunk(json!({}), &body["choices"][0]["finish_reason"]));
    if usage == UsageReporting::Included {
        events.push(json!({ "id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"], "choices": [], "usage": body["usage"] }));
    }
    let mut lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    lines.push("data: [DONE]\n\n".into());
    lines
}

fn responses_events(body: &Value) -> Vec<String> {
    let mut started = body.clone();
    (started["status"], started["output"], started["usage"]) = (json!("in_progress"), json!([]), Value::Null);
    let mut events = vec![
        json!({ "type": "response.created", "response": started }),
        json!({ "type": "response.in_progress", "response": started }),
    ];
    for (at, item) in body["output"].as_array().into_iter().flatten().enumerate() {
        let mut opened = item.clone();
        let about = |kind: &str, rest: Value| {
            let mut event = json!({ "type": kind, "output_index": at, "item_id": item["id"] });
            event
                .as_object_mut()
                .into_iter()
                .for_each(|event| event.extend(rest.as_object().cloned().unwrap_or_default()));
            event
        };
        let mut inner = Vec::new();
        match item["type"].as_str() {
            Some("message") => {
                (opened["content"], opened["status"]) = (json!([]), json!("in_progress"));
                let part = &item["content"][0];
                let text = part["text"].as_str().unwrap_or_default();
                let empty = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
                inner.push(about("response.content_part.added", json!({ "content_index": 0, "part": empty })));
                inner.extend(halves(text).map(|half| {
                    about("response.output_text.delta", json!({ "content_index": 0, "delta": half, "logprobs": [] }))
                }));
                inner.push(about(
                    "response.output_text.done",
                    json!({ "content_index": 0, "text": text, "logprobs": [] }),
                ));
                inner.push(about("response.content_part.done", json!({ "content_index": 0, "part": part })));
            }
            Some("reasoning") => {
                (opened["summary"], opened["encrypted_content"]) = (json!([]), json!(""));
                let text = item["summary"][0]["text"].as_str().unwrap_or_default();
                let part = |text: &str| json!({ "type": "summary_text", "text": text });
                inner.push(about(
                    "response.reasoning_summary_part.added",
                    json!({ "summary_index": 0, "part": part("") }),
                ));
                inner.extend(halves(text).map(|half| {
                    about("response.reasoning_summary_text.delta", json!({ "summary_index": 0, "delta": half }))
                }));
                inner.push(about("response.reasoning_summary_text.done", json!({ "summary_index": 0, "text": text })));
                inner.push(about(
                    "response.reasoning_summary_part.done",
                    json!({ "summary_index": 0, "part": part(text) }),
                ));
            }
            _ => {
                (opened["arguments"], opened["status"]) = (json!(""), json!("in_progress"));
                let arguments = item["arguments"].as_str().unwrap_or_default();
                inner.extend(
                    halves(arguments)
                        .map(|half| about("response.function_call_arguments.delta", json!({ "delta": half }))),
                );
                inner.push(about(
                    "response.function_call_arguments.done",
                    json!({ "arguments": arguments, "name": item["name"] }),
                ));
            }
        }
        events.push(json!({ "type": "response.output_item.added", "output_index": at, "item": opened }));
        events.extend(inner);
        events.push(json!({ "type": "response.output_item.done", "output_index": at, "item": item }));
    }
    events.push(json!({ "type": "response.completed", "response": body }));
    numbered_events(events)
}

fn anthropic_events(body: &Value) -> Vec<String> {
    let mut started = body.clone();
    (started["content"], started["stop_reason"], started["usage"]["output_tokens"]) =
        (json!([]), Value::Null, json!(1));
    let mut events = vec![json!({ "type": "message_start", "message": started }), json!({ "type": "ping" })];
    for (index, block) in body["content"].as_array().into_iter().flatten().enumerate() {
        let mut opened = block.clone();
        let mut deltas = Vec::new();
        match block["type"].as_str() {
            Some("text") => {
                opened["text"] = json!("");
                let text = block["text"].as_str().unwrap_or_default();
                deltas.extend(halves(text).map(|half| json!({ "type": "text_delta", "text": half })));
            }
            Some("thinking") => {
                (opened["thinking"], opened["signature"]) = (json!(""), json!(""));
                let text = block["thinking"].as_str().unwrap_or_default();
                deltas.extend(halves(text).map(|half| json!({ "type": "thinking_delta", "thinking": half })));
                deltas.push(json!({ "type": "signature_delta", "signature": block["signature"] }));
            }
            _ => {
                opened["input"] = json!({});
                let input = block["input"].to_string();
                deltas.push(json!({ "type": "input_json_delta", "partial_json": "" }));
                deltas.extend(halves(&input).map(|half| json!({ "type": "input_json_delta", "partial_json": half })));
            }
        }
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": opened }));
        events.extend(
            deltas.into_iter().map(|delta| json!({ "type": "content_block_delta", "index": index, "delta": delta })),
        );
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": body["stop_reason"], "stop_sequence": null }, "usage": { "output_tokens": body["usage"]["output_tokens"] } }));
    events.push(json!({ "type": "message_stop" }));
    sse_events(&events)
}

/// Returns a chunk for each part, texts in two; the last has the finish reason.
fn gemini_events(body: &Value) -> Vec<String> {
    let mut parts = Vec::new();
    for part in body["candidates"][0]["content"]["parts"].as_array().into_iter().flatten() {
        match part["text"].as_str() {
            Some(text) => parts.extend(halves(text).map(|half| {
                let mut part = part.clone();
                part["text"] = json!(half);
                part
            })),
            None => parts.push(part.clone()),
        }
    }
    let last = parts.len().saturating_sub(1);
    let chunk = |(at, part): (usize, Value)| {
        let mut chunk = body.clone();
        let candidate = &mut chunk["candidates"][0];
        candidate["content"]["parts"] = json!([part]);
        if let Some(fields) = candidate.as_object_mut().filter(|_| at < last) {
            fields.remove("finishReason");
        }
        format!("data: {chunk}\r\n\r\n")
    };
    parts.into_iter().enumerate().map(chunk).collect()
}

fn numbered_events(mut events: Vec<Value>) -> Vec<String> {
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    sse_events(&events)
}

fn sse_events(events: &[Value]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default()))
        .collect()
}

/// Splits a text in two, so that no reader can rely on getting it in one chunk.
fn halves(text: &str) -> impl Iterator<Item = &str> {
    let (first, second) = text.split_at(text.floor_char_boundary(text.len() / 2));
    [first, second].into_iter().filter(|half| !half.is_empty())
}
