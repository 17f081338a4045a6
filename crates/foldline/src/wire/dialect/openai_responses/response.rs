//! Responses of the Responses API: a list of items, each of which is added, extended by deltas and done.
//!
//! A done item is complete, so its deltas matter only if the done event is missing.

use std::collections::BTreeMap;

use crate::conversation::{Message, Part, ReasoningPart, Role};
use crate::wire::dialect::openai_responses::item_tracker::ItemTracker;
use crate::wire::dialect::openai_responses::request::parse_message;
use crate::wire::dialect::openai_responses::usage::parse_usage;
use crate::wire::json::layout::BodyLayout;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{FieldChange, quoted, with_changed_fields};
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, event_type, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "output",
    framing: FrameKind::Event,
    envelope_key: None,
    parse_body: parse_response,
    new_stream: || Box::new(ResponsesStream::default()),
};

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let parts: Vec<Part<'a>> = body.elements("output").iter().flat_map(item_parts).collect();
    let any_call = parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
    Response {
        id: body.string("id"),
        model: body.string("model"),
        message: Message::new(Role::Assistant, without_empty_parts(parts)),
        stop: stop_info(body, any_call),
        usage: parse_usage(body),
        error: body.get_non_null("error").map(|error| ApiError::from_error_value(error, body)),
        ..Response::empty()
    }
}

fn item_parts<'a>(item: &JsonObject<'a>) -> Vec<Part<'a>> {
    parse_message(item, &mut BodyLayout::default()).parts
}

fn stop_info(response: &JsonObject<'_>, any_call: bool) -> Option<StopInfo> {
    let status = response.string("status");
    let reason = response.object("incomplete_details").and_then(|details| details.string("reason"));
    match (status.as_deref(), reason) {
        (_, Some(reason)) => Some(StopInfo::from_raw(&reason)),
        (None | Some("queued" | "in_progress"), None) => None,
        (Some(status), None) => Some(StopInfo::from_raw(status).corrected_for_calls(any_call)),
    }
}

/// State of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsesStream {
    items: BTreeMap<u64, StreamedItem>,
    tracker: ItemTracker,
}

#[derive(Clone, Debug, Default)]
struct StreamedItem {
    /// The item as added, or as done.
    json: String,
    done: bool,
    call: Option<usize>,
    /// Accumulated deltas, until the item is done.
    text: String,
    summary: String,
    arguments: String,
    /// True if any delta was received.
    has_deltas: bool,
}

