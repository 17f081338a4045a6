//! The reading loop that all formats share.
//!
//! It splits an input into entries (lines, or the elements of a document's list), passes them to the
//! format's [`SessionParser`], and reports entries that cannot be read as errors. It must not depend on
//! any format.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, Cursor, Read};

use super::document::{DocumentError, DocumentReader};
use super::lines::{InputLine, LineReader};
use super::{DETECTION_HEAD_BYTES, LineError, LogFormat, MAX_LINE_BYTES, RecordedSession};
use crate::error::Error;
use crate::transcript::detect;
use crate::transcript::parsers::parser_for;
use crate::transcript::session_parser::SessionParser;
use crate::wire::json::scan;

/// Iterator over the recordings of one input.
///
/// A damaged line is an `Err` with its number, and reading continues with the next line.
///
/// ```
/// use foldline::transcript::{LogFormat, TranscriptReader};
///
/// let log = br#"{"id":"a","source":"here","messages":[{"role":"user","content":"hi"}]}
/// {"id":"b","source":"here","messages":[{"role":"us
/// {"id":"c","source":"here","messages":[{"role":"user","content":"ho"}]}
/// "#;
/// let mut reader = TranscriptReader::new("log.jsonl", &log[..]).unwrap();
/// assert_eq!(reader.format(), LogFormat::Record);
/// assert_eq!(reader.next().unwrap().unwrap().id, "a");
/// assert_eq!(reader.next().unwrap().unwrap_err().line, 2);
/// assert_eq!(reader.next().unwrap().unwrap().id, "c");
/// assert!(reader.next().is_none());
/// ```
pub struct TranscriptReader<R> {
    name: String,
    format: LogFormat,
    body: InputBody<R>,
    parser: Box<dyn SessionParser>,
    finished: Vec<RecordedSession>,
    ready: VecDeque<Result<RecordedSession, LineError>>,
    unnamed_count: usize,
    done: bool,
}

impl<R> fmt::Debug for TranscriptReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TranscriptReader")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// The head that was read for detection, then the rest of the input.
type HeadThenRest<R> = std::io::Chain<Cursor<Vec<u8>>, R>;

enum InputBody<R> {
    /// One entry per line.
    Lines(LineReader<HeadThenRest<R>>),
    /// Documents that contain a list of entries, or are entries themselves.
    Documents(DocumentReader<HeadThenRest<R>>, DocumentPosition),
}

/// Position of the reader in a document.
#[derive(Clone, Copy)]
enum DocumentPosition {
    BeforeDocument,
    /// Among its fields.
    InObject,
    /// In the list of entries, which is a field of the document or the document itself.
    InList {
        is_document: bool,
    },
}

impl<R: BufRead> TranscriptReader<R> {
    /// Detects the format of an input by its content. The name is used as id and source of recordings
    /// that do not contain them.
    ///
    /// # Errors
    ///
    /// The same as for [`TranscriptReader::with_max_line_bytes`], with a limit of 256 MB.
    pub fn new(name: impl Into<String>, input: R) -> Result<Self, LineError> {
        Self::with_max_line_bytes(name, input, MAX_LINE_BYTES)
    }

    /// Like [`TranscriptReader::new`], with another limit for the length of a line.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARecording`](crate::ErrorKind::NotARecording) if the input is empty or in no known format,
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read. Errors of single lines are items of the iterator.
    pub fn with_max_line_bytes(name: impl Into<String>, mut input: R, limit: usize) -> Result<Self, LineError> {
        let mut head = Vec::new();
        let read = input.by_ref().take(DETECTION_HEAD_BYTES as u64).read_to_end(&mut head);
        read.map_err(|error| LineError { line: 1, error: Error::io(&error) })?;
        let Some((format, layout)) = detect::detect_with_layout(&head) else {
            let formats = LogFormat::all().map(LogFormat::name).collect::<Vec<_>>().join(", ");
            let error = match head.trim_ascii().is_empty() {
                true => Error::not_a_recording("it is empty"),
                false => Error::not_a_recording(format_args!("its beginning looks like none of {formats}")),
            };
            return Err(LineError { line: 1, error });
        };
        let mut head = Cursor::new(head);
        if head.get_ref().starts_with(b"\xef\xbb\xbf") {
            head.set_position(3);
        }
        let input = head.chain(input);
        let body = match layout {
            detect::InputLayout::Lines => InputBody::Lines(LineReader::new(input, limit)),
            detect::InputLayout::Documents => {
                InputBody::Documents(DocumentReader::new(input, limit), DocumentPosition::BeforeDocument)
            }
        };
        Ok(Self {
            name: name.into(),
            format,
            body,
            parser: parser_for(format),
            finished: Vec::new(),
            ready: VecDeque::new(),
            unnamed_count: 0,
            done: false,
        })
    }

