//! A stream that is one JSON array, whose elements arrive one by one.
//!
//! Some clients of Gemini request it. An element is a frame together with the separator before it; a client whose
//! stream lacks some of the elements gets the separators that its array needs.

use memchr::memchr;

/// Position of the scan for the end of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrayScan {
    depth: u32,
    in_string: bool,
    after_backslash: bool,
}

impl ArrayScan {
    /// Returns the length of `bytes` up to the end of an element, or of the array, if one ends in them. Continues where
    /// the last call stopped.
    pub(crate) fn find_frame_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.in_string {
                self.in_string = self.after_backslash || *byte != b'"';
                self.after_backslash = !self.after_backslash && *byte == b'\\';
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 || self.depth == 1 && *byte == b'}' {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Returns true outside the array.
    pub(crate) fn is_closed(&self) -> bool {
        self.depth == 0
    }
}

/// State of a client's stream that is an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayState {
    /// An array of which nothing was written.
    Unopened,
    /// An array whose first element was written.
    Opened,
}

/// Returns true for the frame that ends an array.
pub(crate) fn is_array_end(raw: &[u8]) -> bool {
    memchr(b'{', raw).is_none() && raw.trim_ascii_end().ends_with(b"]")
}

/// Writes a frame of an array, with a new element if there is any, and with the separator that the client's array needs.
pub(crate) fn write_array_frame(raw: &[u8], element: Option<&str>, array: &mut ArrayState, out: &mut Vec<u8>) {
    let start = memchr(b'{', raw).unwrap_or(raw.len());
    let (head, own_element) = raw.split_at(start);
    let blank = head.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let has_separator = matches!(head.get(blank), Some(b'[' | b','));
    let is_end = own_element.is_empty();
    if is_end && !is_array_end(raw) {
        return out.extend_from_slice(raw);
    }
    out.extend_from_slice(&head[..blank]);
    match array {
        ArrayState::Opened if is_end => {}
        ArrayState::Opened => out.push(b','),
        ArrayState::Unopened => out.push(b'['),
    }
    out.extend_from_slice(&head[blank + usize::from(has_separator)..]);
    out.extend_from_slice(element.map_or(own_element, str::as_bytes));
    *array = ArrayState::Opened;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_follow_what_the_client_got() {
        let write = |frames: &[(&str, Option<&str>)], mut array: ArrayState| {
            let mut out = Vec::new();
            frames.iter().for_each(|(raw, element)| write_array_frame(raw.as_bytes(), *element, &mut array, &mut out));
            String::from_utf8(out).unwrap()
        };
        let whole = [("[{\"a\":1}", None), ("\n,\r\n{\"b\":[2]}", None), ("\n]", None), ("\n", None)];
        assert_eq!(write(&whole, ArrayState::Unopened), "[{\"a\":1}\n,\r\n{\"b\":[2]}\n]\n");
        assert_eq!(write(&whole[1..], ArrayState::Unopened), "\n[\r\n{\"b\":[2]}\n]\n");
        assert_eq!(write(&whole[2..], ArrayState::Unopened), "[\n]\n".replace("[\n]", "\n[]"));
        assert_eq!(write(&whole, ArrayState::Opened), ",{\"a\":1}\n,\r\n{\"b\":[2]}\n]\n");
        assert_eq!(write(&[("[]", None)], ArrayState::Opened), "]");
        assert_eq!(write(&[("[ {\"a\":1}", Some("{}"))], ArrayState::Unopened), "[ {}");
    }

    #[test]
    fn elements_end_outside_strings_and_nested_values() {
        let text = br#"[{"a":"}\"]","b":[{"c":1}]},{"d":"\\"}]x"#;
        let mut scan = ArrayScan::default();
        let (mut frames, mut rest) = (Vec::new(), &text[..]);
        while let Some(end) = scan.find_frame_end(rest) {
            frames.push(std::str::from_utf8(&rest[..end]).unwrap());
            rest = &rest[end..];
        }
        assert_eq!(frames, [r#"[{"a":"}\"]","b":[{"c":1}]}"#, r#",{"d":"\\"}"#, "]"]);
        assert!(scan.is_closed() && rest == b"x");
    }
}
