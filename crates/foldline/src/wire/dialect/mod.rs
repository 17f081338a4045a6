//! Provider dialects: the table, and one folder per dialect with the same files in each.
//!
//! A new dialect is a folder, an identifier in [`Format`] and a row in [`DIALECTS`].

pub(crate) mod anthropic;
pub(crate) mod converse;
pub(crate) mod gemini;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod openai_chat;
pub(crate) mod openai_responses;
pub(crate) mod row;
#[cfg(test)]
pub(crate) mod tests;

use crate::wire::dialect::row::Dialect;
use crate::wire::endpoint::{ApiFamily, ConversationEndpoint};
use crate::wire::format::Format;
use crate::wire::json::preview::ObjectPreview;
use crate::wire::json::scan::{JsonObject, parse_document};
use crate::wire::request::utf8_text;
use crate::wire::rules::ResultPlacement;

/// All dialects, in the order of [`Format`].
pub(crate) static DIALECTS: [&Dialect; 6] = [
    &openai_chat::DIALECT,
    &openai_responses::DIALECT,
    &anthropic::DIALECT,
    &gemini::DIALECT,
    &ollama::DIALECT,
    &converse::DIALECT,
];

impl Format {
    /// Returns the row of the table of dialects.
    pub fn dialect(self) -> &'static Dialect {
        DIALECTS[self as usize]
    }

    /// Returns all formats.
    pub fn all() -> impl ExactSizeIterator<Item = Format> {
        DIALECTS.iter().map(|dialect| dialect.format)
    }

    /// Returns the name used in flags and settings.
    pub fn name(self) -> &'static str {
        self.dialect().name
    }

    /// Returns the dialect of a provider of the model table: that of its API, or Chat Completions.
    pub fn for_provider(provider: &str) -> Format {
        let own = DIALECTS.iter().find(|dialect| dialect.family.name == provider);
        own.map_or(Format::OpenAiChat, |dialect| dialect.format)
    }

    /// Returns the first dialect that has the results of calls at this position.
    pub(crate) fn with_result_placement(placement: ResultPlacement) -> Format {
        let row = DIALECTS.iter().find(|dialect| dialect.rules.result_placement == placement);
        row.map_or(Format::OpenAiChat, |dialect| dialect.format)
    }

    /// Returns the dialect of a recorded body or message of which these keys are visible.
    pub(crate) fn detect_preview(object: &ObjectPreview) -> Option<Format> {
        let row = DIALECTS.iter().rev().find(|dialect| (dialect.marks.in_recording)(object))?;
        Some(row.format)
    }

    /// Returns true if an object has the messages of a request, and is not a message itself.
    pub(crate) fn is_body(object: &JsonObject<'_>) -> bool {
        let is_part = object.get("role").is_some() || object.get("name").is_some();
        DIALECTS.iter().any(|dialect| {
            let input = object.get(dialect.request.list_key);
            input.is_some_and(|input| input.is_array() || dialect.request.parse_string_input.is_some() && !is_part)
        })
    }

    /// Detects the dialect of a body from fields that only one dialect has, later rows first because others resemble
    /// Chat Completions, and falls back to that. Returns `None` if the body is not a JSON object or array.
    pub fn detect(body: &[u8]) -> Option<Format> {
        let document = parse_document(utf8_text(body).ok()?).ok()?;
        let is_list = document.is_object() || document.is_array();
        is_list.then(|| Format::detect_marked(body).unwrap_or(Format::OpenAiChat))
    }

    /// Detects the dialect of a body from fields that only one dialect has. Returns `None` if it has none of them.
    pub fn detect_marked(body: &[u8]) -> Option<Format> {
        let document = parse_document(utf8_text(body).ok()?).ok()?;
        let top = match (document.is_object(), document.is_array()) {
            (true, _) => document.object(),
            (_, true) => JsonObject::new(document, Vec::new()),
            _ => return None,
        };
        let find =
            |is_marked: &dyn Fn(&Dialect) -> bool| DIALECTS.iter().copied().rev().find(|dialect| is_marked(dialect));
        let in_message = |message: &JsonObject<'_>| {
            find(&|dialect| (dialect.marks.in_message)(message)).or_else(|| {
                message.elements("content").iter().find_map(|block| {
                    let kind = block.string("type")?;
                    find(&|dialect| dialect.marks.block_types.contains(&&*kind))
                })
            })
        };
        let found = find(&|dialect| (dialect.marks.in_body)(&top))
            .or_else(|| top.get("messages").unwrap_or(document).elements().iter().find_map(in_message))
            .or_else(|| {
                let tools = top.elements("tools");
                tools.iter().find_map(|tool| find(&|dialect| (dialect.marks.in_tool)(tool)))
            });
        found.map(|dialect| dialect.format)
    }
}

impl ApiFamily {
    /// Returns all APIs, in the order of the dialects.
    pub fn all() -> impl Iterator<Item = &'static ApiFamily> {
        let is_first = |at: usize| DIALECTS[..at].iter().all(|earlier| earlier.family != DIALECTS[at].family);
        (0..DIALECTS.len()).filter(move |at| is_first(*at)).map(|at| DIALECTS[at].family)
    }
}

impl Dialect {
    /// Returns all dialects.
    pub fn all() -> impl ExactSizeIterator<Item = &'static Dialect> {
        DIALECTS.iter().copied()
    }

    /// Returns the dialect of the conversation that requests to a path carry, and what the path states about them. The
    /// query is ignored.
    pub fn for_path(path: &str) -> Option<(&'static Dialect, ConversationEndpoint<'_>)> {
        let path = path.split('?').next().unwrap_or(path);
        DIALECTS.iter().find_map(|dialect| Some((*dialect, (dialect.endpoint)(path)?)))
    }
}
