//! A pull scanner over JSON text that knows where everything stands.
//!
//! A dialect enters the objects and arrays that it understands and skips the rest, and gets back
//! spans; nearly every byte is scanned once and nothing is copied. It accepts what serde_json
//! accepts (a property test and a fuzz target compare the two), but it also tells byte offsets, which
//! an edit that leaves all other bytes alone needs. Nested `RawValue` tells them too, at one scan of
//! the text for each level; docs/decisions/0001 has the measurement.

use std::borrow::Cow;

use crate::error::{Error, ErrorKind};
use crate::literal::{ESCAPED, decode, plain_until};
use crate::text::Text;

/// Deepest nesting of objects and arrays that is read.
pub const MAX_DEPTH: u32 = 128;

/// A range of bytes in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A JSON value, as text and place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a> {
    pub(crate) body: &'a str,
    pub(crate) span: Span,
}

/// An element of a list: a value with its fields, when it is an object.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) value: Value<'a>,
    fields: Vec<Field<'a>>,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) key: Cow<'a, str>,
    /// From the key's opening quote to the end of the value.
    pub(crate) span: Span,
    pub(crate) value: Value<'a>,
    /// The elements of the value, when it was entered while scanning (see [`Scanner::element`]); the one
    /// of an object is the object.
    elements: Option<Vec<Object<'a>>>,
}

impl<'a> Value<'a> {
    /// The text as it stands in the body.
    pub(crate) fn raw(self) -> &'a str {
        &self.body[self.span.start..self.span.end]
    }

    fn first(self) -> u8 {
        self.body.as_bytes()[self.span.start]
    }

    pub(crate) fn is_string(self) -> bool {
        self.first() == b'"'
    }

    pub(crate) fn is_object(self) -> bool {
        self.first() == b'{'
    }

    pub(crate) fn is_array(self) -> bool {
        self.first() == b'['
    }

    pub(crate) fn is_empty_array(self) -> bool {
        self.is_array() && self.raw()[1..].trim_start().starts_with(']')
    }

    pub(crate) fn is_null(self) -> bool {
        self.first() == b'n'
    }

    /// The decoded text, when this is a string.
    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        self.is_string().then(|| decode(&self.body[self.span.start + 1..self.span.end - 1]))
    }

    /// The same for a long one: it is decoded by whoever looks at it.
    pub(crate) fn text(self) -> Option<Text<'a>> {
        self.is_string().then(|| Text::written(&self.body[self.span.start + 1..self.span.end - 1]))
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

    /// Its fields, read in a scan of its own: for small things.
    pub(crate) fn object(self) -> Object<'a> {
        Scanner::at(self.body, self.span.start)
            .element(&[])
            .expect("a value was scanned before, so its grammar is right")
    }

    /// Its elements with their fields, read in a scan of its own; none when it is no array.
    pub(crate) fn elements(self) -> Vec<Object<'a>> {
        if !self.is_array() {
            return Vec::new();
        }
        Scanner::at(self.body, self.span.start)
            .elements(&[])
            .expect("a value was scanned before, so its grammar is right")
    }
}

impl<'a> Object<'a> {
    pub(crate) fn new(value: Value<'a>, fields: Vec<Field<'a>>) -> Self {
        Self { value, fields }
    }

    /// The field of a key. Of duplicate keys the last one counts, as for every JSON parser that the
    /// providers use.
    fn field(&self, key: &str) -> Option<&Field<'a>> {
        self.fields.iter().rev().find(|field| field.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.field(key).map(|field| field.value)
    }

    /// The decoded text of a key whose value is a string.
    pub(crate) fn string(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(Value::string)
    }