impl StreamParser for ResponsesStream {
    fn read(
        &mut self,
        name: Option<&str>,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let kind = &*event_type(name, data);
        let position = self.tracker.resolve_index(kind, data).map(|index| OutputPosition { choice: 0, index });
        let at = position.unwrap_or_default();
        match kind {
            "response.created" | "response.queued" | "response.in_progress" => {
                if let Some(response) = data.object("response") {
                    builder.record_start(&response, out);
                }
            }
            "response.output_item.added" => {
                if let Some(item) = data.object("item") {
                    self.add_item(at, &item, builder, out);
                }
            }
            "response.output_item.done" => {
                if let Some(item) = data.object("item") {
                    self.finish_item(at, &item, builder, out);
                }
            }
            "response.output_text.delta" => self.apply_delta(at, DeltaKind::Text, data, builder, out),
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.apply_delta(at, DeltaKind::Reasoning, data, builder, out);
            }
            "response.function_call_arguments.delta" => self.apply_delta(at, DeltaKind::Arguments, data, builder, out),
            "response.custom_tool_call_input.delta" => self.apply_delta(at, DeltaKind::Input, data, builder, out),
            "response.completed" | "response.incomplete" | "response.failed" | "response.done" => {
                if let Some(response) = data.object("response") {
                    self.apply_completed(&response, builder, out);
                }
                builder.record_done(kind, out);
            }
            "error" => builder.record_error(ApiError::find(data.value).unwrap_or_default(), out),
            _ => match data.get_non_null("error") {
                Some(error) => builder.record_error(ApiError::from_error_value(error, data), out),
                None => out.push(StreamEvent::Other { at: position, kind: kind.to_owned() }),
            },
        }
        if out.is_empty() {
            out.push(StreamEvent::Other { at: position, kind: kind.to_owned() });
        }
    }

    /// Returns the items to send back, as generated.
    fn turn_json(&self) -> Vec<String> {
        self.items.values().map(StreamedItem::to_json).collect()
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        let read = |item: &JsonObject<'_>| item_parts(item).into_iter().map(Part::into_owned).collect();
        self.items.values().flat_map(|item| parse_owned_parts(&item.to_json(), read)).collect()
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl ResponsesStream {
    fn add_item(
        &mut self,
        at: OutputPosition,
        item: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let call = item_parts(item).iter().find_map(|part| match part {
            Part::ToolCall(call) => {
                let number = builder.next_call_number();
                let (id, name) = (call.id.clone().into_owned(), call.name.clone().into_owned());
                out.push(StreamEvent::ToolCallOpened { at, call: number, id, name });
                Some(number)
            }
            _ => None,
        });
        let raw = item.value.raw();
        if builder.try_reserve(raw.len() + size_of::<StreamedItem>()) {
            self.items.insert(at.index, StreamedItem { json: raw.to_owned(), call, ..StreamedItem::default() });
        }
    }

    fn apply_delta(
        &mut self,
        at: OutputPosition,
        growth: DeltaKind,
        data: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let delta = data.string("delta").unwrap_or_default();
        if !self.items.contains_key(&at.index) && builder.try_reserve(size_of::<StreamedItem>()) {
            // Some servers send deltas without adding the item first.
            self.items.insert(
                at.index,
                StreamedItem { json: growth.placeholder_item().to_owned(), ..StreamedItem::default() },
            );
        }
        let Some(item) = self.items.get_mut(&at.index) else { return };
        item.has_deltas = true;
        let text = delta.clone().into_owned();
        match (growth, item.call) {
            (DeltaKind::Text, _) => {
                builder.append_text(&mut item.text, &delta);
                out.push(StreamEvent::TextDelta { at, text });
            }
            (DeltaKind::Reasoning, _) => {
                builder.append_text(&mut item.summary, &delta);
                out.push(StreamEvent::ReasoningDelta { at, text });
            }
            (DeltaKind::Arguments | DeltaKind::Input, call) => {
                builder.append_text(&mut item.arguments, &delta);
                out.extend(call.map(|call| StreamEvent::ToolCallDelta { at, call, arguments: text }));
            }
        }
    }

    fn finish_item(
        &mut self,
        at: OutputPosition,
        item: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        if !self.items.contains_key(&at.index) {
            self.add_item(at, item, builder, out);
        }
        let Some(kept) = self.items.get_mut(&at.index) else { return };
        if kept.done {
            return;
        }
        let grew = kept.has_deltas;
        for part in item_parts(item) {
            match part {
                Part::Text { text } if !grew && !text.is_empty() => {
                    out.push(StreamEvent::TextDelta { at, text: text.into() });
                }
                Part::Reasoning(ReasoningPart { text, seal, .. }) => {
                    if !grew && !text.is_empty() {
                        out.push(StreamEvent::ReasoningDelta { at, text: text.into() });
                    }
                    out.extend(seal.map(|seal| StreamEvent::ReasoningSignature { at, signature: seal.into_owned() }));
                }
                Part::ToolCall(call) => {
                    let Some(number) = kept.call else { continue };
                    let arguments = call.arguments.as_str();
                    if !grew && !arguments.is_empty() {
                        out.push(StreamEvent::ToolCallDelta { at, call: number, arguments: arguments.to_owned() });
                    }
                    out.push(StreamEvent::ToolCallClosed { at, call: number });
                }
                _ => {}
            }
        }
        let raw = item.value.raw();
        if builder.try_reserve(raw.len()) {
            *kept = StreamedItem { json: raw.to_owned(), done: true, call: kept.call, ..StreamedItem::default() };
        }
    }

    fn apply_completed(
        &mut self,
        response: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        builder.record_start(response, out);
        // A server without item events still sends everything at the end.
        if self.items.is_empty() {
            for (index, item) in (0..).zip(response.elements("output").iter()) {
                self.finish_item(OutputPosition { choice: 0, index }, item, builder, out);
            }
        }
        builder.record_usage(parse_usage(response), out);
        if let Some(error) = response.get_non_null("error") {
            builder.record_error(ApiError::from_error_value(error, response), out);
        }
        let any_call = self.items.values().any(|item| item.call.is_some());
        if let Some(stop) = stop_info(response, any_call) {
            builder.record_stop(0, stop, out);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum DeltaKind {
    Text,
    Reasoning,
    Arguments,
    Input,
}

impl DeltaKind {
    /// Returns the item implied by a delta, if it was never added.
    fn placeholder_item(self) -> &'static str {
        match self {
            DeltaKind::Text => r#"{"type":"message","role":"assistant"}"#,
            DeltaKind::Reasoning => r#"{"type":"reasoning"}"#,
            DeltaKind::Arguments => r#"{"type":"function_call"}"#,
            DeltaKind::Input => r#"{"type":"custom_tool_call"}"#,
        }
    }
}

impl StreamedItem {
    /// Returns the item in the form of a JSON body.
    fn to_json(&self) -> String {
        let document = match scan::parse_document(&self.json) {
            Ok(document) if !self.done => document,
            _ => return self.json.clone(),
        };
        let item = document.object();
        let mut changes = Vec::new();
        if !self.text.is_empty() {
            let content = format!(r#"[{{"type":"output_text","text":{}}}]"#, quoted(&self.text));
            changes.push(("content", FieldChange::Set(content)));
        }
        if !self.summary.is_empty() {
            let summary = format!(r#"[{{"type":"summary_text","text":{}}}]"#, quoted(&self.summary));
            changes.push(("summary", FieldChange::Set(summary)));
        }
        if !self.arguments.is_empty() {
            let key = if item.string("type").as_deref() == Some("custom_tool_call") { "input" } else { "arguments" };
            changes.push((key, FieldChange::Set(quoted(&self.arguments))));
        }
        with_changed_fields(&item, &changes)
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::OpenAiResponses as RESPONSES;
    use crate::wire::response::testing::{assert_stream_matches_body, body_summary, stream_summary};

    #[test]
    fn reasoning_text_and_a_call_are_read() {
        let stream = r#"
event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"gpt-5","output":[],"usage":null}}

event: response.in_progress
data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1","status":"in_progress","model":"gpt-5","output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}}

event: response.reasoning_summary_part.added
data: {"type":"response.reasoning_summary_part.added","sequence_number":3,"item_id":"rs_1","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":""}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":4,"item_id":"rs_1","output_index":0,"summary_index":0,"delta":"hm"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":5,"output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAA"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":6,"output_index":1,"item":{"id":"msg_1","type":"message","role":"assistant","status":"in_progress","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":7,"item_id":"msg_1","output_index":1,"content_index":0,"delta":"Loo","logprobs":[]}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":8,"item_id":"msg_1","output_index":1,"content_index":0,"delta":"king"}

event: response.output_text.done
data: {"type":"response.output_text.done","sequence_number":9,"item_id":"msg_1","output_index":1,"content_index":0,"text":"Looking"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":10,"output_index":1,"item":{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Looking","annotations":[]}]}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":11,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"in_progress","arguments":"","call_id":"call_1","name":"read"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":12,"item_id":"fc_1","output_index":2,"delta":"{\"p\":1}"}

