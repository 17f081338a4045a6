//! Edits of JSON files, with comments and trailing commas as some clients allow: everything but the edited members stays
//! byte for byte.

use std::ops::Range;

use anyhow::{Result, bail};
use serde_json::Value;

/// A member of an object.
struct Member {
    key: String,
    /// Start of the key.
    start: usize,
    value: Range<usize>,
}

/// An object: its members, and the positions of its braces.
struct ObjectSpan {
    open: usize,
    close: usize,
    members: Vec<Member>,
}

impl ObjectSpan {
    fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.key == key)
    }
}

/// Returns the JSON of the value at a path, if it exists.
pub(crate) fn get(text: &str, path: &[String]) -> Result<Option<String>> {
    let mut at = 0;
    for (depth, key) in path.iter().enumerate() {
        let Some(object) = read_object(text, at)? else { return Ok(None) };
        let Some(member) = object.member(key) else { return Ok(None) };
        if depth + 1 == path.len() {
            return Ok(Some(text[member.value.clone()].to_owned()));
        }
        at = member.value.start;
    }
    Ok(None)
}

/// Sets the value at a path to this JSON. Returns the text and the number of objects that had to be created for it.
pub(crate) fn set(text: &str, path: &[String], json: &str) -> Result<(String, usize)> {
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let mut at = 0;
    for (depth, key) in path.iter().enumerate() {
        let Some(object) = read_object(text, at)? else {
            bail!("{} is not an object", if depth == 0 { "the file".to_owned() } else { path[..depth].join(".") });
        };
        match object.member(key) {
            Some(member) if depth + 1 == path.len() => {
                let Range { start, end } = member.value;
                return Ok((format!("{}{json}{}", &text[..start], &text[end..]), 0));
            }
            Some(member) => at = member.value.start,
            None => return Ok((insert_member(text, &object, &path[depth..], json), path.len() - depth - 1)),
        }
    }
    bail!("the path of a setting is empty")
}

/// Removes the value at a path, and up to `parents` objects above it that are empty then.
pub(crate) fn remove(text: &str, path: &[String], parents: usize) -> Result<String> {
    let mut text = remove_member(text, path)?;
    for depth in (path.len().saturating_sub(parents)..path.len()).rev().filter(|depth| *depth > 0) {
        let is_empty = get(&text, &path[..depth])?
            .is_some_and(|json| matches!(read_object(&json, 0), Ok(Some(it)) if it.members.is_empty()));
        if !is_empty {
            break;
        }
        text = remove_member(&text, &path[..depth])?;
    }
    Ok(text)
}

/// Returns the whole value without comments and trailing commas.
pub(crate) fn parse(text: &str) -> Option<Value> {
    let mut plain = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let next = skip_blank(text, at);
        if next > at {
            plain.push(' ');
            at = next;
            continue;
        }
        let end = match text.as_bytes()[at] {
            b'"' => string_end(text, at).ok()?,
            _ => at + text[at..].chars().next().map_or(1, char::len_utf8),
        };
        let is_trailing_comma =
            &text[at..end] == "," && matches!(text.as_bytes().get(skip_blank(text, end)), Some(b'}' | b']'));
        if !is_trailing_comma {
            plain.push_str(&text[at..end]);
        }
        at = end;
    }
    serde_json::from_str(&plain).ok()
}

fn insert_member(text: &str, object: &ObjectSpan, path: &[String], json: &str) -> String {
    let unit = "  ";
    let inner = match object.members.first() {
        Some(first) => line_indent(text, first.start),
        None => format!("{}{unit}", line_indent(text, object.open)),
    };
    let mut value = json.to_owned();
    for (depth, key) in path.iter().enumerate().skip(1).rev() {
        let indent = format!("{inner}{}", unit.repeat(depth));
        let close = format!("{inner}{}", unit.repeat(depth - 1));
        value = format!("{{\n{indent}{}: {value}\n{close}}}", quoted(key));
    }
    let member = format!("{}: {value}", quoted(&path[0]));
    match object.members.last() {
        Some(last) => {
            let end = last.value.end;
            // A compact object stays compact.
            let separator = match text[object.open..last.start].contains('\n') {
                true => format!(",\n{inner}"),
                false => ", ".to_owned(),
            };
            format!("{}{separator}{member}{}", &text[..end], &text[end..])
        }
        None => {
            let outer = line_indent(text, object.open);
            format!("{}\n{inner}{member}\n{outer}{}", &text[..=object.open], &text[object.close..])
        }
    }
}

