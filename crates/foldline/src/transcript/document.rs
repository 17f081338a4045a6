//! A pull reader for JSON documents that are too long to keep in memory.
//!
//! It enters the objects and arrays that a format names, copies the requested values and skips the
//! rest. It checks only brackets and strings: a copied value is validated by the scanner of the wire
//! formats.

use std::io::{self, BufRead};

use super::lines::fill_buffer;

pub(crate) struct DocumentReader<R> {
    input: R,
    limit: usize,
    line: u64,
    /// True after a value, where a comma or a closing bracket is expected.
    after_value: bool,
}

/// Reason why a document cannot be read further.
#[derive(Debug)]
pub(crate) enum DocumentError {
    /// The input failed.
    Io(io::Error),
    /// The input ended inside a value.
    UnexpectedEnd,
    /// A value is longer than the limit.
    Oversized,
    /// The brackets and strings do not match.
    NotJson(&'static str),
}

impl<R: BufRead> DocumentReader<R> {
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self { input, limit, line: 1, after_value: false }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of the next line, starting at one.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Returns the next byte that is not whitespace; `None` at the end of the input.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, DocumentError> {
        loop {
            let chunk = fill_buffer(&mut self.input)?;
            let Some(&first) = chunk.first() else { return Ok(None) };
            let blank = chunk.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if blank == 0 {
                return Ok(Some(first));
            }
            self.line += newlines(&chunk[..blank]);
            self.input.consume(blank);
        }
    }

    /// Enters an object or an array.
    pub(crate) fn enter(&mut self) -> Result<(), DocumentError> {
        match self.peek()? {
            Some(b'{' | b'[') => self.input.consume(1),
            Some(_) => return Err(DocumentError::NotJson("expected an object or an array")),
            None => return Err(DocumentError::UnexpectedEnd),
        }
        self.after_value = false;
        Ok(())
    }

    /// Returns the key of the next field of the current object; `None` after its end.
    pub(crate) fn next_key(&mut self) -> Result<Option<Vec<u8>>, DocumentError> {
        if !self.has_next(b'}')? {
            return Ok(None);
        }
        if self.peek()? != Some(b'"') {
            return Err(DocumentError::NotJson("expected a key"));
        }
        let mut key = Vec::new();
        self.read_value(Some(&mut key))?;
        match self.peek()? {
            Some(b':') => self.input.consume(1),
            Some(_) => return Err(DocumentError::NotJson("expected ':'")),
            None => return Err(DocumentError::UnexpectedEnd),
        }
        self.after_value = false;
        Ok(Some(key[1..key.len() - 1].to_vec()))
    }

    /// Returns true if the current array has another element; otherwise skips its end.
    pub(crate) fn next_element(&mut self) -> Result<bool, DocumentError> {
        self.has_next(b']')
    }

    fn has_next(&mut self, close: u8) -> Result<bool, DocumentError> {
        match self.peek()? {
            Some(byte) if byte == close => {
                self.input.consume(1);
                self.after_value = true;
                Ok(false)
            }
            Some(b',') if self.after_value => {
                self.input.consume(1);
                self.after_value = false;
                match self.peek()? {
                    Some(b',' | b'}' | b']') => Err(DocumentError::NotJson("expected a value after ','")),
                    Some(_) => Ok(true),
                    None => Err(DocumentError::UnexpectedEnd),
                }
            }
            Some(_) if self.after_value => Err(DocumentError::NotJson("expected ',' or a closing bracket")),
            Some(_) => Ok(true),
            None => Err(DocumentError::UnexpectedEnd),
        }
    }

    /// Skips the next value, and copies its text to `into` if given.
    pub(crate) fn read_value(&mut self, mut into: Option<&mut Vec<u8>>) -> Result<(), DocumentError> {
        let mut scan = ValueScanner::default();
        match self.peek()? {
            Some(b',' | b':' | b'}' | b']') => return Err(DocumentError::NotJson("expected a value")),
            Some(_) => {}
            None => return Err(DocumentError::UnexpectedEnd),
        }
        loop {
            let chunk = fill_buffer(&mut self.input)?;
            if chunk.is_empty() {
                // Only a number or a word may end with the input; everything else has a closing character.
                return if scan.is_bare() { self.end_value() } else { Err(DocumentError::UnexpectedEnd) };
            }
            let step = scan.step(chunk);
            self.line += newlines(&chunk[..step.taken]);
            if let Some(into) = into.as_deref_mut() {
                if step.taken > self.limit.saturating_sub(into.len()) {
                    return Err(DocumentError::Oversized);
                }
                into.extend_from_slice(&chunk[..step.taken]);
            }
            self.input.consume(step.taken);
            match step.outcome {
                ScanOutcome::More => {}
                ScanOutcome::Ended => return self.end_value(),
                ScanOutcome::Invalid(reason) => return Err(DocumentError::NotJson(reason)),
            }
        }
    }

    fn end_value(&mut self) -> Result<(), DocumentError> {
        self.after_value = true;
        Ok(())
    }

