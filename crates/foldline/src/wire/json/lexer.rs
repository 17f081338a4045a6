//! Skips over JSON text and checks its grammar, byte by byte. Values are in `scan`; nothing is decoded here.

use crate::error::{Error, ErrorKind};
use crate::wire::json::string::{ESCAPE_TABLE, find_special_byte};

/// Maximum nesting depth of objects and arrays.
pub const MAX_JSON_DEPTH: u32 = 128;

/// A range of bytes in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSpan {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A position in JSON text, and the number of open brackets.
pub(crate) struct JsonLexer<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) offset: usize,
    pub(crate) depth: u32,
}

impl JsonLexer<'_> {
    pub(crate) fn open_bracket(&mut self, bracket: u8, message: &str) -> Result<(), Error> {
        self.expect(bracket, message)?;
        if self.depth == MAX_JSON_DEPTH {
            return Err(too_deep(self.offset - 1));
        }
        self.depth += 1;
        Ok(())
    }

    pub(crate) fn try_close_bracket(&mut self, bracket: u8) -> bool {
        self.skip_whitespace();
        let leaves = self.peek() == Some(bracket);
        if leaves {
            self.offset += 1;
            self.depth -= 1;
        }
        leaves
    }

    /// Skips one value of any kind, checking its grammar.
    pub(crate) fn skip_value(&mut self) -> Result<ByteSpan, Error> {
        // One bit per level: set for an object, clear for an array.
        let mut open: u128 = 0;
        let floor = self.depth;
        self.skip_whitespace();
        let start = self.offset;
        loop {
            self.skip_whitespace();
            match self.peek() {
                Some(b'"') => {
                    self.skip_string()?;
                }
                Some(bracket @ (b'{' | b'[')) => {
                    if self.depth == MAX_JSON_DEPTH {
                        return Err(too_deep(self.offset));
                    }
                    self.offset += 1;
                    self.depth += 1;
                    open = open << 1 | u128::from(bracket == b'{');
                    self.skip_whitespace();
                    match (bracket, self.peek()) {
                        (b'{', Some(b'}')) | (b'[', Some(b']')) => {}
                        (b'{', _) => {
                            self.skip_key()?;
                            continue;
                        }
                        _ => continue,
                    }
                }
                Some(b't') => self.skip_literal("true")?,
                Some(b'f') => self.skip_literal("false")?,
                Some(b'n') => self.skip_literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.skip_number()?,
                _ => return Err(self.syntax_error("expected a value")),
            }
            // A value ended: close the brackets after it, then continue with the next value.
            loop {
                if self.depth == floor {
                    return Ok(ByteSpan { start, end: self.offset });
                }
                self.skip_whitespace();
                match (self.peek(), open & 1 == 1) {
                    (Some(b','), true) => {
                        self.offset += 1;
                        self.skip_whitespace();
                        self.skip_key()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.offset += 1;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.offset += 1;
                        self.depth -= 1;
                        open >>= 1;
                    }
                    (_, true) => return Err(self.syntax_error("expected ',' or '}'")),
                    (_, false) => return Err(self.syntax_error("expected ',' or ']'")),
                }
            }
        }
    }

    fn skip_key(&mut self) -> Result<(), Error> {
        self.skip_string()?;
        self.skip_whitespace();
        self.expect(b':', "expected ':'")
    }

    /// Skips a string, quotes included.
    pub(crate) fn skip_string(&mut self) -> Result<ByteSpan, Error> {
        let start = self.offset;
        self.expect(b'"', "expected a string")?;
        loop {
            self.offset = find_special_byte(self.bytes, self.offset);
            match self.peek() {
                Some(b'"') => {
                    self.offset += 1;
                    return Ok(ByteSpan { start, end: self.offset });
                }
                Some(b'\\') => self.skip_escape()?,
                Some(_) => return Err(self.syntax_error("control character in a string")),
                None => return Err(self.syntax_error("a string without an end")),
            }
        }
    }

    fn skip_escape(&mut self) -> Result<(), Error> {
        let escape = self.bytes.get(self.offset + 1).map_or(0, |&byte| ESCAPE_TABLE[usize::from(byte)]);
        if escape != 0 {
            self.offset += 2;
            return Ok(());
        }
        self.offset += 1;
        if self.peek() != Some(b'u') {
            return Err(self.syntax_error("unknown escape"));
        }
        let digits = self.bytes.get(self.offset + 1..self.offset + 5);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(self.syntax_error("expected four hexadecimal digits after 'u'"));
        }
        self.offset += 5;
        Ok(())
    }

    fn skip_number(&mut self) -> Result<(), Error> {
        if self.peek() == Some(b'-') {
            self.offset += 1;
        }
        match self.peek() {
            Some(b'0') => self.offset += 1,
            _ => self.skip_digits()?,
        }
        if self.peek() == Some(b'.') {
            self.offset += 1;
            self.skip_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.offset += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.offset += 1;
            }
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Result<(), Error> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.syntax_error("expected a digit"));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.offset += 1;
        }
        Ok(())
    }

    fn skip_literal(&mut self, word: &str) -> Result<(), Error> {
        if !self.bytes[self.offset..].starts_with(word.as_bytes()) {
            return Err(self.syntax_error("expected a value"));
        }
        self.offset += word.len();
        Ok(())
    }

    pub(crate) fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.offset += 1;
        }
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.offset).copied()
    }

    pub(crate) fn expect(&mut self, byte: u8, message: &str) -> Result<(), Error> {
        if self.peek() != Some(byte) {
            return Err(self.syntax_error(message));
        }
        self.offset += 1;
        Ok(())
    }

    /// Returns the error for an unexpected next byte.
    fn syntax_error(&self, message: &str) -> Error {
        Error::not_json(self.offset, message)
    }
}

fn too_deep(at: usize) -> Error {
    Error::new(ErrorKind::TooDeep { offset: at }, format!("nested deeper than {MAX_JSON_DEPTH} levels at byte {at}"))
}
