//! Samples of OpenAI Responses.

use crate::conversation::{CallArguments, Message, OpaqueBlock, Part, ReasoningPart, Role};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, image_of, openai_definition,
    text_block,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::OpenAiResponses,
    write: |writer, turns| writer.write_responses(turns),
    tool_declaration: |name| {
        let (kind, mut definition) = openai_definition(name);
        definition.insert(0, ("type", SampleJson::text(kind)));
        SampleJson::Object(definition)
    },
    tools_parent: None,
    has_free_text_tools: true,
    has_images_in_results: true,
    marks_failed_results: false,
};

impl SampleWriter<'_> {
    pub(crate) fn write_responses(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let model = ["gpt-4.1", "gpt-5.5", "gpt-5.6"][self.setting.model];
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(SampleImage::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => SampleJson::text(text.clone()),
                        _ => SampleJson::List(parts.iter().map(responses_block).collect()),
                    };
                    let mut json = vec![("role", SampleJson::text("user")), ("content", content)];
                    if self.setting.with_ids {
                        json.insert(0, ("type", SampleJson::text("message")));
                    }
                    self.push_message(Role::User, parts, json);
                }
                SampleTurn::Round(round) => {
                    if let Some(note) = &round.instruction {
                        let json =
                            vec![("role", SampleJson::text("developer")), ("content", SampleJson::text(note.clone()))];
                        self.push_message(Role::Developer, vec![Part::text(note.clone())], json);
                    }
                    self.write_responses_round(round, model != "gpt-4.1");
                }
            }
        }
        let mut rest: JsonFields = vec![("store", SampleJson::raw("false"))];
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            rest.push(("instructions", SampleJson::text(text.clone())));
        }
        self.finish(&SAMPLES, model, system, rest)
    }

    /// Adds an item of the model, with the server's id if the sample has ids.
    fn push_item(&mut self, kind: &'static str, prefix: &str, part: Part<'static>, fields: JsonFields) {
        let mut json = vec![("type", SampleJson::text(kind))];
        if self.setting.with_ids {
            let id = self.next_id(prefix);
            json.push(("id", SampleJson::text(id)));
        }
        json.extend(fields);
        self.push_message(Role::Assistant, vec![part], json);
    }

    fn write_responses_round(&mut self, round: &SampleRound, reasons: bool) {
        if let Some(text) = round.reasoning.as_ref().filter(|_| reasons) {
            let seal = self.next_id("gAAAAAB");
            let summary = SampleJson::Object(vec![
                ("type", SampleJson::text("summary_text")),
                ("text", SampleJson::text(text.clone())),
            ]);
            let part = Part::Reasoning(ReasoningPart {
                text: text.clone().into(),
                seal: Some(seal.clone().into()),
                redacted: false,
            });
            let fields =
                vec![("summary", SampleJson::List(vec![summary])), ("encrypted_content", SampleJson::text(seal))];
            self.push_item("reasoning", "rs_", part, fields);
        }
        if round.has_web_search {
            let id = self.next_id("ws_");
            let raw = self.quirks.write(&SampleJson::Object(vec![
                ("type", SampleJson::text("web_search_call")),
                ("id", SampleJson::text(id.clone())),
                ("status", SampleJson::text("completed")),
                ("action", SampleJson::raw(r#"{"type":"search","query":"q"}"#)),
            ]));
            let part = OpaqueBlock { kind: "web_search_call".into(), pair: Some(id.into()), raw: raw.clone().into() };
            self.messages.push(Message::new(Role::Assistant, vec![Part::Opaque(part)]));
            self.json.push(SampleJson::Raw(raw));
        }
        if let Some(text) = &round.text {
            let block = vec![
                ("type", SampleJson::text("output_text")),
                ("text", SampleJson::text(text.clone())),
                ("annotations", SampleJson::List(Vec::new())),
            ];
            let fields = vec![
                ("role", SampleJson::text("assistant")),
                ("content", SampleJson::List(vec![SampleJson::Object(block)])),
                ("status", SampleJson::text("completed")),
            ];
            self.push_item("message", "msg_", Part::text(text.clone()), fields);
        }
        let mut ids = Vec::new();
        for call in &round.calls {
            let id = self.next_id("call_");
            let part = call.part(&id, &SAMPLES, &mut self.quirks);
            if let Part::ToolCall(tool_call) = &part {
                let (kind, prefix, key) = match tool_call.arguments {
                    CallArguments::Json(_) => ("function_call", "fc_", "arguments"),
                    CallArguments::Text(_) => ("custom_tool_call", "ctc_", "input"),
                };
                let fields = vec![
                    ("call_id", SampleJson::text(id.clone())),
                    ("name", SampleJson::text(tool_call.name.clone())),
                    (key, SampleJson::text(tool_call.arguments.as_str().to_owned())),
                ];
                self.push_item(kind, prefix, part, fields);
            }
            ids.push(id);
        }
        for (call, id) in self.results_in_order(round, &ids) {
            let kind = match call.is_free_text(&SAMPLES) {
                false => "function_call_output",
                true => "custom_tool_call_output",
            };
            let result = call.tool_result(&id, &SAMPLES);
            let output = match result.only_text() {
                Some(text) => SampleJson::text(text.to_owned()),
                None => SampleJson::List(result.content.iter().map(responses_block).collect()),
            };
            self.push_message(
                Role::Tool,
                vec![Part::ToolResult(result)],
                vec![("type", SampleJson::text(kind)), ("call_id", SampleJson::text(id)), ("output", output)],
            );
        }
        if let Some(text) = round.user_remark.as_ref().filter(|_| !round.calls.is_empty()) {
            self.push_message(
                Role::User,
                vec![Part::text(text.clone())],
                vec![("role", SampleJson::text("user")), ("content", SampleJson::text(text.clone()))],
            );
        }
    }
}

fn responses_block(part: &Part<'_>) -> SampleJson {
    let Some(image) = image_of(part) else { return text_block("input_text", part) };
    SampleJson::Object(vec![("type", SampleJson::text("input_image")), ("image_url", image.url())])
}
