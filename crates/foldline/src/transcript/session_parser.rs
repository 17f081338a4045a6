//! The interface between the reading loop and the parser of a log format.

use crate::error::Error;
use crate::transcript::session::RecordedSession;
use crate::wire::json::scan::{JsonObject, JsonValue};

/// Parser of the entries of one log into sessions.
pub(crate) trait SessionParser: Send {
    /// Parses a line of the log, or an element of the document's list.
    fn parse_entry(&mut self, entry: &JsonObject<'_>, found: &mut Vec<RecordedSession>) -> Result<(), Error>;

    /// Returns the field of a document that contains the list of entries. Without one, a document is an
    /// entry.
    fn entries_field(&self) -> Option<&'static str> {
        None
    }

    /// Returns the other fields of a document to read, all of them before or after the list.
    fn metadata_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Parses one of the metadata fields.
    fn parse_metadata(&mut self, _key: &str, _value: JsonValue<'_>) {}

    /// Ends the log or the document.
    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>);
}
