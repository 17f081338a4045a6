//! Recognizes a body that looks like a conversation while it is forwarded, without buffering it.

use memchr::memchr2;

use crate::wire::dialect::DIALECTS;

/// Field of requests that are one prompt without messages.
const PROMPT_KEY: &str = "prompt";
/// Maximum length of a key that is compared.
const MAX_KEY_BYTES: usize = 16;

/// Scans a JSON body in chunks for a top-level field that carries a conversation: the messages of a dialect, or a prompt.
///
/// ```
/// use foldline::wire::ConversationScan;
///
/// let mut scan = ConversationScan::default();
/// for chunk in [&br#"{"options":{"prompt":"no"},"mess"#[..], br#"ages":[{"role":"user"}]}"#] {
///     scan.push(chunk);
/// }
/// assert!(scan.has_conversation());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConversationScan {
    depth: u32,
    position: ScanPosition,
    /// The start of the current top-level key.
    key: Vec<u8>,
    found: bool,
}

/// Position of the scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanPosition {
    /// Before a key, if the scan is at the top level.
    #[default]
    BeforeKey,
    /// In a key of the top level.
    InKey,
    /// Between a key of the top level and its value.
    BeforeValue,
    /// In a value.
    InValue,
    /// In a string of a value.
    InString,
    /// After a backslash in a key or a string.
    Escaped { in_key: bool },
}

impl ConversationScan {
    /// Scans the next bytes of the body.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.found {
                return;
            }
            bytes = rest;
            self.position = match self.position {
                ScanPosition::Escaped { in_key: true } => ScanPosition::InKey,
                ScanPosition::Escaped { in_key: false } => ScanPosition::InString,
                ScanPosition::InString => match byte {
                    b'"' => ScanPosition::InValue,
                    b'\\' => ScanPosition::Escaped { in_key: false },
                    _ => {
                        // Long texts are skipped at once.
                        bytes = &rest[memchr2(b'"', b'\\', rest).unwrap_or(rest.len())..];
                        ScanPosition::InString
                    }
                },
                ScanPosition::InKey => match byte {
                    b'"' => ScanPosition::BeforeValue,
                    _ => {
                        // With an escape it is not a key that is searched for.
                        if self.key.len() <= MAX_KEY_BYTES {
                            self.key.push(byte);
                        }
                        if byte == b'\\' { ScanPosition::Escaped { in_key: true } } else { ScanPosition::InKey }
                    }
                },
                ScanPosition::BeforeKey if self.depth == 1 && byte == b'"' => {
                    self.key.clear();
                    ScanPosition::InKey
                }
                ScanPosition::BeforeValue if byte == b':' || byte.is_ascii_whitespace() => ScanPosition::BeforeValue,
                position => self.scan_structure(byte, position),
            };
        }
    }

    /// Returns true if a field with a conversation was found.
    pub fn has_conversation(&self) -> bool {
        self.found
    }

    fn scan_structure(&mut self, byte: u8, position: ScanPosition) -> ScanPosition {
        if position == ScanPosition::BeforeValue && matches!(byte, b'[' | b'"') {
            self.found = is_conversation_key(&self.key);
        }
        match byte {
            b'"' => return ScanPosition::InString,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let is_before_key = self.depth == 1 && matches!(byte, b'{' | b',');
        let stays = position == ScanPosition::BeforeKey && byte.is_ascii_whitespace();
        if is_before_key || stays { ScanPosition::BeforeKey } else { ScanPosition::InValue }
    }
}

fn is_conversation_key(key: &[u8]) -> bool {
    key == PROMPT_KEY.as_bytes() || DIALECTS.iter().any(|dialect| key == dialect.request.list_key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_level_messages_and_prompts_are_found_in_any_chunks() {
        for (body, expected) in [
            (r#"{"messages":[]}"#, true),
            ("\n{ \"a\" : {\"x\":[1,{}]} ,\n \"contents\" :\t[ ] }", true),
            (r#"{"a":"\\\"","input":"hi"}"#, true),
            (r#"{"model":"m","prompt":"hi"}"#, true),
            (r#"{"prompt":{"id":"p"}}"#, false),
            (r#"{"a":{"messages":[]}}"#, false),
            (r#"{"a":[{"prompt":"x"}],"b":"messages"}"#, false),
            (r#"["messages",[1]]"#, false),
            (r#"{"a":"b\",\"messages\":[1]"}"#, false),
            (r#"{"messages_of_a_very_long_name":[]}"#, false),
            (r#"{"mess\"ages":[]}"#, false),
            ("messages: [1]", false),
            ("", false),
        ] {
            for size in [1, 3, body.len().max(1)] {
                let mut scan = ConversationScan::default();
                body.as_bytes().chunks(size).for_each(|chunk| scan.push(chunk));
                assert_eq!(scan.has_conversation(), expected, "{body} in chunks of {size}");
            }
        }
    }
}