    /// Returns the detected format. That of a recording may be more exact, because the API of messages
    /// can become clear only long after the start.
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// Reads one entry, or one step of a document.
    fn advance(&mut self) {
        let step = match &mut self.body {
            InputBody::Lines(lines) => next_line(lines, self.parser.as_mut(), &mut self.finished),
            InputBody::Documents(document, position) => {
                document_step(document, position, self.parser.as_mut(), &mut self.finished)
            }
        };
        match step {
            Ok(ReadStep::Entry) => {}
            Ok(ReadStep::DocumentEnd) => self.end_session(),
            Ok(ReadStep::End) => {
                self.done = true;
                if matches!(self.body, InputBody::Lines(_)) {
                    self.end_session();
                }
            }
            Err(ReadFailure::Entry(error)) => self.queue_error(error),
            Err(ReadFailure::Stopped(stop)) => {
                // Return the session read so far, then the error.
                self.end_session();
                self.report_stop(stop);
            }
        }
        self.queue_finished();
    }

    /// Queues the error that stopped reading, and continues with the next document if there is one.
    fn report_stop(&mut self, stop: DocumentError) {
        let (line, limit) = match &self.body {
            InputBody::Lines(lines) => (lines.number() + 1, lines.limit()),
            InputBody::Documents(document, _) => (document.line(), document.limit()),
        };
        let (error, can_continue) = match stop {
            DocumentError::Io(error) => (Error::io(&error), false),
            DocumentError::Oversized => (Error::too_long(limit), true),
            DocumentError::UnexpectedEnd => (Error::not_a_recording("it ends in the middle of a value"), false),
            DocumentError::NotJson(reason) => (Error::not_a_recording(format_args!("not JSON: {reason}")), true),
        };
        self.queue_error(LineError { line, error });
        self.done = true;
        if let InputBody::Documents(document, position) = &mut self.body
            && can_continue
        {
            *position = DocumentPosition::BeforeDocument;
            match document.skip_to_next_document() {
                Ok(found) => self.done = !found,
                Err(error) => self.report_stop(DocumentError::Io(error)),
            }
        }
    }

    fn queue_error(&mut self, error: LineError) {
        self.queue_finished();
        self.ready.push_back(Err(error));
    }

    fn end_session(&mut self) {
        let session = std::mem::replace(&mut self.parser, parser_for(self.format));
        session.finish(&mut self.finished);
    }

    fn queue_finished(&mut self) {
        for mut recording in self.finished.drain(..) {
            if recording.source.is_empty() {
                recording.source.clone_from(&self.name);
            }
            if recording.id.is_empty() {
                self.unnamed_count += 1;
                recording.id = match self.unnamed_count {
                    1 => self.name.clone(),
                    more => format!("{}#{more}", self.name),
                };
            }
            self.ready.push_back(Ok(recording));
        }
    }
}

impl<R: BufRead> Iterator for TranscriptReader<R> {
    type Item = Result<RecordedSession, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.done {
            self.advance();
        }
        self.ready.pop_front()
    }
}

enum ReadStep {
    Entry,
    DocumentEnd,
    End,
}

enum ReadFailure {
    /// One entry is damaged.
    Entry(LineError),
    /// The rest of the document, or of the input, cannot be read.
    Stopped(DocumentError),
}

