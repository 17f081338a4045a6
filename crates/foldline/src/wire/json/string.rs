//! The inside of JSON string literals: finding the end, decoding, encoding.
//!
//! Most of a request body is string content, so it is processed sixteen bytes at a time. This module is independent of
//! the string's context.

use std::borrow::Cow;

/// The character for each letter after a backslash; 0 for none, and for the `u` of a longer escape.
pub(crate) const ESCAPE_TABLE: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 8;
    table[b'f' as usize] = 12;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

const ONE_PER_BYTE: u128 = u128::from_ne_bytes([1; 16]);
const HIGH_BIT_PER_BYTE: u128 = ONE_PER_BYTE << 7;

/// Returns the sixteen bytes at `at`, the first one lowest.
fn load_16_bytes(bytes: &[u8], at: usize) -> Option<u128> {
    let sixteen = bytes.get(at..)?.first_chunk()?;
    Some(u128::from_le_bytes(*sixteen))
}

/// Sets the high bit of the first byte that equals `byte` (and possibly of bytes after it).
fn match_byte(word: u128, byte: u8) -> u128 {
    let zero = word ^ (ONE_PER_BYTE * byte as u128);
    zero.wrapping_sub(ONE_PER_BYTE) & !zero & HIGH_BIT_PER_BYTE
}

/// Returns the position of the next quote, backslash or control character at or after `at`. Called for every escape, so
/// it is inlined.
#[inline]
pub(crate) fn find_special_byte(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = load_16_bytes(bytes, at) {
        let control = word.wrapping_sub(ONE_PER_BYTE * 0x20) & !word & HIGH_BIT_PER_BYTE;
        let found = match_byte(word, b'"') | match_byte(word, b'\\') | control;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    while bytes.get(at).is_some_and(|&byte| byte != b'"' && byte != b'\\' && byte >= 0x20) {
        at += 1;
    }
    at
}

/// Decodes a scanned string literal (without its quotes).
///
/// An unpaired surrogate has no UTF-8 form. JavaScript clients that cut text in the middle of an emoji do send them, so
/// it is not an error: its escape is kept unchanged.
pub(crate) fn decode(literal: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', literal.as_bytes()).is_none() {
        return Cow::Borrowed(literal);
    }
    let mut text = String::new();
    decode_into(&mut text, literal);
    Cow::Owned(text)
}

/// Decodes a literal and appends the result to `text`.
pub(crate) fn decode_into(text: &mut String, literal: &str) {
    text.reserve(literal.len());
    let mut at = copy_until_escape(text, literal, 0);
    while let Some(&escape) = literal.as_bytes().get(at + 1) {
        match ESCAPE_TABLE[usize::from(escape)] {
            0 => at += decode_unicode_escape(text, &literal[at..]),
            byte => {
                text.push(char::from(byte));
                at += 2;
            }
        }
        at = copy_until_escape(text, literal, at);
    }
}

/// Decodes the `\u` escape at the start of `rest`, and the second one of a pair; returns the encoded length.
fn decode_unicode_escape(text: &mut String, rest: &str) -> usize {
    let unit = |at: usize| rest.get(at + 2..at + 6).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let high = unit(0).unwrap_or(0xd800);
    let pair = || {
        let low = rest[6..].starts_with("\\u").then(|| unit(6)).flatten()?;
        let in_range = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
        in_range.then(|| char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))).flatten()
    };
    if let Some(character) = char::from_u32(high) {
        text.push(character);
    } else if let Some(character) = pair() {
        text.push(character);
        return 12;
    } else {
        text.push_str(&rest[..6]);
    }
    6
}

/// Copies the text before the next escape, and returns the position of the escape. Most escapes are line ends, a few
/// words apart: copying sixteen ASCII bytes at a time beats a search followed by a copy.
fn copy_until_escape(text: &mut String, literal: &str, mut at: usize) -> usize {
    while let Some(word) = load_16_bytes(literal.as_bytes(), at).filter(|word| word & HIGH_BIT_PER_BYTE == 0) {
        text.push_str(&literal[at..at + 16]);
        let escape = match_byte(word, b'\\');
        if escape != 0 {
            let before = escape.trailing_zeros() as usize / 8;
            text.truncate(text.len() - 16 + before);
            return at + before;
        }
        at += 16;
    }
    let rest = &literal[at..];
    let next = memchr::memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len());
    text.push_str(&rest[..next]);
    at + next
}

/// Returns true if a text can be written as a literal without escapes.
pub(crate) fn needs_no_escape(text: &str) -> bool {
    find_special_byte(text.as_bytes(), 0) == text.len()
}

/// Returns true if a scanned literal (without its quotes) has no `\u` and no `\/` escape, so that it is what [`encode`]
/// writes. An escaped backslash followed by `u` counts as a `\u` escape, too.
pub(crate) fn is_minimally_escaped(literal: &str) -> bool {
    [br"\u", br"\/"].iter().all(|escape| memchr::memmem::find(literal.as_bytes(), *escape).is_none())
}

/// Encodes a string as a JSON literal, including quotes.
pub(crate) fn encode(text: &str) -> String {
    serde_json::to_string(text).expect("serializing a string cannot fail")
}
