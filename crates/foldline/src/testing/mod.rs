//! Generated conversations for property tests, in each of the three formats.
//!
//! A [`SampleRequest`] is a request body together with the conversation that parsing it must give. It breaks
//! no law. Bodies deliberately use unusual JSON: whitespace anywhere, unnecessary escapes, unknown
//! fields, fields in another order, numbers outside the range of floats. Shrinking leads to a short,
//! plain body.
//!
//! Nothing here is part of the product: it is compiled only for tests and with the feature `testing`.

mod anthropic;
mod json;
pub(crate) mod openai_chat;
pub(crate) mod openai_responses;
mod shape;

pub use shape::shape;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use self::json::{JsonFields, JsonQuirks, SampleJson};
use crate::conversation::{
    CallArguments, Conversation, ImagePart, MediaSource, Message, Part, Role, ToolCall, ToolDefinition, ToolResult,
};
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

/// Generates a sample of any format with up to a dozen turns.
pub fn samples() -> impl Strategy<Value = SampleRequest> {
    select(vec![Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic])
        .prop_flat_map(|format| sample(format, 0..12))
}

/// Generates a sample of one format: a user message, then the given number of turns.
pub fn sample(format: Format, turns: std::ops::Range<usize>) -> impl Strategy<Value = SampleRequest> {
    (settings(), vec(turn(), turns), any::<u64>()).prop_map(move |(setting, mut turns, seed)| {
        // A request begins with the task and ends with a message that needs a response.
        turns.insert(0, SampleTurn::User { texts: vec![setting.task.clone()], image: None });
        if matches!(turns.last(), Some(SampleTurn::Round(round)) if round.calls.is_empty()) {
            turns.push(SampleTurn::User { texts: vec!["go on".into()], image: None });
        }
        write_sample(format, &setting, &turns, seed)
    })
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
struct SampleSettings {
    task: String,
    system: Option<String>,
    system_as_list: bool,
    /// Index of the model, which determines the form of reasoning.
    model: usize,
    /// Responses: true if items carry the server's ids.
    with_ids: bool,
}

#[derive(Clone, Debug)]
enum SampleTurn {
    User { texts: Vec<String>, image: Option<SampleImage> },
    Round(SampleRound),
}

#[derive(Clone, Debug)]
struct SampleRound {
    /// A system message directly before the turn.
    instruction: Option<String>,
    reasoning: Option<String>,
    text: Option<String>,
    has_web_search: bool,
    calls: Vec<SampleCall>,
    /// True if the results are in reverse order.
    results_reversed: bool,
    /// User text directly after the results.
    user_remark: Option<String>,
}

#[derive(Clone, Debug)]
struct SampleCall {
    tool: usize,
    arguments: Vec<(usize, String)>,
    patch: String,
    result: Vec<String>,
    image: Option<SampleImage>,
    is_error: bool,
}

#[derive(Clone, Copy, Debug)]
enum SampleImage {
    Inline,
    Linked,
}

/// A PNG of one pixel.
const PIXEL_PNG_BASE64: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const IMAGE_URL: &str = "https://example.com/a.png";
/// Names of the tools; the last one takes free text in formats that have such tools.
const TOOL_NAMES: [&str; 4] = ["read_file", "sh", "web-search", "apply_patch"];
const ARGUMENT_KEYS: [&str; 4] = ["path", "command", "limit", "größe"];

fn settings() -> impl Strategy<Value = SampleSettings> {
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

fn turn() -> impl Strategy<Value = SampleTurn> {
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
    fn part(self) -> Part<'static> {
        Part::Image(ImagePart {
            source: match self {
                SampleImage::Inline => MediaSource::Base64(PIXEL_PNG_BASE64.into()),
                SampleImage::Linked => MediaSource::Url(IMAGE_URL.into()),
            },
            detail: None,
        })
    }

    fn url(self) -> SampleJson {
        match self {
            SampleImage::Inline => SampleJson::text(format!("data:image/png;base64,{PIXEL_PNG_BASE64}")),
            SampleImage::Linked => SampleJson::text(IMAGE_URL),
        }
    }
}

impl SampleCall {
    fn is_free_text(&self, format: Format) -> bool {
        TOOL_NAMES[self.tool] == "apply_patch" && format != Format::Anthropic
    }

    /// Writes the arguments as an object, with the whitespace that `quirks` chooses.
    fn arguments_json(&self, quirks: &mut JsonQuirks) -> String {
        let fields = self.arguments.iter().map(|(key, text)| (ARGUMENT_KEYS[*key], SampleJson::text(text.clone())));
        // A call must not depend on the treatment of duplicate keys.
        let mut object: Vec<(&'static str, SampleJson)> = Vec::new();
        for (key, value) in fields {
            object.retain(|(other, _)| *other != key);
            object.push((key, value));
        }
        quirks.write(&SampleJson::Object(object))
    }

    fn part(&self, id: &str, format: Format, quirks: &mut JsonQuirks) -> Part<'static> {
        let arguments = if self.is_free_text(format) {
            CallArguments::Text(self.patch.clone().into())
        } else {
            CallArguments::Json(self.arguments_json(quirks).into())
        };
        Part::ToolCall(ToolCall { id: id.to_owned().into(), name: TOOL_NAMES[self.tool].into(), arguments })
    }

    fn tool_result(&self, id: &str, format: Format) -> ToolResult<'static> {
        let mut content: Vec<_> = self.result.iter().map(|text| Part::text(text.clone())).collect();
        // A tool message of Chat Completions contains only text, and only Anthropic marks errors.
        content.extend(self.image.filter(|_| format != Format::OpenAiChat).map(SampleImage::part));
        let is_error = self.is_error && format == Format::Anthropic;
        ToolResult { call_id: id.to_owned().into(), content, is_error }
    }
}

