//! Token counts of texts and request bodies.

use foldline::tokens::Tokens;
use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};

use crate::error::EmbedError;
use crate::options::parse_format;

/// Returns the tokens of a text, or of a request body or a list of messages if a format is given.
///
/// ```
/// use foldline_embed::count_tokens;
///
/// assert_eq!(count_tokens("hello world", Some("gpt-4o"), None)?, 2);
/// let list = r#"[{"role":"user","content":"hello world"}]"#;
/// assert!(count_tokens(list, Some("gpt-4o"), Some("openai-chat"))? > 2);
/// # Ok::<(), foldline_embed::EmbedError>(())
/// ```
///
/// # Errors
///
/// If the text is not JSON of the format.
pub fn count_tokens(text: &str, model: Option<&str>, format: Option<&str>) -> Result<Tokens, EmbedError> {
    let meter = |model: Option<&str>| Meter::for_model(ModelTable::builtin(), model);
    let Some(format) = format else { return Ok(meter(model).text(text)) };
    let format: Format = parse_format(format)?;
    let request = Request::parse(format, text.as_bytes())?;
    let conversation = request.conversation();
    Ok(meter(model.or(conversation.model.as_deref())).conversation(conversation))
}
