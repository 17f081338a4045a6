//! Removes the white space between JSON values if it can be restored exactly.
//!
//! Before: `{\n  "name": "foldline",\n  "ok": true\n}`, after: `{"name":"foldline","ok":true}`.
//!
//! Verified by its inverse: the packed text, pretty-printed again, must equal the original byte for byte. File reads
//! are left unchanged, since an edit may quote their lines.

use crate::engine::marker;
use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;
use crate::engine::text_kind;
use crate::engine::text_kind::TextKind;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};

/// Minimum size of a text that is repacked.
const MIN_REPACK_TOKENS: u64 = 60;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for segment in view
        .old_segments(SegmentKind::Result, Stage::Repack)
        .filter(|segment| segment.tokens >= MIN_REPACK_TOKENS && !segment.shows_file_read())
    {
        let text = view.text(segment);
        let Some(packed) = packed(text) else { continue };
        let folded = format!("{}\n{packed}", marker::described("white space", view.handle(text)));
        let tokens = view.options.meter.text(&folded);
        if tokens < segment.tokens {
            proposals.push(FoldProposal {
                at: segment.at,
                edit: PartEdit::Text(folded),
                tokens,
                expected_unfold_cost: 0.0,
            });
        }
    }
}

/// Returns JSON text without white space if pretty-printing it again gives the same bytes.
pub(crate) fn packed(text: &str) -> Option<String> {
    if !text.contains('\n') || text_kind::detect_kind(text) != TextKind::Json {
        return None;
    }
    let indent = detect_indent(text)?;
    let packed = strip_whitespace(text);
    (pretty_printed(&packed, indent, text.ends_with('\n')) == text).then_some(packed)
}

/// Returns the indentation of the first value.
fn detect_indent(text: &str) -> Option<&str> {
    let (_, inside) = text.split_once('\n')?;
    let bare = inside.trim_start_matches([' ', '\t']);
    Some(&inside[..inside.len() - bare.len()]).filter(|indent| (1..=8).contains(&indent.len()))
}

/// Calls `each` with the offset, the byte, and true if the byte is inside a string.
fn for_each_byte(json: &str, mut each: impl FnMut(usize, u8, bool)) {
    let (mut string, mut escaped) = (false, false);
    for (at, byte) in json.bytes().enumerate() {
        each(at, byte, string || byte == b'"');
        match byte {
            _ if escaped => escaped = false,
            b'\\' if string => escaped = true,
            b'"' => string = !string,
            _ => {}
        }
    }
}

fn strip_whitespace(json: &str) -> String {
    let mut packed = Vec::with_capacity(json.len());
    for_each_byte(json, |_, byte, string| {
        if string || !byte.is_ascii_whitespace() {
            packed.push(byte);
        }
    });
    String::from_utf8(packed).expect("only white space outside of strings was left out")
}

/// Returns packed JSON over multiple lines, as most programs print it.
fn pretty_printed(packed: &str, indent: &str, newline: bool) -> String {
    let bytes = packed.as_bytes();
    let mut out = Vec::with_capacity(packed.len() * 2);
    let mut depth = 0;
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        (0..depth).for_each(|_| out.extend_from_slice(indent.as_bytes()));
    };
    for_each_byte(packed, |at, byte, string| {
        let empty = |other: u8| bytes.get(at + 1) == Some(&other);
        match byte {
            _ if string => out.push(byte),
            b'{' | b'[' => {
                out.push(byte);
                depth += 1;
                if !empty(byte + 2) {
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if at == 0 || bytes[at - 1] != byte - 2 {
                    line(&mut out, depth);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            _ => out.push(byte),
        }
    });
    if newline {
        out.push(b'\n');
    }
    String::from_utf8(out).expect("only ASCII was put between the bytes of a text")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whitespace_is_removed_outside_strings() {
        let text = "{\n  \"a b\": [\n    1.50,\n    \"x\\\" {,}\"\n  ],\n  \"e\": {},\n  \"l\": []\n}\n";
        assert_eq!(packed(text).as_deref(), Some(r#"{"a b":[1.50,"x\" {,}"],"e":{},"l":[]}"#));
    }

    #[test]
    fn text_that_does_not_round_trip_is_kept() {
        for text in ["{\"a\": 1}", "{\n  \"a\": 1 }", "{\n  \"a\":1\n}", "no json\n  at all", "[\n  1,\n\n  2\n]"] {
            assert_eq!(packed(text), None, "{text:?}");
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![any::<i64>().prop_map(serde_json::Value::from), "\\PC{0,12}".prop_map(Into::into)];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                proptest::collection::btree_map("\\PC{0,6}", inner, 0..6)
                    .prop_map(|fields| fields.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn pretty_json_round_trips(value in json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            if text.contains('\n') {
                let packed = packed(&text).unwrap();
                prop_assert_eq!(&packed, &value.to_string());
                prop_assert_eq!(pretty_printed(&packed, "  ", false), text);
            }
        }
    }
}
