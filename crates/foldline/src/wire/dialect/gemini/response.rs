//! Gemini responses: candidates with parts. A chunk of a stream has the form of a whole response.
//!
//! A call arrives whole. There is no end mark: the last chunk has the finish reason.

use crate::conversation::{Message, Part, Role};
use crate::wire::dialect::gemini::request::{is_thought, response_part, signature};
use crate::wire::dialect::gemini::usage::parse_usage;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::number_calls;
use crate::wire::response::stream::{
    OutputPosition, ResponseBuilder, ResponseSyntax, StreamEvent, StreamParser, parse_owned_parts,
};
use crate::wire::response::{ApiError, Response, StopInfo, StopReason, without_empty_parts};
use crate::wire::sse::FrameKind;

pub(crate) const RESPONSE: ResponseSyntax = ResponseSyntax {
    content_key: "candidates",
    framing: FrameKind::Event,
    envelope_key: Some(ENVELOPE_KEY),
    parse_body: parse_response,
    new_stream: || Box::new(GeminiStream::default()),
};

/// The field of Code Assist that contains a response.
pub(crate) const ENVELOPE_KEY: &str = "response";

fn parse_response<'a>(body: &JsonObject<'a>) -> Response<'a> {
    let candidates = body.elements("candidates");
    let candidate = candidates.first();
    let content = candidate.and_then(|candidate| candidate.object("content"));
    let parts = content.map(|content| content.elements("parts").iter().map(response_part).collect());
    let mut message = Message::new(Role::Assistant, without_empty_parts(parts.unwrap_or_default()));
    number_calls(std::slice::from_mut(&mut message));
    let any_call = message.calls().next().is_some();
    let reason = candidate.and_then(|candidate| candidate.string("finishReason"));
    Response {
        id: body.string("responseId"),
        model: body.string("modelVersion"),
        stop: reason.map(|raw| stop_info(&raw).corrected_for_calls(any_call)),
        message,
        usage: parse_usage(body),
        error: body.get_non_null("error").map(|error| ApiError::from_error_value(error, body)),
        ..Response::empty()
    }
}

fn stop_info(raw: &str) -> StopInfo {
    let reason = match raw {
        "STOP" => StopReason::EndTurn,
        "MAX_TOKENS" => StopReason::MaxTokens,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" => StopReason::Refused,
        "CONTINUATION" => StopReason::Paused,
        _ => StopReason::Other,
    };
    StopInfo { reason, raw: raw.to_owned() }
}

/// State of a stream. The response keeps the first candidate; events cover all.
#[derive(Clone, Debug, Default)]
struct GeminiStream {
    /// The parts of the first candidate as JSON; adjacent unsigned texts are joined.
    parts: Vec<String>,
    /// The text of the last part, if another text can be appended to it.
    open_text: Option<OpenText>,
    has_calls: bool,
}

#[derive(Clone, Debug)]
struct OpenText {
    text: String,
    is_thought: bool,
}