    /// The same for a long one: it is decoded by whoever looks at it.
    pub(crate) fn text(&self, key: &str) -> Option<Text<'a>> {
        self.get(key).and_then(Value::text)
    }

    /// The whole number at the end of a path of keys.
    pub(crate) fn u64(&self, path: &[&str]) -> Option<u64> {
        match path {
            [key] => self.get(key).and_then(Value::u64),
            [key, rest @ ..] => self.object(key)?.u64(rest),
            [] => None,
        }
    }

    /// The value of a key, unless it is null.
    pub(crate) fn set(&self, key: &str) -> Option<Value<'a>> {
        self.get(key).filter(|value| !value.is_null())
    }

    /// The fields of a key whose value is an object, as a thing of its own.
    pub(crate) fn object(&self, key: &str) -> Option<Object<'a>> {
        self.inside(key).map(Cow::into_owned)
    }

    /// The fields of a key whose value is an object; where it was entered while scanning, nothing is copied.
    pub(crate) fn inside(&self, key: &str) -> Option<Cow<'_, Object<'a>>> {
        let field = self.field(key).filter(|field| field.value.is_object())?;
        Some(match field.elements.as_deref() {
            Some([object]) => Cow::Borrowed(object),
            _ => Cow::Owned(field.value.object()),
        })
    }

    /// The elements of a key whose value is an array.
    pub(crate) fn elements(&self, key: &str) -> Cow<'_, [Object<'a>]> {
        match self.field(key) {
            Some(Field { elements: Some(elements), value, .. }) if value.is_array() => Cow::Borrowed(elements),
            Some(field) => Cow::Owned(field.value.elements()),
            None => Cow::Borrowed(&[]),
        }
    }

    /// The place of a key among the fields, when it stands there once.
    pub(crate) fn only_position(&self, key: &str) -> Option<usize> {
        let mut places = (0..self.fields.len()).filter(|&at| self.fields[at].key == key);
        places.next().filter(|_| places.next().is_none())
    }

    pub(crate) fn fields(&self) -> &[Field<'a>] {
        &self.fields
    }
}

/// The value of a scanned field (key to end of value), if it is the field of this key.
pub(crate) fn value_of<'a>(body: &'a str, field: Span, key: &str) -> Option<Value<'a>> {
    let bytes = body.as_bytes();
    let written = &bytes[field.start + 1..field.end];
    let same = key.bytes().zip(written).take_while(|(wanted, byte)| wanted == *byte).count();
    let end = match written.get(same) {
        Some(b'"') if same == key.len() => field.start + same + 2,
        // Whoever escapes letters of a key is read slowly.
        Some(b'\\') => {
            let mut scanner = Scanner::at(body, field.start);
            let name = scanner.string().expect("a field was scanned before, so it begins with its key");
            (decode(&body[name.start + 1..name.end - 1]) == key).then_some(name.end)?
        }
        _ => return None,
    };
    let mut scanner = Scanner::at(body, end);
    scanner.blank();
    scanner.at += ':'.len_utf8();
    scanner.blank();
    Some(Value { body, span: Span { start: scanner.at, end: field.end } })
}

/// Scans the one value that a body consists of.
pub(crate) fn document(body: &str) -> Result<Value<'_>, Error> {
    document_at(0, body)
}

/// Scans the one value that a text consists of, as if so many brackets stood open around it.
pub(crate) fn document_at(depth: u32, text: &str) -> Result<Value<'_>, Error> {
    let mut scanner = Scanner { depth, ..Scanner::new(text) };
    let value = scanner.value()?;
    scanner.end()?;
    Ok(value)
}

/// Reads forward through a body; each method takes one value.
pub(crate) struct Scanner<'a> {
    body: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    /// Lists of objects that were read and are done with, empty: the next object takes one of them.
    spare: Spare<'a>,
}