event: response.function_call_arguments.done
data: {"type":"response.function_call_arguments.done","sequence_number":13,"item_id":"fc_1","output_index":2,"arguments":"{\"p\":1}"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":14,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"completed","arguments":"{\"p\":1}","call_id":"call_1","name":"read"}}

event: response.completed
data: {"type":"response.completed","sequence_number":15,"response":{"id":"resp_1","status":"completed","model":"gpt-5","output":[],"usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":40,"cache_write_tokens":7},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":59}}}

"#;
        let (events, _) = stream_summary(RESPONSES, stream);
        assert_eq!(
            events,
            "started resp_1 gpt-5 | (response.in_progress) | (response.output_item.added 0) \
             | (response.reasoning_summary_part.added 0) | thought 0 hm | seal 0 gAAA | (response.output_item.added 1) \
             | text 1 Loo | text 1 king | (response.output_text.done 1) | (response.output_item.done 1) \
             | call 0@2 call_1 read | call 0@2 +{\"p\":1} | (response.function_call_arguments.done 2) | call 0@2 closed \
             | usage in=50 read=40 write=7 out=9 reasoning=5 | stop ToolUse completed | done"
        );
        assert_stream_matches_body(
            RESPONSES,
            stream,
            r#"{"id":"resp_1","object":"response","status":"completed","model":"gpt-5","error":null,"incomplete_details":null,"output":[
                {"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAA"},
                {"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Looking","annotations":[]}]},
                {"id":"fc_1","type":"function_call","status":"completed","arguments":"{\"p\":1}","call_id":"call_1","name":"read"}],
                "usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":40,"cache_write_tokens":7},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":5}}}"#,
        );
    }

    #[test]
    fn custom_and_builtin_calls_are_read() {
        let (events, response) = stream_summary(
            RESPONSES,
            r#"
data: {"type":"response.output_item.added","output_index":0,"item":{"type":"custom_tool_call","id":"ctc","call_id":"a","name":"apply_patch","input":""}}

data: {"type":"response.custom_tool_call_input.delta","output_index":0,"item_id":"ctc","delta":"*** Begin"}

data: {"type":"response.custom_tool_call_input.done","output_index":0,"item_id":"ctc","input":"*** Begin"}

data: {"type":"response.output_item.done","output_index":0,"item":{"type":"custom_tool_call","id":"ctc","call_id":"a","name":"apply_patch","input":"*** Begin"}}

data: {"type":"response.output_item.done","output_index":1,"item":{"type":"local_shell_call","id":"l","call_id":"b","action":{"command":["ls"]},"status":"completed"}}

data: {"type":"response.web_search_call.searching","output_index":2,"item_id":"ws"}

data: {"type":"response.output_item.done","output_index":2,"item":{"type":"web_search_call","id":"ws","status":"completed"}}

"#,
        );
        assert_eq!(
            events,
            "call 0@0 a apply_patch | call 0@0 +*** Begin | (response.custom_tool_call_input.done 0) | call 0@0 closed \
             | call 1@1 b local_shell | call 1@1 +{\"command\":[\"ls\"]} | call 1@1 closed \
             | (response.web_search_call.searching 2) | (response.output_item.done 2)"
        );
        assert_eq!(
            response,
            r#": call a apply_patch *** Begin + call b local_shell {"command":["ls"]} + opaque web_search_call {"type":"web_search_call","id":"ws","status":"completed"} | Interrupted"#
        );
    }

    #[test]
    fn interrupted_stream_keeps_partial_items() {
        let (_, response) = stream_summary(
            RESPONSES,
            r#"
data: {"type":"response.created","response":{"id":"r","model":"m"}}

data: {"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs","summary":[]}}

data: {"type":"response.reasoning_text.delta","output_index":0,"delta":"hm"}

data: {"type":"response.output_item.added","output_index":1,"item":{"type":"message","role":"assistant","content":[]}}

data: {"type":"response.output_text.delta","output_index":1,"delta":"half"}

data: {"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}

data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"a\""}

data: {"type":"response.outp"#,
        );
        assert_eq!(response, r#"r m: thought hm + text half + call c f {"a" | Interrupted"#);
    }

    #[test]
    fn skipped_events_are_filled_in() {
        // No deltas: the done item is complete.
        let (events, _) = stream_summary(
            RESPONSES,
            r#"
data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}}

data: {"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}}

"#,
        );
        assert_eq!(events, "text 0 hi | call 0@1 c f | call 0@1 +{} | call 0@1 closed");
        // No items: deltas without an added item.
        let (_, response) =
            stream_summary(RESPONSES, "data: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n");
        assert_eq!(response, ": text hi | Interrupted");
        // Only the final event.
        let (events, response) = stream_summary(
            RESPONSES,
            r#"
data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}]}}

