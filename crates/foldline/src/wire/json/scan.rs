//! A pull scanner over JSON text that reports byte positions.
//!
//! A dialect enters the objects and arrays that it understands, skips the rest, and gets spans; nearly every byte is
//! scanned once and nothing is copied. The scanner accepts what serde_json accepts (a property test and a fuzz target
//! compare the two), and also returns byte offsets, which an edit that preserves all other bytes needs. Nested
//! `RawValue` would provide them too, at one scan of the text per level; docs/decisions/0001 has the measurement.

use std::borrow::Cow;

use crate::conversation::text::LazyText;
use crate::error::Error;
use crate::wire::json::lexer::{ByteSpan, JsonLexer};
use crate::wire::json::string::decode;

/// A JSON value: its text and position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonValue<'a> {
    pub(crate) body: &'a str,
    pub(crate) span: ByteSpan,
}

/// An element of a list: a value with its fields, if it is an object.
#[derive(Clone, Debug)]
pub(crate) struct JsonObject<'a> {
    pub(crate) value: JsonValue<'a>,
    fields: Vec<JsonField<'a>>,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct JsonField<'a> {
    pub(crate) key: Cow<'a, str>,
    /// From the key's opening quote to the end of the value.
    pub(crate) span: ByteSpan,
    pub(crate) value: JsonValue<'a>,
    /// The elements of the value, if it was entered while scanning (see [`JsonScanner::read_element`]); for an object,
    /// the object itself.
    elements: Option<Vec<JsonObject<'a>>>,
}

impl<'a> JsonValue<'a> {
    /// Returns the JSON text.
    pub(crate) fn raw(self) -> &'a str {
        &self.body[self.span.start..self.span.end]
    }

    fn first_byte(self) -> u8 {
        self.body.as_bytes()[self.span.start]
    }

    pub(crate) fn is_string(self) -> bool {
        self.first_byte() == b'"'
    }

    pub(crate) fn is_object(self) -> bool {
        self.first_byte() == b'{'
    }

    pub(crate) fn is_array(self) -> bool {
        self.first_byte() == b'['
    }

    pub(crate) fn is_empty_array(self) -> bool {
        self.is_array() && self.raw()[1..].trim_start().starts_with(']')
    }

    pub(crate) fn is_null(self) -> bool {
        self.first_byte() == b'n'
    }

    /// Returns the decoded text of a string.
    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        self.is_string().then(|| decode(&self.body[self.span.start + 1..self.span.end - 1]))
    }

    /// Returns the text of a long string, decoded on first use.
    pub(crate) fn text(self) -> Option<LazyText<'a>> {
        self.is_string().then(|| LazyText::from_json_literal(&self.body[self.span.start + 1..self.span.end - 1]))
    }

    pub(crate) fn bool(self) -> Option<bool> {
        match self.raw() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    pub(crate) fn u64(self) -> Option<u64> {
        self.raw().parse().ok()
    }

    /// Returns the fields. Scans the value again, so use it for small values.
    pub(crate) fn object(self) -> JsonObject<'a> {
        JsonScanner::from_offset(self.body, self.span.start)
            .read_element(&[])
            .expect("the value was validated by an earlier scan")
    }

    /// Returns the elements with their fields; none if the value is not an array. Scans the value again.
    pub(crate) fn elements(self) -> Vec<JsonObject<'a>> {
        if !self.is_array() {
            return Vec::new();
        }
        JsonScanner::from_offset(self.body, self.span.start)
            .read_elements(&[])
            .expect("the value was validated by an earlier scan")
    }
}

impl<'a> JsonObject<'a> {
    pub(crate) fn new(value: JsonValue<'a>, fields: Vec<JsonField<'a>>) -> Self {
        Self { value, fields }
    }

    /// Returns the field of a key. The last of duplicate keys wins, as in the JSON parsers of all providers.
    fn field(&self, key: &str) -> Option<&JsonField<'a>> {
        self.fields.iter().rev().find(|field| field.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<JsonValue<'a>> {
        self.field(key).map(|field| field.value)
    }

    /// Returns the decoded text of a field with a string value.
    pub(crate) fn string(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(JsonValue::string)
    }

