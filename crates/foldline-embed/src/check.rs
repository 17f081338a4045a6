//! Checks of request bodies by the laws of their provider.

use std::collections::BTreeSet;

use foldline::laws::{self, LawProfile};
use foldline::wire::{Format, Request};

use crate::error::EmbedError;
use crate::options::parse_format;

/// Returns the laws that a body breaks and the body before it obeys, each as a sentence.
///
/// ```
/// use foldline_embed::broken_laws;
///
/// let orphan = r#"{"model":"gpt-4o","messages":[{"role":"tool","tool_call_id":"c1","content":"x"}]}"#;
/// assert_eq!(broken_laws(orphan, None, Some("openai-chat"))?.len(), 1);
/// assert_eq!(broken_laws(orphan, Some(orphan), Some("openai-chat"))?, Vec::<String>::new());
/// # Ok::<(), foldline_embed::EmbedError>(())
/// ```
///
/// # Errors
///
/// If a body is not a request.
pub fn broken_laws(body: &str, before: Option<&str>, format: Option<&str>) -> Result<Vec<String>, EmbedError> {
    let format = match format {
        Some(name) => parse_format(name)?,
        None => Format::detect(body.as_bytes()).ok_or_else(|| EmbedError::invalid("not a request body"))?,
    };
    let violations = |body: &str| -> Result<_, EmbedError> {
        let request = Request::parse(format, body.as_bytes())?;
        let found = laws::check(&request, &LawProfile::for_request(&request));
        Ok(found.iter().map(|it| (it.law.name().to_owned(), it.to_string())).collect::<Vec<_>>())
    };
    let known = before.map(violations).transpose()?.unwrap_or_default();
    let known: BTreeSet<String> = known.into_iter().map(|(law, _)| law).collect();
    Ok(violations(body)?.into_iter().filter(|(law, _)| !known.contains(law)).map(|(_, text)| text).collect())
}