fn remove_member(text: &str, path: &[String]) -> Result<String> {
    let Some((key, parents)) = path.split_last() else { bail!("the path of a setting is empty") };
    let mut at = 0;
    for parent in parents {
        let Some(object) = read_object(text, at)? else { return Ok(text.to_owned()) };
        let Some(member) = object.member(parent) else { return Ok(text.to_owned()) };
        at = member.value.start;
    }
    let Some(object) = read_object(text, at)? else { return Ok(text.to_owned()) };
    let Some(position) = object.members.iter().position(|member| member.key == *key) else {
        return Ok(text.to_owned());
    };
    let member = &object.members[position];
    let cut = match (position.checked_sub(1), object.members.get(position + 1)) {
        (Some(previous), _) => object.members[previous].value.end..member.value.end,
        (None, Some(next)) => member.start..next.start,
        // The only member: the braces remain.
        (None, None) => object.open + 1..object.close,
    };
    Ok(format!("{}{}", &text[..cut.start], &text[cut.end..]))
}

/// Returns the blanks at the start of the line of a position.
fn line_indent(text: &str, at: usize) -> String {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    text[line..].chars().take_while(|c| matches!(c, ' ' | '\t')).collect()
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Reads the object that starts at or after a position; `None` if another value is there.
fn read_object(text: &str, at: usize) -> Result<Option<ObjectSpan>> {
    let open = skip_blank(text, at);
    let bytes = text.as_bytes();
    if bytes.get(open) != Some(&b'{') {
        return Ok(None);
    }
    let (mut at, mut members) = (open + 1, Vec::new());
    loop {
        at = skip_blank(text, at);
        match bytes.get(at) {
            Some(b'}') => return Ok(Some(ObjectSpan { open, close: at, members })),
            Some(b',') => at += 1,
            Some(b'"') => {
                let (start, end) = (at, string_end(text, at)?);
                let key = serde_json::from_str(&text[start..end])?;
                let colon = skip_blank(text, end);
                if bytes.get(colon) != Some(&b':') {
                    bail!("not valid JSON: a colon is missing after {}", &text[start..end]);
                }
                let value = skip_blank(text, colon + 1);
                at = value_end(text, value)?;
                members.push(Member { key, start, value: value..at });
            }
            _ => bail!("not valid JSON: the file ends or continues inside an object in an unexpected way"),
        }
    }
}

/// Returns the position after blanks and comments.
fn skip_blank(text: &str, mut at: usize) -> usize {
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        at += rest.len() - trimmed.len();
        at += if trimmed.starts_with("//") {
            trimmed.find('\n').unwrap_or(trimmed.len())
        } else if trimmed.starts_with("/*") {
            trimmed.find("*/").map_or(trimmed.len(), |end| end + 2)
        } else {
            return at;
        };
    }
}

/// Returns the position after the string that starts here.
fn string_end(text: &str, start: usize) -> Result<usize> {
    let mut escaped = false;
    for (offset, byte) in text.bytes().enumerate().skip(start + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(offset + 1),
            _ => {}
        }
    }
    bail!("not valid JSON: a text does not end")
}

