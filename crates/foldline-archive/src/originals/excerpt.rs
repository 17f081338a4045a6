//! Excerpts within a time limit: a server must not search for a pathological pattern for long.

use std::time::{Duration, Instant};

use foldline::engine::{Excerpt, ExcerptQuery, excerpt_until};

use crate::error::Error;

/// Time limit of a search: matching is linear in the text, but a pathological pattern has a large constant.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the part of `bytes` that the query requests; a search for a pattern ends after two seconds.
///
/// ```
/// use foldline_archive::{ExcerptQuery, excerpt};
///
/// let lines = ExcerptQuery { lines: Some("2..".parse()?), ..ExcerptQuery::default() };
/// assert_eq!(excerpt(b"one\ntwo\n", &lines)?.bytes, b"two\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the lines or the page do not exist, or the pattern is not a valid regular expression.
pub fn excerpt(bytes: &[u8], query: &ExcerptQuery) -> Result<Excerpt, Error> {
    Ok(excerpt_until(bytes, query, search_deadline())?)
}

/// Returns a function that returns true after the time limit.
pub(crate) fn search_deadline() -> impl Fn() -> bool {
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    move || Instant::now() > deadline
}