data: [DONE]

"#,
        );
        assert_eq!(events, "started r | text 0 hi | stop EndTurn completed | done | ([DONE])");
        assert_eq!(response, "r: text hi | EndTurn completed | Complete");
    }

    #[test]
    fn items_without_an_index_are_matched_by_id() {
        let (events, response) = stream_summary(
            RESPONSES,
            r#"
data: {"type":"response.created","response":{"id":"r","object":"response","status":"in_progress"}}

data: {"type":"response.output_item.added","item":{"content":[],"id":"msg_1","role":"assistant","status":"in_progress","type":"message"}}

data: {"type":"response.content_part.added","item_id":"msg_1","part":{"type":"output_text","text":""}}

data: {"type":"response.output_text.delta","item_id":"msg_1","delta":"hi"}

data: {"type":"response.output_item.added","item":{"arguments":"","call_id":"fc_a","name":"read","type":"function_call","status":"in_progress"}}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_a","delta":"{}"}

data: {"type":"response.output_item.added","item":{"arguments":"","call_id":"fc_b","name":"list","type":"function_call","status":"in_progress"}}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_b","delta":"{\"x\":1}"}

data: {"type":"response.output_item.done","item":{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"hi"}]}}

data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"fc_a","name":"read","arguments":"{}"}}

