//! Samples of Gemini.

use crate::conversation::{Message, Part, Role};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    IMAGE_URL, SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, TOOL_DESCRIPTION,
    image_of, tool_schema,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::Gemini,
    write: |writer, turns| writer.write_gemini(turns),
    tool_declaration: |name| {
        SampleJson::Object(vec![
            ("name", SampleJson::text(name)),
            ("description", SampleJson::text(TOOL_DESCRIPTION)),
            ("parametersJsonSchema", tool_schema()),
        ])
    },
    tools_parent: None,
    has_free_text_tools: false,
    has_images_in_results: false,
    marks_failed_results: true,
};

/// The content that is written now. Roles alternate, so that turns of one role are one content.
struct OpenContent {
    role: Role,
    parts: Vec<Part<'static>>,
    json: Vec<SampleJson>,
}

impl OpenContent {
    fn push(&mut self, part: Part<'static>, json: JsonFields) {
        self.parts.push(part);
        self.json.push(SampleJson::Object(json));
    }

    fn push_text(&mut self, text: &str) {
        self.push(Part::text(text.to_owned()), vec![("text", SampleJson::text(text.to_owned()))]);
    }
}

impl SampleWriter<'_> {
    pub(crate) fn write_gemini(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let (model, signs) =
            [("gemini-2.5-pro", false), ("gemini-3-pro-preview", true), ("gemini-3.8-flash", true)][self.setting.model];
        let mut open = OpenContent { role: Role::User, parts: Vec::new(), json: Vec::new() };
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    self.open_content(&mut open, Role::User);
                    texts.iter().for_each(|text| open.push_text(text));
                    if let Some(image) = image.map(SampleImage::part) {
                        let json = image_json(&image);
                        open.push(image, json);
                    }
                }
                SampleTurn::Round(round) => self.write_gemini_round(round, signs, &mut open),
            }
        }
        self.close_content(open);
        let mut rest: JsonFields = vec![("generationConfig", SampleJson::raw(r#"{"maxOutputTokens":4096}"#))];
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            let part = SampleJson::Object(vec![("text", SampleJson::text(text.clone()))]);
            rest.push(("systemInstruction", SampleJson::Object(vec![("parts", SampleJson::List(vec![part]))])));
        }
        let sample = self.finish(&SAMPLES, model, system, rest);
        // The functions are in one object of the list of tools.
        SampleRequest { body: wrap_tools(&sample), ..sample }
    }

    fn write_gemini_round(&mut self, round: &SampleRound, signs: bool, open: &mut OpenContent) {
        self.open_content(open, Role::Assistant);
        if let Some(text) = &round.reasoning {
            let json = vec![("text", SampleJson::text(text.clone())), ("thought", SampleJson::raw("true"))];
            open.push(Part::reasoning(text.clone()), json);
        }
        if let Some(text) = &round.text {
            open.push_text(text);
        }
        let mut ids = Vec::new();
        for (index, call) in round.calls.iter().enumerate() {
            let id = self.next_id("fc-");
            let mut part = call.part(&id, &SAMPLES, &mut self.quirks);
            let Part::ToolCall(tool_call) = &mut part else { continue };
            let function = vec![
                ("id", SampleJson::text(id.clone())),
                ("name", SampleJson::text(tool_call.name.clone())),
                ("args", SampleJson::raw(tool_call.arguments.as_str())),
            ];
            let mut json = vec![("functionCall", SampleJson::Object(function))];
            // Of parallel calls only the first is signed.
            if signs && index == 0 {
                let signature = self.next_id("CiQB");
                tool_call.signature = Some(signature.as_str().into());
                json.push(("thoughtSignature", SampleJson::text(signature)));
            }
            open.push(part, json);
            ids.push(id);
        }
        if round.calls.is_empty() {
            return;
        }
        self.open_content(open, Role::User);
        for (call, id) in self.results_in_order(round, &ids) {
            let mut result = call.tool_result(&id, &SAMPLES);
            // The output is one string, in an object without other fields.
            let text = result.texts().next().unwrap_or_default().to_owned();
            let key = if result.is_error { "error" } else { "output" };
            let output = self.quirks.write(&SampleJson::text(text.clone()));
            let response = SampleJson::Raw(format!(r#"{{"{key}":{output}}}"#));
            result.content = vec![Part::text(text)];
            let name = round.calls.iter().zip(&ids).find(|(_, other)| **other == id).map(|(call, _)| call.name());
            let json = vec![
                ("id", SampleJson::text(id)),
                ("name", SampleJson::text(name.unwrap_or_default())),
                ("response", response),
            ];
            open.push(Part::ToolResult(result), vec![("functionResponse", SampleJson::Object(json))]);
        }
        if let Some(text) = &round.user_remark {
            open.push_text(text);
        }
    }

    /// Continues the open content, or closes it and opens one with another role.
    fn open_content(&mut self, open: &mut OpenContent, role: Role) {
        if open.role != role {
            let next = OpenContent { role, parts: Vec::new(), json: Vec::new() };
            self.close_content(std::mem::replace(open, next));
        }
    }

    fn close_content(&mut self, content: OpenContent) {
        if content.parts.is_empty() {
            return;
        }
        let name = if content.role == Role::Assistant { "model" } else { "user" };
        self.messages.push(Message::new(content.role, content.parts));
        self.json.push(SampleJson::Object(vec![
            ("role", SampleJson::text(name)),
            ("parts", SampleJson::List(content.json)),
        ]));
    }
}

fn image_json(image: &Part<'_>) -> JsonFields {
    match image_of(image) {
        Some(SampleImage::Inline) => {
            let Part::Image(part) = image else { return Vec::new() };
            let crate::conversation::MediaSource::Base64(data) = &part.source else { return Vec::new() };
            let fields =
                vec![("mimeType", SampleJson::text("image/png")), ("data", SampleJson::text(data.to_string()))];
            vec![("inlineData", SampleJson::Object(fields))]
        }
        _ => {
            let fields = vec![("mimeType", SampleJson::text("image/png")), ("fileUri", SampleJson::text(IMAGE_URL))];
            vec![("fileData", SampleJson::Object(fields))]
        }
    }
}

/// Returns the body with its list of functions inside a tool.
fn wrap_tools(sample: &SampleRequest) -> String {
    let (Some(first), Some(last)) = (sample.conversation.tools.first(), sample.conversation.tools.last()) else {
        return sample.body.clone();
    };
    let start = sample.body.find(&*first.definition).and_then(|at| sample.body[..at].rfind('['));
    let after_last = sample.body.find(&*last.definition).map(|at| at + last.definition.len());
    let end = after_last.and_then(|at| sample.body[at..].find(']').map(|offset| at + offset + 1));
    match (start, end) {
        (Some(start), Some(end)) => {
            let (before, list, after) = (&sample.body[..start], &sample.body[start..end], &sample.body[end..]);
            format!(r#"{before}[{{"functionDeclarations":{list}}}]{after}"#)
        }
        _ => sample.body.clone(),
    }
}