    /// Returns the text of a field with a long string, decoded on first use.
    pub(crate) fn text(&self, key: &str) -> Option<LazyText<'a>> {
        self.get(key).and_then(JsonValue::text)
    }

    /// Returns the unsigned integer at the end of a path of keys.
    pub(crate) fn u64(&self, path: &[&str]) -> Option<u64> {
        match path {
            [key] => self.get(key).and_then(JsonValue::u64),
            [key, rest @ ..] => self.object(key)?.u64(rest),
            [] => None,
        }
    }

    /// Returns the value of a key, unless it is null.
    pub(crate) fn get_non_null(&self, key: &str) -> Option<JsonValue<'a>> {
        self.get(key).filter(|value| !value.is_null())
    }

    /// Returns the value of a key as an owned object, if it is one.
    pub(crate) fn object(&self, key: &str) -> Option<JsonObject<'a>> {
        self.nested_object(key).map(Cow::into_owned)
    }

    /// Returns the value of a key as an object; borrowed if it was entered while scanning.
    pub(crate) fn nested_object(&self, key: &str) -> Option<Cow<'_, JsonObject<'a>>> {
        let field = self.field(key).filter(|field| field.value.is_object())?;
        Some(match field.elements.as_deref() {
            Some([object]) => Cow::Borrowed(object),
            _ => Cow::Owned(field.value.object()),
        })
    }

    /// Returns the elements of a field with an array value.
    pub(crate) fn elements(&self, key: &str) -> Cow<'_, [JsonObject<'a>]> {
        match self.field(key) {
            Some(JsonField { elements: Some(elements), value, .. }) if value.is_array() => Cow::Borrowed(elements),
            Some(field) => Cow::Owned(field.value.elements()),
            None => Cow::Borrowed(&[]),
        }
    }

    /// Returns the position of a key among the fields, if the key appears once.
    pub(crate) fn unique_position(&self, key: &str) -> Option<usize> {
        let mut places = (0..self.fields.len()).filter(|&at| self.fields[at].key == key);
        places.next().filter(|_| places.next().is_none())
    }

    pub(crate) fn fields(&self) -> &[JsonField<'a>] {
        &self.fields
    }
}

/// Returns the value of a scanned field (key to end of value), if the field has this key.
pub(crate) fn field_value<'a>(body: &'a str, field: ByteSpan, key: &str) -> Option<JsonValue<'a>> {
    let bytes = body.as_bytes();
    let written = &bytes[field.start + 1..field.end];
    let same = key.bytes().zip(written).take_while(|(expected, byte)| expected == *byte).count();
    let end = match written.get(same) {
        Some(b'"') if same == key.len() => field.start + same + 2,
        // A key with escapes takes the slow path.
        Some(b'\\') => {
            let mut scanner = JsonScanner::from_offset(body, field.start);
            let name = scanner.lexer.skip_string().expect("the field was validated by an earlier scan");
            (decode(&body[name.start + 1..name.end - 1]) == key).then_some(name.end)?
        }
        _ => return None,
    };
    let mut scanner = JsonScanner::from_offset(body, end);
    scanner.lexer.skip_whitespace();
    scanner.lexer.offset += ':'.len_utf8();
    scanner.lexer.skip_whitespace();
    Some(JsonValue { body, span: ByteSpan { start: scanner.lexer.offset, end: field.end } })
}

/// Scans the single value of a body.
pub(crate) fn parse_document(body: &str) -> Result<JsonValue<'_>, Error> {
    parse_document_at_depth(0, body)
}

/// Scans the single value of a text, as if it were nested `depth` levels deep.
pub(crate) fn parse_document_at_depth(depth: u32, text: &str) -> Result<JsonValue<'_>, Error> {
    let mut scanner = JsonScanner::new(text);
    scanner.lexer.depth = depth;
    let value = scanner.read_value()?;
    scanner.expect_end()?;
    Ok(value)
}

/// Reads forward through a body; each method consumes one value.
pub(crate) struct JsonScanner<'a> {
    body: &'a str,
    lexer: JsonLexer<'a>,
    /// Empty lists of objects that were read, for reuse by the next object.
    spare: SpareBuffers<'a>,
}

#[derive(Default)]
struct SpareBuffers<'a> {
    fields: Vec<Vec<JsonField<'a>>>,
    elements: Vec<Vec<JsonObject<'a>>>,
}

impl<'a> JsonScanner<'a> {
    pub(crate) fn new(body: &'a str) -> Self {
        Self::from_offset(body, 0)
    }

    /// Starts at an offset of a text.
    fn from_offset(body: &'a str, at: usize) -> Self {
        let lexer = JsonLexer { bytes: body.as_bytes(), offset: at, depth: 0 };
        JsonScanner { body, lexer, spare: SpareBuffers::default() }
    }

    /// Takes back an object that is no longer needed. A body has thousands of messages that are read and dropped one by
    /// one; allocating memory for each would take a large part of the parsing time.
    pub(crate) fn recycle(&mut self, object: JsonObject<'a>) {
        let mut fields = object.fields;
        for field in fields.drain(..) {
            if let Some(mut elements) = field.elements {
                elements.drain(..).for_each(|element| self.recycle(element));
                self.spare.elements.push(elements);
            }
        }
        self.spare.fields.push(fields);
    }