/// Returns the position after the value that starts here.
fn value_end(text: &str, start: usize) -> Result<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match bytes.get(at) {
            Some(b'"') => at = string_end(text, at)?,
            Some(b'{' | b'[') => {
                depth += 1;
                at += 1;
            }
            Some(b'}' | b']') => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            Some(b',' | b':') if depth > 0 => at += 1,
            Some(_) => {
                let rest = &text[at..];
                let end = rest.find(|c: char| c.is_whitespace() || ",:{}[]\"/".contains(c)).unwrap_or(rest.len());
                if end == 0 {
                    bail!("not valid JSON: a value is missing");
                }
                at += end;
            }
            None => bail!("not valid JSON: the file ends inside a value"),
        }
        if depth == 0 {
            return Ok(at);
        }
        at = skip_blank(text, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(keys: &str) -> Vec<String> {
        keys.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn members_are_added_and_removed_without_other_changes() {
        for (before, after) in [
            ("", "{\n  \"env\": {\n    \"URL\": \"x\"\n  }\n}\n"),
            ("{}", "{\n  \"env\": {\n    \"URL\": \"x\"\n  }\n}"),
            (
                "{\n    // mine\n    \"a\": [1, \"}\"], \n}\n",
                "{\n    // mine\n    \"a\": [1, \"}\"],\n    \"env\": {\n      \"URL\": \"x\"\n    }, \n}\n",
            ),
            ("{\"env\":{\"A\":\"1\"}}", "{\"env\":{\"A\":\"1\", \"URL\": \"x\"}}"),
            (
                "{\n\t\"env\": {\n\t\t\"A\": 1 /* x */\n\t}\n}",
                "{\n\t\"env\": {\n\t\t\"A\": 1,\n\t\t\"URL\": \"x\" /* x */\n\t}\n}",
            ),
        ] {
            let (text, created) = set(before, &path("env.URL"), "\"x\"").unwrap();
            assert_eq!(text, after);
            assert_eq!(get(&text, &path("env.URL")).unwrap().as_deref(), Some("\"x\""));
            assert_eq!(parse(&text).unwrap()["env"]["URL"], "x");
            let restored = remove(&text, &path("env.URL"), created).unwrap();
            assert_eq!(parse(&restored), parse(if before.is_empty() { "{}" } else { before }), "{restored}");
        }
    }

    #[test]
    fn existing_value_is_replaced_in_place() {
        let text = "{ \"env\": { \"URL\": \"old\", \"B\": 2 } }";
        let (text, created) = set(text, &path("env.URL"), "\"new\"").unwrap();
        assert_eq!((text.as_str(), created), ("{ \"env\": { \"URL\": \"new\", \"B\": 2 } }", 0));
    }

    #[test]
    fn parents_of_the_user_are_kept() {
        let text = remove("{\"env\":{\"URL\":\"x\"}}", &path("env.URL"), 0).unwrap();
        assert_eq!(text, "{\"env\":{}}");
        assert_eq!(remove("{\"env\":{\"URL\":\"x\"}}", &path("env.URL"), 1).unwrap(), "{}");
    }

    #[test]
    fn invalid_files_are_refused() {
        for invalid in ["[]", "{\"env\": 3}", "{\"env\": {", "{env: {}}", "{\"a\" 1}", "{\"a\":}", "{\"a\": \"b"] {
            assert!(set(invalid, &path("env.URL"), "\"x\"").is_err(), "{invalid}");
        }
    }

    proptest! {
        /// Any object keeps its other members, and gets its own text back.
        #[test]
        fn set_and_remove_restore_the_value(
            keys in prop::collection::btree_map("[a-z\"\\\\ ]{0,6}", "[^\\x00]{0,12}", 0..6),
            pretty: bool,
        ) {
            let object = serde_json::json!({ "provider": keys, "z": [1, { "a": "}" }] });
            let text = if pretty { serde_json::to_string_pretty(&object).unwrap() } else { object.to_string() };
            let target = path("provider.URL.deep");
            let (edited, created) = set(&text, &target, "\"x\"").unwrap();
            let mut expected = object.clone();
            expected["provider"]["URL"] = serde_json::json!({ "deep": "x" });
            prop_assert_eq!(parse(&edited).unwrap(), expected);
            prop_assert_eq!(parse(&remove(&edited, &target, created).unwrap()).unwrap(), object);
        }
    }
}
