//! Detection of the format of an input from its first bytes.
//!
//! File names are not used. The head may be cut anywhere, even in the middle of its only line, so
//! detection uses only the keys that are visible.

use crate::error::ErrorKind;
use crate::transcript::LogFormat;
use crate::transcript::document::DocumentReader;
use crate::wire::Format;
use crate::wire::json::preview::ObjectPreview;
use crate::wire::json::scan;

/// The layout of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputLayout {
    /// One entry per line.
    Lines,
    /// Consecutive documents, each over any number of lines.
    Documents,
}

/// Maximum number of lines examined to detect the format.
const MAX_SAMPLED_LINES: usize = 40;
/// Bytes of each value kept for detection.
const MAX_PREVIEW_BYTES: usize = 64;

/// Returns the format of the input that begins with these bytes (64 KB are enough).
///
/// ```
/// use foldline::transcript::{LogFormat, detect};
/// use foldline::wire::Format;
///
/// assert_eq!(detect(br#"{"type":"session_meta","payload":{"id":"1"}}"#), Some(LogFormat::Codex));
/// assert_eq!(detect(b"[{\"role\": \"user\", \"content\": \"hi\"}]"), Some(LogFormat::Bodies(Format::OpenAiChat)));
/// assert_eq!(detect(b"Dear diary"), None);
/// ```
pub fn detect(head: &[u8]) -> Option<LogFormat> {
    detect_with_layout(head).map(|(format, _)| format)
}

pub(crate) fn detect_with_layout(head: &[u8]) -> Option<(LogFormat, InputLayout)> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if head.first()? == &b'[' {
        return Some((element_format(&first_object(head)?)?, InputLayout::Documents));
    }
    if let Some(format) = is_multiline_document(head).then(|| document_format(&object_preview(head)?)).flatten() {
        return Some((format, InputLayout::Documents));
    }
    let line_format = object_lines(head).take(MAX_SAMPLED_LINES).find_map(|line| line_format(&object_preview(line)?));
    let format = line_format.or_else(|| document_format(&object_preview(head)?))?;
    let layout = match format {
        LogFormat::ClaudeCode | LogFormat::Codex | LogFormat::Copilot | LogFormat::Pi | LogFormat::Record => {
            InputLayout::Lines
        }
        LogFormat::SweAgent | LogFormat::OpenHands | LogFormat::Inspect | LogFormat::OpenInference => {
            InputLayout::Documents
        }
        // The chat may be a single document on a single line.
        LogFormat::GeminiCli if !head.trim_ascii_end().contains(&b'\n') => InputLayout::Documents,
        LogFormat::GeminiCli | LogFormat::Bodies(_) => match object_lines(head).next() {
            Some(_) => InputLayout::Lines,
            None => InputLayout::Documents,
        },
    };
    Some((format, layout))
}

/// Returns true if the input begins with a document that continues after its first line. Such a document
/// may contain a line that looks like an entry: the last message of a list.
fn is_multiline_document(head: &[u8]) -> bool {
    let whole = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(cut) => std::str::from_utf8(&head[..cut.valid_up_to()]).unwrap_or_default(),
    };
    let first = whole.split('\n').next().unwrap_or_default();
    let is_valid = match scan::parse_document(whole).map_err(|error| error.kind().clone()) {
        Ok(_) => true,
        // Valid except that it is cut, possibly inside a word such as `true`.
        Err(ErrorKind::NotJson { offset }) => offset + 4 > whole.len(),
        Err(_) => false,
    };
    is_valid && scan::parse_document(first).is_err()
}

/// Returns the lines that are complete JSON objects. The last line may be cut, and counts if it begins
/// as an object.
fn object_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut lines = head.split(|&byte| byte == b'\n').peekable();
    std::iter::from_fn(move || lines.next().map(|line| (line, lines.peek().is_none()))).filter_map(|(line, is_last)| {
        let is_whole = || std::str::from_utf8(line).is_ok_and(|line| scan::parse_document(line).is_ok());
        (line.first() == Some(&b'{') && (is_last || is_whole())).then_some(line)
    })
}

/// Returns the visible keys of an object; `None` if the text does not begin with one.
fn object_preview(text: &[u8]) -> Option<ObjectPreview> {
    (text.trim_ascii_start().first() == Some(&b'{')).then(|| parse_preview(text))
}

