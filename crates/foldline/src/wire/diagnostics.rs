//! Cache diagnostics: a provider compares the prompt of a request with that of an earlier response, and reports whether the
//! prefix in its cache was kept.
//!
//! The request for it is one more field at the end of a body. The diagnosis is removed from the response, so that a
//! client receives what it would have received without it; everything else is copied.

use std::borrow::Cow;

use memchr::memmem;

use crate::wire::format::Format;
use crate::wire::json::lexer::ByteSpan;
use crate::wire::json::scan::{JsonObject, JsonValue, parse_document};
use crate::wire::json::write::quoted;
use crate::wire::sse::{SseFrame, SseFramer};

/// Maximum characters of a reason.
const MAX_REASON_CHARS: usize = 80;
/// Fields of a diagnosis that have the reason of a miss, and fields of a reason that is an object.
const REASON_FIELDS: [&str; 3] = ["cache_miss_reason", "miss_reason", "reason"];
const REASON_NAME_FIELDS: [&str; 3] = ["type", "code", "reason"];

/// The fields of a dialect's cache diagnostics.
#[derive(Debug)]
pub(crate) struct DiagnosticsSyntax {
    /// End of the paths that have them; other providers offer the same dialect on other paths.
    pub(crate) path_end: &'static str,
    /// Field of a request.
    pub(crate) request_field: &'static str,
    /// Field inside of it with the id of the response to compare with.
    pub(crate) id_field: &'static str,
    /// Field of a response with the diagnosis.
    pub(crate) response_field: &'static str,
    /// Field of a stream's event with the response.
    pub(crate) event_field: &'static str,
}

/// A provider's verdict on its own cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheVerdict {
    /// The reason why the cached prefix was not used; none if it was kept.
    pub miss_reason: Option<String>,
}

/// Returns the body with a request to compare it with an earlier response. `None` if the API at this path has no
/// diagnostics, or if the client has set the field itself.
///
/// ```
/// use foldline::wire::{Format, request_cache_diagnostics};
///
/// let ask = |path, body: &str| request_cache_diagnostics(Format::Anthropic, path, body.as_bytes(), "msg_1");
/// let body = ask("/v1/messages", r#"{"model":"m","messages":[]}"#).unwrap();
/// assert_eq!(body, br#"{"model":"m","messages":[],"diagnostics":{"previous_message_id":"msg_1"}}"#);
/// assert!(ask("/v1/publishers/anthropic/models/m:rawPredict", "{}").is_none());
/// assert!(ask("/v1/messages", r#"{"diagnostics":{}}"#).is_none());
/// ```
pub fn request_cache_diagnostics(format: Format, path: &str, body: &[u8], response_id: &str) -> Option<Vec<u8>> {
    let syntax = format.dialect().diagnostics.as_ref().filter(|syntax| path.ends_with(syntax.path_end))?;
    let text = std::str::from_utf8(body).ok()?;
    let document = parse_document(text).ok().filter(|document| document.is_object())?;
    let object = document.object();
    if object.get(syntax.request_field).is_some() {
        return None;
    }
    let comma = if object.fields().is_empty() { "" } else { "," };
    let field =
        format!("{comma}{}:{{{}:{}}}", quoted(syntax.request_field), quoted(syntax.id_field), quoted(response_id));
    // Before the brace, and before white space in front of it.
    let end = object.fields().last().map_or(document.span.end - 1, |last| last.span.end);
    Some([&body[..end], field.as_bytes(), &body[end..]].concat())
}

/// Removes a requested diagnosis from a response.
#[derive(Debug)]
pub struct DiagnosticsFilter {
    syntax: Option<&'static DiagnosticsSyntax>,
    framer: SseFramer,
    verdict: Option<CacheVerdict>,
}

impl DiagnosticsFilter {
    /// Creates the filter of one response.
    pub fn new(format: Format) -> Self {
        Self { syntax: format.dialect().diagnostics.as_ref(), framer: SseFramer::new(), verdict: None }
    }

    /// Returns the verdict, if the response had one so far.
    pub fn verdict(&self) -> Option<&CacheVerdict> {
        self.verdict.as_ref()
    }

