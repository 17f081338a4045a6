//! A text of a conversation that is decoded on first use.
//!
//! Nearly every tool result contains newlines, which are escapes in JSON, so decoding a text copies it. Most of a
//! long conversation was read in an earlier turn and is not needed again; a text in a request body therefore remains
//! undecoded until it is read. Nothing here can fail: literals are validated when they are scanned.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::json::string;

/// A text: borrowed, owned, or an undecoded JSON literal. Dereferences to `str`.
///
/// ```
/// use foldline::Part;
/// use foldline::conversation::LazyText;
///
/// let text = LazyText::from("two\nlines");
/// assert_eq!(text.lines().count(), 2);
/// assert_eq!(text, "two\nlines");
/// assert_eq!(Part::text(text).as_text(), Some("two\nlines"));
/// ```
#[derive(Clone)]
pub struct LazyText<'a>(TextRepr<'a>);

#[derive(Clone)]
enum TextRepr<'a> {
    Plain(Cow<'a, str>),
    Escaped {
        /// Contents of a JSON string literal with at least one escape.
        literal: &'a str,
        /// Decoded text, filled on first use.
        #[expect(clippy::box_collection, reason = "one word instead of three; most texts are never decoded")]
        decoded: OnceLock<Box<String>>,
    },
}

impl<'a> LazyText<'a> {
    /// Creates a text from the contents of a scanned JSON string literal.
    pub(crate) fn from_json_literal(literal: &'a str) -> Self {
        match memchr::memchr(b'\\', literal.as_bytes()) {
            None => Self::from(literal),
            Some(_) => Self(TextRepr::Escaped { literal, decoded: OnceLock::new() }),
        }
    }

    /// Returns the text, decoding and caching it on first use.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            TextRepr::Plain(text) => text,
            TextRepr::Escaped { literal, decoded } => {
                decoded.get_or_init(|| Box::new(string::decode(literal).into_owned()))
            }
        }
    }

    /// Returns the text for a single use: decodes it into `buffer` and does not cache it.
    pub(crate) fn as_str_uncached<'t>(&'t self, buffer: &'t mut String) -> &'t str {
        match self.undecoded() {
            None => self,
            Some(literal) => {
                buffer.clear();
                string::decode_into(buffer, literal);
                buffer
            }
        }
    }

    /// Returns the text as the contents of a JSON string with minimal escaping: equal for equal texts, whatever
    /// escapes the body uses. Most clients escape minimally, and then the body's own bytes are returned; otherwise
    /// the result is written to `buffer`. Hashing all texts of a long conversation this way decodes almost none.
    ///
    /// ```
    /// use foldline::conversation::LazyText;
    ///
    /// assert_eq!(LazyText::from("two\nlines").json_literal(&mut String::new()), r"two\nlines");
    /// ```
    pub fn json_literal<'t>(&'t self, buffer: &'t mut String) -> &'t str {
        match &self.0 {
            TextRepr::Plain(text) if string::needs_no_escape(text) => text,
            TextRepr::Escaped { literal, .. } if string::is_minimally_escaped(literal) => literal,
            TextRepr::Plain(_) | TextRepr::Escaped { .. } => {
                *buffer = string::encode(self.as_str_uncached(buffer));
                &buffer[1..buffer.len() - 1]
            }
        }
    }

    /// Returns true if the text is empty. Unlike `str::is_empty`, decodes nothing.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            TextRepr::Plain(text) => text.is_empty(),
            TextRepr::Escaped { .. } => false,
        }
    }

    /// Returns true if the text is only white space. Reads an undecoded text only as far as needed.
    pub(crate) fn is_blank(&self) -> bool {
        let Some(mut rest) = self.undecoded() else { return self.trim_start().is_empty() };
        loop {
            rest = rest.trim_start();
            match rest.as_bytes() {
                [b'\\', b'n' | b'r' | b't' | b'f', ..] => rest = &rest[2..],
                [b'\\', b'u', ..] => return self.trim_start().is_empty(),
                other => return other.is_empty(),
            }
        }
    }

    /// Returns an upper bound of the text's length in bytes, without decoding it.
    pub(crate) fn len_upper_bound(&self) -> usize {
        self.undecoded().map_or_else(|| self.len(), str::len)
    }

    /// Returns the text for modification.
    pub fn to_mut(&mut self) -> &mut String {
        if let TextRepr::Escaped { .. } = &self.0 {
            *self = Self(TextRepr::Plain(std::mem::take(self).into()));
        }
        match &mut self.0 {
            TextRepr::Plain(text) => text.to_mut(),
            TextRepr::Escaped { .. } => unreachable!("the text was decoded above"),
        }
    }

    /// Returns the same text, owned.
    pub fn into_owned(self) -> LazyText<'static> {
        LazyText(TextRepr::Plain(Cow::Owned(self.into())))
    }

    fn undecoded(&self) -> Option<&'a str> {
        match &self.0 {
            TextRepr::Escaped { literal, decoded } if decoded.get().is_none() => Some(literal),
            _ => None,
        }
    }
}

