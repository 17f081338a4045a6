//! Scripted answers in all formats, and test clients as strict as the official libraries.

use serde_json::{Value, json};

use crate::wire::Format;
use crate::wire::event_stream::{EventMessage, event_message};
use crate::wire::sse::SseFramer;

pub(crate) const TOOL_NAME: &str = "unfold";

/// One element of a model's output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptedOutput {
    /// Reasoning with its signature.
    Reasoning(&'static str, &'static str),
    Text(&'static str),
    /// A call: id, name, arguments.
    Call(&'static str, &'static str, &'static str),
    /// A type that this version does not know.
    Unknown,
}

/// One response of the provider.
#[derive(Clone, Debug)]
pub(crate) struct ScriptedResponse {
    pub(crate) id: &'static str,
    pub(crate) outputs: Vec<ScriptedOutput>,
    pub(crate) stop: ScriptedStop,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptedStop {
    Answer,
    Calls,
    Length,
}

/// The client's final view of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientAnswer {
    pub(crate) id: String,
    pub(crate) reasoning: String,
    pub(crate) signatures: Vec<String>,
    pub(crate) text: String,
    pub(crate) calls: Vec<String>,
    pub(crate) stop: String,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

pub(crate) fn scripted_stream(format: Format, script: &ScriptedResponse) -> Vec<u8> {
    let frames = match format {
        Format::Anthropic => anthropic_frames(script),
        Format::OpenAiChat => chat_frames(script),
        Format::OpenAiResponses => responses_frames(script),
        Format::Gemini => gemini_frames(script),
        Format::Ollama => ollama_frames(script),
        Format::Converse => converse_messages(script),
    };
    if format == Format::Converse {
        return frames.iter().flat_map(|(name, data)| event_message(name, &data.to_string())).collect();
    }
    if format == Format::Ollama {
        return frames.iter().map(|(_, line)| format!("{line}\n")).collect::<String>().into_bytes();
    }
    let has_names = matches!(format, Format::Anthropic | Format::OpenAiResponses);
    let mut bytes = String::new();
    for (name, data) in frames {
        if has_names {
            bytes += &format!("event: {name}\n");
        }
        bytes += &format!("data: {data}\n\n");
    }
    if format == Format::OpenAiChat {
        bytes += "data: [DONE]\n\n";
    }
    bytes.into_bytes()
}

fn with_event_name(data: Value) -> (String, Value) {
    (data["type"].as_str().unwrap_or_default().to_owned(), data)
}

fn halves(text: &str) -> [&str; 2] {
    let (a, b) = text.split_at(text.floor_char_boundary(text.len() / 2));
    [a, b]
}

fn anthropic_frames(script: &ScriptedResponse) -> Vec<(String, Value)> {
    let usage = json!({"input_tokens": 3, "cache_read_input_tokens": script.input - 3, "cache_creation_input_tokens": 0, "output_tokens": 1});
    let message = json!({"id": script.id, "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": null, "usage": usage});
    let mut frames = vec![json!({"type": "message_start", "message": message})];
    for (index, output) in script.outputs.iter().enumerate() {
        let (block, deltas) = match output {
            ScriptedOutput::Reasoning(text, seal) => {
                let mut deltas: Vec<Value> =
                    halves(text).iter().map(|part| json!({"type": "thinking_delta", "thinking": part})).collect();
                deltas.push(json!({"type": "signature_delta", "signature": seal}));
                (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
            }
            ScriptedOutput::Text(text) => {
                let deltas = halves(text).iter().map(|part| json!({"type": "text_delta", "text": part})).collect();
                (json!({"type": "text", "text": ""}), deltas)
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let deltas = halves(arguments)
                    .iter()
                    .map(|part| json!({"type": "input_json_delta", "partial_json": part}))
                    .collect();
                (json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas)
            }
            ScriptedOutput::Unknown => (json!({"type": "hologram"}), vec![json!({"type": "hologram_delta", "x": 1})]),
        };
        frames.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        frames.push(json!({"type": "ping"}));
        frames.extend(
            deltas.into_iter().map(|part| json!({"type": "content_block_delta", "index": index, "delta": part})),
        );
        frames.push(json!({"type": "content_block_stop", "index": index}));
    }
    let reason = match script.stop {
        ScriptedStop::Answer => "end_turn",
        ScriptedStop::Calls => "tool_use",
        ScriptedStop::Length => "max_tokens",
    };
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    frames.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": script.output}}));
    frames.push(json!({"type": "message_stop"}));
    frames.into_iter().map(with_event_name).collect()
}

fn chat_frames(script: &ScriptedResponse) -> Vec<(String, Value)> {
    let chunk = |choices: Value, usage: Value| json!({"id": script.id, "object": "chat.completion.chunk", "created": script.input, "model": "m", "choices": choices, "usage": usage});
    let delta = |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null);
    let mut frames = vec![delta(json!({"role": "assistant", "content": ""}))];
    let mut call = 0;
    let mut thought = 0;
    for output in &script.outputs {
        match output {
            ScriptedOutput::Reasoning(text, seal) => {
                frames.extend(halves(text).iter().map(|part| {
                    delta(json!({"reasoning": part, "reasoning_details": [{"index": thought, "type": "reasoning.text", "text": part}]}))
                }));
                frames.push(delta(
                    json!({"reasoning_details": [{"index": thought, "type": "reasoning.text", "signature": seal}]}),
                ));
                thought += 1;
            }
            ScriptedOutput::Text(text) => {
                frames.extend(halves(text).iter().map(|part| delta(json!({"content": part}))))
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let function = json!({"name": name, "arguments": ""});
                frames.push(delta(
                    json!({"tool_calls": [{"index": call, "id": id, "type": "function", "function": function}]}),
                ));
                frames.extend(
                    halves(arguments)
                        .iter()
                        .map(|part| delta(json!({"tool_calls": [{"index": call, "function": {"arguments": part}}]}))),
                );
                call += 1;
            }
            ScriptedOutput::Unknown => frames.push(delta(json!({"hologram": "x"}))),
        }
    }
    let reason = match script.stop {
        ScriptedStop::Answer => "stop",
        ScriptedStop::Calls => "tool_calls",
        ScriptedStop::Length => "length",
    };
    frames.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null));
    let total = script.input + script.output;
    frames.push(chunk(
        json!([]),
        json!({"prompt_tokens": script.input, "completion_tokens": script.output, "total_tokens": total}),
    ));
    frames.into_iter().map(with_event_name).collect()
}