    /// Returns a whole body without the diagnosis. A body that is not JSON is returned as it is.
    pub fn filter_body<'b>(&mut self, body: &'b [u8]) -> Cow<'b, [u8]> {
        match std::str::from_utf8(body).ok().and_then(|text| self.filter_json(text)) {
            Some(text) => Cow::Owned(text.into_bytes()),
            None => Cow::Borrowed(body),
        }
    }

    /// Returns the next bytes of a stream. An event is held until it is complete.
    pub fn filter_chunk(&mut self, mut chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(chunk.len());
        let mut framer = std::mem::take(&mut self.framer);
        while let Some(frame) = framer.next(&mut chunk) {
            self.write_frame(&frame, &mut out);
        }
        self.framer = framer;
        out
    }

    /// Returns the bytes of a stream that were held when it ended.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut framer = std::mem::take(&mut self.framer);
        if let Some(frame) = framer.finish() {
            self.write_frame(&frame, &mut out);
        }
        out
    }

    fn write_frame(&mut self, frame: &SseFrame<'_>, out: &mut Vec<u8>) {
        let Some(line) = data_line(frame.raw) else { return out.extend_from_slice(frame.raw) };
        let text = std::str::from_utf8(&frame.raw[line.start..line.end]).ok();
        match text.and_then(|text| self.filter_json(text)) {
            Some(filtered) => {
                out.extend_from_slice(&frame.raw[..line.start]);
                out.extend_from_slice(filtered.as_bytes());
                out.extend_from_slice(&frame.raw[line.end..]);
            }
            None => out.extend_from_slice(frame.raw),
        }
    }

    /// Returns a response or an event without the diagnosis, and notes the verdict; none if there is nothing to remove.
    fn filter_json(&mut self, text: &str) -> Option<String> {
        let syntax = self.syntax?;
        let has = |field: &str| memmem::find(text.as_bytes(), quoted(field).as_bytes()).is_some();
        if !has(syntax.response_field) && !has(syntax.request_field) {
            return None;
        }
        let document = parse_document(text).ok().filter(|document| document.is_object())?;
        let object = document.object();
        let mut removed = Vec::new();
        for object in [Some(object.clone()), object.object(syntax.event_field)].into_iter().flatten() {
            let mut has_kept = false;
            for (at, field) in object.fields().iter().enumerate() {
                if field.key == syntax.response_field {
                    self.verdict = read_verdict(field.value).or(self.verdict.take());
                } else if field.key != syntax.request_field {
                    has_kept = true;
                    continue;
                }
                removed.push(removal_span(&object, at, has_kept));
            }
        }
        if removed.is_empty() {
            return None;
        }
        removed.sort_by_key(|span| span.start);
        let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
        for span in removed {
            out.push_str(&text[copied..span.start.max(copied)]);
            copied = span.end.max(copied);
        }
        out.push_str(&text[copied..]);
        Some(out)
    }
}

/// Returns the bytes to remove with a field: with the comma before it, or after it if no field before it is kept.
fn removal_span(object: &JsonObject<'_>, at: usize, has_kept: bool) -> ByteSpan {
    let fields = object.fields();
    let span = fields[at].span;
    match (at.checked_sub(1).filter(|_| has_kept), fields.get(at + 1)) {
        (Some(before), _) => ByteSpan { start: fields[before].span.end, end: span.end },
        (None, Some(next)) => ByteSpan { start: span.start, end: next.span.start },
        (None, None) => span,
    }
}

/// Returns the JSON in the only data line of an event.
fn data_line(raw: &[u8]) -> Option<ByteSpan> {
    let is_first = raw.starts_with(b"data:");
    let start = if is_first { 5 } else { memmem::find(raw, b"\ndata:")? + 6 };
    let length = raw[start..].iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(raw.len() - start);
    let end = start + length;
    // The JSON of several lines is not edited.
    memmem::find(&raw[end..], b"\ndata:").is_none().then_some(ByteSpan { start, end })
}

