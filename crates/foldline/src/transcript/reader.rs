//! The one loop that every format is read by.
//!
//! It cuts an input into entries (lines, or the elements of a document's list), hands them to the
//! format's [`Session`], and turns what can not be read into faults. It knows no format.

use std::collections::VecDeque;
use std::io::{BufRead, Cursor, Read};

use super::document::{Document, Stop};
use super::lines::{Line, Lines};
use super::{Fault, Format, HEAD, LINE_LIMIT, Recording, recognise};
use crate::error::Error;
use crate::wire::scan::{self, Object, Value};

/// Reads the recordings of one input, as they come.
///
/// A damaged line is an `Err` with its number, and reading goes on with the next line.
///
/// ```
/// use foldline::transcript::{Format, Reader};
///
/// let log = br#"{"id":"a","source":"here","messages":[{"role":"user","content":"hi"}]}
/// {"id":"b","source":"here","messages":[{"role":"us
/// {"id":"c","source":"here","messages":[{"role":"user","content":"ho"}]}
/// "#;
/// let mut reader = Reader::new("log.jsonl", &log[..]).unwrap();
/// assert_eq!(reader.format(), Format::Record);
/// assert_eq!(reader.next().unwrap().unwrap().id, "a");
/// assert_eq!(reader.next().unwrap().unwrap_err().line, 2);
/// assert_eq!(reader.next().unwrap().unwrap().id, "c");
/// assert!(reader.next().is_none());
/// ```
pub struct Reader<R> {
    name: String,
    format: Format,
    body: Body<R>,
    session: Box<dyn Session>,
    found: Vec<Recording>,
    ready: VecDeque<Result<Recording, Fault>>,
    unnamed: usize,
    done: bool,
}

/// The head that was looked at, and the rest behind it.
type Whole<R> = std::io::Chain<Cursor<Vec<u8>>, R>;

enum Body<R> {
    /// An entry a line.
    Lines(Lines<Whole<R>>),
    /// Documents that hold a list of entries, or are entries themselves.
    Documents(Document<Whole<R>>, Place),
}

/// Where in a document the reader stands.
#[derive(Clone, Copy)]
enum Place {
    Before,
    /// Among its fields.
    InObject,
    /// In the list of entries, which is a field of the document or the document itself.
    InList {
        is_document: bool,
    },
}

/// What a format makes of the entries of one log.
pub(super) trait Session: Send {
    /// Takes a line of the log, or an element of the document's list.
    fn entry(&mut self, entry: &Object<'_>, found: &mut Vec<Recording>) -> Result<(), Error>;

    /// The field of a document that holds the list of entries. Without one, a document is an entry.
    fn list(&self) -> Option<&'static str> {
        None
    }

    /// Other fields of a document that are to be taken, all in front of or behind the list.
    fn wanted(&self) -> &'static [&'static str] {
        &[]
    }

    /// Takes a field that was wanted.
    fn field(&mut self, _key: &str, _value: Value<'_>) {}

    /// The log, or the document, is at its end.
    fn finish(self: Box<Self>, found: &mut Vec<Recording>);
}

impl<R: BufRead> Reader<R> {
    /// Recognises the format of an input by its content. The name stands for the input in what the
    /// recordings say of themselves.
    pub fn new(name: impl Into<String>, input: R) -> Result<Self, Fault> {
        Self::with_limit(name, input, LINE_LIMIT)
    }

    /// The same with another limit for the length of a line.
    pub fn with_limit(name: impl Into<String>, mut input: R, limit: usize) -> Result<Self, Fault> {
        let mut head = Vec::new();
        let read = input.by_ref().take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| Fault { line: 1, error: Error::io(&error) })?;
        let Some((format, layout)) = recognise::look(&head) else {
            let formats = Format::ALL.map(Format::name).join(", ");
            let error = match head.trim_ascii().is_empty() {
                true => Error::not_a_recording("it is empty"),
                false => Error::not_a_recording(format_args!("its beginning looks like none of {formats}")),
            };
            return Err(Fault { line: 1, error });
        };
        let mut head = Cursor::new(head);
        if head.get_ref().starts_with(b"\xef\xbb\xbf") {
            head.set_position(3);
        }
        let input = head.chain(input);
        let body = match layout {
            recognise::Layout::Lines => Body::Lines(Lines::new(input, limit)),
            recognise::Layout::Documents => Body::Documents(Document::new(input, limit), Place::Before),
        };
        Ok(Self {
            name: name.into(),
            format,
            body,
            session: format.session(),
            found: Vec::new(),
            ready: VecDeque::new(),
            unnamed: 0,
            done: false,
        })
    }

    /// What was recognised. A recording may tell more exactly: that messages are those of another
    /// API can show far behind the beginning.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Reads one entry, or one step of a document.
    fn advance(&mut self) {
        let step = match &mut self.body {
            Body::Lines(lines) => next_line(lines, self.session.as_mut(), &mut self.found),
            Body::Documents(document, place) => step(document, place, self.session.as_mut(), &mut self.found),
        };
        match step {
            Ok(Step::Entry) => {}
            Ok(Step::DocumentEnd) => self.end_session(),
            Ok(Step::End) => {
                self.done = true;
                if matches!(self.body, Body::Lines(_)) {
                    self.end_session();
                }
            }
            Err(Trouble::Entry(fault)) => self.report(fault),
            Err(Trouble::Stopped(stop)) => {
                // What was read so far is worth having; the rest of it is told as lost.
                self.end_session();
                self.stopped(stop);
            }
        }
        self.hand_out();
    }

    /// Reports why nothing more can be read, and goes on with the next document if there is one.
    fn stopped(&mut self, stop: Stop) {
        let (line, limit) = match &self.body {
            Body::Lines(lines) => (lines.number() + 1, lines.limit()),
            Body::Documents(document, _) => (document.line(), document.limit()),
        };
        let (error, may_go_on) = match stop {
            Stop::Io(error) => (Error::io(&error), false),
            Stop::TooLong => (Error::too_long(limit), true),
            Stop::EndsEarly => (Error::not_a_recording("it ends in the middle of a value"), false),
            Stop::NotJson(reason) => (Error::not_a_recording(format_args!("not JSON: {reason}")), true),
        };
        self.report(Fault { line, error });
        self.done = true;
        if let Body::Documents(document, place) = &mut self.body
            && may_go_on
        {
            *place = Place::Before;
            match document.resume() {
                Ok(goes_on) => self.done = !goes_on,
                Err(error) => self.stopped(Stop::Io(error)),
            }
        }
    }

    fn report(&mut self, fault: Fault) {
        self.hand_out();
        self.ready.push_back(Err(fault));
    }

    fn end_session(&mut self) {
        let session = std::mem::replace(&mut self.session, self.format.session());
        session.finish(&mut self.found);
    }

    fn hand_out(&mut self) {
        for mut recording in self.found.drain(..) {
            if recording.source.is_empty() {
                recording.source.clone_from(&self.name);
            }
            if recording.id.is_empty() {
                self.unnamed += 1;
                recording.id = match self.unnamed {
                    1 => self.name.clone(),
                    more => format!("{}#{more}", self.name),
                };
            }
            self.ready.push_back(Ok(recording));
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Recording, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.done {
            self.advance();
        }
        self.ready.pop_front()
    }
}