fn responses_frames(script: &ScriptedResponse) -> Vec<(String, Value)> {
    let tools = json!([{"type": "function", "name": "read"}, {"type": "function", "name": TOOL_NAME}]);
    let response = |status: &str, output: &[Value], usage: Value| json!({"id": script.id, "object": "response", "created_at": script.input, "status": status, "model": "m", "tools": tools, "output": output, "usage": usage});
    let mut frames = vec![
        json!({"type": "response.created", "response": response("in_progress", &[], Value::Null)}),
        json!({"type": "response.in_progress", "response": response("in_progress", &[], Value::Null)}),
    ];
    let mut output = Vec::new();
    for (index, scripted) in script.outputs.iter().enumerate() {
        let item_id = format!("{}_{index}", script.id);
        let delta = |kind: &str, text: &str| json!({"type": format!("response.{kind}.delta"), "item_id": item_id, "output_index": index, "content_index": 0, "summary_index": 0, "delta": text});
        let (added, inner, done) = match scripted {
            ScriptedOutput::Reasoning(text, seal) => {
                let item = |summary: Value, seal: Value| json!({"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": seal});
                let inner = halves(text).iter().map(|part| delta("reasoning_summary_text", part)).collect();
                (
                    item(json!([]), Value::Null),
                    inner,
                    item(json!([{"type": "summary_text", "text": text}]), json!(seal)),
                )
            }
            ScriptedOutput::Text(text) => {
                let item =
                    |content: Value| json!({"type": "message", "id": item_id, "role": "assistant", "content": content});
                let part = json!({"type": "output_text", "text": "", "annotations": []});
                let mut inner = vec![
                    json!({"type": "response.content_part.added", "item_id": item_id, "output_index": index, "content_index": 0, "part": part}),
                ];
                inner.extend(halves(text).iter().map(|part| delta("output_text", part)));
                (item(json!([])), inner, item(json!([{"type": "output_text", "text": text, "annotations": []}])))
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let item = |arguments: &str| json!({"type": "function_call", "id": item_id, "call_id": id, "name": name, "arguments": arguments});
                let mut inner: Vec<Value> =
                    halves(arguments).iter().map(|part| delta("function_call_arguments", part)).collect();
                inner.push(json!({"type": "response.function_call_arguments.done", "item_id": item_id, "output_index": index, "name": name, "arguments": arguments}));
                (item(""), inner, item(arguments))
            }
            ScriptedOutput::Unknown => (json!({"type": "hologram"}), vec![], json!({"type": "hologram", "x": 1})),
        };
        frames.push(json!({"type": "response.output_item.added", "output_index": index, "item": added}));
        frames.extend::<Vec<Value>>(inner);
        frames.push(json!({"type": "response.output_item.done", "output_index": index, "item": done.clone()}));
        output.push(done);
    }
    let usage = json!({"input_tokens": script.input, "output_tokens": script.output, "total_tokens": script.input + script.output});
    let mut last = match script.stop {
        ScriptedStop::Answer | ScriptedStop::Calls => {
            json!({"type": "response.completed", "response": response("completed", &output, usage)})
        }
        ScriptedStop::Length => {
            json!({"type": "response.incomplete", "response": response("incomplete", &output, usage)})
        }
    };
    if script.stop == ScriptedStop::Length {
        last["response"]["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    frames.push(last);
    for (number, frame) in frames.iter_mut().enumerate() {
        frame["sequence_number"] = json!(number);
    }
    frames.into_iter().map(with_event_name).collect()
}

fn gemini_frames(script: &ScriptedResponse) -> Vec<(String, Value)> {
    let chunk = |parts: Value| json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "usageMetadata": {"promptTokenCount": script.input, "totalTokenCount": script.input}, "modelVersion": "m", "responseId": script.id});
    let mut frames = Vec::new();
    for output in &script.outputs {
        match output {
            ScriptedOutput::Reasoning(text, seal) => {
                frames.extend(halves(text).iter().map(|part| chunk(json!([{"text": part, "thought": true}]))));
                frames.push(chunk(json!([{"text": "", "thought": true, "thoughtSignature": seal}])));
            }
            ScriptedOutput::Text(text) => {
                frames.extend(halves(text).iter().map(|part| chunk(json!([{"text": part}]))));
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let args: Value = serde_json::from_str(arguments).unwrap();
                frames.push(chunk(json!([{"functionCall": {"id": id, "name": name, "args": args}}])));
            }
            ScriptedOutput::Unknown => frames.push(chunk(json!([{"hologram": "x"}]))),
        }
    }
    let mut last = chunk(json!([]));
    last["candidates"][0]["finishReason"] =
        json!(if script.stop == ScriptedStop::Length { "MAX_TOKENS" } else { "STOP" });
    let total = script.input + script.output;
    last["usageMetadata"] =
        json!({"promptTokenCount": script.input, "candidatesTokenCount": script.output, "totalTokenCount": total});
    frames.push(last);
    frames.into_iter().map(with_event_name).collect()
}

