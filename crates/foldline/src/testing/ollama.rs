//! Samples of Ollama.

use crate::conversation::{Part, Role};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, TOOL_DESCRIPTION, tool_schema,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::Ollama,
    write: |writer, turns| writer.write_ollama(turns),
    tool_declaration: |name| {
        let function = vec![
            ("name", SampleJson::text(name)),
            ("description", SampleJson::text(TOOL_DESCRIPTION)),
            ("parameters", tool_schema()),
        ];
        SampleJson::Object(vec![("type", SampleJson::text("function")), ("function", SampleJson::Object(function))])
    },
    tools_parent: None,
    has_free_text_tools: false,
    has_images_in_results: false,
    marks_failed_results: false,
};

impl SampleWriter<'_> {
    pub(crate) fn write_ollama(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let (model, reasons) = [("llama3.1:8b", false), ("qwen3:8b", true), ("gpt-oss:20b", true)][self.setting.model];
        if let Some(text) = &self.setting.system {
            let json = vec![("role", SampleJson::text("system")), ("content", SampleJson::text(text.clone()))];
            self.push_message(Role::System, vec![Part::text(text.clone())], json);
        }
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    let text = texts.join("\n");
                    let mut json =
                        vec![("role", SampleJson::text("user")), ("content", SampleJson::text(text.clone()))];
                    let mut parts = vec![Part::text(text)];
                    if image.is_some() {
                        let image = SampleImage::Inline.part();
                        json.push(("images", SampleJson::List(vec![image_json(&image)])));
                        parts.push(image);
                    }
                    self.push_message(Role::User, parts, json);
                }
                SampleTurn::Round(round) => self.write_ollama_round(round, reasons),
            }
        }
        let rest: JsonFields = vec![
            ("options", SampleJson::raw(r#"{"num_ctx":32768,"num_predict":4096}"#)),
            ("keep_alive", SampleJson::raw("\"5m\"")),
        ];
        self.finish(&SAMPLES, model, Vec::new(), rest)
    }

    fn write_ollama_round(&mut self, round: &SampleRound, reasons: bool) {
        let mut parts = Vec::new();
        let mut json: JsonFields = vec![("role", SampleJson::text("assistant"))];
        if let Some(text) = round.reasoning.as_ref().filter(|_| reasons) {
            json.push(("thinking", SampleJson::text(text.clone())));
            parts.push(Part::reasoning(text.clone()));
        }
        if let Some(text) = &round.text {
            json.push(("content", SampleJson::text(text.clone())));
            parts.push(Part::text(text.clone()));
        }
        let mut ids = Vec::new();
        let mut calls = Vec::new();
        for call in &round.calls {
            let id = self.next_id("call_");
            let part = call.part(&id, &SAMPLES, &mut self.quirks);
            if let Part::ToolCall(tool_call) = &part {
                let function = vec![
                    ("name", SampleJson::text(tool_call.name.clone())),
                    ("arguments", SampleJson::raw(tool_call.arguments.as_str())),
                ];
                calls.push(SampleJson::Object(vec![
                    ("id", SampleJson::text(id.clone())),
                    ("function", SampleJson::Object(function)),
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
            let mut result = call.tool_result(&id, &SAMPLES);
            let text = result.texts().collect::<Vec<_>>().join("\n");
            result.content = vec![Part::text(text.clone())];
            let json = vec![
                ("role", SampleJson::text("tool")),
                ("tool_name", SampleJson::text(call.name())),
                ("tool_call_id", SampleJson::text(id)),
                ("content", SampleJson::text(text)),
            ];
            self.push_message(Role::Tool, vec![Part::ToolResult(result)], json);
        }
        if let Some(text) = round.user_remark.as_ref().filter(|_| !round.calls.is_empty()) {
            let json = vec![("role", SampleJson::text("user")), ("content", SampleJson::text(text.clone()))];
            self.push_message(Role::User, vec![Part::text(text.clone())], json);
        }
    }
}

fn image_json(image: &Part<'_>) -> SampleJson {
    let Part::Image(part) = image else { return SampleJson::raw("null") };
    let crate::conversation::MediaSource::Base64(data) = &part.source else { return SampleJson::raw("null") };
    SampleJson::text(data.to_string())
}
