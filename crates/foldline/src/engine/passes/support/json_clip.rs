//! Cuts JSON to a size and keeps it valid JSON.
//!
//! Before: `{"exit_code":1,"files":["a.rs","b.rs", .. 400 more .. ,"z.rs"]}`
//!
//! After: `{"exit_code":1,"files":["a.rs","b.rs","[folded: 400 items, 5.2 kB]","z.rs"]}`
//!
//! Short values are kept, long strings keep their head, tail and failures, long lists their first and last items.
//! Everything else is copied unchanged.

use std::ops::Range;

use crate::engine::{marker, text_kind};
use crate::wire;
use crate::wire::JsonValue;

use crate::engine::passes::support::clip::{ClipShares, clip_lines};

/// Largest list of which all items are kept, the long ones cut; longer lists keep only the first and last items.
const MAX_SHARED_ITEMS: usize = 16;
/// Minimum size of a cut value: below it a marker would be longer.
const MIN_CLIPPED_BYTES: usize = 96;

/// Returns the text cut to about `room` bytes; `None` if it is not JSON or does not become shorter.
pub(crate) fn clip_json(text: &str, room: usize) -> Option<String> {
    let clipped = clip_value(wire::parse_document(text).ok()?, room);
    (clipped.len() < text.len()).then_some(clipped)
}

fn clip_value<'a>(value: JsonValue<'a>, room: usize) -> String {
    let raw = value.raw();
    if raw.len() <= room.max(MIN_CLIPPED_BYTES) {
        return raw.to_owned();
    }
    if let Some(text) = value.string() {
        let marker =
            marker::described(&format!("{} lines, {} bytes", text_kind::line_ranges(&text).len(), text.len()), None);
        let cut = wire::encode(&clip_lines(&text, ClipShares::for_bytes(room), &marker));
        return if cut.len() < raw.len() { cut } else { raw.to_owned() };
    }
    let (items, brackets) = if value.is_array() {
        (value.elements().iter().map(|element| ("", element.value)).collect(), ['[', ']'])
    } else if value.is_object() {
        let object = value.object();
        let named = |field: &wire::JsonField<'a>| (&value.body[field.span.start..field.value.span.start], field.value);
        (object.fields().iter().map(named).collect::<Vec<_>>(), ['{', '}'])
    } else {
        return raw.to_owned();
    };
    let kept = if items.len() <= MAX_SHARED_ITEMS {
        clip_to_shares(&items, room)
    } else {
        keep_ends(&items, room, value.is_array())
    };
    format!("{}{}{}", brackets[0], kept.join(","), brackets[1])
}

type KeyedValue<'a> = (&'a str, JsonValue<'a>);