impl OpenText {
    fn to_json(&self) -> String {
        let thought = if self.is_thought { r#","thought":true"# } else { "" };
        format!(r#"{{"text":{}{thought}}}"#, quoted(&self.text))
    }
}

impl StreamParser for GeminiStream {
    fn read(
        &mut self,
        _: Option<&str>,
        chunk: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let content = chunk.object(ENVELOPE_KEY);
        let chunk = content.as_ref().unwrap_or(chunk);
        if let Some(error) = chunk.get_non_null("error") {
            return builder.record_error(ApiError::from_error_value(error, chunk), out);
        }
        builder.record_identity(chunk.string("responseId"), chunk.string("modelVersion"), out);
        for candidate in chunk.elements("candidates").iter() {
            let choice = candidate.u64(&["index"]).unwrap_or(0);
            let at = OutputPosition { choice, index: 0 };
            if let Some(content) = candidate.object("content") {
                content.elements("parts").iter().for_each(|part| self.read_part(at, part, builder, out));
            }
            if let Some(raw) = candidate.string("finishReason").filter(|raw| !raw.is_empty()) {
                builder.record_stop(choice, stop_info(&raw).corrected_for_calls(self.has_calls), out);
            }
        }
        if let Some(reason) = chunk.object("promptFeedback").and_then(|feedback| feedback.string("blockReason")) {
            let stop = StopInfo { reason: StopReason::Refused, raw: reason.into_owned() };
            builder.record_stop(0, stop, out);
        }
        builder.record_usage(parse_usage(chunk), out);
        if out.is_empty() {
            out.push(StreamEvent::Other { at: None, kind: String::new() });
        }
    }

    fn turn_json(&self) -> Vec<String> {
        vec![format!(r#"{{"role":"model","parts":{}}}"#, json_array(self.all_parts().iter().map(String::as_str)))]
    }

    fn into_parts(self: Box<Self>) -> Vec<Part<'static>> {
        let read = |part: &JsonObject<'_>| vec![response_part(part).into_owned()];
        let parts = self.all_parts().iter().flat_map(|json| parse_owned_parts(json, read)).collect();
        let mut message = Message::new(Role::Assistant, parts);
        number_calls(std::slice::from_mut(&mut message));
        message.parts
    }

    fn boxed_clone(&self) -> Box<dyn StreamParser> {
        Box::new(self.clone())
    }
}

impl GeminiStream {
    fn all_parts(&self) -> Vec<String> {
        self.parts.iter().cloned().chain(self.open_text.as_ref().map(OpenText::to_json)).collect()
    }

    fn read_part(
        &mut self,
        at: OutputPosition,
        part: &JsonObject<'_>,
        builder: &mut ResponseBuilder,
        out: &mut Vec<StreamEvent>,
    ) {
        let seal = signature(part);
        let text = part.string("text");
        let is_thought = is_thought(part);
        match &text {
            Some(text) if !text.is_empty() && is_thought => {
                out.push(StreamEvent::ReasoningDelta { at, text: text.clone().into_owned() });
            }
            Some(text) if !text.is_empty() => {
                out.push(StreamEvent::TextDelta { at, text: text.clone().into_owned() });
            }
            _ => {}
        }
        out.extend(seal.as_ref().map(|seal| StreamEvent::ReasoningSignature { at, signature: seal.to_string() }));
        let call = part.object("functionCall").or_else(|| part.object("function_call"));
        if let Some(call) = &call {
            self.has_calls |= at.choice == 0;
            let number = builder.next_call_number();
            let (id, name) = (call.string("id").unwrap_or_default(), call.string("name").unwrap_or_default());
            out.push(StreamEvent::ToolCallOpened { at, call: number, id: id.into_owned(), name: name.into_owned() });
            let arguments = call.get("args").map_or("{}", |args| args.raw()).to_owned();
            out.push(StreamEvent::ToolCallDelta { at, call: number, arguments });
            out.push(StreamEvent::ToolCallClosed { at, call: number });
        }
        if text.is_none() && call.is_none() {
            let kind = part.fields().first().map(|field| field.key.to_string()).unwrap_or_default();
            out.push(StreamEvent::Other { at: Some(at), kind });
        }
        if at.choice == 0 {
            self.keep_part(part, text.as_deref().filter(|_| seal.is_none()), is_thought, builder);
        }
    }

    /// Keeps a part for the next request; an unsigned text is appended to the text before it, as clients do. The last
    /// chunk often has an empty text, which a request must not have.
    fn keep_part(
        &mut self,
        part: &JsonObject<'_>,
        unsigned_text: Option<&str>,
        is_thought: bool,
        builder: &mut ResponseBuilder,
    ) {
        if unsigned_text == Some("") {
            return;
        }
        if let (Some(text), Some(open)) =
            (unsigned_text, self.open_text.as_mut().filter(|open| open.is_thought == is_thought))
        {
            return builder.append_text(&mut open.text, text);
        }
        self.parts.extend(self.open_text.take().map(|open| open.to_json()));
        match unsigned_text {
            Some(text) if builder.try_reserve(text.len()) => {
                self.open_text = Some(OpenText { text: text.to_owned(), is_thought });
            }
            None if builder.try_reserve(part.value.raw().len()) => self.parts.push(part.value.raw().to_owned()),
            _ => {}
        }
    }
}

/// Returns a response or chunk with the counts of the last round and the output of all rounds.
pub(crate) fn with_summed_usage(usage: &JsonObject<'_>, earlier_output: u64, earlier_thoughts: u64) -> String {
    let mut changes = Vec::new();
    let mut add = |key: &'static str, more: u64| {
        if let Some(count) = usage.u64(&[key]) {
            changes.push((key, FieldChange::Set(count.saturating_add(more).to_string())));
        }
    };
    let has_thoughts = usage.get_non_null("thoughtsTokenCount").is_some();
    let visible = if has_thoughts { earlier_output.saturating_sub(earlier_thoughts) } else { earlier_output };
    add("candidatesTokenCount", visible);
    add("thoughtsTokenCount", earlier_thoughts);
    add("totalTokenCount", earlier_output);
    with_changed_fields(usage, &changes)
}

#[cfg(test)]
mod tests {
    use crate::wire::Format::Gemini;
    use crate::wire::StreamReader;
    use crate::wire::response::testing::{assert_stream_matches_body, body_summary, stream_summary};

    const STREAM: &str = r#"
data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Think","thought":true}]},"index":0}],"usageMetadata":{"promptTokenCount":100,"totalTokenCount":100},"modelVersion":"gemini-3-pro","responseId":"r1"}

data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Let me "}]},"index":0}],"modelVersion":"gemini-3-pro","responseId":"r1"}

data: {"candidates":[{"content":{"role":"model","parts":[{"text":"look."},{"functionCall":{"name":"ls","args":{"path":"."}},"thoughtSignature":"c2ln"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":64,"candidatesTokenCount":7,"thoughtsTokenCount":5,"totalTokenCount":112},"modelVersion":"gemini-3-pro","responseId":"r1"}

"#;
    const BODY: &str = r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Think","thought":true},{"text":"Let me look."},{"functionCall":{"name":"ls","args":{"path":"."}},"thoughtSignature":"c2ln"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":64,"candidatesTokenCount":7,"thoughtsTokenCount":5,"totalTokenCount":112},"modelVersion":"gemini-3-pro","responseId":"r1"}"#;

    #[test]
    fn stream_with_thought_text_and_signed_call_is_read() {
        let (events, response) = stream_summary(Gemini, STREAM);
        assert_eq!(
            events,
            concat!(
                "started r1 gemini-3-pro | thought 0 Think | usage in=100 out=0 | text 0 Let me  | text 0 look. | seal 0 c2ln",
                r#" | call 0@0  ls | call 0@0 +{"path":"."} | call 0@0 closed | stop ToolUse STOP"#,
                " | usage in=100 read=64 out=12 reasoning=5"
            )
        );
        assert_eq!(
            response,
            concat!(
                r##"r1 gemini-3-pro: thought Think + text Let me look. + call #ls.0 ls {"path":"."} | ToolUse STOP"##,
                " | in=100 read=64 out=12 reasoning=5 | Complete"
            )
        );
        assert_stream_matches_body(Gemini, STREAM, BODY);
    }

    #[test]
    fn empty_text_after_a_call_is_not_part_of_the_turn() {
        let stream = r#"data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"ls","args":{}}}]}}]}

data: {"candidates":[{"content":{"parts":[{"text":""}]},"finishReason":"STOP"}]}

"#;
        let mut reader = StreamReader::new(Gemini);
        reader.push(stream.as_bytes());
        assert_eq!(reader.turn_json(), [r#"{"role":"model","parts":[{"functionCall":{"name":"ls","args":{}}}]}"#]);
    }

    #[test]
    fn blocked_prompt_and_error_are_read() {
        let blocked = "data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"},\"responseId\":\"r\"}\n\n";
        assert_eq!(stream_summary(Gemini, blocked).1, "r: | Refused SAFETY | Complete");
        let error = r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#;
        let summary = body_summary(Gemini, error);
        assert!(summary.contains("error 400: The input token count"), "{summary}");
        let (events, _) = stream_summary(Gemini, &format!("data: {error}\n\n"));
        assert!(events.ends_with("[overflow 1048576]"), "{events}");
    }

    #[test]
    fn finish_reasons_are_normalized() {
        for (raw, reason) in [
            ("STOP", "EndTurn"),
            ("MAX_TOKENS", "MaxTokens"),
            ("RECITATION", "Refused"),
            ("CONTINUATION", "Paused"),
            ("MALFORMED_FUNCTION_CALL", "Other"),
        ] {
            let body =
                format!(r#"{{"candidates":[{{"content":{{"parts":[{{"text":"x"}}]}},"finishReason":"{raw}"}}]}}"#);
            assert_eq!(body_summary(Gemini, &body), format!(": text x | {reason} {raw} | Complete"));
        }
    }
}
