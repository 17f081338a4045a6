//! Answers to calls of the tool with which a model restores originals, from an archive.

use foldline::Handle;
use foldline::engine;

use crate::error::{Error, ErrorKind};
use crate::originals::excerpt::search_deadline;

/// Answers a call of [`UNFOLD_TOOL`](foldline::engine::UNFOLD_TOOL) with these arguments, a JSON object. `read` returns the
/// original of a handle, or none if the model may not read it.
///
/// ```
/// use foldline::Handle;
/// use foldline_archive::answer_unfold;
///
/// let handle = Handle::for_content(b"one\ntwo\n");
/// let arguments = format!(r#"{{"handle":"{handle}","lines":"2.."}}"#);
/// let answer = answer_unfold(&arguments, |_| Ok(Some(b"one\ntwo\n".to_vec())));
/// assert_eq!(answer.map(|(_, text)| text), Ok("two\n".to_owned()));
/// ```
///
/// # Errors
///
/// A text for the model: if the arguments are invalid, or there is no such original.
pub fn answer_unfold(
    arguments: &str,
    read: impl FnOnce(Handle) -> Result<Option<Vec<u8>>, Error>,
) -> Result<(Handle, String), String> {
    let read = |handle| match read(handle) {
        Err(error) if error.kind() == &ErrorKind::NotFound => Ok(None),
        read => read.map_err(|error| format!("{error}.")),
    };
    engine::answer_unfold(arguments, read, search_deadline())
}