    /// Skips damaged input up to the next line that begins a document; returns false if there is none.
    pub(crate) fn skip_to_next_document(&mut self) -> io::Result<bool> {
        loop {
            let chunk = fill_buffer(&mut self.input)?;
            if chunk.is_empty() {
                return Ok(false);
            }
            let end = memchr::memchr(b'\n', chunk);
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.input.consume(taken);
            if end.is_none() {
                continue;
            }
            self.line += 1;
            if matches!(fill_buffer(&mut self.input)?.first(), Some(b'{' | b'[')) {
                self.after_value = false;
                return Ok(true);
            }
        }
    }
}

impl From<io::Error> for DocumentError {
    fn from(error: io::Error) -> Self {
        DocumentError::Io(error)
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// State of the scan of one value.
#[derive(Default)]
struct ValueScanner {
    depth: u32,
    state: ScanState,
}

#[derive(Default, PartialEq)]
enum ScanState {
    /// At the first byte of the value.
    #[default]
    Start,
    /// In an object or an array, between strings.
    Between,
    InString,
    AfterBackslash,
    /// In a number or an unquoted word.
    Bare,
}

struct ScanStep {
    taken: usize,
    outcome: ScanOutcome,
}

enum ScanOutcome {
    More,
    Ended,
    Invalid(&'static str),
}

impl ValueScanner {
    fn is_bare(&self) -> bool {
        self.state == ScanState::Bare
    }

    fn step(&mut self, chunk: &[u8]) -> ScanStep {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            at += 1;
            match self.state {
                ScanState::AfterBackslash => self.state = ScanState::InString,
                ScanState::InString => {
                    let rest = &chunk[at - 1..];
                    let Some(stop) = memchr::memchr3(b'"', b'\\', b'\n', rest) else {
                        return ScanStep { taken: chunk.len(), outcome: ScanOutcome::More };
                    };
                    at += stop;
                    match rest[stop] {
                        b'\\' => self.state = ScanState::AfterBackslash,
                        b'"' if self.depth == 0 => return ScanStep { taken: at, outcome: ScanOutcome::Ended },
                        b'"' => self.state = ScanState::Between,
                        // Not consumed, because it ends the damaged line.
                        _ => {
                            return ScanStep { taken: at - 1, outcome: ScanOutcome::Invalid("unterminated string") };
                        }
                    }
                }
                ScanState::Bare if matches!(byte, b',' | b'}' | b']' | b':') || byte.is_ascii_whitespace() => {
                    return ScanStep { taken: at - 1, outcome: ScanOutcome::Ended };
                }
                ScanState::Bare => {}
                ScanState::Start | ScanState::Between => match byte {
                    b'"' => self.state = ScanState::InString,
                    b'{' | b'[' => {
                        self.state = ScanState::Between;
                        self.depth = self.depth.saturating_add(1);
                    }
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return ScanStep { taken: at, outcome: ScanOutcome::Ended };
                        }
                    }
                    _ if self.state == ScanState::Start => self.state = ScanState::Bare,
                    _ => {}
                },
            }
        }
        ScanStep { taken: at, outcome: ScanOutcome::More }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn document_over(text: &str, capacity: usize) -> DocumentReader<BufReader<&[u8]>> {
        DocumentReader::new(BufReader::with_capacity(capacity, text.as_bytes()), 1 << 20)
    }

    fn copy_value(document: &mut DocumentReader<BufReader<&[u8]>>) -> String {
        let mut raw = Vec::new();
        document.read_value(Some(&mut raw)).unwrap();
        String::from_utf8(raw).unwrap()
    }

    /// The result is the same for any buffer size.
    #[test]
    fn named_fields_are_entered_others_are_skipped() {
        let text = "{\n \"a\": [1, {\"x\": \"}]\\\"\"}],\n \"list\": [ {\"k\":\"é\"} , 7,\n\"s\" ], \"z\": null }  17";
        for capacity in [1, 2, 7, 4096] {
            let mut document = document_over(text, capacity);
            document.enter().unwrap();
            assert_eq!(document.next_key().unwrap().unwrap(), b"a");
            document.read_value(None).unwrap();
            assert_eq!(document.next_key().unwrap().unwrap(), b"list");
            document.enter().unwrap();
            let mut elements = Vec::new();
            while document.next_element().unwrap() {
                elements.push(copy_value(&mut document));
            }
            assert_eq!(elements, ["{\"k\":\"é\"}", "7", "\"s\""]);
            assert_eq!(document.line(), 4);
            assert_eq!(document.next_key().unwrap().unwrap(), b"z");
            assert_eq!(copy_value(&mut document), "null");
            assert_eq!(document.next_key().unwrap(), None);
            assert_eq!(copy_value(&mut document), "17");
            assert_eq!(document.peek().unwrap(), None);
        }
    }

    #[test]
    fn truncated_document_and_line_are_reported() {
        let mut document = document_over("[{\"a\": [1", 4);
        document.enter().unwrap();
        assert!(matches!(document.read_value(None), Err(DocumentError::UnexpectedEnd)));

        let mut document = document_over("{\"a\": \"cut\n{\"b\": 1}\n", 4);
        document.enter().unwrap();
        document.next_key().unwrap();
        assert!(matches!(document.read_value(None), Err(DocumentError::NotJson(_))));
        assert_eq!(document.line(), 1);
        assert!(document.skip_to_next_document().unwrap());
        assert_eq!((document.line(), copy_value(&mut document)), (2, "{\"b\": 1}".to_owned()));
    }

    #[test]
    fn oversized_value_is_an_error() {
        let mut document = DocumentReader::new("[\"0123456789\"]".as_bytes(), 8);
        document.enter().unwrap();
        let mut raw = Vec::new();
        assert!(matches!(document.read_value(Some(&mut raw)), Err(DocumentError::Oversized)));
    }
}