/// Returns all items, the long ones cut to the space that the short ones leave.
fn clip_to_shares(items: &[KeyedValue<'_>], room: usize) -> Vec<String> {
    let mut sizes: Vec<usize> = items.iter().map(|(_, value)| value.raw().len()).collect();
    sizes.sort_unstable();
    let (mut left, mut share) = (room, room / items.len().max(1));
    for (at, size) in sizes.iter().enumerate() {
        share = left / (items.len() - at);
        if *size > share {
            break;
        }
        left -= size;
    }
    items.iter().map(|(name, value)| format!("{name}{}", clip_value(*value, share))).collect()
}

/// Returns the first and the last items, with a marker for those between them.
fn keep_ends(items: &[KeyedValue<'_>], room: usize, is_list: bool) -> Vec<String> {
    let write = |(name, value): &KeyedValue<'_>| format!("{name}{}", clip_value(*value, room / 8));
    let fitting = |mut room: usize| {
        move |item: &String| {
            let fits = item.len() < room;
            room = room.saturating_sub(item.len() + 1);
            fits
        }
    };
    let head: Vec<String> = items.iter().map(write).take_while(fitting(room * 3 / 5)).collect();
    let rest = &items[head.len()..];
    let mut tail: Vec<String> = rest.iter().rev().map(write).take_while(fitting(room * 2 / 5)).collect();
    tail.reverse();
    let omitted = &rest[..rest.len() - tail.len()];
    let Some(((_, first), (_, last))) = omitted.first().zip(omitted.last()) else { return [head, tail].concat() };
    let bytes = last.span.end - first.span.start;
    let noun = if is_list { "items" } else { "fields" };
    let gap = wire::encode(&marker::described(&format!("{} {noun}, {bytes} bytes", omitted.len()), None));
    let gap = if is_list { gap } else { format!("{gap}:null") };
    [head, vec![gap], tail].concat()
}

/// Positions of the items of the list or object that makes up most of a text.
pub(crate) struct ItemSpans {
    pub(crate) spans: Vec<Range<usize>>,
    is_list: bool,
}

/// Finds the largest list or object, through wrappers that contain little else.
pub(crate) fn largest_items(text: &str) -> Option<ItemSpans> {
    let mut value = wire::parse_document(text).ok()?;
    loop {
        let is_list = value.is_array();
        let children: Vec<(Range<usize>, JsonValue<'_>)> = if is_list {
            value
                .elements()
                .iter()
                .map(|element| (element.value.span.start..element.value.span.end, element.value))
                .collect()
        } else {
            value.object().fields().iter().map(|field| (field.span.start..field.span.end, field.value)).collect()
        };
        let largest = children.iter().map(|(_, child)| *child).max_by_key(|child| child.raw().len());
        match largest {
            Some(child) if (child.is_array() || child.is_object()) && child.raw().len() * 5 > value.raw().len() * 4 => {
                value = child;
            }
            _ => return Some(ItemSpans { spans: children.into_iter().map(|(span, _)| span).collect(), is_list }),
        }
    }
}

impl ItemSpans {
    /// Returns the text with only the kept items, after a marker that is also an item, so that it remains valid JSON.
    pub(crate) fn retain(&self, text: &str, kept: &[bool], marker: &str) -> String {
        let (Some(first), Some(last)) = (self.spans.first(), self.spans.last()) else { return text.to_owned() };
        let mut out = text[..first.start].to_owned();
        out.push_str(&wire::encode(marker));
        out.push_str(if self.is_list { "" } else { ":null" });
        for (span, _) in self.spans.iter().zip(kept).filter(|(_, kept)| **kept) {
            out.push(',');
            out.push_str(&text[span.clone()]);
        }
        out.push_str(&text[last.end..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> serde_json::Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn long_list_keeps_its_ends() {
        let list: Vec<String> = (0..400).map(|at| format!("src/file_{at}.rs")).collect();
        let text = serde_json::json!({ "exit_code": 1, "files": list }).to_string();
        let clipped = clip_json(&text, 600).unwrap();
        let files = parsed(&clipped)["files"].as_array().unwrap().clone();
        assert!(clipped.len() < 700 && parsed(&clipped)["exit_code"] == 1, "{clipped}");
        assert_eq!(
            (files.first().unwrap(), files.last().unwrap()),
            (&"src/file_0.rs".into(), &"src/file_399.rs".into())
        );
        let gap = files.iter().find(|value| marker::is_marker(value.as_str().unwrap())).unwrap();
        assert!(gap.as_str().unwrap().starts_with("[folded: 3"), "{gap}");
    }

    #[test]
    fn long_string_keeps_failures_and_siblings() {
        let mut output: String = (0..300).map(|at| format!("line {at} of the \"build\"\n")).collect();
        output.insert_str(output.find("line 150 ").unwrap(), "error: it broke here\n");
        let text = serde_json::json!({ "stdout": output, "cwd": "/src", "ok": false }).to_string();
        let clipped = parsed(&clip_json(&text, 800).unwrap());
        assert!(clipped["stdout"].as_str().unwrap().contains("\nerror: it broke here\n"), "{clipped}");
        assert_eq!((&clipped["cwd"], &clipped["ok"]), (&"/src".into(), &false.into()));
    }

    #[test]
    fn items_are_found_inside_wrappers() {
        let long = "4, ".repeat(40);
        let text = format!(r#"{{"ok": true, "data": {{"files": [{{"a": 1}}, "two", [{long}4], [{long}4]]}}}}"#);
        let text = text.as_str();
        let items = largest_items(text).unwrap();
        assert_eq!(&text[items.spans[1].clone()], "\"two\"");
        let only = items.retain(text, &[true, true, false, false], "[folded: x]");
        assert_eq!(only, r#"{"ok": true, "data": {"files": ["[folded: x]",{"a": 1},"two"]}}"#);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
            "(\\PC|\n){0,200}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 200, 40, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..40).prop_map(serde_json::Value::from),
                proptest::collection::btree_map("[a-z\"é]{0,9}", inner, 0..40).prop_map(|value| {
                    value.into_iter().collect::<serde_json::Map<String, serde_json::Value>>().into()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn retained_items_are_valid_json(value in json(), picks in proptest::collection::vec(any::<bool>(), 40)) {
            let text = value.to_string();
            if let Some(items) = largest_items(&text) {
                let only = items.retain(&text, &picks[..items.spans.len().min(40)], "[folded: x]");
                prop_assert!(serde_json::from_str::<serde_json::Value>(&only).is_ok(), "{only}");
            }
        }

        #[test]
        fn clipped_json_is_valid_and_shorter(value in json(), room in 0..2000_usize) {
            let text = value.to_string();
            if let Some(clipped) = clip_json(&text, room) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&clipped).is_ok(), "{clipped}");
                prop_assert!(clipped.len() < text.len());
            }
        }
    }
}
