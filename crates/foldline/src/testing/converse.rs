//! Samples of Converse.

use crate::conversation::{MediaSource, Message, Part, ReasoningPart, Role, ToolResult};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, TOOL_DESCRIPTION, tool_schema,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::Converse,
    write: |writer, turns| writer.write_converse(turns),
    tool_declaration: |name| {
        let spec = vec![
            ("name", SampleJson::text(name)),
            ("description", SampleJson::text(TOOL_DESCRIPTION)),
            ("inputSchema", SampleJson::Object(vec![("json", tool_schema())])),
        ];
        SampleJson::Object(vec![("toolSpec", SampleJson::Object(spec))])
    },
    tools_parent: Some("toolConfig"),
    has_free_text_tools: false,
    has_images_in_results: false,
    marks_failed_results: true,
};

/// The message that is written now. Roles alternate, so that turns of one role are one message.
struct OpenMessage {
    role: Role,
    parts: Vec<Part<'static>>,
    json: Vec<SampleJson>,
}

impl OpenMessage {
    fn push(&mut self, part: Part<'static>, json: JsonFields) {
        self.parts.push(part);
        self.json.push(SampleJson::Object(json));
    }

    fn push_text(&mut self, text: &str) {
        self.push(Part::text(text.to_owned()), vec![("text", SampleJson::text(text.to_owned()))]);
    }
}

impl SampleWriter<'_> {
    pub(crate) fn write_converse(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let (model, reasons) = [
            ("amazon.nova-pro-v1:0", false),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", true),
            ("openai.gpt-oss-120b-1:0", false),
        ][self.setting.model];
        let mut open = OpenMessage { role: Role::User, parts: Vec::new(), json: Vec::new() };
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    self.open_message(&mut open, Role::User);
                    texts.iter().for_each(|text| open.push_text(text));
                    if image.is_some() {
                        open.push(SampleImage::Inline.part(), vec![("image", image_json())]);
                    }
                    // A mark between blocks is not a part.
                    open.json.push(SampleJson::raw(r#"{"cachePoint":{"type":"default"}}"#));
                }
                SampleTurn::Round(round) => self.write_converse_round(round, reasons, &mut open),
            }
        }
        self.close_message(open);
        let mut rest: JsonFields = vec![("inferenceConfig", SampleJson::raw(r#"{"maxTokens":4096}"#))];
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            let block = SampleJson::Object(vec![("text", SampleJson::text(text.clone()))]);
            rest.push(("system", SampleJson::List(vec![block])));
        }
        self.finish(&SAMPLES, model, system, rest)
    }

    fn write_converse_round(&mut self, round: &SampleRound, reasons: bool, open: &mut OpenMessage) {
        self.open_message(open, Role::Assistant);
        if let Some(text) = round.reasoning.as_ref().filter(|_| reasons) {
            let signature = self.next_id("sig");
            let fields =
                vec![("text", SampleJson::text(text.clone())), ("signature", SampleJson::text(signature.clone()))];
            let json = SampleJson::Object(vec![("reasoningText", SampleJson::Object(fields))]);
            let part = ReasoningPart { text: text.clone().into(), seal: Some(signature.into()), redacted: false };
            open.push(Part::Reasoning(part), vec![("reasoningContent", json)]);
        }
        if let Some(text) = &round.text {
            open.push_text(text);
        }
        let mut ids = Vec::new();
        for call in &round.calls {
            let id = self.next_id("tooluse_");
            let part = call.part(&id, &SAMPLES, &mut self.quirks);
            let Part::ToolCall(tool_call) = &part else { continue };
            let fields = vec![
                ("toolUseId", SampleJson::text(id.clone())),
                ("name", SampleJson::text(tool_call.name.clone())),
                ("input", SampleJson::raw(tool_call.arguments.as_str())),
            ];
            open.push(part, vec![("toolUse", SampleJson::Object(fields))]);
            ids.push(id);
        }
        if round.calls.is_empty() {
            return;
        }
        self.open_message(open, Role::User);
        for (call, id) in self.results_in_order(round, &ids) {
            let result = call.tool_result(&id, &SAMPLES);
            let json = result_json(&result);
            open.push(Part::ToolResult(result), vec![("toolResult", json)]);
        }
        if let Some(text) = &round.user_remark {
            open.push_text(text);
        }
    }

    /// Continues the open message, or closes it and opens one with another role.
    fn open_message(&mut self, open: &mut OpenMessage, role: Role) {
        if open.role != role {
            let next = OpenMessage { role, parts: Vec::new(), json: Vec::new() };
            self.close_message(std::mem::replace(open, next));
        }
    }

    fn close_message(&mut self, message: OpenMessage) {
        if message.parts.is_empty() {
            return;
        }
        let name = if message.role == Role::Assistant { "assistant" } else { "user" };
        self.messages.push(Message::new(message.role, message.parts));
        self.json.push(SampleJson::Object(vec![
            ("role", SampleJson::text(name)),
            ("content", SampleJson::List(message.json)),
        ]));
    }
}

fn result_json(result: &ToolResult<'_>) -> SampleJson {
    let text = |text: &str| SampleJson::Object(vec![("text", SampleJson::text(text.to_owned()))]);
    let mut fields = vec![
        ("toolUseId", SampleJson::text(result.call_id.to_string())),
        ("content", SampleJson::List(result.texts().map(text).collect())),
    ];
    if result.is_error {
        fields.push(("status", SampleJson::text("error")));
    }
    SampleJson::Object(fields)
}

fn image_json() -> SampleJson {
    let Part::Image(image) = SampleImage::Inline.part() else { return SampleJson::raw("null") };
    let MediaSource::Base64(data) = image.source else { return SampleJson::raw("null") };
    let source = SampleJson::Object(vec![("bytes", SampleJson::text(data.to_string()))]);
    SampleJson::Object(vec![("format", SampleJson::text("png")), ("source", source)])
}
