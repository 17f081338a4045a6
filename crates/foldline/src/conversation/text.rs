//! A text of a conversation, decoded when it is first looked at.
//!
//! Nearly every result of a tool has line ends, and a line end is an escape in JSON: to decode it is to copy the text.
//! Most of a long conversation was read a turn ago and nobody looks at it again, so a text that stands in a request body
//! stays there until somebody does. Nothing here can fail: what a literal may hold was checked when it was scanned.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::json::string;

/// A text: borrowed, owned, or as it stands in a body between its quotes. It is a `str` for whoever looks at it.
///
/// ```
/// use foldline::{Part, Text};
///
/// let text = Text::from("two\nlines");
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
        /// The inside of a JSON string with at least one escape.
        literal: &'a str,
        /// What it stands for, once somebody has looked.
        #[expect(clippy::box_collection, reason = "one word, not three: most of them are never looked at")]
        decoded: OnceLock<Box<String>>,
    },
}

impl<'a> LazyText<'a> {
    /// What stands between the quotes of a JSON string that was scanned.
    pub(crate) fn from_json_literal(written: &'a str) -> Self {
        match memchr::memchr(b'\\', written.as_bytes()) {
            None => Self::from(written),
            Some(_) => Self(TextRepr::Escaped { literal: written, decoded: OnceLock::new() }),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            TextRepr::Plain(text) => text,
            TextRepr::Escaped { literal: written, decoded } => {
                decoded.get_or_init(|| Box::new(string::decode(written).into_owned()))
            }
        }
    }

    /// The text for whoever looks at it once: it is decoded in the room that is lent, and not remembered.
    pub(crate) fn as_str_uncached<'t>(&'t self, room: &'t mut String) -> &'t str {
        match self.undecoded() {
            None => self,
            Some(written) => {
                room.clear();
                string::decode_into(room, written);
                room
            }
        }
    }

    /// The text as it stands between the quotes of a JSON string in which nothing is escaped that need not be: the same for
    /// texts that are alike, however a body writes them. Most clients write them so, and then it is what stands in the body;
    /// else it is put into the room that is lent. Whoever hashes all texts of a long conversation decodes nearly none.
    ///
    /// ```
    /// use foldline::Text;
    ///
    /// assert_eq!(Text::from("two\nlines").in_json(&mut String::new()), r"two\nlines");
    /// ```
    pub fn json_literal<'t>(&'t self, room: &'t mut String) -> &'t str {
        match &self.0 {
            TextRepr::Plain(text) if string::needs_no_escape(text) => text,
            TextRepr::Escaped { literal: written, .. } if string::is_minimally_escaped(written) => written,
            TextRepr::Plain(_) | TextRepr::Escaped { .. } => {
                *room = string::encode(self.as_str_uncached(room));
                &room[1..room.len() - 1]
            }
        }
    }

    /// Whether it says nothing. This, unlike the `str`'s own, decodes nothing.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            TextRepr::Plain(text) => text.is_empty(),
            TextRepr::Escaped { .. } => false,
        }
    }

    /// Whether there is nothing but white space in it. Of a text that was not decoded as much is read as it takes to tell.
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

    /// At least as many bytes as the text has, told without decoding it.
    pub(crate) fn len_upper_bound(&self) -> usize {
        self.undecoded().map_or_else(|| self.len(), str::len)
    }

    /// The text, to be changed.
    pub fn to_mut(&mut self) -> &mut String {
        if let TextRepr::Escaped { .. } = &self.0 {
            *self = Self(TextRepr::Plain(std::mem::take(self).into()));
        }
        match &mut self.0 {
            TextRepr::Plain(text) => text.to_mut(),
            TextRepr::Escaped { .. } => unreachable!("it was just decoded"),
        }
    }

    /// The same text, owned.
    pub fn into_owned(self) -> LazyText<'static> {
        LazyText(TextRepr::Plain(Cow::Owned(self.into())))
    }

    fn undecoded(&self) -> Option<&'a str> {
        match &self.0 {
            TextRepr::Escaped { literal: written, decoded } if decoded.get().is_none() => Some(written),
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
            TextRepr::Escaped { literal: written, decoded } => match decoded.into_inner() {
                Some(decoded) => Cow::Owned(*decoded),
                None => string::decode(written),
            },
        }
    }
}