    /// Returns the number of bytes left.
    pub(crate) fn remaining_bytes(&self) -> usize {
        self.lexer.bytes.len() - self.lexer.offset
    }

    /// Returns the first byte of the next value.
    pub(crate) fn peek_value_start(&mut self) -> Option<u8> {
        self.lexer.skip_whitespace();
        self.lexer.peek()
    }

    /// Checks that only white space is left.
    pub(crate) fn expect_end(&mut self) -> Result<(), Error> {
        self.lexer.skip_whitespace();
        if self.lexer.offset < self.lexer.bytes.len() {
            Err(Error::not_json(self.lexer.offset, "trailing text after the value"))
        } else {
            Ok(())
        }
    }

    /// Consumes a value of any kind.
    pub(crate) fn read_value(&mut self) -> Result<JsonValue<'a>, Error> {
        Ok(JsonValue { body: self.body, span: self.lexer.skip_value()? })
    }

    /// Consumes an object; `value` consumes the value of each key and may enter it.
    pub(crate) fn read_object(
        &mut self,
        mut value: impl FnMut(&str, &mut Self) -> Result<Option<Vec<JsonObject<'a>>>, Error>,
    ) -> Result<JsonObject<'a>, Error> {
        self.lexer.skip_whitespace();
        let start = self.lexer.offset;
        let mut fields = self.spare.fields.pop().unwrap_or_default();
        self.lexer.open_bracket(b'{', "expected an object")?;
        if !self.lexer.try_close_bracket(b'}') {
            loop {
                let key = self.lexer.skip_string()?;
                self.lexer.skip_whitespace();
                self.lexer.expect(b':', "expected ':'")?;
                self.lexer.skip_whitespace();
                let begin = self.lexer.offset;
                let name = decode(&self.body[key.start + 1..key.end - 1]);
                let elements = value(&name, self)?;
                fields.push(JsonField {
                    key: name,
                    span: ByteSpan { start: key.start, end: self.lexer.offset },
                    value: JsonValue { body: self.body, span: ByteSpan { start: begin, end: self.lexer.offset } },
                    elements,
                });
                if self.lexer.try_close_bracket(b'}') {
                    break;
                }
                self.lexer.expect(b',', "expected ',' or '}'")?;
                self.lexer.skip_whitespace();
            }
        }
        Ok(JsonObject {
            value: JsonValue { body: self.body, span: ByteSpan { start, end: self.lexer.offset } },
            fields,
        })
    }

    /// Consumes an array; `element` consumes each element.
    pub(crate) fn read_array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<JsonValue<'a>, Error> {
        self.lexer.skip_whitespace();
        let start = self.lexer.offset;
        self.lexer.open_bracket(b'[', "expected an array")?;
        if !self.lexer.try_close_bracket(b']') {
            loop {
                element(self)?;
                if self.lexer.try_close_bracket(b']') {
                    break;
                }
                self.lexer.expect(b',', "expected ',' or ']'")?;
            }
        }
        Ok(JsonValue { body: self.body, span: ByteSpan { start, end: self.lexer.offset } })
    }

    /// Consumes one element of a list, with its fields if it is an object. The fields named in `enter` (level by level)
    /// are entered, so that they need no second scan.
    pub(crate) fn read_element(&mut self, enter: &[&[&str]]) -> Result<JsonObject<'a>, Error> {
        if self.peek_value_start() != Some(b'{') {
            return Ok(JsonObject { value: self.read_value()?, fields: Vec::new() });
        }
        let (names, deeper) = enter.split_first().map_or((&[][..], &[][..]), |(names, deeper)| (*names, deeper));
        self.read_object(|key, scanner| match scanner.peek_value_start() {
            Some(b'[') if names.contains(&key) => scanner.read_elements(deeper).map(Some),
            Some(b'{') if names.contains(&key) => {
                let mut only = scanner.spare.elements.pop().unwrap_or_default();
                only.push(scanner.read_element(deeper)?);
                Ok(Some(only))
            }
            _ => scanner.lexer.skip_value().map(|_| None),
        })
    }

    fn read_elements(&mut self, enter: &[&[&str]]) -> Result<Vec<JsonObject<'a>>, Error> {
        let mut elements = self.spare.elements.pop().unwrap_or_default();
        self.read_array(|scanner| {
            elements.push(scanner.read_element(enter)?);
            Ok(())
        })?;
        Ok(elements)
    }
}