#[derive(Default)]
struct Spare<'a> {
    fields: Vec<Vec<Field<'a>>>,
    elements: Vec<Vec<Object<'a>>>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(body: &'a str) -> Self {
        Self::at(body, 0)
    }

    /// Begins in the middle of a text.
    fn at(body: &'a str, at: usize) -> Self {
        Scanner { body, bytes: body.as_bytes(), at, depth: 0, spare: Spare::default() }
    }

    /// Takes back an object that is done with. A body has thousands of messages that are read and let go one by one;
    /// giving each of them memory of its own would take a good part of the time of reading them.
    pub(crate) fn reuse(&mut self, object: Object<'a>) {
        let mut fields = object.fields;
        for field in fields.drain(..) {
            if let Some(mut elements) = field.elements {
                elements.drain(..).for_each(|element| self.reuse(element));
                self.spare.elements.push(elements);
            }
        }
        self.spare.fields.push(fields);
    }

    /// How many bytes are left.
    pub(crate) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The first byte of the next value.
    pub(crate) fn opening(&mut self) -> Option<u8> {
        self.blank();
        self.peek()
    }

    /// Nothing but white space is left.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.blank();
        if self.at < self.bytes.len() { Err(Error::not_json(self.at, "more text behind the value")) } else { Ok(()) }
    }

    /// Takes a value of any kind.
    pub(crate) fn value(&mut self) -> Result<Value<'a>, Error> {
        Ok(Value { body: self.body, span: self.skip()? })
    }

    /// Takes an object; `value` takes the value of each key and may look inside.
    pub(crate) fn object(
        &mut self,
        mut value: impl FnMut(&str, &mut Self) -> Result<Option<Vec<Object<'a>>>, Error>,
    ) -> Result<Object<'a>, Error> {
        self.blank();
        let start = self.at;
        let mut fields = self.spare.fields.pop().unwrap_or_default();
        self.enter(b'{', "expected an object")?;
        if !self.leave(b'}') {
            loop {
                let key = self.string()?;
                self.blank();
                self.expect(b':', "expected ':'")?;
                self.blank();
                let begin = self.at;
                let name = decode(&self.body[key.start + 1..key.end - 1]);
                let elements = value(&name, self)?;
                fields.push(Field {
                    key: name,
                    span: Span { start: key.start, end: self.at },
                    value: Value { body: self.body, span: Span { start: begin, end: self.at } },
                    elements,
                });
                if self.leave(b'}') {
                    break;
                }
                self.expect(b',', "expected ',' or '}'")?;
                self.blank();
            }
        }
        Ok(Object { value: Value { body: self.body, span: Span { start, end: self.at } }, fields })
    }

    /// Takes an array; `element` takes each element.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<Value<'a>, Error> {
        self.blank();
        let start = self.at;
        self.enter(b'[', "expected an array")?;
        if !self.leave(b']') {
            loop {
                element(self)?;
                if self.leave(b']') {
                    break;
                }
                self.expect(b',', "expected ',' or ']'")?;
            }
        }
        Ok(Value { body: self.body, span: Span { start, end: self.at } })
    }

    /// Takes one element of a list: with its fields when it is an object. Those of its fields that are
    /// named are entered, so that they need no second scan; `enter` names them level by level.
    pub(crate) fn element(&mut self, enter: &[&[&str]]) -> Result<Object<'a>, Error> {
        if self.opening() != Some(b'{') {
            return Ok(Object { value: self.value()?, fields: Vec::new() });
        }
        let (names, deeper) = enter.split_first().map_or((&[][..], &[][..]), |(names, deeper)| (*names, deeper));
        self.object(|key, scanner| match scanner.opening() {
            Some(b'[') if names.contains(&key) => scanner.elements(deeper).map(Some),
            Some(b'{') if names.contains(&key) => {
                let mut only = scanner.spare.elements.pop().unwrap_or_default();
                only.push(scanner.element(deeper)?);
                Ok(Some(only))
            }
            _ => scanner.skip().map(|_| None),
        })
    }

    fn elements(&mut self, enter: &[&[&str]]) -> Result<Vec<Object<'a>>, Error> {
        let mut elements = self.spare.elements.pop().unwrap_or_default();
        self.array(|scanner| {
            elements.push(scanner.element(enter)?);
            Ok(())
        })?;
        Ok(elements)
    }

    fn enter(&mut self, bracket: u8, message: &str) -> Result<(), Error> {
        self.expect(bracket, message)?;
        if self.depth == MAX_DEPTH {
            return Err(too_deep(self.at - 1));
        }
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self, bracket: u8) -> bool {
        self.blank();
        let leaves = self.peek() == Some(bracket);
        if leaves {
            self.at += 1;
            self.depth -= 1;
        }
        leaves
    }

    /// Skips one value of any kind, checking its grammar.
    fn skip(&mut self) -> Result<Span, Error> {
        // One bit a level: set for an object, clear for an array.
        let mut open: u128 = 0;
        let floor = self.depth;
        self.blank();
        let start = self.at;
        loop {
            self.blank();
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(bracket @ (b'{' | b'[')) => {
                    if self.depth == MAX_DEPTH {
                        return Err(too_deep(self.at));
                    }
                    self.at += 1;
                    self.depth += 1;
                    open = open << 1 | u128::from(bracket == b'{');
                    self.blank();
                    match (bracket, self.peek()) {
                        (b'{', Some(b'}')) | (b'[', Some(b']')) => {}
                        (b'{', _) => {
                            self.key()?;
                            continue;
                        }
                        _ => continue,
                    }
                }
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.fault("expected a value")),
            }
            // A value ended: close what closes behind it, then go on to the next one.
            loop {
                if self.depth == floor {
                    return Ok(Span { start, end: self.at });
                }
                self.blank();
                match (self.peek(), open & 1 == 1) {
                    (Some(b','), true) => {
                        self.at += 1;
                        self.blank();
                        self.key()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        self.depth -= 1;
                        open >>= 1;
                    }
                    (_, true) => return Err(self.fault("expected ',' or '}'")),
                    (_, false) => return Err(self.fault("expected ',' or ']'")),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), Error> {
        self.string()?;
        self.blank();
        self.expect(b':', "expected ':'")
    }

    /// Skips a string, quotes included.
    fn string(&mut self) -> Result<Span, Error> {
        let start = self.at;
        self.expect(b'"', "expected a string")?;
        loop {
            self.at = plain_until(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Span { start, end: self.at });
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.fault("control character in a string")),
                None => return Err(self.fault("a string without an end")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Error> {
        let escape = self.bytes.get(self.at + 1).map_or(0, |&byte| ESCAPED[usize::from(byte)]);
        if escape != 0 {
            self.at += 2;
            return Ok(());
        }
        self.at += 1;
        if self.peek() != Some(b'u') {
            return Err(self.fault("unknown escape"));
        }
        let digits = self.bytes.get(self.at + 1..self.at + 5);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(self.fault("expected four hexadecimal digits behind 'u'"));
        }
        self.at += 5;
        Ok(())
    }

    fn number(&mut self) -> Result<(), Error> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Error> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.fault("expected a digit"));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), Error> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8, message: &str) -> Result<(), Error> {
        if self.peek() != Some(byte) {
            return Err(self.fault(message));
        }
        self.at += 1;
        Ok(())
    }

    /// The next byte does not fit.
    fn fault(&self, message: &str) -> Error {
        Error::not_json(self.at, message)
    }
}