impl From<LazyText<'_>> for String {
    fn from(text: LazyText<'_>) -> Self {
        Cow::from(text).into_owned()
    }
}

/// What is written alike is alike; only what is not has to be decoded.
impl PartialEq for LazyText<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (TextRepr::Escaped { literal: written, .. }, TextRepr::Escaped { literal: other, .. })
                if written == other =>
            {
                true
            }
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

impl<'de: 'a, 'a> Deserialize<'de> for LazyText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);
        BorrowedText::deserialize(deserializer).map(|BorrowedText(text)| Self::from(text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::json::string::{decode, encode};

    /// The inside of any JSON string, with more white space, surrogates and odd escapes than clients send.
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
        /// Whoever looks, however often and in whichever way, sees what would have been decoded at once.
        #[test]
        fn lazy_decoding_equals_eager_decoding(inside in json_string_body(), other in json_string_body()) {
            let text = || LazyText::from_json_literal(&inside);
            let expected = decode(&inside);
            prop_assert_eq!(&*text(), &*expected);
            let mut room = String::from("what stood there before");
            let glanced = text();
            prop_assert_eq!(glanced.as_str_uncached(&mut room), &*expected);
            prop_assert_eq!(glanced.undecoded().is_some(), inside.contains('\\'), "nothing is remembered");
            let json = encode(&expected);
            let other_way = LazyText::from(expected.clone());
            prop_assert_eq!(format!("\"{}\"", glanced.json_literal(&mut room)), json.clone());
            prop_assert_eq!(format!("\"{}\"", other_way.json_literal(&mut room)), json);
            prop_assert_eq!(text().is_empty(), expected.is_empty());
            prop_assert_eq!(text().is_blank(), expected.trim().is_empty());
            prop_assert!(text().len_upper_bound() >= expected.len());
            prop_assert_eq!(&*text().into_owned(), &*expected);
            prop_assert_eq!(Cow::from(text()), expected.clone());
            prop_assert_eq!(hash(text()), hash(&*expected));
            prop_assert_eq!(format!("{0} {0:?}", text()), format!("{0} {0:?}", &*expected));

            let looked = text();
            let first = looked.as_ptr();
            prop_assert_eq!(looked.as_ptr(), first, "it is decoded once");
            prop_assert_eq!(looked.as_str_uncached(&mut room).as_ptr(), first);
            prop_assert_eq!(&*looked.clone(), &*expected);
            prop_assert_eq!(looked.is_blank(), expected.trim().is_empty());
            prop_assert_eq!(looked.len_upper_bound(), expected.len());
            prop_assert_eq!(&looked, &text());
            let mut longer = text();
            longer.to_mut().push('!');
            prop_assert_eq!(&*longer, format!("{expected}!"));
            prop_assert_eq!(&*looked.into_owned(), &*expected);

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
            prop_assert!(seen.iter().all(|it| *it == seen[0]));
            prop_assert_eq!(&*seen[0].1, &*decode(&inside));
        }

        /// In JSON it is a string like any other, and what needs no decoding is borrowed from it.
        #[test]
        fn serde_treats_it_as_a_string(inside in json_string_body()) {
            let text = LazyText::from_json_literal(&inside);
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&*text).unwrap());
            let back: LazyText<'_> = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(matches!(back.0, TextRepr::Plain(Cow::Borrowed(_))), !json.contains('\\'));
            prop_assert_eq!(back, text);
        }
    }

    /// A conversation holds thousands: one word more than an owned text.
    #[test]
    fn lazy_text_is_32_bytes() {
        assert_eq!(size_of::<LazyText<'_>>(), 32);
        fn shared<T: Send + Sync>() {}
        shared::<LazyText<'_>>();
    }

    /// Two escapes of one letter are the same text, written in two ways.
    #[test]
    fn differently_escaped_texts_are_equal() {
        assert_eq!(LazyText::from_json_literal(r"h\u0069"), LazyText::from("hi"));
        assert_eq!(LazyText::from_json_literal(r"h\u0069\n"), LazyText::from_json_literal(r"\u0068i\u000a"));
        assert_ne!(LazyText::from_json_literal(r"a\n"), LazyText::from_json_literal(r"a\t"));
        assert_eq!(LazyText::from_json_literal(r"cut \ud83d here"), r"cut \ud83d here");
    }
}
