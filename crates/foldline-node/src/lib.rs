//! The native module of `@foldline/core`: strings in, strings out.
//!
//! JavaScript objects are converted to JSON and back in JavaScript (`packages/core/session.js`). Nothing is decided
//! here.

use std::path::PathBuf;

use foldline_embed::{
    EmbedError, EmbedErrorKind, EmbeddedSession, FoldedBody, JsonMessage, JsonRendering, ReplayOptions, SessionOptions,
};
use napi::bindgen_prelude::Buffer;
use napi::{Error, Result, Status};
use napi_derive::napi;
use serde_json::json;

/// Converts an error. Its reason is JSON (kind, message, fields), which JavaScript turns into a typed error.
fn to_js_error(error: &EmbedError) -> Error {
    let message = error.to_string();
    let described = match error.kind() {
        EmbedErrorKind::CannotFit { floor, budget, largest } => {
            let largest = largest.map(|(message, tokens)| json!({"message": message, "tokens": tokens}));
            json!({"kind": "CannotFit", "message": message, "floor": floor, "budget": budget, "largest": largest})
        }
        EmbedErrorKind::InvalidInput => json!({"kind": "InvalidInput", "message": message}),
        EmbedErrorKind::UnknownHandle => json!({"kind": "UnknownHandle", "message": message}),
        EmbedErrorKind::Archive => json!({"kind": "ArchiveError", "message": message}),
        _ => json!({"kind": "FoldlineError", "message": message}),
    };
    Error::new(Status::GenericFailure, described.to_string())
}

/// Converts the error of a result.
fn or_throw<T>(result: std::result::Result<T, EmbedError>) -> Result<T> {
    result.map_err(|error| to_js_error(&error))
}

/// Converts a count; JavaScript has doubles.
fn to_number(count: u64) -> f64 {
    count as f64
}

/// One message of a rendering.
#[napi(object)]
#[derive(Debug)]
pub struct RenderedMessage {
    /// Index of the pushed message; none for a note.
    pub index: Option<u32>,
    /// Its JSON, unless it is unchanged.
    pub json: Option<String>,
}

impl From<JsonMessage> for RenderedMessage {
    fn from(message: JsonMessage) -> Self {
        match message {
            JsonMessage::Unchanged(index) => Self { index: Some(index as u32), json: None },
            JsonMessage::Edited { index, json } => Self { index: Some(index as u32), json: Some(json) },
            JsonMessage::Note { json } => Self { index: None, json: Some(json) },
        }
    }
}

/// The part of a rendering that differs from the previous one.
#[napi(object)]
#[derive(Debug)]
pub struct RenderedList {
    /// Position of the first of `messages`.
    pub first: u32,
    /// The messages from there on.
    pub messages: Vec<RenderedMessage>,
    /// True if messages that were sent before changed.
    pub creased: bool,
    /// Tokens of the request.
    pub tokens: f64,
    /// The same without any fold.
    pub received_tokens: f64,
}

impl From<JsonRendering> for RenderedList {
    fn from(rendering: JsonRendering) -> Self {
        Self {
            first: rendering.first as u32,
            messages: rendering.messages.into_iter().map(RenderedMessage::from).collect(),
            creased: rendering.creased,
            tokens: to_number(rendering.tokens),
            received_tokens: to_number(rendering.received_tokens),
        }
    }
}

/// An original that was found by its words.
#[napi(object)]
#[derive(Debug)]
pub struct OriginalHit {
    /// Its handle.
    pub handle: String,
    /// Tool that produced it.
    pub tool: Option<String>,
    /// The best line, counted from 1.
    pub line: u32,
    /// That line, shortened.
    pub snippet: String,
}

/// A growing conversation in one dialect, as JSON.
#[napi]
#[derive(Debug)]
pub struct NativeSession(EmbeddedSession);

#[napi]
impl NativeSession {
    /// Creates a session from options in JSON.
    #[napi(constructor)]
    pub fn new(options: String) -> Result<Self> {
        or_throw(SessionOptions::from_json(&options).and_then(|options| EmbeddedSession::new(&options))).map(Self)
    }

    /// Adds the messages of a JSON list.
    #[napi]
    pub fn push(&mut self, messages: String) -> Result<()> {
        or_throw(self.0.push(&messages))
    }