/// Writer of a body: the messages as JSON and as a conversation.
struct SampleWriter<'s> {
    setting: &'s SampleSettings,
    quirks: JsonQuirks,
    messages: Vec<Message<'static>>,
    json: Vec<SampleJson>,
    last_id: usize,
}

fn write_sample(format: Format, setting: &SampleSettings, turns: &[SampleTurn], seed: u64) -> SampleRequest {
    let writer = SampleWriter { setting, quirks: JsonQuirks(seed), messages: Vec::new(), json: Vec::new(), last_id: 0 };
    match format {
        Format::OpenAiChat => writer.write_chat(turns),
        Format::OpenAiResponses => writer.write_responses(turns),
        Format::Anthropic => writer.write_anthropic(turns),
    }
}

impl SampleWriter<'_> {
    fn push_message(&mut self, role: Role, parts: Vec<Part<'static>>, json: Vec<(&'static str, SampleJson)>) {
        self.messages.push(Message::new(role, parts));
        self.json.push(SampleJson::Object(json));
    }

    fn next_id(&mut self, prefix: &str) -> String {
        self.last_id += 1;
        format!("{prefix}{}", self.last_id)
    }

    /// Returns the calls in the order of their results.
    fn results_in_order<'r>(&mut self, round: &'r SampleRound, ids: &[String]) -> Vec<(&'r SampleCall, String)> {
        let mut calls: Vec<_> = round.calls.iter().zip(ids.iter().cloned()).collect();
        if round.results_reversed {
            calls.reverse();
        }
        calls
    }

    fn finish(
        mut self,
        format: Format,
        model: &'static str,
        system: Vec<Part<'static>>,
        rest: JsonFields,
    ) -> SampleRequest {
        let (key, wrapped) = match format {
            Format::OpenAiChat => ("messages", true),
            Format::OpenAiResponses => ("input", false),
            Format::Anthropic => ("messages", false),
        };
        let tools: Vec<ToolDefinition<'static>> = TOOL_NAMES
            .iter()
            .map(|&name| {
                let declaration = tool_declaration(format, name, wrapped);
                ToolDefinition { name: name.into(), definition: self.quirks.write(&declaration).into() }
            })
            .collect();
        let declared = tools.iter().map(|tool| SampleJson::Raw(tool.definition.to_string())).collect();
        let mut body: JsonFields = vec![("model", SampleJson::text(model)), ("tools", SampleJson::List(declared))];
        body.extend(rest);
        body.push((key, SampleJson::List(std::mem::take(&mut self.json))));
        body.push(("x_number", SampleJson::raw("1E+400")));
        let body = self.quirks.write(&SampleJson::Object(body));
        let conversation = Conversation { model: Some(model.into()), system, tools, messages: self.messages };
        SampleRequest { format, body, conversation }
    }
}

fn tool_declaration(format: Format, name: &'static str, wrapped: bool) -> SampleJson {
    let schema = SampleJson::raw(r#"{"type":"object","properties":{"path":{"type":"string"}}}"#);
    let free_text = name == "apply_patch";
    match format {
        Format::Anthropic => SampleJson::Object(vec![
            ("name", SampleJson::text(name)),
            ("description", SampleJson::text("does what it says")),
            ("input_schema", schema),
        ]),
        _ => {
            let kind = if free_text { "custom" } else { "function" };
            let mut definition =
                vec![("name", SampleJson::text(name)), ("description", SampleJson::text("does what it says"))];
            if !free_text {
                definition.push(("parameters", schema));
                definition.push(("strict", SampleJson::raw("false")));
            }
            if wrapped {
                return SampleJson::Object(vec![
                    ("type", SampleJson::text(kind)),
                    (kind, SampleJson::Object(definition)),
                ]);
            }
            definition.insert(0, ("type", SampleJson::text(kind)));
            SampleJson::Object(definition)
        }
    }
}

fn image_of(part: &Part<'_>) -> Option<SampleImage> {
    match part {
        Part::Image(ImagePart { source: MediaSource::Base64(_), .. }) => Some(SampleImage::Inline),
        Part::Image(_) => Some(SampleImage::Linked),
        _ => None,
    }
}

fn text_block(kind: &'static str, part: &Part<'_>) -> SampleJson {
    let text = part.as_text().unwrap_or_default().to_owned();
    SampleJson::Object(vec![("type", SampleJson::text(kind)), ("text", SampleJson::text(text))])
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest! {
        #[test]
        fn reading_a_sample_gives_its_conversation(sample in samples()) {
            let request = sample.request();
            prop_assert_eq!(request.conversation(), &sample.conversation);
        }

        #[test]
        fn format_of_a_long_sample_is_detected(sample in samples()) {
            // Two plain user texts are the same in two dialects.
            let is_unambiguous = sample.conversation.messages.len() > 3 && sample.format != Format::OpenAiChat;
            prop_assume!(is_unambiguous);
            prop_assert_eq!(Format::detect(sample.body.as_bytes()), Some(sample.format));
        }
    }

    #[test]
    fn body_without_quirks_is_plain_json() {
        let json = SampleJson::Object(vec![
            ("a", SampleJson::text("é/")),
            ("b", SampleJson::List(vec![SampleJson::raw("1"), SampleJson::raw("2")])),
        ]);
        assert_eq!(JsonQuirks(0).write(&json), r#"{"a":"é/","b":[1,2]}"#);
    }
}
