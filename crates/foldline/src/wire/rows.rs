//! Rows: messages that a host sends apart from their request, and puts back in their places.
//!
//! A host may withhold rows, such as all turns of the assistant. Results then arrive without their calls, and a row that
//! is withheld now can appear later between rows that were sent before, as the task does when the user writes again. So
//! without turns of the assistant only results take part in a fold: they are the rows that only ever grow at the end.
//! The number and the order of the rows must not change, and neither may the bytes of a row that is not folded.

use std::borrow::Cow;

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::request::Request;

/// The messages of a host, and which of them may be folded.
///
/// ```
/// use foldline::wire::MessageRows;
///
/// let body = br#"{"messages":[{"role":"user","content":"Go."},{"role":"tool","tool_call_id":"a","content":"ok"}]}"#;
/// let rows = MessageRows::parse(body)?;
/// assert!(rows.is_results_only());
/// assert_eq!(&*rows.foldable_body(), br#"{"messages":[{"role":"tool","tool_call_id":"a","content":"ok"}]}"#);
/// assert_eq!(rows.withheld().count(), 1);
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MessageRows<'a> {
    request: Request<'a>,
    /// Rows that take part in the fold, in order.
    foldable: Vec<usize>,
    is_results_only: bool,
}

impl<'a> MessageRows<'a> {
    /// Parses a body with a list of messages. The dialect is the one that the messages have.
    ///
    /// # Errors
    ///
    /// If the body is not JSON, or has no list of messages.
    pub fn parse(body: &'a [u8]) -> Result<Self, Error> {
        let format = Format::detect(body).unwrap_or(Format::OpenAiChat);
        let request = Request::parse(format, body)?;
        Ok(Self { request, foldable: Vec::new(), is_results_only: false }.with_frozen(0))
    }

    /// Returns the rows with the first `count` of them withheld from the fold.
    #[must_use]
    pub fn with_frozen(mut self, count: usize) -> Self {
        let messages = &self.request.conversation().messages;
        let rest = count.min(messages.len())..messages.len();
        self.is_results_only = !messages[rest.clone()].iter().any(Message::is_assistant);
        let is_foldable = |at: &usize| !self.is_results_only || messages[*at].has_results();
        self.foldable = rest.filter(is_foldable).collect();
        self
    }

    /// Returns the body as a request.
    pub fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.request.conversation().messages.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the rows that take part are results without the turns that requested them.
    pub fn is_results_only(&self) -> bool {
        self.is_results_only
    }

    /// Returns true if no row takes part in the fold.
    pub fn is_nothing_foldable(&self) -> bool {
        self.foldable.is_empty()
    }

    /// Returns the messages that take no part in the fold.
    pub fn withheld(&self) -> impl Iterator<Item = &Message<'a>> {
        let messages = self.request.conversation().messages.iter().enumerate();
        messages.filter(|(at, _)| self.foldable.binary_search(at).is_err()).map(|(_, message)| message)
    }

    /// Returns the body of a request with the rows that take part: the body itself if all do.
    pub fn foldable_body(&self) -> Cow<'a, [u8]> {
        if self.foldable.len() == self.len() {
            return Cow::Borrowed(self.request.body().as_bytes());
        }
        let rows: Vec<&str> = self.foldable.iter().filter_map(|&at| self.request.raw_message(at)).collect();
        let model = self.request.field("model").map_or(String::new(), |model| format!(r#""model":{model},"#));
        Cow::Owned(format!(r#"{{{model}"messages":[{}]}}"#, rows.join(",")).into_bytes())
    }

    /// Returns the list of all rows as JSON, with those of a folded [`foldable_body`](Self::foldable_body) in their places.
    ///
    /// # Errors
    ///
    /// If the body does not have the same number of rows.
    pub fn join(&self, folded: &[u8]) -> Result<String, Error> {
        let folded = Request::parse(self.request.format(), folded)?;
        let count = folded.conversation().messages.len();
        if count != self.foldable.len() {
            return Err(Error::not_a_request(format_args!("{count} rows instead of {}", self.foldable.len())));
        }
        let mut next = self.foldable.iter().copied().enumerate().peekable();
        let mut list = String::with_capacity(folded.body_len() + 2);
        for at in 0..self.len() {
            let row = match next.next_if(|(_, row)| *row == at) {
                Some((index, _)) => folded.raw_message(index),
                None => self.request.raw_message(at),
            };
            list.push(if at == 0 { '[' } else { ',' });
            list.push_str(row.unwrap_or("null"));
        }
        list.push_str(if self.is_empty() { "[]" } else { "]" });
        Ok(list)
    }

    /// Returns the list of all rows as they were sent, as JSON.
    pub fn unchanged(&self) -> String {
        let range = self.request.messages_range();
        format!("[{}]", range.map_or("", |range| &self.request.body()[range]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = r#"{"role":"tool", "tool_call_id":"a","content":"one","x":1.50}"#;
    const USER: &str = r#"{"role":"user","content":"hi"}"#;
    const RESULT: &str = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"one"}]}"#;
    const CALL: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;

    fn body(rows: &[&str]) -> String {
        format!(r#"{{"model":"m","token_budget":9,"messages":[{}]}}"#, rows.join(" ,"))
    }

    #[test]
    fn rows_keep_their_bytes_and_places() {
        for (rows, frozen, foldable, is_results_only) in [
            (&[USER, TOOL, USER, TOOL][..], 0, 2, true),
            (&[USER, CALL, TOOL], 0, 3, false),
            (&[USER, CALL, TOOL], 2, 1, true),
            (&[RESULT, USER], 0, 1, true),
            (&[USER], 0, 0, true),
            (&[USER], 9, 0, true),
            (&[], 0, 0, true),
        ] {
            let body = body(rows);
            let parsed = MessageRows::parse(body.as_bytes()).unwrap().with_frozen(frozen);
            assert_eq!((parsed.len(), parsed.is_results_only()), (rows.len(), is_results_only), "{rows:?}");
            let part = parsed.foldable_body();
            let request = Request::parse(parsed.request().format(), &part).unwrap();
            assert_eq!(request.conversation().messages.len(), foldable, "{rows:?}");
            assert_eq!(request.conversation().model.as_deref(), Some("m"));
            assert_eq!(parsed.withheld().count(), rows.len() - foldable);
            assert_eq!(parsed.join(&part).unwrap(), format!("[{}]", rows.join(",")));
            assert_eq!(parsed.unchanged(), format!("[{}]", rows.join(" ,")));
        }
    }

    #[test]
    fn another_number_of_rows_is_an_error() {
        let body = body(&[USER, TOOL, TOOL]);
        let rows = MessageRows::parse(body.as_bytes()).unwrap();
        rows.join(format!(r#"{{"messages":[{TOOL}]}}"#).as_bytes()).unwrap_err();
        rows.join(b"{").unwrap_err();
        MessageRows::parse(b"{}").unwrap_err();
    }
}