    /// Sets the tools and the system prompt, as JSON.
    #[napi]
    pub fn set_context(&mut self, tools: Option<String>, system: Option<String>) -> Result<()> {
        or_throw(self.0.set_context(tools.as_deref(), system.as_deref()))
    }

    /// Decides what to send now, and returns what changed.
    #[napi]
    pub fn request(&mut self) -> Result<RenderedList> {
        or_throw(self.0.plan_request().map(RenderedList::from))
    }

    /// Returns the bytes of an original.
    #[napi]
    pub fn unfold(&self, handle: String) -> Result<Buffer> {
        or_throw(self.0.unfold(&handle)).map(Buffer::from)
    }

    /// Returns the result of a model's call of the unfold tool.
    #[napi]
    pub fn answer(&self, arguments: String, room: Option<u32>) -> String {
        self.0.answer_call(&arguments, room.map(u64::from))
    }

    /// Finds folded originals by words.
    #[napi]
    pub fn search(&self, words: String, limit: u32) -> Result<Vec<OriginalHit>> {
        let hits = or_throw(self.0.search(&words, limit as usize))?;
        Ok(hits
            .into_iter()
            .map(|hit| OriginalHit {
                handle: hit.handle,
                tool: hit.tool,
                line: u32::try_from(hit.line).unwrap_or(u32::MAX),
                snippet: hit.snippet,
            })
            .collect())
    }

    /// Maximum tokens of a request.
    #[napi(getter)]
    pub fn budget(&self) -> f64 {
        to_number(self.0.budget())
    }
}

/// A folded request body.
#[napi]
#[derive(Debug)]
pub struct NativeFolded(FoldedBody);

#[napi]
impl NativeFolded {
    /// The body to send.
    #[napi(getter)]
    pub fn body(&self) -> &str {
        &self.0.body
    }

    /// Its tokens.
    #[napi(getter)]
    pub fn tokens(&self) -> f64 {
        to_number(self.0.tokens)
    }

    /// Tokens of the body that was given.
    #[napi(getter)]
    pub fn received_tokens(&self) -> f64 {
        to_number(self.0.received_tokens)
    }

    /// Returns the bytes of an original.
    #[napi]
    pub fn unfold(&self, handle: String) -> Result<Buffer> {
        or_throw(self.0.unfold(&handle)).map(Buffer::from)
    }
}

/// Folds one request body.
#[napi]
pub fn fold(body: String, options: String) -> Result<NativeFolded> {
    or_throw(SessionOptions::from_json(&options).and_then(|options| foldline_embed::fold_body(&body, &options)))
        .map(NativeFolded)
}

/// Counts the tokens of a text, or of JSON in a format.
#[napi]
pub fn count_tokens(text: String, model: Option<String>, format: Option<String>) -> Result<f64> {
    or_throw(foldline_embed::count_tokens(&text, model.as_deref(), format.as_deref())).map(to_number)
}

/// Returns the laws that a body breaks and the body before it obeys.
#[napi]
pub fn broken_laws(body: String, before: Option<String>, format: Option<String>) -> Result<Vec<String>> {
    or_throw(foldline_embed::broken_laws(&body, before.as_deref(), format.as_deref()))
}

/// Returns the declaration of the unfold tool, as JSON.
#[napi]
pub fn tool_declaration(format: String) -> Result<String> {
    or_throw(foldline_embed::tool_declaration(&format))
}

/// Messages after a strategy.
#[napi(object)]
#[derive(Debug)]
pub struct ShortenedList {
    /// The messages to send.
    pub messages: Vec<RenderedMessage>,
    /// The statistics as JSON.
    pub stats: String,
}

/// Applies a classic strategy to a JSON list of messages.
#[napi]
pub fn apply_strategy(name: String, messages: String, options: String) -> Result<ShortenedList> {
    let shortened = or_throw(foldline_embed::apply_strategy(&name, &messages, &options))?;
    let messages = shortened.messages.into_iter().map(RenderedMessage::from).collect();
    Ok(ShortenedList { messages, stats: shortened.stats })
}

/// Replays recorded sessions; the report is JSON.
#[napi]
pub fn replay(paths: Vec<String>, options: String) -> Result<String> {
    let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
    or_throw(ReplayOptions::from_json(&options).and_then(|options| foldline_embed::replay_recordings(&paths, &options)))
}

/// Returns the version of the package.
#[napi]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