/// Returns the visible keys of the first object in a list, or in a list of lists.
fn first_object(text: &[u8]) -> Option<ObjectPreview> {
    let mut rest = text.trim_ascii_start();
    for _ in 0..3 {
        match rest.first()? {
            b'[' => rest = rest[1..].trim_ascii_start(),
            b'{' => return Some(parse_preview(rest)),
            _ => return None,
        }
    }
    None
}

fn parse_preview(text: &[u8]) -> ObjectPreview {
    let mut fields = Vec::new();
    let mut document = DocumentReader::new(text, text.len());
    if document.enter().is_ok() {
        while let Ok(Some(key)) = document.next_key() {
            let mut value = Vec::new();
            let outcome = document.read_value(Some(&mut value));
            value.truncate(MAX_PREVIEW_BYTES);
            fields.push((String::from_utf8_lossy(&key).into_owned(), value));
            if outcome.is_err() {
                break;
            }
        }
    }
    ObjectPreview::new(fields)
}

/// Returns the format of a line of a log.
fn line_format(object: &ObjectPreview) -> Option<LogFormat> {
    let kind = object.text("type");
    if object.has("payload") && CODEX_LINE_TYPES.contains(&kind) || object.has("record_type") {
        return Some(LogFormat::Codex);
    }
    if kind.contains('.') && object.has("data") {
        return Some(LogFormat::Copilot);
    }
    let has_line_ids = object.has("sessionId") && (object.has("uuid") || object.has("parentUuid"));
    if has_line_ids || matches!(kind, "file-history-snapshot" | "queue-operation") || object.has("leafUuid") {
        return Some(LogFormat::ClaudeCode);
    }
    if kind == "session" && object.has("id") && object.has("cwd") || kind == "message" && object.has("message") {
        return Some(LogFormat::Pi);
    }
    if object.has("id") && object.has("source") && object.has("messages") {
        return Some(LogFormat::Record);
    }
    if object.has("id") && object.has("timestamp") && object.has("instructions") && !object.has("input") {
        return Some(LogFormat::Codex);
    }
    document_format(object)
}

fn document_format(object: &ObjectPreview) -> Option<LogFormat> {
    if object.has("sessionId") && object.has("projectHash") {
        return Some(LogFormat::GeminiCli);
    }
    if object.has("trace_id") && object.has("spans") {
        return Some(LogFormat::OpenInference);
    }
    if object.has("eval") && (object.has("status") || object.has("version")) {
        return Some(LogFormat::Inspect);
    }
    let evaluation_keys = ["history", "instance", "instruction", "metadata", "test_result"];
    if object.has("instance_id") && evaluation_keys.iter().any(|key| object.has(key)) {
        return Some(LogFormat::OpenHands);
    }
    if object.has("trajectory") && !object.has("messages") {
        return Some(LogFormat::SweAgent);
    }
    // A field of tau-bench.
    if object.has("traj") {
        return Some(LogFormat::Bodies(Format::OpenAiChat));
    }
    Format::detect_preview(object).map(LogFormat::Bodies)
}

/// Returns the format of the first element of a list.
fn element_format(object: &ObjectPreview) -> Option<LogFormat> {
    if object.has("source") && (object.has("action") || object.has("observation") || object.has("kind")) {
        return Some(LogFormat::OpenHands);
    }
    if object.has("span_attributes") {
        return Some(LogFormat::OpenInference);
    }
    document_format(object)
}

const CODEX_LINE_TYPES: [&str; 5] = ["session_meta", "response_item", "event_msg", "turn_context", "compacted"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The last message of a multi-line request body is on a separate line, like an entry of a log.
    #[test]
    fn multiline_body_is_a_document() {
        let body = b"{\"model\":\"m\",\n\"messages\":[\n{\"role\":\"user\",\"content\":\"a\"},\n{\"role\":\"user\",\"content\":\"b\"}\n]}";
        for end in [body.len(), body.len() - 1, body.len() - 9] {
            assert_eq!(
                detect_with_layout(&body[..end]),
                Some((LogFormat::Bodies(Format::OpenAiChat), InputLayout::Documents)),
                "{end}"
            );
        }
    }

    #[test]
    fn log_with_damaged_first_line_is_detected_as_lines() {
        let log = b"{\"type\":\"session_me\n{\"type\":\"response_item\",\"payload\":{}}\n";
        assert_eq!(detect_with_layout(log), Some((LogFormat::Codex, InputLayout::Lines)));
    }
}
