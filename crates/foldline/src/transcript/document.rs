//! A pull reader over JSON documents that are longer than one wants to hold.
//!
//! It walks into the objects and arrays that a format names, copies out the values that are wanted
//! and passes over the rest without keeping it. It knows brackets and strings and nothing more: a
//! value that was copied out is judged by the scanner of the wire formats.

use std::io::{self, BufRead};

use super::lines::fill;

pub(super) struct Document<R> {
    input: R,
    limit: usize,
    line: u64,
    /// A value has just ended, so a comma or a closing bracket comes next.
    behind_value: bool,
}

/// Why a document can not be read on.
#[derive(Debug)]
pub(super) enum Stop {
    /// The input failed.
    Io(io::Error),
    /// It ended inside of a value.
    EndsEarly,
    /// A value is longer than the limit.
    TooLong,
    /// The brackets and strings do not fit.
    NotJson(&'static str),
}

impl<R: BufRead> Document<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        Self { input, limit, line: 1, behind_value: false }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The line that comes next, from one.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The first byte of what comes next; `None` at the end of the input.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, Stop> {
        loop {
            let chunk = fill(&mut self.input)?;
            let Some(&first) = chunk.first() else { return Ok(None) };
            let blank = chunk.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if blank == 0 {
                return Ok(Some(first));
            }
            self.line += newlines(&chunk[..blank]);
            self.input.consume(blank);
        }
    }

    /// Walks into an object or an array.
    pub(super) fn enter(&mut self) -> Result<(), Stop> {
        match self.peek()? {
            Some(b'{' | b'[') => self.input.consume(1),
            Some(_) => return Err(Stop::NotJson("expected an object or an array")),
            None => return Err(Stop::EndsEarly),
        }
        self.behind_value = false;
        Ok(())
    }

    /// The key of the next field of the object that was entered; `None` behind its end.
    pub(super) fn key(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        if !self.another(b'}')? {
            return Ok(None);
        }
        if self.peek()? != Some(b'"') {
            return Err(Stop::NotJson("expected a key"));
        }
        let mut key = Vec::new();
        self.value(Some(&mut key))?;
        match self.peek()? {
            Some(b':') => self.input.consume(1),
            Some(_) => return Err(Stop::NotJson("expected ':'")),
            None => return Err(Stop::EndsEarly),
        }
        self.behind_value = false;
        Ok(Some(key[1..key.len() - 1].to_vec()))
    }

    /// Whether another element follows in the array that was entered; otherwise its end is passed.
    pub(super) fn element(&mut self) -> Result<bool, Stop> {
        self.another(b']')
    }

    fn another(&mut self, close: u8) -> Result<bool, Stop> {
        match self.peek()? {
            Some(byte) if byte == close => {
                self.input.consume(1);
                self.behind_value = true;
                Ok(false)
            }
            Some(b',') if self.behind_value => {
                self.input.consume(1);
                self.behind_value = false;
                match self.peek()? {
                    Some(b',' | b'}' | b']') => Err(Stop::NotJson("expected a value behind ','")),
                    Some(_) => Ok(true),
                    None => Err(Stop::EndsEarly),
                }
            }
            Some(_) if self.behind_value => Err(Stop::NotJson("expected ',' or a closing bracket")),
            Some(_) => Ok(true),
            None => Err(Stop::EndsEarly),
        }
    }

    /// Passes the next value, and copies its text when a place for it is given.
    pub(super) fn value(&mut self, mut into: Option<&mut Vec<u8>>) -> Result<(), Stop> {
        let mut scan = Scan::default();
        match self.peek()? {
            Some(b',' | b':' | b'}' | b']') => return Err(Stop::NotJson("expected a value")),
            Some(_) => {}
            None => return Err(Stop::EndsEarly),
        }
        loop {
            let chunk = fill(&mut self.input)?;
            if chunk.is_empty() {
                // A number or a word may end with the input; everything else has an end of its own.
                return if scan.is_bare() { self.ended() } else { Err(Stop::EndsEarly) };
            }
            let step = scan.step(chunk);
            self.line += newlines(&chunk[..step.taken]);
            if let Some(into) = into.as_deref_mut() {
                if step.taken > self.limit.saturating_sub(into.len()) {
                    return Err(Stop::TooLong);
                }
                into.extend_from_slice(&chunk[..step.taken]);
            }
            self.input.consume(step.taken);
            match step.outcome {
                Outcome::More => {}
                Outcome::Ended => return self.ended(),
                Outcome::Fault(reason) => return Err(Stop::NotJson(reason)),
            }
        }
    }

    fn ended(&mut self) -> Result<(), Stop> {
        self.behind_value = true;
        Ok(())
    }

