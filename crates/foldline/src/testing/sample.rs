//! Samples independent of a dialect: what they contain, and the writer that dialects share.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::conversation::{
    CallArguments, Conversation, ImagePart, MediaSource, Message, Part, Role, ToolCall, ToolDefinition, ToolResult,
};
use crate::testing::json::{JsonFields, JsonQuirks, SampleJson};
use crate::wire::{Format, Request};

/// A request body and its conversation.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// The dialect of the body.
    pub format: Format,
    /// The request body, as a client would send it.
    pub body: String,
    /// The conversation that parsing the body gives.
    pub conversation: Conversation<'static>,
}

impl SampleRequest {
    /// Parses the body.
    pub fn request(&self) -> Request<'_> {
        Request::parse(self.format, self.body.as_bytes()).expect("a sample is a request")
    }
}

/// Generates a text that is not blank: words, a listing, a log, or any characters.
pub fn sample_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z]{1,9}( [a-zA-Z0-9_/.]{1,9}){0,8}",
        2 => vec("[ a-z0-9:=]{0,30}", 1..12).prop_map(|lines| format!("$ {}\n", lines.join("\n"))),
        1 => vec(any::<char>(), 0..24).prop_map(|text| format!("x{}", String::from_iter(text))),
        1 => select(vec!["数字を読む、返す。", "\"quoted\" \\ back/slash\ttab", "{\"ok\":true,\"n\":[1,2]}", "👩‍👩‍👧 done"])
            .prop_map(String::from),
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct SampleSettings {
    pub(crate) task: String,
    pub(crate) system: Option<String>,
    pub(crate) system_as_list: bool,
    /// Index of the model, which determines the form of reasoning.
    pub(crate) model: usize,
    /// Responses: true if items carry the server's ids.
    pub(crate) with_ids: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum SampleTurn {
    User { texts: Vec<String>, image: Option<SampleImage> },
    Round(SampleRound),
}

#[derive(Clone, Debug)]
pub(crate) struct SampleRound {
    /// A system message directly before the turn.
    pub(crate) instruction: Option<String>,
    pub(crate) reasoning: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) has_web_search: bool,
    pub(crate) calls: Vec<SampleCall>,
    /// True if the results are in reverse order.
    pub(crate) results_reversed: bool,
    /// User text directly after the results.
    pub(crate) user_remark: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct SampleCall {
    pub(crate) tool: usize,
    pub(crate) arguments: Vec<(usize, String)>,
    pub(crate) patch: String,
    pub(crate) result: Vec<String>,
    pub(crate) image: Option<SampleImage>,
    pub(crate) is_error: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SampleImage {
    Inline,
    Linked,
}

/// A PNG of one pixel.
const PIXEL_PNG_BASE64: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
pub(crate) const IMAGE_URL: &str = "https://example.com/a.png";
/// Names of the tools; the last one takes free text in formats that have such tools.
const TOOL_NAMES: [&str; 4] = ["read_file", "sh", "web-search", "apply_patch"];
/// The description of every tool.
pub(crate) const TOOL_DESCRIPTION: &str = "does what it says";
/// The tool that takes free text.
pub(crate) const FREE_TEXT_TOOL: &str = "apply_patch";
const ARGUMENT_KEYS: [&str; 4] = ["path", "command", "limit", "größe"];

pub(crate) fn settings() -> impl Strategy<Value = SampleSettings> {
    (sample_text(), option::of(sample_text()), any::<bool>(), 0..3_usize, any::<bool>()).prop_map(
        |(task, system, system_as_list, model, with_ids)| SampleSettings {
            task,
            system,
            system_as_list,
            model,
            with_ids,
        },
    )
}

pub(crate) fn turn() -> impl Strategy<Value = SampleTurn> {
    let user = (vec(sample_text(), 1..3), option::weighted(0.2, image()));
    prop_oneof![
        1 => user.prop_map(|(texts, image)| SampleTurn::User { texts, image }),
        3 => round().prop_map(SampleTurn::Round),
    ]
}

fn round() -> impl Strategy<Value = SampleRound> {
    let calls = prop_oneof![1 => vec(call(), 0..1), 4 => vec(call(), 1..2), 2 => vec(call(), 2..5)];
    let flags = (proptest::bool::weighted(0.1), any::<bool>());
    let texts = (option::weighted(0.05, sample_text()), option::weighted(0.1, sample_text()));
    (option::of(sample_text()), option::of(sample_text()), calls, flags, texts).prop_map(
        |(reasoning, text, calls, (has_web_search, results_reversed), (instruction, user_remark))| SampleRound {
            instruction,
            reasoning,
            // A turn has text or calls.
            text: text.or_else(|| calls.is_empty().then(|| "done".to_owned())),
            has_web_search,
            calls,
            results_reversed,
            user_remark,
        },
    )
}

fn call() -> impl Strategy<Value = SampleCall> {
    let arguments = vec((0..ARGUMENT_KEYS.len(), sample_text()), 0..3);
    let result = prop_oneof![5 => vec(sample_text(), 1..2), 1 => vec(sample_text(), 2..4)];
    (
        0..TOOL_NAMES.len(),
        arguments,
        sample_text(),
        result,
        option::weighted(0.1, image()),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(tool, arguments, patch, result, image, is_error)| SampleCall {
            tool,
            arguments,
            patch,
            result,
            image,
            is_error,
        })
}

fn image() -> impl Strategy<Value = SampleImage> {
    select(vec![SampleImage::Inline, SampleImage::Linked])
}

impl SampleImage {
    pub(crate) fn part(self) -> Part<'static> {
        Part::Image(ImagePart {
            source: match self {
                SampleImage::Inline => MediaSource::Base64(PIXEL_PNG_BASE64.into()),
                SampleImage::Linked => MediaSource::Url(IMAGE_URL.into()),
            },
            detail: None,
        })
    }

    pub(crate) fn url(self) -> SampleJson {
        match self {
            SampleImage::Inline => SampleJson::text(format!("data:image/png;base64,{PIXEL_PNG_BASE64}")),
            SampleImage::Linked => SampleJson::text(IMAGE_URL),
        }
    }
}

impl SampleCall {
    pub(crate) fn name(&self) -> &'static str {
        TOOL_NAMES[self.tool]
    }

    pub(crate) fn is_free_text(&self, dialect: &SampleDialect) -> bool {
        TOOL_NAMES[self.tool] == FREE_TEXT_TOOL && dialect.has_free_text_tools
    }

    /// Writes the arguments as an object, with the whitespace that `quirks` chooses.
    pub(crate) fn arguments_json(&self, quirks: &mut JsonQuirks) -> String {
        let fields = self.arguments.iter().map(|(key, text)| (ARGUMENT_KEYS[*key], SampleJson::text(text.clone())));
        // A call must not depend on the treatment of duplicate keys.
        let mut object: Vec<(&'static str, SampleJson)> = Vec::new();
        for (key, value) in fields {
            object.retain(|(other, _)| *other != key);
            object.push((key, value));
        }
        quirks.write(&SampleJson::Object(object))
    }

    pub(crate) fn part(&self, id: &str, dialect: &SampleDialect, quirks: &mut JsonQuirks) -> Part<'static> {
        let arguments = if self.is_free_text(dialect) {
            CallArguments::Text(self.patch.clone().into())
        } else {
            CallArguments::Json(self.arguments_json(quirks).into())
        };
        Part::ToolCall(ToolCall {
            id: id.to_owned().into(),
            name: TOOL_NAMES[self.tool].into(),
            arguments,
            signature: None,
        })
    }

    pub(crate) fn tool_result(&self, id: &str, dialect: &SampleDialect) -> ToolResult<'static> {
        let mut content: Vec<_> = self.result.iter().map(|text| Part::text(text.clone())).collect();
        content.extend(self.image.filter(|_| dialect.has_images_in_results).map(SampleImage::part));
        let is_error = self.is_error && dialect.marks_failed_results;
        ToolResult { call_id: id.to_owned().into(), content, is_error }
    }
}

