//! Samples of OpenAI Chat Completions.

use crate::conversation::{CallArguments, Part, Role};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, image_of, openai_definition,
    text_block,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::OpenAiChat,
    write: |writer, turns| writer.write_chat(turns),
    tool_declaration: |name| {
        let (kind, definition) = openai_definition(name);
        SampleJson::Object(vec![("type", SampleJson::text(kind)), (kind, SampleJson::Object(definition))])
    },
    tools_parent: None,
    has_free_text_tools: true,
    has_images_in_results: false,
    marks_failed_results: false,
};

impl SampleWriter<'_> {
    pub(crate) fn write_chat(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let (model, reasons) = [("gpt-4o", false), ("deepseek-reasoner", true), ("gpt-5.2", false)][self.setting.model];
        let (role, name) = match model {
            "gpt-5.2" => (Role::Developer, "developer"),
            _ => (Role::System, "system"),
        };
        if let Some(text) = &self.setting.system {
            let content = match self.setting.system_as_list {
                false => SampleJson::text(text.clone()),
                true => SampleJson::List(vec![chat_block(&Part::text(text.clone()))]),
            };
            self.push_message(
                role,
                vec![Part::text(text.clone())],
                vec![("role", SampleJson::text(name)), ("content", content)],
            );
        }
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(SampleImage::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => SampleJson::text(text.clone()),
                        _ => SampleJson::List(parts.iter().map(chat_block).collect()),
                    };
                    self.push_message(
                        Role::User,
                        parts,
                        vec![("role", SampleJson::text("user")), ("content", content)],
                    );
                }
                SampleTurn::Round(round) => {
                    if let Some(note) = &round.instruction {
                        let json = vec![("role", SampleJson::text(name)), ("content", SampleJson::text(note.clone()))];
                        self.push_message(role, vec![Part::text(note.clone())], json);
                    }
                    self.write_chat_round(round, reasons);
                }
            }
        }
        self.finish(&SAMPLES, model, Vec::new(), vec![("stream", SampleJson::raw("true"))])
    }

    fn write_chat_round(&mut self, round: &SampleRound, reasons: bool) {
        let mut parts = Vec::new();
        let mut json: JsonFields = vec![("role", SampleJson::text("assistant"))];
        if reasons {
            // Models that return their reasoning require tool_call with every call.
            let text = round.reasoning.clone().unwrap_or_default();
            json.push(("reasoning_content", SampleJson::text(text.clone())));
            parts.push(Part::reasoning(text));
        }
        match &round.text {
            Some(text) => {
                json.push(("content", SampleJson::text(text.clone())));
                parts.push(Part::text(text.clone()));
            }
            None => json.push(("content", SampleJson::raw("null"))),
        }
        let mut ids = Vec::new();
        let mut calls = Vec::new();
        for call in &round.calls {
            let id = self.next_id("call_");
            let part = call.part(&id, &SAMPLES, &mut self.quirks);
            if let Part::ToolCall(tool_call) = &part {
                let (kind, key) = match tool_call.arguments {
                    CallArguments::Json(_) => ("function", "arguments"),
                    CallArguments::Text(_) => ("custom", "input"),
                };
                let definition = vec![
                    ("name", SampleJson::text(tool_call.name.clone())),
                    (key, SampleJson::text(tool_call.arguments.as_str().to_owned())),
                ];
                calls.push(SampleJson::Object(vec![
                    ("id", SampleJson::text(id.clone())),
                    ("type", SampleJson::text(kind)),
                    (kind, SampleJson::Object(definition)),
                ]));
            }
            parts.push(part);
            ids.push(id);
        }
        if !calls.is_empty() {
            json.push(("tool_calls", SampleJson::List(calls)));
        }
        self.push_message(Role::Assistant, parts, json);
        for (call, id) in self.results_in_order(round, &ids) {
            let result = call.tool_result(&id, &SAMPLES);
            let content = match result.only_text() {
                Some(text) => SampleJson::text(text.to_owned()),
                None => SampleJson::List(result.content.iter().map(chat_block).collect()),
            };
            self.push_message(
                Role::Tool,
                vec![Part::ToolResult(result)],
                vec![("role", SampleJson::text("tool")), ("tool_call_id", SampleJson::text(id)), ("content", content)],
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

fn chat_block(part: &Part<'_>) -> SampleJson {
    let Some(image) = image_of(part) else { return text_block("text", part) };
    SampleJson::Object(vec![
        ("type", SampleJson::text("image_url")),
        ("image_url", SampleJson::Object(vec![("url", image.url())])),
    ])
}
