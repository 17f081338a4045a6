//! Conversations for property tests: what agents send, made up, in each of the three formats.
//!
//! A [`Sample`] is a request body together with the conversation that reading it must give. It breaks
//! no law. Bodies are written oddly on purpose: white space anywhere, escapes where none are needed,
//! fields that nobody knows, fields in another order, numbers that no float holds. Shrinking leads to
//! a short, plainly written body.
//!
//! Nothing here is part of the product: it exists in tests and behind the feature `testing`.

mod anthropic;
mod chat;
mod json;
mod responses;
mod shape;

pub use shape::shape;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use self::json::{Fields, Json, Quirks};
use crate::conversation::{Arguments, Conversation, Image, Message, Part, Role, Source, Tool, ToolCall, ToolResult};
use crate::wire::{Format, Request};

/// A body and what it says.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The dialect of the body.
    pub format: Format,
    /// The request, as a client would send it.
    pub body: String,
    /// What reading the body gives.
    pub conversation: Conversation<'static>,
}

impl Sample {
    /// The body, read.
    pub fn request(&self) -> Request<'_> {
        Request::parse(self.format, self.body.as_bytes()).expect("a sample is a request")
    }
}

/// A sample of any format, up to a dozen turns long.
pub fn samples() -> impl Strategy<Value = Sample> {
    select(vec![Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic])
        .prop_flat_map(|format| sample(format, 0..12))
}

/// A sample of one format: a user's message, then as many turns as asked for.
pub fn sample(format: Format, turns: std::ops::Range<usize>) -> impl Strategy<Value = Sample> {
    (setting(), vec(turn(), turns), any::<u64>()).prop_map(move |(setting, mut turns, seed)| {
        // A request begins with what the user wants, and ends with something to answer.
        turns.insert(0, Turn::User { texts: vec![setting.task.clone()], image: None });
        if matches!(turns.last(), Some(Turn::Round(round)) if round.calls.is_empty()) {
            turns.push(Turn::User { texts: vec!["go on".into()], image: None });
        }
        write(format, &setting, &turns, seed)
    })
}

/// A text that is not blank: words, a listing, a log, any characters at all.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z]{1,9}( [a-zA-Z0-9_/.]{1,9}){0,8}",
        2 => vec("[ a-z0-9:=]{0,30}", 1..12).prop_map(|lines| format!("$ {}\n", lines.join("\n"))),
        1 => vec(any::<char>(), 0..24).prop_map(|text| format!("x{}", String::from_iter(text))),
        1 => select(vec!["数字を読む、返す。", "\"quoted\" \\ back/slash\ttab", "{\"ok\":true,\"n\":[1,2]}", "👩‍👩‍👧 done"])
            .prop_map(String::from),
    ]
}

#[derive(Clone, Debug)]
struct Setting {
    task: String,
    system: Option<String>,
    system_as_list: bool,
    /// Which kind of model, hence which form of reasoning.
    model: usize,
    /// Responses: items carry the ids that the server gave them.
    with_ids: bool,
}

#[derive(Clone, Debug)]
enum Turn {
    User { texts: Vec<String>, image: Option<Picture> },
    Round(Round),
}

#[derive(Clone, Debug)]
struct Round {
    /// What the operator says among the messages, right before the turn.
    note: Option<String>,
    reasoning: Option<String>,
    text: Option<String>,
    searches: bool,
    calls: Vec<Call>,
    /// Results come back in the other order.
    reversed: bool,
    /// Words of the user right behind the results.
    remark: Option<String>,
}

#[derive(Clone, Debug)]
struct Call {
    tool: usize,
    arguments: Vec<(usize, String)>,
    patch: String,
    result: Vec<String>,
    picture: Option<Picture>,
    is_error: bool,
}

#[derive(Clone, Copy, Debug)]
enum Picture {
    Inline,
    Linked,
}

/// One pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const LINK: &str = "https://example.com/a.png";
/// The last one takes free text where the format has such tools.
const TOOLS: [&str; 4] = ["read_file", "sh", "web-search", "apply_patch"];
const KEYS: [&str; 4] = ["path", "command", "limit", "größe"];