/// Returns all string values (not keys) of a JSON text in order; none if it is not JSON.
pub(crate) fn string_values(json: &str) -> Vec<JsonValue<'_>> {
    if parse_document(json).is_err() {
        return Vec::new();
    }
    let mut scanner = JsonScanner::new(json);
    let mut strings = Vec::new();
    while let Some(at) = memchr::memchr(b'"', &scanner.lexer.bytes[scanner.lexer.offset..]) {
        scanner.lexer.offset += at;
        let span = scanner.lexer.skip_string().expect("the text was validated by an earlier scan");
        if scanner.peek_value_start() != Some(b':') {
            strings.push(JsonValue { body: json, span });
        }
    }
    strings
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;
    use crate::wire::json::lexer::MAX_JSON_DEPTH;
    use crate::wire::json::string::encode;

    fn accepts(text: &str) -> bool {
        parse_document(text).is_ok()
    }

    fn serde_accepts(text: &str) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn accepts_the_same_grammar_as_serde_json() {
        for text in [
            "",
            " ",
            "{}",
            "[]",
            "[1,]",
            "[,1]",
            "{\"a\":1,}",
            "{\"a\"}",
            "{a:1}",
            "01",
            "-",
            "-0",
            "1.",
            "1.e3",
            "1e",
            "1e+5",
            "1E-0",
            ".5",
            "tru",
            "true",
            "nulll",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"a\nb\"",
            "\"\\n\"",
            "[[[]]]",
            "[[]",
            "[]]",
            "{\"a\":{\"b\":[]}}",
            "{]",
            "[}",
            "1 2",
            " 1 ",
            "\u{feff}1",
            "[1 2]",
            "{\"a\" 1}",
            "\"\u{7f}\"",
            "\"é\"",
            "[\"\",\"\"]",
            "{\"\":\"\"}",
        ] {
            assert_eq!(accepts(text), serde_accepts(text), "{text:?}");
        }
    }

    #[test]
    fn too_deep_nesting_is_a_typed_error() {
        let nest = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(accepts(&nest(MAX_JSON_DEPTH as usize)));
        let error = parse_document(&nest(MAX_JSON_DEPTH as usize + 1)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TooDeep { offset: MAX_JSON_DEPTH as usize });
    }

    #[test]
    fn unpaired_surrogate_keeps_its_escape() {
        assert_eq!(decode(r"cut \ud83d here"), r"cut \ud83d here");
        assert_eq!(decode(r"\ud83d\ude00"), "😀");
        assert_eq!(decode(r"\ud83d\u0041"), r"\ud83dA");
        assert_eq!(decode(r"\udc00\ud83d\ude00"), "\\udc00😀");
    }

    #[test]
    fn field_is_found_by_plain_or_escaped_key() {
        let value_of = |text: &'static str, key: &str| {
            field_value(text, ByteSpan { start: 0, end: text.len() }, key).map(JsonValue::raw)
        };
        assert_eq!(value_of(r#""id" :  "x""#, "id"), Some(r#""x""#));
        assert_eq!(value_of(r#""i\u0064":1"#, "id"), Some("1"));
        assert_eq!(value_of(r#""i\u0065":1"#, "id"), None);
        assert_eq!(value_of(r#""idx":1"#, "id"), None);
        assert_eq!(value_of(r#""i":1"#, "id"), None);
        assert_eq!(value_of(r#""":1"#, ""), Some("1"));
    }

    #[test]
    fn last_of_duplicate_keys_wins() {
        let object = parse_document(r#"{"a":1,"\u0061":2,"b":3}"#).unwrap().object();
        assert_eq!(object.get("a").map(JsonValue::raw), Some("2"));
    }

    proptest! {
        #[test]
        fn any_string_round_trips_through_encode_and_decode(text in any::<String>()) {
            let literal = encode(&text);
            prop_assert_eq!(parse_document(&literal).unwrap().string().unwrap(), text);
        }

        #[test]
        fn any_text_is_accepted_iff_serde_json_accepts_it(text in r#"[\[\]{}",:\\0-9eE.+\- \ntrufalsn\u{0}-\u{1f}é]{0,40}"#) {
            prop_assert_eq!(accepts(&text), serde_accepts(&text));
        }

        #[test]
        fn decoding_agrees_with_serde_json(text in r#"([a-z\u{80}-\u{ffff}]|\\n|\\"|\\\\|\\u[0-9a-f]{4}|\\/){0,12}"#) {
            let literal = format!("\"{text}\"");
            if let Ok(expected) = serde_json::from_str::<String>(&literal) {
                prop_assert_eq!(parse_document(&literal).unwrap().string().unwrap(), expected);
            }
        }
    }
}