impl From<DocumentError> for ReadFailure {
    fn from(stop: DocumentError) -> Self {
        ReadFailure::Stopped(stop)
    }
}

impl From<LineError> for ReadFailure {
    fn from(error: LineError) -> Self {
        ReadFailure::Entry(error)
    }
}

fn next_line<R: BufRead>(
    lines: &mut LineReader<R>,
    session: &mut dyn SessionParser,
    found: &mut Vec<RecordedSession>,
) -> Result<ReadStep, ReadFailure> {
    let limit = lines.limit();
    match lines.next_line().map_err(DocumentError::Io)? {
        None => return Ok(ReadStep::End),
        Some((line, InputLine::Oversized)) => return Err(LineError { line, error: Error::too_long(limit) }.into()),
        Some((_, InputLine::Bytes(bytes))) if bytes.trim_ascii().is_empty() => {}
        Some((line, InputLine::Bytes(bytes))) => read_entry(line, bytes, session, found)?,
    }
    Ok(ReadStep::Entry)
}

fn document_step<R: BufRead>(
    document: &mut DocumentReader<R>,
    position: &mut DocumentPosition,
    session: &mut dyn SessionParser,
    found: &mut Vec<RecordedSession>,
) -> Result<ReadStep, ReadFailure> {
    match *position {
        DocumentPosition::BeforeDocument => match document.peek()? {
            None => return Ok(ReadStep::End),
            Some(b'[') => {
                document.enter()?;
                *position = DocumentPosition::InList { is_document: true };
            }
            Some(b'{') if session.entries_field().is_some() => {
                document.enter()?;
                *position = DocumentPosition::InObject;
            }
            Some(_) => {
                let (line, raw) = copy_value(document)?;
                read_entry(line, &raw, session, found)?;
                return Ok(ReadStep::DocumentEnd);
            }
        },
        DocumentPosition::InObject => {
            let Some(key) = document.next_key()? else {
                *position = DocumentPosition::BeforeDocument;
                return Ok(ReadStep::DocumentEnd);
            };
            let key = String::from_utf8_lossy(&key);
            if session.entries_field() == Some(key.as_ref()) && document.peek()? == Some(b'[') {
                document.enter()?;
                *position = DocumentPosition::InList { is_document: false };
            } else if session.metadata_fields().contains(&key.as_ref()) {
                let (line, raw) = copy_value(document)?;
                let value =
                    utf8_text(&raw).and_then(scan::parse_document).map_err(|error| LineError { line, error })?;
                session.parse_metadata(&key, value);
            } else {
                document.read_value(None)?;
            }
        }
        DocumentPosition::InList { is_document } => {
            if document.next_element()? {
                let (line, raw) = copy_value(document)?;
                read_entry(line, &raw, session, found)?;
            } else if is_document {
                *position = DocumentPosition::BeforeDocument;
                return Ok(ReadStep::DocumentEnd);
            } else {
                *position = DocumentPosition::InObject;
            }
        }
    }
    Ok(ReadStep::Entry)
}

/// Copies the next value and returns it with its first line.
fn copy_value<R: BufRead>(document: &mut DocumentReader<R>) -> Result<(u64, Vec<u8>), DocumentError> {
    document.peek()?;
    let line = document.line();
    let mut raw = Vec::new();
    document.read_value(Some(&mut raw))?;
    Ok((line, raw))
}

fn read_entry(
    line: u64,
    bytes: &[u8],
    session: &mut dyn SessionParser,
    found: &mut Vec<RecordedSession>,
) -> Result<(), LineError> {
    let mut read = || {
        let mut scanner = scan::JsonScanner::new(utf8_text(bytes)?);
        let entry = scanner.read_element(&[])?;
        scanner.expect_end()?;
        session.parse_entry(&entry, found)
    };
    read().map_err(|error| LineError { line, error })
}

fn utf8_text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|error| Error::not_json(error.valid_up_to(), "text that is not UTF-8"))
}
