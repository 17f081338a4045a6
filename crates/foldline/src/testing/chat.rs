//! Samples of OpenAI Chat Completions.

use super::json::{Fields, Json};
use super::{Picture, Round, Sample, Turn, Writing, picture_of, text_piece};
use crate::conversation::{Arguments, Part, Role};
use crate::wire::Format;

impl Writing<'_> {
    pub(super) fn chat(mut self, turns: &[Turn]) -> Sample {
        let (model, reasons) = [("gpt-4o", false), ("deepseek-reasoner", true), ("gpt-5.2", false)][self.setting.model];
        let (role, name) = match model {
            "gpt-5.2" => (Role::Developer, "developer"),
            _ => (Role::System, "system"),
        };
        if let Some(text) = &self.setting.system {
            let content = match self.setting.system_as_list {
                false => Json::text(text.clone()),
                true => Json::List(vec![chat_piece(&Part::text(text.clone()))]),
            };
            self.say(role, vec![Part::text(text.clone())], vec![("role", Json::text(name)), ("content", content)]);
        }
        for turn in turns {
            match turn {
                Turn::User { texts, image } => {
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(Picture::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => Json::text(text.clone()),
                        _ => Json::List(parts.iter().map(chat_piece).collect()),
                    };
                    self.say(Role::User, parts, vec![("role", Json::text("user")), ("content", content)]);
                }
                Turn::Round(round) => {
                    if let Some(note) = &round.note {
                        let json = vec![("role", Json::text(name)), ("content", Json::text(note.clone()))];
                        self.say(role, vec![Part::text(note.clone())], json);
                    }
                    self.chat_round(round, reasons);
                }
            }
        }
        self.sample(Format::OpenAiChat, model, Vec::new(), vec![("stream", Json::raw("true"))])
    }

    fn chat_round(&mut self, round: &Round, reasons: bool) {
        let mut parts = Vec::new();
        let mut json: Fields = vec![("role", Json::text("assistant"))];
        if reasons {
            // Those who give their reasoning want it back with every call.
            let text = round.reasoning.clone().unwrap_or_default();
            json.push(("reasoning_content", Json::text(text.clone())));
            parts.push(Part::reasoning(text));
        }
        match &round.text {
            Some(text) => {
                json.push(("content", Json::text(text.clone())));
                parts.push(Part::text(text.clone()));
            }
            None => json.push(("content", Json::raw("null"))),
        }
        let mut ids = Vec::new();
        let mut calls = Vec::new();
        for call in &round.calls {
            let id = self.fresh("call_");
            let part = call.part(&id, Format::OpenAiChat, &mut self.quirks);
            if let Part::ToolCall(it) = &part {
                let (kind, key) = match it.arguments {
                    Arguments::Json(_) => ("function", "arguments"),
                    Arguments::Text(_) => ("custom", "input"),
                };
                let what =
                    vec![("name", Json::text(it.name.clone())), (key, Json::text(it.arguments.as_str().to_owned()))];
                calls.push(Json::Object(vec![
                    ("id", Json::text(id.clone())),
                    ("type", Json::text(kind)),
                    (kind, Json::Object(what)),
                ]));
            }
            parts.push(part);
            ids.push(id);
        }
        if !calls.is_empty() {
            json.push(("tool_calls", Json::List(calls)));
        }
        self.say(Role::Assistant, parts, json);
        for (call, id) in self.answers(round, &ids) {
            let answer = call.answer(&id, Format::OpenAiChat);
            let content = match answer.only_text() {
                Some(text) => Json::text(text.to_owned()),
                None => Json::List(answer.content.iter().map(chat_piece).collect()),
            };
            self.say(
                Role::Tool,
                vec![Part::ToolResult(answer)],
                vec![("role", Json::text("tool")), ("tool_call_id", Json::text(id)), ("content", content)],
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

fn chat_piece(part: &Part<'_>) -> Json {
    let Some(picture) = picture_of(part) else { return text_piece("text", part) };
    Json::Object(vec![("type", Json::text("image_url")), ("image_url", Json::Object(vec![("url", picture.url())]))])
}