/// The differences between samples of a dialect and those of the others.
pub(crate) struct SampleDialect {
    pub(crate) format: Format,
    /// Writes the turns.
    pub(crate) write: fn(SampleWriter<'_>, &[SampleTurn]) -> SampleRequest,
    /// Returns the declaration of the tool of this name.
    pub(crate) tool_declaration: fn(&'static str) -> SampleJson,
    /// The field that contains the list of tools, if it is not the body.
    pub(crate) tools_parent: Option<&'static str>,
    /// True if a tool may take free text instead of JSON.
    pub(crate) has_free_text_tools: bool,
    /// True if results may contain images.
    pub(crate) has_images_in_results: bool,
    /// True if a result states that its call failed.
    pub(crate) marks_failed_results: bool,
}

/// Writer of a body: the messages as JSON and as a conversation.
pub(crate) struct SampleWriter<'s> {
    pub(crate) setting: &'s SampleSettings,
    pub(crate) quirks: JsonQuirks,
    pub(crate) messages: Vec<Message<'static>>,
    pub(crate) json: Vec<SampleJson>,
    pub(crate) last_id: usize,
}

impl<'s> SampleWriter<'s> {
    pub(crate) fn new(setting: &'s SampleSettings, seed: u64) -> Self {
        Self { setting, quirks: JsonQuirks(seed), messages: Vec::new(), json: Vec::new(), last_id: 0 }
    }