impl Deref for LazyText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for LazyText<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for LazyText<'_> {
    fn borrow(&self) -> &str {
        self
    }
}

impl Default for LazyText<'_> {
    fn default() -> Self {
        Self::from("")
    }
}

impl<'a> From<&'a str> for LazyText<'a> {
    fn from(text: &'a str) -> Self {
        Self(TextRepr::Plain(Cow::Borrowed(text)))
    }
}

impl From<String> for LazyText<'_> {
    fn from(text: String) -> Self {
        Self(TextRepr::Plain(Cow::Owned(text)))
    }
}

impl<'a> From<&'a String> for LazyText<'a> {
    fn from(text: &'a String) -> Self {
        Self::from(text.as_str())
    }
}

impl<'a> From<Cow<'a, str>> for LazyText<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(TextRepr::Plain(text))
    }
}

impl<'a> From<LazyText<'a>> for Cow<'a, str> {
    fn from(text: LazyText<'a>) -> Self {
        match text.0 {
            TextRepr::Plain(text) => text,
            TextRepr::Escaped { literal, decoded } => match decoded.into_inner() {
                Some(decoded) => Cow::Owned(*decoded),
                None => string::decode(literal),
            },
        }
    }
}

impl From<LazyText<'_>> for String {
    fn from(text: LazyText<'_>) -> Self {
        Cow::from(text).into_owned()
    }
}

/// Equal literals are equal texts; only different literals have to be decoded.
impl PartialEq for LazyText<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (TextRepr::Escaped { literal, .. }, TextRepr::Escaped { literal: other, .. }) if literal == other => true,
            _ => self.as_str() == other.as_str(),
        }
    }
}

impl Eq for LazyText<'_> {}

impl PartialEq<str> for LazyText<'_> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for LazyText<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for LazyText<'_> {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl Hash for LazyText<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for LazyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for LazyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl Serialize for LazyText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for LazyText<'_> {
    /// Owns the text, so that a struct with messages in it needs no lifetime.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::json::string::{decode, encode};