enum Step {
    Entry,
    DocumentEnd,
    End,
}

enum Trouble {
    /// One entry is damaged.
    Entry(Fault),
    /// The rest of the document, or of the input, can not be read.
    Stopped(Stop),
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        Trouble::Stopped(stop)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Entry(fault)
    }
}

fn next_line<R: BufRead>(
    lines: &mut Lines<R>,
    session: &mut dyn Session,
    found: &mut Vec<Recording>,
) -> Result<Step, Trouble> {
    let limit = lines.limit();
    match lines.next().map_err(Stop::Io)? {
        None => return Ok(Step::End),
        Some((line, Line::TooLong)) => return Err(Fault { line, error: Error::too_long(limit) }.into()),
        Some((_, Line::Bytes(bytes))) if bytes.trim_ascii().is_empty() => {}
        Some((line, Line::Bytes(bytes))) => read_entry(line, bytes, session, found)?,
    }
    Ok(Step::Entry)
}

fn step<R: BufRead>(
    document: &mut Document<R>,
    place: &mut Place,
    session: &mut dyn Session,
    found: &mut Vec<Recording>,
) -> Result<Step, Trouble> {
    match *place {
        Place::Before => match document.peek()? {
            None => return Ok(Step::End),
            Some(b'[') => {
                document.enter()?;
                *place = Place::InList { is_document: true };
            }
            Some(b'{') if session.list().is_some() => {
                document.enter()?;
                *place = Place::InObject;
            }
            Some(_) => {
                let (line, raw) = copied(document)?;
                read_entry(line, &raw, session, found)?;
                return Ok(Step::DocumentEnd);
            }
        },
        Place::InObject => {
            let Some(key) = document.key()? else {
                *place = Place::Before;
                return Ok(Step::DocumentEnd);
            };
            let key = String::from_utf8_lossy(&key);
            if session.list() == Some(key.as_ref()) && document.peek()? == Some(b'[') {
                document.enter()?;
                *place = Place::InList { is_document: false };
            } else if session.wanted().contains(&key.as_ref()) {
                let (line, raw) = copied(document)?;
                let value = text(&raw).and_then(scan::document).map_err(|error| Fault { line, error })?;
                session.field(&key, value);
            } else {
                document.value(None)?;
            }
        }
        Place::InList { is_document } => {
            if document.element()? {
                let (line, raw) = copied(document)?;
                read_entry(line, &raw, session, found)?;
            } else if is_document {
                *place = Place::Before;
                return Ok(Step::DocumentEnd);
            } else {
                *place = Place::InObject;
            }
        }
    }
    Ok(Step::Entry)
}

/// The next value with the line that it begins on.
fn copied<R: BufRead>(document: &mut Document<R>) -> Result<(u64, Vec<u8>), Stop> {
    document.peek()?;
    let line = document.line();
    let mut raw = Vec::new();
    document.value(Some(&mut raw))?;
    Ok((line, raw))
}

fn read_entry(line: u64, bytes: &[u8], session: &mut dyn Session, found: &mut Vec<Recording>) -> Result<(), Fault> {
    let mut read = || {
        let mut scanner = scan::Scanner::new(text(bytes)?);
        let entry = scanner.element(&[])?;
        scanner.end()?;
        session.entry(&entry, found)
    };
    read().map_err(|error| Fault { line, error })
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|error| Error::not_json(error.valid_up_to(), "text that is not UTF-8"))
}