    pub(crate) fn push_message(
        &mut self,
        role: Role,
        parts: Vec<Part<'static>>,
        json: Vec<(&'static str, SampleJson)>,
    ) {
        self.messages.push(Message::new(role, parts));
        self.json.push(SampleJson::Object(json));
    }

    pub(crate) fn next_id(&mut self, prefix: &str) -> String {
        self.last_id += 1;
        format!("{prefix}{}", self.last_id)
    }

    /// Returns the calls in the order of their results.
    pub(crate) fn results_in_order<'r>(
        &mut self,
        round: &'r SampleRound,
        ids: &[String],
    ) -> Vec<(&'r SampleCall, String)> {
        let mut calls: Vec<_> = round.calls.iter().zip(ids.iter().cloned()).collect();
        if round.results_reversed {
            calls.reverse();
        }
        calls
    }

    pub(crate) fn finish(
        mut self,
        dialect: &SampleDialect,
        model: &'static str,
        system: Vec<Part<'static>>,
        rest: JsonFields,
    ) -> SampleRequest {
        let tools: Vec<ToolDefinition<'static>> = TOOL_NAMES
            .iter()
            .map(|&name| {
                let declaration = (dialect.tool_declaration)(name);
                ToolDefinition { name: name.into(), definition: self.quirks.write(&declaration).into() }
            })
            .collect();
        let declared = tools.iter().map(|tool| SampleJson::Raw(tool.definition.to_string())).collect();
        let declared = ("tools", SampleJson::List(declared));
        let declared = match dialect.tools_parent {
            Some(parent) => (parent, SampleJson::Object(vec![declared])),
            None => declared,
        };
        let mut body: JsonFields = vec![("model", SampleJson::text(model)), declared];
        body.extend(rest);
        let key = dialect.format.dialect().request.list_key;
        body.push((key, SampleJson::List(std::mem::take(&mut self.json))));
        body.push(("x_number", SampleJson::raw("1E+400")));
        let body = self.quirks.write(&SampleJson::Object(body));
        let conversation = Conversation { model: Some(model.into()), system, tools, messages: self.messages };
        SampleRequest { format: dialect.format, body, conversation }
    }
}

/// Declares a tool in OpenAI's form: its type, then its definition.
pub(crate) fn openai_definition(name: &'static str) -> (&'static str, JsonFields) {
    let is_free_text = name == FREE_TEXT_TOOL;
    let mut definition = vec![("name", SampleJson::text(name)), ("description", SampleJson::text(TOOL_DESCRIPTION))];
    if !is_free_text {
        definition.push(("parameters", tool_schema()));
        definition.push(("strict", SampleJson::raw("false")));
    }
    (if is_free_text { "custom" } else { "function" }, definition)
}

/// Returns the schema of every tool's arguments.
pub(crate) fn tool_schema() -> SampleJson {
    SampleJson::raw(r#"{"type":"object","properties":{"path":{"type":"string"}}}"#)
}

pub(crate) fn image_of(part: &Part<'_>) -> Option<SampleImage> {
    match part {
        Part::Image(ImagePart { source: MediaSource::Base64(_), .. }) => Some(SampleImage::Inline),
        Part::Image(_) => Some(SampleImage::Linked),
        _ => None,
    }
}

pub(crate) fn text_block(kind: &'static str, part: &Part<'_>) -> SampleJson {
    let text = part.as_text().unwrap_or_default().to_owned();
    SampleJson::Object(vec![("type", SampleJson::text(kind)), ("text", SampleJson::text(text))])
}
