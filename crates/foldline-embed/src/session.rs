//! A growing conversation with its originals: in memory, or in an archive.
//!
//! An original is stored before a rendering without it is returned; if that fails, no rendering is returned.

use std::cmp::Reverse;

use foldline::Handle;
use foldline::engine::{FoldedOriginal, JsonRendering, JsonSession};
use foldline::tokens::Tokens;
use foldline_archive::{TenantArchive, answer_unfold, find_lines, truncate_answer};
use serde_json::value::RawValue;

use crate::error::{EmbedError, EmbedErrorKind};
use crate::options::{SessionOptions, overhead_conversation};

/// A growing conversation in one dialect.
///
/// ```
/// use foldline_embed::{EmbeddedSession, SessionOptions};
///
/// let options = SessionOptions::from_json(r#"{"format":"anthropic","model":"claude-sonnet-4-5","budget":8000}"#)?;
/// let mut session = EmbeddedSession::new(&options)?;
/// session.push(r#"[{"role":"user","content":"Make the parser faster."}]"#)?;
/// assert_eq!(session.plan_request()?.len, 1);
/// # Ok::<(), foldline_embed::EmbedError>(())
/// ```
#[derive(Debug)]
pub struct EmbeddedSession {
    session: JsonSession,
    archive: Option<TenantArchive>,
}

/// An original that was found by its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalHit {
    /// Its handle.
    pub handle: String,
    /// Tool that produced it.
    pub tool: Option<String>,
    /// The best line, counted from 1.
    pub line: usize,
    /// That line, shortened.
    pub snippet: String,
}

impl EmbeddedSession {
    /// Creates a session, and opens its archive if it has one.
    ///
    /// # Errors
    ///
    /// If an option is invalid, or the archive cannot be opened.
    pub fn new(options: &SessionOptions) -> Result<Self, EmbedError> {
        let format = options.dialect()?;
        let mut fold_options = options.fold_options(format, None)?;
        fold_options.overhead_tokens = options.overhead_tokens(format, &fold_options)?;
        let session = JsonSession::new(format, fold_options);
        Ok(Self { session, archive: options.archive.open()? })
    }

    /// Returns the conversation.
    pub fn json_session(&self) -> &JsonSession {
        &self.session
    }

    /// Adds the messages of a JSON list; none if one of them is not a message.
    ///
    /// # Errors
    ///
    /// If the text is not a list of messages.
    pub fn push(&mut self, list: &str) -> Result<(), EmbedError> {
        Ok(self.session.push(list)?)
    }

    /// Sets the system prompt and the tools (JSON) that are sent from now on.
    ///
    /// # Errors
    ///
    /// If one of them is not JSON.
    pub fn set_context(&mut self, tools: Option<&str>, system: Option<&str>) -> Result<(), EmbedError> {
        fn raw(json: Option<&str>) -> Result<Option<&RawValue>, EmbedError> {
            json.map(serde_json::from_str).transpose().map_err(EmbedError::invalid)
        }
        let overhead = overhead_conversation(self.session.format(), raw(tools)?, raw(system)?)?;
        self.session.set_overhead_of(&overhead);
        Ok(())
    }

    /// Decides what to send now, stores the originals of new folds, and returns what changed.
    ///
    /// # Errors
    ///
    /// If the conversation cannot fit, or the originals cannot be stored.
    pub fn plan_request(&mut self) -> Result<JsonRendering, EmbedError> {
        let rendering = self.session.plan_request()?;
        if let Some(archive) = self.archive.as_ref().filter(|_| rendering.has_folds())
            && let Err(error) = self.session.store_originals(archive)
        {
            self.session.forget_rendering();
            return Err(error.into());
        }
        Ok(rendering)
    }

    /// Makes the next rendering start at its first message.
    pub fn forget_rendering(&mut self) {
        self.session.forget_rendering();
    }

    /// Returns the tokens that a request may have.
    pub fn budget(&self) -> Tokens {
        self.session.budget()
    }

    /// Returns the original of a handle: of this conversation, or of the archive.
    ///
    /// # Errors
    ///
    /// If there is no such original, or the archive cannot be read.
    pub fn unfold(&self, handle: &str) -> Result<Vec<u8>, EmbedError> {
        let parsed = handle.parse::<Handle>().ok();
        if let Some(bytes) = parsed.and_then(|handle| self.session.unfold(handle)) {
            return Ok(bytes);
        }
        match &self.archive {
            Some(archive) => Ok(archive.unfold(handle)?.bytes),
            None => {
                let unknown = format_args!("no fold of this conversation has the handle {handle:?}").to_string();
                Err(EmbedError::new(EmbedErrorKind::UnknownHandle, unknown))
            }
        }
    }

    /// Returns the result of a model's call of the unfold tool. Only originals of this conversation are returned;
    /// errors are texts that the model can act on. With a `room`, the result has at most that many tokens.
    pub fn answer_call(&self, arguments: &str, room: Option<Tokens>) -> String {
        match (answer_unfold(arguments, |handle| Ok(self.session.unfold(handle))), room) {
            (Ok((_, text)), Some(room)) => truncate_answer(text, room, self.session.meter()),
            (Ok((_, text)) | Err(text), _) => text,
        }
    }

    /// Searches folded originals by words: those of the archive, or without one those of this conversation.
    ///
    /// # Errors
    ///
    /// If there is nothing to search for, or the archive cannot be read.
    pub fn search(&self, words: &str, limit: usize) -> Result<Vec<OriginalHit>, EmbedError> {
        if let Some(archive) = &self.archive {
            let hits = archive.search(words, 0, limit)?.hits.into_iter();
            return Ok(hits
                .map(|hit| OriginalHit {
                    handle: hit.info.handle.to_string(),
                    tool: hit.info.tool,
                    line: hit.line,
                    snippet: hit.snippet,
                })
                .collect());
        }
        let mut originals: Vec<FoldedOriginal<'_>> = self.session.folded_originals().collect();
        originals.sort_by_key(|it| (Reverse(it.message), it.handle));
        let hits = originals.into_iter().filter_map(|it| {
            let bytes = self.session.unfold(it.handle)?;
            let (line, snippet) = find_lines(&String::from_utf8_lossy(&bytes), words)?;
            Some(OriginalHit { handle: it.handle.to_string(), tool: it.tool.map(str::to_owned), line, snippet })
        });
        Ok(hits.take(limit).collect())
    }
}