    /// Contents of any JSON string, with more white space, surrogates and rare escapes than clients send.
    fn json_string_body() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            r#"[^"\\\u{0}-\u{1f}]{0,20}"#,
            r"[ \u{a0}\u{2003}]{1,2}",
            Just(String::from(r"\n")),
            r#"\\["\\/bfnrt]"#,
            r"\\u[0-9a-fA-F]{4}",
            r"\\ud83d\\ude0[0-9]",
            r"\\u(00[012][09ad]|2003|d8[0-9a-f]{2})",
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn hash(text: impl Hash) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }

    proptest! {
        /// Every accessor, in any order, returns what eager decoding would return.
        #[test]
        fn lazy_decoding_equals_eager_decoding(inside in json_string_body(), other in json_string_body()) {
            let text = || LazyText::from_json_literal(&inside);
            let expected = decode(&inside);
            prop_assert_eq!(&*text(), &*expected);
            let mut buffer = String::from("previous content");
            let uncached = text();
            prop_assert_eq!(uncached.as_str_uncached(&mut buffer), &*expected);
            prop_assert_eq!(uncached.undecoded().is_some(), inside.contains('\\'), "nothing is cached");
            let json = encode(&expected);
            let other_way = LazyText::from(expected.clone());
            prop_assert_eq!(format!("\"{}\"", uncached.json_literal(&mut buffer)), json.clone());
            prop_assert_eq!(format!("\"{}\"", other_way.json_literal(&mut buffer)), json);
            prop_assert_eq!(text().is_empty(), expected.is_empty());
            prop_assert_eq!(text().is_blank(), expected.trim().is_empty());
            prop_assert!(text().len_upper_bound() >= expected.len());
            prop_assert_eq!(&*text().into_owned(), &*expected);
            prop_assert_eq!(Cow::from(text()), expected.clone());
            prop_assert_eq!(hash(text()), hash(&*expected));
            prop_assert_eq!(format!("{0} {0:?}", text()), format!("{0} {0:?}", &*expected));

            let cached = text();
            let first = cached.as_ptr();
            prop_assert_eq!(cached.as_ptr(), first, "decoded once");
            prop_assert_eq!(cached.as_str_uncached(&mut buffer).as_ptr(), first);
            prop_assert_eq!(&*cached.clone(), &*expected);
            prop_assert_eq!(cached.is_blank(), expected.trim().is_empty());
            prop_assert_eq!(cached.len_upper_bound(), expected.len());
            prop_assert_eq!(&cached, &text());
            let mut longer = text();
            longer.to_mut().push('!');
            prop_assert_eq!(&*longer, format!("{expected}!"));
            prop_assert_eq!(&*cached.into_owned(), &*expected);

            let other = LazyText::from_json_literal(&other);
            prop_assert_eq!(text() == other, *expected == *other);
        }

        #[test]
        fn concurrent_readers_see_the_same_text(inside in json_string_body()) {
            let text = LazyText::from_json_literal(&inside);
            let seen: Vec<(usize, String)> = std::thread::scope(|scope| {
                let look = || (text.as_ptr() as usize, text.to_string());
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            prop_assert!(seen.iter().all(|other| *other == seen[0]));
            prop_assert_eq!(&*seen[0].1, &*decode(&inside));
        }

        /// In JSON the text is an ordinary string, and is borrowed if it needs no decoding.
        #[test]
        fn serde_treats_it_as_a_string(inside in json_string_body()) {
            let text = LazyText::from_json_literal(&inside);
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&*text).unwrap());
            let back: LazyText<'_> = serde_json::from_str(&json).unwrap();
            prop_assert!(matches!(back.0, TextRepr::Plain(Cow::Owned(_))));
            prop_assert_eq!(back, text);
        }
    }

    /// A conversation holds thousands of texts: one word more than a `String`.
    #[test]
    fn lazy_text_is_32_bytes() {
        assert_eq!(size_of::<LazyText<'_>>(), 32);
        fn shared<T: Send + Sync>() {}
        shared::<LazyText<'_>>();
    }

    /// Two escapes of one character are the same text.
    #[test]
    fn differently_escaped_texts_are_equal() {
        assert_eq!(LazyText::from_json_literal(r"h\u0069"), LazyText::from("hi"));
        assert_eq!(LazyText::from_json_literal(r"h\u0069\n"), LazyText::from_json_literal(r"\u0068i\u000a"));
        assert_ne!(LazyText::from_json_literal(r"a\n"), LazyText::from_json_literal(r"a\t"));
        assert_eq!(LazyText::from_json_literal(r"cut \ud83d here"), r"cut \ud83d here");
    }
}