/// All strings of a JSON text that are values, not keys, in order; none when it is not JSON.
pub(crate) fn strings(json: &str) -> Vec<Value<'_>> {
    if document(json).is_err() {
        return Vec::new();
    }
    let mut scanner = Scanner::new(json);
    let mut strings = Vec::new();
    while let Some(at) = memchr::memchr(b'"', &scanner.bytes[scanner.at..]) {
        scanner.at += at;
        let span = scanner.string().expect("the text was scanned before, so its grammar is right");
        if scanner.opening() != Some(b':') {
            strings.push(Value { body: json, span });
        }
    }
    strings
}

fn too_deep(at: usize) -> Error {
    Error::new(ErrorKind::TooDeep { at }, format!("nested deeper than {MAX_DEPTH} levels at byte {at}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::literal::encode;

    fn accepts(text: &str) -> bool {
        document(text).is_ok()
    }

    fn serde_accepts(text: &str) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn grammar_is_that_of_serde_json() {
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
    fn depth_is_limited_by_a_typed_error() {
        let nest = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(accepts(&nest(MAX_DEPTH as usize)));
        let error = document(&nest(MAX_DEPTH as usize + 1)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TooDeep { at: MAX_DEPTH as usize });
    }

    #[test]
    fn an_unpaired_surrogate_stays_as_its_escape() {
        assert_eq!(decode(r"cut \ud83d here"), r"cut \ud83d here");
        assert_eq!(decode(r"\ud83d\ude00"), "😀");
        assert_eq!(decode(r"\ud83d\u0041"), r"\ud83dA");
        assert_eq!(decode(r"\udc00\ud83d\ude00"), "\\udc00😀");
    }

    #[test]
    fn a_field_is_found_by_its_key_however_it_is_written() {
        let of =
            |text: &'static str, key: &str| value_of(text, Span { start: 0, end: text.len() }, key).map(Value::raw);
        assert_eq!(of(r#""id" :  "x""#, "id"), Some(r#""x""#));
        assert_eq!(of(r#""i\u0064":1"#, "id"), Some("1"));
        assert_eq!(of(r#""i\u0065":1"#, "id"), None);
        assert_eq!(of(r#""idx":1"#, "id"), None);
        assert_eq!(of(r#""i":1"#, "id"), None);
        assert_eq!(of(r#""":1"#, ""), Some("1"));
    }

    #[test]
    fn of_duplicate_keys_the_last_counts() {
        let object = document(r#"{"a":1,"\u0061":2,"b":3}"#).unwrap().object();
        assert_eq!(object.get("a").map(Value::raw), Some("2"));
    }

    proptest! {
        #[test]
        fn any_string_survives_encode_and_decode(text in any::<String>()) {
            let literal = encode(&text);
            prop_assert_eq!(document(&literal).unwrap().string().unwrap(), text);
        }

        #[test]
        fn any_text_is_judged_as_serde_json_does(text in r#"[\[\]{}",:\\0-9eE.+\- \ntrufalsn\u{0}-\u{1f}é]{0,40}"#) {
            prop_assert_eq!(accepts(&text), serde_accepts(&text));
        }

        #[test]
        fn decoding_agrees_with_serde_json(text in r#"([a-z\u{80}-\u{ffff}]|\\n|\\"|\\\\|\\u[0-9a-f]{4}|\\/){0,12}"#) {
            let literal = format!("\"{text}\"");
            if let Ok(expected) = serde_json::from_str::<String>(&literal) {
                prop_assert_eq!(document(&literal).unwrap().string().unwrap(), expected);
            }
        }
    }
}
