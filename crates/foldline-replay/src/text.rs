//! The texts of a message, each with its origin.
//!
//! The metrics treat a message as a set of texts made of lines. Arguments of calls are JSON, so
//! the strings inside are decoded first: a file that was written by a call has lines like a file
//! that was read.

use std::borrow::Cow;

use foldline::conversation::{CallArguments, MediaSource};
use foldline::engine::text_kind::strip_terminal_codes;
use foldline::{Message, Part, Role};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Origin of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextOrigin {
    /// Text of a system, developer or user message.
    Instruction,
    /// Text of the model.
    Prose,
    /// Reasoning of the model.
    Reasoning,
    /// The name of the tool in a call.
    ToolName,
    /// The id of a call, in the call or its result.
    CallId,
    /// A value inside the arguments of a call.
    Argument,
    /// The result of a tool.
    Result,
}

impl TextOrigin {
    /// Returns the class of a line. Lines count as verbatim only among texts of the same class: the value of an argument
    /// is often a bare path, and a list of such values is not the original text.
    fn line_class(self) -> u64 {
        match self {
            TextOrigin::Instruction | TextOrigin::Prose | TextOrigin::Reasoning | TextOrigin::Result => 0,
            TextOrigin::ToolName | TextOrigin::CallId | TextOrigin::Argument => 1,
        }
    }

    /// Returns the key of a line of such a text, without terminal codes, which are never quoted.
    pub(crate) fn line_key(self, line: &str) -> u64 {
        let shown = strip_terminal_codes(line).map_or(Cow::Borrowed(line), Cow::Owned);
        xxh3_64_with_seed(shown.trim_end().as_bytes(), self.line_class())
    }
}

/// Calls `visit` with every text of a message and the index of the part that holds it.
pub(crate) fn for_each_text(message: &Message<'_>, mut visit: impl FnMut(TextOrigin, usize, &str)) {
    let text_origin = match message.role {
        Role::Assistant => TextOrigin::Prose,
        Role::Tool => TextOrigin::Result,
        _ => TextOrigin::Instruction,
    };
    for (at, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } => visit(text_origin, at, text),
            Part::Reasoning(reasoning) => visit(TextOrigin::Reasoning, at, &reasoning.text),
            Part::ToolCall(call) => {
                visit(TextOrigin::CallId, at, &call.id);
                visit(TextOrigin::ToolName, at, &call.name);
                for_each_argument(&call.arguments, |text| visit(TextOrigin::Argument, at, text));
            }
            Part::ToolResult(result) => {
                visit(TextOrigin::CallId, at, &result.call_id);
                for part in &result.content {
                    match part {
                        Part::Text { text } => visit(TextOrigin::Result, at, text),
                        Part::File(file) => {
                            if let MediaSource::Text(text) = &file.source {
                                visit(TextOrigin::Result, at, text);
                            }
                        }
                        _ => {}
                    }
                }
            }
            Part::File(file) => {
                if let MediaSource::Text(text) = &file.source {
                    visit(text_origin, at, text);
                }
            }
            _ => {}
        }
    }
}

/// Calls `visit` with every value inside the arguments of a call, decoded.
pub(crate) fn for_each_argument(arguments: &CallArguments<'_>, mut visit: impl FnMut(&str)) {
    match arguments {
        CallArguments::Text(text) => visit(text),
        CallArguments::Json(json) => match serde_json::from_str::<Value>(json) {
            Ok(value) => for_each_leaf(&value, &mut visit),
            Err(_) => visit(json),
        },
    }
}

fn for_each_leaf(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Number(number) => visit(&number.to_string()),
        Value::Array(values) => values.iter().for_each(|value| for_each_leaf(value, visit)),
        Value::Object(fields) => fields.values().for_each(|value| for_each_leaf(value, visit)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Parses the arguments of a call as a JSON object, if they are one.
pub(crate) fn argument_object(arguments: &CallArguments<'_>) -> Option<serde_json::Map<String, Value>> {
    match arguments {
        CallArguments::Json(json) => match serde_json::from_str(json) {
            Ok(Value::Object(fields)) => Some(fields),
            _ => None,
        },
        CallArguments::Text(_) => None,
    }
}

/// Strips the number that file viewers print before a line, so that text which was read and
/// text which is to be replaced can be compared.
pub(crate) fn without_line_number(line: &str) -> &str {
    let rest = line.trim_start_matches(' ');
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 6 {
        return line;
    }
    let rest = &rest[digits..];
    for mark in ["→", "\t", "|", ":\t"] {
        if let Some(rest) = rest.strip_prefix(mark) {
            return rest;
        }
    }
    line
}

/// Strips the numbers of all lines of a text. Borrowed if no line has a number.
pub(crate) fn without_line_numbers(text: &str) -> Cow<'_, str> {
    if text.split('\n').all(|line| without_line_number(line).len() == line.len()) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            plain.push('\n');
        }
        plain.push_str(without_line_number(line));
    }
    Cow::Owned(plain)
}

/// Joins the texts of a message, as engines without parts do.
pub(crate) fn joined_text(message: &Message<'_>) -> Option<String> {
    let texts: Vec<&str> = message.parts.iter().filter_map(part_text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Returns the text of a part; media are named.
pub(crate) fn part_text<'a>(part: &'a Part<'_>) -> Option<&'a str> {
    match part {
        Part::Text { text } => Some(text),
        Part::File(file) => match &file.source {
            MediaSource::Text(text) => Some(text),
            _ => Some("[file]"),
        },
        Part::Image(_) => Some("[image]"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_inside_arguments_are_decoded() {
        let message = Message::new(Role::Assistant, vec![Part::call("c1", "write", r#"{"a":{"b":"x\ny"},"n":[123]}"#)]);
        let mut seen = Vec::new();
        for_each_text(&message, |kind, part, text| seen.push((kind, part, text.to_owned())));
        let expected = [
            (TextOrigin::CallId, "c1"),
            (TextOrigin::ToolName, "write"),
            (TextOrigin::Argument, "x\ny"),
            (TextOrigin::Argument, "123"),
        ];
        assert_eq!(seen, expected.map(|(kind, text)| (kind, 0, text.to_owned())));
    }

    #[test]
    fn line_key_ignores_terminal_codes() {
        let key = |line| TextOrigin::Result.line_key(line);
        assert_eq!(key("\u{1b}[31merror\u{1b}[0m: no such field"), key("error: no such field"));
        assert_eq!(key(" 10 %\r100 % done"), key("100 % done"));
        assert_ne!(key("error: no such field"), key("error: no such file"));
    }

    #[test]
    fn viewer_line_numbers_are_removed() {
        assert_eq!(without_line_numbers("     1→fn a() {\n    20→\t}"), "fn a() {\n\t}");
        assert_eq!(without_line_numbers("  12\tx = 1"), "x = 1");
        assert_eq!(without_line_numbers("12 apples\n2024-01-01"), "12 apples\n2024-01-01");
    }
}
