//! Samples of OpenAI Responses.

use super::json::{Fields, Json};
use super::{Picture, Round, Sample, Turn, Writing, picture_of, text_piece};
use crate::conversation::{Arguments, Message, Opaque, Part, Reasoning, Role};
use crate::wire::Format;

impl Writing<'_> {
    pub(super) fn responses(mut self, turns: &[Turn]) -> Sample {
        let model = ["gpt-4.1", "gpt-5.5", "gpt-5.6"][self.setting.model];
        for turn in turns {
            match turn {
                Turn::User { texts, image } => {
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(Picture::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => Json::text(text.clone()),
                        _ => Json::List(parts.iter().map(responses_piece).collect()),
                    };
                    let mut json = vec![("role", Json::text("user")), ("content", content)];
                    if self.setting.with_ids {
                        json.insert(0, ("type", Json::text("message")));
                    }
                    self.say(Role::User, parts, json);
                }
                Turn::Round(round) => {
                    if let Some(note) = &round.note {
                        let json = vec![("role", Json::text("developer")), ("content", Json::text(note.clone()))];
                        self.say(Role::Developer, vec![Part::text(note.clone())], json);
                    }
                    self.responses_round(round, model != "gpt-4.1");
                }
            }
        }
        let mut rest: Fields = vec![("store", Json::raw("false"))];
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            rest.push(("instructions", Json::text(text.clone())));
        }
        self.sample(Format::OpenAiResponses, model, system, rest)
    }

    /// An item of the model, with the id that the server gave it if the client sends such.
    fn item(&mut self, kind: &'static str, prefix: &str, part: Part<'static>, fields: Fields) {
        let mut json = vec![("type", Json::text(kind))];
        if self.setting.with_ids {
            let id = self.fresh(prefix);
            json.push(("id", Json::text(id)));
        }
        json.extend(fields);
        self.say(Role::Assistant, vec![part], json);
    }

    fn responses_round(&mut self, round: &Round, reasons: bool) {
        if let Some(text) = round.reasoning.as_ref().filter(|_| reasons) {
            let seal = self.fresh("gAAAAAB");
            let summary = Json::Object(vec![("type", Json::text("summary_text")), ("text", Json::text(text.clone()))]);
            let part = Part::Reasoning(Reasoning { text: text.clone().into(), seal: Some(seal.clone().into()) });
            let fields = vec![("summary", Json::List(vec![summary])), ("encrypted_content", Json::text(seal))];
            self.item("reasoning", "rs_", part, fields);
        }
        if round.searches {
            let id = self.fresh("ws_");
            let raw = self.quirks.write(&Json::Object(vec![
                ("type", Json::text("web_search_call")),
                ("id", Json::text(id.clone())),
                ("status", Json::text("completed")),
                ("action", Json::raw(r#"{"type":"search","query":"q"}"#)),
            ]));
            let part = Opaque { kind: "web_search_call".into(), pair: Some(id.into()), raw: raw.clone().into() };
            self.messages.push(Message::new(Role::Assistant, vec![Part::Opaque(part)]));
            self.json.push(Json::Raw(raw));
        }
        if let Some(text) = &round.text {
            let piece = vec![
                ("type", Json::text("output_text")),
                ("text", Json::text(text.clone())),
                ("annotations", Json::List(Vec::new())),
            ];
            let fields = vec![
                ("role", Json::text("assistant")),
                ("content", Json::List(vec![Json::Object(piece)])),
                ("status", Json::text("completed")),
            ];
            self.item("message", "msg_", Part::text(text.clone()), fields);
        }
        let mut ids = Vec::new();
        for call in &round.calls {
            let id = self.fresh("call_");
            let part = call.part(&id, Format::OpenAiResponses, &mut self.quirks);
            if let Part::ToolCall(it) = &part {
                let (kind, prefix, key) = match it.arguments {
                    Arguments::Json(_) => ("function_call", "fc_", "arguments"),
                    Arguments::Text(_) => ("custom_tool_call", "ctc_", "input"),
                };
                let fields = vec![
                    ("call_id", Json::text(id.clone())),
                    ("name", Json::text(it.name.clone())),
                    (key, Json::text(it.arguments.as_str().to_owned())),
                ];
                self.item(kind, prefix, part, fields);
            }
            ids.push(id);
        }
        for (call, id) in self.answers(round, &ids) {
            let kind = match call.is_free_text(Format::OpenAiResponses) {
                false => "function_call_output",
                true => "custom_tool_call_output",
            };
            let answer = call.answer(&id, Format::OpenAiResponses);
            let output = match answer.only_text() {
                Some(text) => Json::text(text.to_owned()),
                None => Json::List(answer.content.iter().map(responses_piece).collect()),
            };
            self.say(
                Role::Tool,
                vec![Part::ToolResult(answer)],
                vec![("type", Json::text(kind)), ("call_id", Json::text(id)), ("output", output)],
            );
        }
        if let Some(text) = round.remark.as_ref().filter(|_| !round.calls.is_empty()) {
            self.say(
                Role::User,
                vec![Part::text(text.clone())],
                vec![("role", Json::text("user")), ("content", Json::text(text.clone()))],
            );
        }
    }
}

fn responses_piece(part: &Part<'_>) -> Json {
    let Some(picture) = picture_of(part) else { return text_piece("input_text", part) };
    Json::Object(vec![("type", Json::text("input_image")), ("image_url", picture.url())])
}