data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"fc_b","name":"list","arguments":"{\"x\":1}"}}

data: {"type":"response.completed","response":{"id":"r","status":"completed","model":"m","output":[]}}

"#,
        );
        assert_eq!(
            events,
            "started r | (response.output_item.added 0) | (response.content_part.added 0) | text 0 hi | call 0@1 fc_a read \
             | call 0@1 +{} | call 1@2 fc_b list | call 1@2 +{\"x\":1} | (response.output_item.done 0) | call 0@1 closed \
             | call 1@2 closed | stop ToolUse completed | done"
        );
        assert_eq!(
            response,
            r#"r m: text hi + call fc_a read {} + call fc_b list {"x":1} | ToolUse completed | Complete"#
        );
    }

    #[test]
    fn three_error_shapes_are_classified() {
        for (stream, expected) in [
            (
                r#"data: {"type":"error","sequence_number":2,"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"Your input exceeds the context window of this model.","param":"input"}}"#,
                "error context_length_exceeded: Your input exceeds the context window of this model. [overflow 0]",
            ),
            (
                r#"data: {"type":"error","code":"server_error","message":"oops","param":null,"sequence_number":2}"#,
                "error server_error: oops [other]",
            ),
            (
                r#"data: {"type":"response.failed","sequence_number":3,"response":{"id":"r","status":"failed","error":{"code":"context_length_exceeded","message":"too long"},"usage":null}}"#,
                "started r | error context_length_exceeded: too long [overflow 0] | stop Other failed | done",
            ),
        ] {
            assert_eq!(stream_summary(RESPONSES, &format!("{stream}\n\n")).0, expected);
        }
    }

    #[test]
    fn incomplete_response_has_a_stop_reason() {
        assert_eq!(
            body_summary(
                RESPONSES,
                r#"{"id":"r","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}"#
            ),
            "r: | MaxTokens max_output_tokens | Complete"
        );
        let (events, _) = stream_summary(
            RESPONSES,
            "data: {\"type\":\"response.incomplete\",\"response\":{\"id\":\"r\",\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}}}\n\n",
        );
        assert_eq!(events, "started r | stop Refused content_filter | done");
        assert_eq!(
            body_summary(
                RESPONSES,
                r#"{"id":"r","status":"failed","error":{"code":"server_error","message":"m"},"output":[]}"#
            ),
            "r: | Other failed | error server_error: m | Complete"
        );
    }
}