    /// Goes to the next line that begins a document of its own, after damage; `false` if none does.
    pub(super) fn resume(&mut self) -> io::Result<bool> {
        loop {
            let chunk = fill(&mut self.input)?;
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
            if matches!(fill(&mut self.input)?.first(), Some(b'{' | b'[')) {
                self.behind_value = false;
                return Ok(true);
            }
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Io(error)
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// How far the scan of one value has come.
#[derive(Default)]
struct Scan {
    depth: u32,
    place: Place,
}

#[derive(Default, PartialEq)]
enum Place {
    /// At the first byte of the value.
    #[default]
    Start,
    /// In an object or an array, between strings.
    Between,
    InString,
    BehindBackslash,
    /// In a number or a word that nothing encloses.
    Bare,
}

struct Step {
    taken: usize,
    outcome: Outcome,
}

enum Outcome {
    More,
    Ended,
    Fault(&'static str),
}

impl Scan {
    fn is_bare(&self) -> bool {
        self.place == Place::Bare
    }

    fn step(&mut self, chunk: &[u8]) -> Step {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            at += 1;
            match self.place {
                Place::BehindBackslash => self.place = Place::InString,
                Place::InString => {
                    let rest = &chunk[at - 1..];
                    let Some(stop) = memchr::memchr3(b'"', b'\\', b'\n', rest) else {
                        return Step { taken: chunk.len(), outcome: Outcome::More };
                    };
                    at += stop;
                    match rest[stop] {
                        b'\\' => self.place = Place::BehindBackslash,
                        b'"' if self.depth == 0 => return Step { taken: at, outcome: Outcome::Ended },
                        b'"' => self.place = Place::Between,
                        // Left in the input, since it ends the damaged line.
                        _ => return Step { taken: at - 1, outcome: Outcome::Fault("a string without an end") },
                    }
                }
                Place::Bare if matches!(byte, b',' | b'}' | b']' | b':') || byte.is_ascii_whitespace() => {
                    return Step { taken: at - 1, outcome: Outcome::Ended };
                }
                Place::Bare => {}
                Place::Start | Place::Between => match byte {
                    b'"' => self.place = Place::InString,
                    b'{' | b'[' => {
                        self.place = Place::Between;
                        self.depth = self.depth.saturating_add(1);
                    }
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Step { taken: at, outcome: Outcome::Ended };
                        }
                    }
                    _ if self.place == Place::Start => self.place = Place::Bare,
                    _ => {}
                },
            }
        }
        Step { taken: at, outcome: Outcome::More }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn over(text: &str, capacity: usize) -> Document<BufReader<&[u8]>> {
        Document::new(BufReader::with_capacity(capacity, text.as_bytes()), 1 << 20)
    }

    fn copied(document: &mut Document<BufReader<&[u8]>>) -> String {
        let mut raw = Vec::new();
        document.value(Some(&mut raw)).unwrap();
        String::from_utf8(raw).unwrap()
    }

    /// The same walk whatever the size of the buffer: into the list, past everything else.
    #[test]
    fn walks_into_what_is_named_and_passes_the_rest() {
        let text = "{\n \"a\": [1, {\"x\": \"}]\\\"\"}],\n \"list\": [ {\"k\":\"é\"} , 7,\n\"s\" ], \"z\": null }  17";
        for capacity in [1, 2, 7, 4096] {
            let mut document = over(text, capacity);
            document.enter().unwrap();
            assert_eq!(document.key().unwrap().unwrap(), b"a");
            document.value(None).unwrap();
            assert_eq!(document.key().unwrap().unwrap(), b"list");
            document.enter().unwrap();
            let mut elements = Vec::new();
            while document.element().unwrap() {
                elements.push(copied(&mut document));
            }
            assert_eq!(elements, ["{\"k\":\"é\"}", "7", "\"s\""]);
            assert_eq!(document.line(), 4);
            assert_eq!(document.key().unwrap().unwrap(), b"z");
            assert_eq!(copied(&mut document), "null");
            assert_eq!(document.key().unwrap(), None);
            assert_eq!(copied(&mut document), "17");
            assert_eq!(document.peek().unwrap(), None);
        }
    }

    #[test]
    fn a_cut_document_ends_early_and_a_cut_line_is_left_at_its_end() {
        let mut document = over("[{\"a\": [1", 4);
        document.enter().unwrap();
        assert!(matches!(document.value(None), Err(Stop::EndsEarly)));

        let mut document = over("{\"a\": \"cut\n{\"b\": 1}\n", 4);
        document.enter().unwrap();
        document.key().unwrap();
        assert!(matches!(document.value(None), Err(Stop::NotJson(_))));
        assert_eq!(document.line(), 1);
        assert!(document.resume().unwrap());
        assert_eq!((document.line(), copied(&mut document)), (2, "{\"b\": 1}".to_owned()));
    }

    #[test]
    fn a_value_over_the_limit_is_refused() {
        let mut document = Document::new("[\"0123456789\"]".as_bytes(), 8);
        document.enter().unwrap();
        let mut raw = Vec::new();
        assert!(matches!(document.value(Some(&mut raw)), Err(Stop::TooLong)));
    }
}