fn read_verdict(value: JsonValue<'_>) -> Option<CacheVerdict> {
    if !value.is_object() {
        return None;
    }
    let diagnosis = value.object();
    let reason = REASON_FIELDS.iter().find_map(|field| diagnosis.get_non_null(field));
    let miss_reason = reason.map(|reason| {
        let name = || REASON_NAME_FIELDS.iter().find_map(|field| reason.object().string(field));
        let name = if reason.is_object() { name() } else { reason.string() };
        name.map_or_else(|| "unknown".to_owned(), |name| name.chars().take(MAX_REASON_CHARS).collect())
    });
    Some(CacheVerdict { miss_reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(reason: Option<&str>) -> Option<CacheVerdict> {
        Some(CacheVerdict { miss_reason: reason.map(str::to_owned) })
    }

    #[test]
    fn request_is_one_more_field_and_leaves_the_clients_own() {
        let ask = |body: &str| {
            let path = "/v1/responses";
            let asked = request_cache_diagnostics(Format::OpenAiResponses, path, body.as_bytes(), "resp_\"1");
            asked.map(|body| String::from_utf8(body).unwrap())
        };
        let field = r#""prompt_cache_options":{"comparison_response_id":"resp_\"1"}"#;
        assert_eq!(ask(r#"{ "input": [] }"#).unwrap(), format!(r#"{{ "input": [],{field} }}"#));
        assert_eq!(ask("{}").unwrap(), format!("{{{field}}}"));
        assert_eq!(ask(r#"{"prompt_cache_options":{"mode":"auto"}}"#), None);
        assert_eq!((ask("[]"), ask("no JSON")), (None, None));
    }

    #[test]
    fn diagnostics_are_removed_from_body() {
        for (body, expected, found) in [
            (
                r#"{"id":"m","diagnostics":{"cache_miss_reason":null},"content":[]}"#,
                r#"{"id":"m","content":[]}"#,
                verdict(None),
            ),
            (
                r#"{ "diagnostics": {"cache_miss_reason": {"type": "messages_changed"}}, "content": [] }"#,
                r#"{ "content": [] }"#,
                verdict(Some("messages_changed")),
            ),
            (r#"{"content":[{"text":"\"diagnostics\""}]}"#, r#"{"content":[{"text":"\"diagnostics\""}]}"#, None),
            (r#"{"content":[{"diagnostics":1}]}"#, r#"{"content":[{"diagnostics":1}]}"#, None),
            (r#"{"diagnostics":null}"#, "{}", None),
        ] {
            let mut filter = DiagnosticsFilter::new(Format::Anthropic);
            assert_eq!(filter.filter_body(body.as_bytes()), expected.as_bytes());
            assert_eq!(filter.verdict().cloned(), found, "{body}");
        }
    }

    #[test]
    fn fields_are_removed_wherever_they_are() {
        let filtered = |body: &str| {
            let out = DiagnosticsFilter::new(Format::OpenAiResponses).filter_body(body.as_bytes()).into_owned();
            String::from_utf8(out).unwrap()
        };
        let (options, diagnosis) = (r#""prompt_cache_options":{}"#, r#""prompt_cache_diagnostics":{}"#);
        assert_eq!(filtered(&format!(r#"{{{options},{diagnosis},"a":1}}"#)), r#"{"a":1}"#);
        assert_eq!(filtered(&format!(r#"{{"a":1,{options},{diagnosis}}}"#)), r#"{"a":1}"#);
        assert_eq!(filtered(&format!(r#"{{{options},"a":1,{diagnosis},"b":2}}"#)), r#"{"a":1,"b":2}"#);
        assert_eq!(filtered(&format!("{{{options},{diagnosis}}}")), "{}");
    }

    /// A stream is the same whatever the chunks, and the same as without a diagnosis.
    #[test]
    fn stream_is_as_if_nobody_had_asked() {
        let with = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"prompt_cache_options\":{\"comparison_response_id\":\"x\"},\"output\":[]}}\n\n\
                    : keep-alive\n\n\
                    event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[],\"prompt_cache_diagnostics\":{\"reason\":\"tools_changed\"}}}\r\n\r\n\
                    data: [DONE]\n\n";
        let without = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"output\":[]}}\n\n\
                       : keep-alive\n\n\
                       event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[]}}\r\n\r\n\
                       data: [DONE]\n\n";
        for size in [1, 7, 64, with.len()] {
            let mut filter = DiagnosticsFilter::new(Format::OpenAiResponses);
            let mut out: Vec<u8> = with.as_bytes().chunks(size).flat_map(|chunk| filter.filter_chunk(chunk)).collect();
            out.extend(filter.finish());
            assert_eq!(String::from_utf8(out).unwrap(), without, "chunks of {size}");
            assert_eq!(filter.verdict().cloned(), verdict(Some("tools_changed")));
        }
    }

    #[test]
    fn stream_that_breaks_off_is_forwarded_as_far_as_it_came() {
        let mut filter = DiagnosticsFilter::new(Format::Anthropic);
        let begun = b"event: ping\ndata: {\"diag";
        let mut out = filter.filter_chunk(begun);
        out.extend(filter.finish());
        assert_eq!(out, begun);
    }
}