fn ollama_frames(script: &ScriptedResponse) -> Vec<(String, Value)> {
    let line =
        |message: Value| json!({"model": script.id, "created_at": "2026-11-18", "message": message, "done": false});
    let mut frames = Vec::new();
    let mut index = 0;
    for output in &script.outputs {
        match output {
            ScriptedOutput::Reasoning(text, _) => {
                let part = |part: &&str| line(json!({"role": "assistant", "content": "", "thinking": part}));
                frames.extend(halves(text).iter().map(part));
            }
            ScriptedOutput::Text(text) => {
                frames.extend(halves(text).iter().map(|part| line(json!({"role": "assistant", "content": part}))));
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                let call = json!({"id": id, "function": {"index": index, "name": name, "arguments": arguments}});
                frames.push(line(json!({"role": "assistant", "content": "", "tool_calls": [call]})));
                index += 1;
            }
            ScriptedOutput::Unknown => {
                frames.push(line(json!({"role": "assistant", "content": "", "hologram": "x"})));
            }
        }
    }
    let mut last = line(json!({"role": "assistant", "content": ""}));
    last["done"] = json!(true);
    last["done_reason"] = json!(if script.stop == ScriptedStop::Length { "length" } else { "stop" });
    last["total_duration"] = json!(100);
    last["prompt_eval_count"] = json!(script.input);
    last["eval_count"] = json!(script.output);
    last["eval_duration"] = json!(script.output);
    frames.push(last);
    frames.into_iter().map(with_event_name).collect()
}