fn setting() -> impl Strategy<Value = Setting> {
    (text(), option::of(text()), any::<bool>(), 0..3_usize, any::<bool>()).prop_map(
        |(task, system, system_as_list, model, with_ids)| Setting { task, system, system_as_list, model, with_ids },
    )
}

fn turn() -> impl Strategy<Value = Turn> {
    let user = (vec(text(), 1..3), option::weighted(0.2, picture()));
    prop_oneof![
        1 => user.prop_map(|(texts, image)| Turn::User { texts, image }),
        3 => round().prop_map(Turn::Round),
    ]
}

fn round() -> impl Strategy<Value = Round> {
    let calls = prop_oneof![1 => vec(call(), 0..1), 4 => vec(call(), 1..2), 2 => vec(call(), 2..5)];
    let flags = (proptest::bool::weighted(0.1), any::<bool>());
    let asides = (option::weighted(0.05, text()), option::weighted(0.1, text()));
    (option::of(text()), option::of(text()), calls, flags, asides).prop_map(
        |(reasoning, text, calls, (searches, reversed), (note, remark))| Round {
            note,
            reasoning,
            // A turn says something or does something.
            text: text.or_else(|| calls.is_empty().then(|| "done".to_owned())),
            searches,
            calls,
            reversed,
            remark,
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let arguments = vec((0..KEYS.len(), text()), 0..3);
    let result = prop_oneof![5 => vec(text(), 1..2), 1 => vec(text(), 2..4)];
    (0..TOOLS.len(), arguments, text(), result, option::weighted(0.1, picture()), proptest::bool::weighted(0.1))
        .prop_map(|(tool, arguments, patch, result, picture, is_error)| Call {
            tool,
            arguments,
            patch,
            result,
            picture,
            is_error,
        })
}

fn picture() -> impl Strategy<Value = Picture> {
    select(vec![Picture::Inline, Picture::Linked])
}

impl Picture {
    fn part(self) -> Part<'static> {
        Part::Image(Image {
            source: match self {
                Picture::Inline => Source::Base64(PIXEL.into()),
                Picture::Linked => Source::Url(LINK.into()),
            },
            detail: None,
        })
    }

    fn url(self) -> Json {
        match self {
            Picture::Inline => Json::text(format!("data:image/png;base64,{PIXEL}")),
            Picture::Linked => Json::text(LINK),
        }
    }
}

impl Call {
    fn is_free_text(&self, format: Format) -> bool {
        TOOLS[self.tool] == "apply_patch" && format != Format::Anthropic
    }

    /// The arguments as an object; white space in it is the writer's.
    fn object(&self, quirks: &mut Quirks) -> String {
        let fields = self.arguments.iter().map(|(key, text)| (KEYS[*key], Json::text(text.clone())));
        // Of a key given twice the last counts, for every reader; a call should not depend on that.
        let mut object: Vec<(&'static str, Json)> = Vec::new();
        for (key, value) in fields {
            object.retain(|(other, _)| *other != key);
            object.push((key, value));
        }
        quirks.write(&Json::Object(object))
    }

    fn part(&self, id: &str, format: Format, quirks: &mut Quirks) -> Part<'static> {
        let arguments = if self.is_free_text(format) {
            Arguments::Text(self.patch.clone().into())
        } else {
            Arguments::Json(self.object(quirks).into())
        };
        Part::ToolCall(ToolCall { id: id.to_owned().into(), name: TOOLS[self.tool].into(), arguments })
    }

    fn answer(&self, id: &str, format: Format) -> ToolResult<'static> {
        let mut content: Vec<_> = self.result.iter().map(|text| Part::text(text.clone())).collect();
        // A tool message of Chat Completions holds text alone, and only Anthropic marks errors.
        content.extend(self.picture.filter(|_| format != Format::OpenAiChat).map(Picture::part));
        let is_error = self.is_error && format == Format::Anthropic;
        ToolResult { call_id: id.to_owned().into(), content, is_error }
    }
}

/// Bodies are written by one of these: the messages as JSON, and what they say.
struct Writing<'s> {
    setting: &'s Setting,
    quirks: Quirks,
    messages: Vec<Message<'static>>,
    json: Vec<Json>,
    ids: usize,
}