fn converse_messages(script: &ScriptedResponse) -> Vec<(String, Value)> {
    // The provider pads messages with a field `p`.
    let mut messages = vec![("messageStart", json!({"p": script.id, "role": "assistant"}))];
    for (index, output) in script.outputs.iter().enumerate() {
        let delta = |delta: Value| ("contentBlockDelta", json!({"contentBlockIndex": index, "delta": delta}));
        match output {
            ScriptedOutput::Reasoning(text, seal) => {
                messages.extend(halves(text).map(|part| delta(json!({"reasoningContent": {"text": part}}))));
                messages.push(delta(json!({"reasoningContent": {"signature": seal}})));
            }
            ScriptedOutput::Text(text) => {
                messages.extend(halves(text).map(|part| delta(json!({"text": part}))));
            }
            ScriptedOutput::Call(id, name, arguments) => {
                let start = json!({"toolUse": {"toolUseId": id, "name": name}});
                messages.push(("contentBlockStart", json!({"contentBlockIndex": index, "start": start})));
                messages.extend(halves(arguments).map(|part| delta(json!({"toolUse": {"input": part}}))));
            }
            ScriptedOutput::Unknown => messages.push(delta(json!({"hologram": {"x": 1}}))),
        }
        messages.push(("contentBlockStop", json!({"contentBlockIndex": index})));
    }
    let reason = match script.stop {
        ScriptedStop::Answer => "end_turn",
        ScriptedStop::Calls => "tool_use",
        ScriptedStop::Length => "max_tokens",
    };
    messages.push(("messageStop", json!({"stopReason": reason})));
    let usage = json!({"inputTokens": script.input, "outputTokens": script.output, "totalTokens": script.input + script.output});
    messages.push(("metadata", json!({"usage": usage, "metrics": {"latencyMs": 5}})));
    messages.into_iter().map(|(name, data)| (name.to_owned(), data)).collect()
}

/// Texts and calls are appended in order; the last line has the end.
fn read_ollama_lines(lines: &[Value]) -> ClientAnswer {
    let mut answer = ClientAnswer::default();
    let mut calls = 0;
    for line in lines {
        assert!(answer.stop.is_empty(), "{line} after the end");
        let model = line["model"].as_str().unwrap();
        assert!(answer.id.is_empty() || answer.id == model, "the model changes to {model}");
        answer.id = model.to_owned();
        let message = &line["message"];
        append_text(&mut answer.reasoning, &message["thinking"]);
        append_text(&mut answer.text, &message["content"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            assert_eq!(function["index"], calls, "a gap before {call}");
            calls += 1;
            let arguments = json!(function["arguments"].to_string());
            answer.calls.push(format!("{} {} {arguments}", call["id"], function["name"]));
        }
        if line["done"] == true {
            append_text(&mut answer.stop, &line["done_reason"]);
            answer.input = line["prompt_eval_count"].as_u64().unwrap();
            answer.output = line["eval_count"].as_u64().unwrap();
            assert_eq!(line["eval_duration"], answer.output, "the time of all rounds");
        }
    }
    assert!(!answer.stop.is_empty(), "no end");
    answer
}

/// Parts are appended in order; the last chunk has the finish reason.
fn read_gemini_frames(frames: &[Value]) -> ClientAnswer {
    let mut answer = ClientAnswer::default();
    for frame in frames {
        assert!(answer.stop.is_empty(), "{frame} after the end");
        let id = frame["responseId"].as_str().unwrap();
        assert!(answer.id.is_empty() || answer.id == id, "the id changes to {id}");
        answer.id = id.to_owned();
        let candidate = &frame["candidates"][0];
        for part in candidate["content"]["parts"].as_array().unwrap() {
            let into = if part["thought"] == true { &mut answer.reasoning } else { &mut answer.text };
            append_text(into, &part["text"]);
            answer.signatures.extend(part["thoughtSignature"].as_str().map(str::to_owned));
            let call = &part["functionCall"];
            if call.is_object() {
                answer.calls.push(format!("{} {} {}", call["id"], call["name"], json!(call["args"].to_string())));
            }
        }
        append_text(&mut answer.stop, &candidate["finishReason"]);
        let usage = &frame["usageMetadata"];
        answer.input = usage["promptTokenCount"].as_u64().unwrap();
        answer.output = usage["candidatesTokenCount"].as_u64().unwrap_or(0);
    }
    assert!(!answer.stop.is_empty(), "no end");
    answer
}

/// Reads a stream as the official client does, and panics where that client would fail.
pub(crate) fn read_as_client(format: Format, bytes: &[u8]) -> ClientAnswer {
    let frames = stream_chunks(format, bytes);
    match format {
        Format::Anthropic => read_anthropic_frames(&frames),
        Format::OpenAiChat => read_chat_frames(&frames),
        Format::OpenAiResponses => read_responses_frames(&frames),
        Format::Gemini => read_gemini_frames(&frames),
        Format::Ollama => read_ollama_lines(&frames),
        Format::Converse => read_converse_messages(&frames),
    }
}

/// Returns the data of the events of a stream.
pub(crate) fn stream_chunks(format: Format, bytes: &[u8]) -> Vec<Value> {
    if format == Format::Converse {
        return converse_chunks(bytes);
    }
    let text = std::str::from_utf8(bytes).unwrap();
    if format == Format::Ollama {
        return text.split_terminator('\n').map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    let mut frames = Vec::new();
    for frame in text.split_terminator("\n\n") {
        let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
        let data = field("data: ").unwrap_or_else(|| panic!("no data in {frame:?}"));
        if data == "[DONE]" {
            frames.push(json!("[DONE]"));
            continue;
        }
        let data: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data}"));
        if matches!(format, Format::Anthropic | Format::OpenAiResponses) {
            assert_eq!(field("event: "), data["type"].as_str(), "{frame}");
        }
        frames.push(data);
    }
    frames
}

/// Returns the payloads of a stream of messages, each with its type. Panics if a checksum is wrong.
fn converse_chunks(bytes: &[u8]) -> Vec<Value> {
    let mut framer = SseFramer::new().with_any_kind();
    let mut chunks = Vec::new();
    let mut rest = bytes;
    while let Some(frame) = framer.next(&mut rest) {
        let message = EventMessage::parse(frame.raw).expect("a message with right checksums");
        let mut data: Value = serde_json::from_slice(&message.data()).unwrap();
        data["event"] = json!(message.event_type().unwrap());
        chunks.push(data);
    }
    assert!(framer.finish().is_none(), "a part of a message");
    chunks
}

/// Blocks have indices without gaps; texts and reasoning have no start; the counts follow the end.
fn read_converse_messages(messages: &[Value]) -> ClientAnswer {
    let mut answer = ClientAnswer::default();
    let mut blocks: Vec<Value> = Vec::new();
    let mut has_counts = false;
    for message in messages {
        assert!(!has_counts, "{message} after the counts");
        let index = message["contentBlockIndex"].as_u64().map(|index| index as usize);
        match message["event"].as_str().unwrap() {
            "messageStart" => {
                assert!(answer.id.is_empty(), "a second start");
                append_text(&mut answer.id, &message["p"]);
            }
            "contentBlockStart" => {
                assert_eq!(index, Some(blocks.len()), "a gap before {message}");
                blocks.push(message["start"].clone());
            }
            "contentBlockDelta" => {
                let index = index.unwrap();
                if index == blocks.len() {
                    blocks.push(json!({}));
                }
                let (block, delta) = (&mut blocks[index], &message["delta"]);
                assert!(block["closed"].is_null(), "{message} after the end of its block");
                append_text(&mut answer.text, &delta["text"]);
                append_text(&mut answer.reasoning, &delta["reasoningContent"]["text"]);
                answer.signatures.extend(delta["reasoningContent"]["signature"].as_str().map(str::to_owned));
                if let Some(piece) = delta["toolUse"]["input"].as_str() {
                    block["input"] = json!(format!("{}{piece}", block["input"].as_str().unwrap_or_default()));
                }
            }
            "contentBlockStop" => blocks[index.unwrap()]["closed"] = json!(true),
            "messageStop" => append_text(&mut answer.stop, &message["stopReason"]),
            "metadata" => {
                has_counts = true;
                answer.input = message["usage"]["inputTokens"].as_u64().unwrap();
                answer.output = message["usage"]["outputTokens"].as_u64().unwrap();
                assert_eq!(message["usage"]["totalTokens"], answer.input + answer.output);
            }
            other => panic!("{other}"),
        }
    }
    assert!(!answer.stop.is_empty() && has_counts, "no end");
    for block in blocks {
        let call = &block["toolUse"];
        if call.is_object() {
            answer.calls.push(format!("{} {} {}", call["toolUseId"], call["name"], block["input"]));
        }
    }
    answer
}

fn append_text(into: &mut String, text: &Value) {
    into.push_str(text.as_str().unwrap_or_default());
}

/// Blocks are appended at their start and addressed by position afterwards.
fn read_anthropic_frames(frames: &[Value]) -> ClientAnswer {
    let mut answer = ClientAnswer::default();
    let mut blocks: Vec<Value> = Vec::new();
    let mut usage = json!({});
    let mut ended = false;
    for frame in frames {
        let index = frame["index"].as_u64().map(|index| index as usize);
        assert!(!ended, "{frame} after the end");
        match frame["type"].as_str().unwrap() {
            "message_start" => {
                assert!(answer.id.is_empty(), "a second start");
                append_text(&mut answer.id, &frame["message"]["id"]);
                usage = frame["message"]["usage"].clone();
            }
            "content_block_start" => {
                assert_eq!(index, Some(blocks.len()), "a gap before {frame}");
                let mut block = frame["content_block"].clone();
                block["open"] = json!(true);
                block["partial"] = json!("");
                blocks.push(block);
            }
            "content_block_delta" => {
                let block = &mut blocks[index.unwrap()];
                assert_eq!(block["open"], true);
                let delta = &frame["delta"];
                for (kind, from, to) in [
                    ("text_delta", "text", "text"),
                    ("thinking_delta", "thinking", "thinking"),
                    ("signature_delta", "signature", "signature"),
                    ("input_json_delta", "partial_json", "partial"),
                ] {
                    if delta["type"] == kind {
                        block[to] = json!(format!("{}{}", block[to].as_str().unwrap(), delta[from].as_str().unwrap()));
                    }
                }
            }
            "content_block_stop" => blocks[index.unwrap()]["open"] = json!(false),
            "message_delta" => {
                append_text(&mut answer.stop, &frame["delta"]["stop_reason"]);
                for (key, count) in frame["usage"].as_object().unwrap() {
                    usage[key] = count.clone();
                }
            }
            "message_stop" => ended = true,
            "ping" => {}
            kind => panic!("{kind}"),
        }
    }
    assert!(ended, "no end");
    for block in blocks {
        assert_eq!(block["open"], false);
        match block["type"].as_str().unwrap() {
            "thinking" => {
                append_text(&mut answer.reasoning, &block["thinking"]);
                answer.signatures.push(block["signature"].as_str().unwrap().to_owned());
            }
            "text" => append_text(&mut answer.text, &block["text"]),
            "tool_use" => answer.calls.push(format!("{} {} {}", block["id"], block["name"], block["partial"])),
            _ => {}
        }
    }
    let count = |key: &str| usage[key].as_u64().unwrap_or(0);
    answer.input = count("input_tokens") + count("cache_read_input_tokens") + count("cache_creation_input_tokens");
    answer.output = count("output_tokens");
    answer
}

/// Repeated text is appended; lists are addressed by position.
fn read_chat_frames(frames: &[Value]) -> ClientAnswer {
    fn accumulate(acc: &mut Value, delta: &Value) {
        match (acc, delta) {
            (acc @ Value::Null, delta) => *acc = delta.clone(),
            (Value::String(acc), Value::String(delta)) => acc.push_str(delta),
            (Value::Object(acc), Value::Object(delta)) => {
                for (key, value) in delta {
                    if key == "index" || key == "type" {
                        acc.insert(key.clone(), value.clone());
                    } else {
                        accumulate(acc.entry(key.clone()).or_insert(Value::Null), value);
                    }
                }
            }
            (Value::Array(acc), Value::Array(delta)) => {
                for entry in delta {
                    let index = entry["index"].as_u64().expect("an index") as usize;
                    if index == acc.len() {
                        acc.push(entry.clone());
                    } else {
                        accumulate(acc.get_mut(index).unwrap_or_else(|| panic!("a gap before {entry}")), entry);
                    }
                }
            }
            (_, Value::Null) => {}
            (acc, delta) => panic!("{acc} and {delta}"),
        }
    }
    let (last, frames) = frames.split_last().unwrap();
    assert_eq!(last, "[DONE]");
    let mut answer = ClientAnswer::default();
    let mut message = json!({"tool_calls": [], "reasoning_details": []});
    for frame in frames {
        assert_ne!(frame, "[DONE]", "a second end");
        let id = frame["id"].as_str().unwrap();
        assert!(answer.id.is_empty() || answer.id == id, "the id changes to {id}");
        answer.id = id.to_owned();
        for choice in frame["choices"].as_array().unwrap() {
            assert!(answer.stop.is_empty(), "{choice} after the end");
            accumulate(&mut message, &choice["delta"]);
            append_text(&mut answer.stop, &choice["finish_reason"]);
        }
        if let Some(usage) = frame["usage"].as_object() {
            answer.input = usage["prompt_tokens"].as_u64().unwrap();
            answer.output = usage["completion_tokens"].as_u64().unwrap();
            assert_eq!(usage["total_tokens"].as_u64(), Some(answer.input + answer.output));
        }
    }
    assert_eq!(message["role"], "assistant");
    append_text(&mut answer.reasoning, &message["reasoning"]);
    append_text(&mut answer.text, &message["content"]);
    for detail in message["reasoning_details"].as_array().unwrap() {
        answer.signatures.push(detail["signature"].as_str().unwrap_or_default().to_owned());
    }
    for call in message["tool_calls"].as_array().unwrap() {
        let function = &call["function"];
        answer.calls.push(format!("{} {} {}", call["id"], function["name"], function["arguments"]));
    }
    answer
}

/// Items are appended when added; event numbers increase; the final event repeats the done items.
fn read_responses_frames(frames: &[Value]) -> ClientAnswer {
    let mut answer = ClientAnswer::default();
    let mut items: Vec<Value> = Vec::new();
    let mut done: Vec<Value> = Vec::new();
    let mut before = None;
    for (at, frame) in frames.iter().enumerate() {
        let number = frame["sequence_number"].as_u64();
        assert!(number.is_some() && number > before, "{number:?} after {before:?}");
        before = number;
        let kind = frame["type"].as_str().unwrap();
        assert_eq!(at == 0, kind == "response.created");
        match kind {
            "response.created" => append_text(&mut answer.id, &frame["response"]["id"]),
            "response.in_progress" => assert_eq!(at, 1),
            "response.output_item.added" => {
                assert_eq!(frame["output_index"].as_u64(), Some(items.len() as u64), "a gap before {frame}");
                items.push(frame["item"].clone());
            }
            "response.output_item.done" => {
                let index = frame["output_index"].as_u64().unwrap() as usize;
                assert_eq!(items[index]["type"], frame["item"]["type"]);
                done.push(frame["item"].clone());
            }
            "response.completed" | "response.incomplete" => {
                let response = &frame["response"];
                assert_eq!(at, frames.len() - 1, "events after the end");
                assert_eq!(response["output"].as_array().unwrap(), &done);
                assert_eq!(response["created_at"], frames[0]["response"]["created_at"]);
                append_text(
                    &mut answer.stop,
                    response["incomplete_details"].get("reason").unwrap_or(&response["status"]),
                );
                answer.id = format!("{}..{}", answer.id, response["id"].as_str().unwrap());
                answer.input = response["usage"]["input_tokens"].as_u64().unwrap();
                answer.output = response["usage"]["output_tokens"].as_u64().unwrap();
                assert_eq!(response["usage"]["total_tokens"].as_u64(), Some(answer.input + answer.output));
            }
            _ => {
                let item = &items[frame["output_index"].as_u64().unwrap() as usize];
                assert_eq!(item["id"], frame["item_id"]);
            }
        }
    }
    for item in done {
        match item["type"].as_str().unwrap() {
            "reasoning" => {
                append_text(&mut answer.reasoning, &item["summary"][0]["text"]);
                answer.signatures.push(item["encrypted_content"].as_str().unwrap().to_owned());
            }
            "message" => append_text(&mut answer.text, &item["content"][0]["text"]),
            "function_call" => answer.calls.push(format!("{} {} {}", item["call_id"], item["name"], item["arguments"])),
            _ => {}
        }
    }
    answer
}