fn write(format: Format, setting: &Setting, turns: &[Turn], seed: u64) -> Sample {
    let it = Writing { setting, quirks: Quirks(seed), messages: Vec::new(), json: Vec::new(), ids: 0 };
    match format {
        Format::OpenAiChat => it.chat(turns),
        Format::OpenAiResponses => it.responses(turns),
        Format::Anthropic => it.anthropic(turns),
    }
}

impl Writing<'_> {
    fn say(&mut self, role: Role, parts: Vec<Part<'static>>, json: Vec<(&'static str, Json)>) {
        self.messages.push(Message::new(role, parts));
        self.json.push(Json::Object(json));
    }

    fn fresh(&mut self, prefix: &str) -> String {
        self.ids += 1;
        format!("{prefix}{}", self.ids)
    }

    /// The results in the order in which they come back.
    fn answers<'r>(&mut self, round: &'r Round, ids: &[String]) -> Vec<(&'r Call, String)> {
        let mut answers: Vec<_> = round.calls.iter().zip(ids.iter().cloned()).collect();
        if round.reversed {
            answers.reverse();
        }
        answers
    }

    fn sample(mut self, format: Format, model: &'static str, system: Vec<Part<'static>>, rest: Fields) -> Sample {
        let (key, wrapped) = match format {
            Format::OpenAiChat => ("messages", true),
            Format::OpenAiResponses => ("input", false),
            Format::Anthropic => ("messages", false),
        };
        let tools: Vec<Tool<'static>> = TOOLS
            .iter()
            .map(|&name| {
                let declaration = declaration(format, name, wrapped);
                Tool { name: name.into(), definition: self.quirks.write(&declaration).into() }
            })
            .collect();
        let declared = tools.iter().map(|tool| Json::Raw(tool.definition.to_string())).collect();
        let mut body: Fields = vec![("model", Json::text(model)), ("tools", Json::List(declared))];
        body.extend(rest);
        body.push((key, Json::List(std::mem::take(&mut self.json))));
        body.push(("x_number", Json::raw("1E+400")));
        let body = self.quirks.write(&Json::Object(body));
        let conversation = Conversation { model: Some(model.into()), system, tools, messages: self.messages };
        Sample { format, body, conversation }
    }
}

fn declaration(format: Format, name: &'static str, wrapped: bool) -> Json {
    let schema = Json::raw(r#"{"type":"object","properties":{"path":{"type":"string"}}}"#);
    let free_text = name == "apply_patch";
    match format {
        Format::Anthropic => Json::Object(vec![
            ("name", Json::text(name)),
            ("description", Json::text("does what it says")),
            ("input_schema", schema),
        ]),
        _ => {
            let kind = if free_text { "custom" } else { "function" };
            let mut what = vec![("name", Json::text(name)), ("description", Json::text("does what it says"))];
            if !free_text {
                what.push(("parameters", schema));
                what.push(("strict", Json::raw("false")));
            }
            if wrapped {
                return Json::Object(vec![("type", Json::text(kind)), (kind, Json::Object(what))]);
            }
            what.insert(0, ("type", Json::text(kind)));
            Json::Object(what)
        }
    }
}

fn picture_of(part: &Part<'_>) -> Option<Picture> {
    match part {
        Part::Image(Image { source: Source::Base64(_), .. }) => Some(Picture::Inline),
        Part::Image(_) => Some(Picture::Linked),
        _ => None,
    }
}

fn text_piece(kind: &'static str, part: &Part<'_>) -> Json {
    let text = part.as_text().unwrap_or_default().to_owned();
    Json::Object(vec![("type", Json::text(kind)), ("text", Json::text(text))])
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
        fn the_format_of_a_long_sample_is_recognised(sample in samples()) {
            // Two plain user texts look the same in two dialects.
            let tells = sample.conversation.messages.len() > 3 && sample.format != Format::OpenAiChat;
            prop_assume!(tells);
            prop_assert_eq!(Format::recognise(sample.body.as_bytes()), Some(sample.format));
        }
    }

    #[test]
    fn without_quirks_a_body_is_written_plainly() {
        let json = Json::Object(vec![("a", Json::text("é/")), ("b", Json::List(vec![Json::raw("1"), Json::raw("2")]))]);
        assert_eq!(Quirks(0).write(&json), r#"{"a":"é/","b":[1,2]}"#);
    }
}
