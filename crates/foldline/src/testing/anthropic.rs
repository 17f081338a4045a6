//! Samples of Anthropic Messages.

use super::json::{Fields, Json};
use super::{LINK, Picture, Round, Sample, Turn, Writing, text_piece};
use crate::conversation::{Image, Opaque, Part, Reasoning, Role, Source};
use crate::wire::Format;

impl Writing<'_> {
    pub(super) fn anthropic(mut self, turns: &[Turn]) -> Sample {
        let (model, mode) =
            [("claude-opus-4-1", None), ("claude-opus-4-8", Some("adaptive")), ("claude-sonnet-4-5", Some("enabled"))]
                [self.setting.model];
        let mut thinks = false;
        for turn in turns {
            match turn {
                Turn::User { texts, image } => {
                    // In manual mode a turn begins with thinking.
                    thinks = mode == Some("enabled");
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(Picture::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => Json::text(text.clone()),
                        _ => Json::List(parts.iter().map(anthropic_piece).collect()),
                    };
                    self.say(Role::User, parts, vec![("role", Json::text("user")), ("content", content)]);
                }
                Turn::Round(round) => {
                    let after_user = self.messages.last().is_some_and(|message| message.role == Role::User);
                    if let Some(note) = round.note.as_ref().filter(|_| after_user && model == "claude-opus-4-8") {
                        let json = vec![("role", Json::text("system")), ("content", Json::text(note.clone()))];
                        self.say(Role::System, vec![Part::text(note.clone())], json);
                    }
                    let thought = round.reasoning.clone().filter(|_| mode.is_some());
                    self.anthropic_round(round, thought.or_else(|| thinks.then(|| "hm".into())));
                    thinks = false;
                }
            }
        }
        let mut rest: Fields = vec![("max_tokens", Json::raw("4096"))];
        match mode {
            Some("enabled") => rest.push(("thinking", Json::raw(r#"{"type":"enabled","budget_tokens":2048}"#))),
            Some(mode) => rest.push(("thinking", Json::Object(vec![("type", Json::text(mode))]))),
            None => {}
        }
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            rest.push((
                "system",
                match self.setting.system_as_list {
                    false => Json::text(text.clone()),
                    true => Json::List(vec![Json::Object(vec![
                        ("type", Json::text("text")),
                        ("text", Json::text(text.clone())),
                        ("cache_control", Json::raw(r#"{"type":"ephemeral","ttl":"1h"}"#)),
                    ])]),
                },
            ));
        }
        self.sample(Format::Anthropic, model, system, rest)
    }

    fn anthropic_round(&mut self, round: &Round, thought: Option<String>) {
        let mut parts = Vec::new();
        let mut content = Vec::new();
        if let Some(text) = thought {
            let seal = self.fresh("EqQBCkYIBRgC");
            content.push(Json::Object(vec![
                ("type", Json::text("thinking")),
                ("thinking", Json::text(text.clone())),
                ("signature", Json::text(seal.clone())),
            ]));
            parts.push(Part::Reasoning(Reasoning { text: text.into(), seal: Some(seal.into()) }));
        }
        if round.searches {
            let id = self.fresh("srvtoolu_");
            let called = vec![
                ("type", Json::text("server_tool_use")),
                ("id", Json::text(id.clone())),
                ("name", Json::text("web_search")),
                ("input", Json::raw(r#"{"query":"q"}"#)),
            ];
            let found = vec![
                ("type", Json::text("web_search_tool_result")),
                ("tool_use_id", Json::text(id.clone())),
                ("content", Json::raw(r#"[{"type":"web_search_result","encrypted_content":"Eo8C"}]"#)),
            ];
            for block in [called, found] {
                let Some((_, Json::Text(kind))) = block.first() else { continue };
                let kind = kind.clone();
                let raw = self.quirks.write(&Json::Object(block));
                content.push(Json::Raw(raw.clone()));
                parts.push(Part::Opaque(Opaque { kind, pair: Some(id.clone().into()), raw: raw.into() }));
            }
        }
        if let Some(text) = &round.text {
            content.push(anthropic_piece(&Part::text(text.clone())));
            parts.push(Part::text(text.clone()));
        }
        let mut ids = Vec::new();
        for call in &round.calls {
            let id = self.fresh("toolu_0");
            let part = call.part(&id, Format::Anthropic, &mut self.quirks);
            if let Part::ToolCall(it) = &part {
                content.push(Json::Object(vec![
                    ("type", Json::text("tool_use")),
                    ("id", Json::text(id.clone())),
                    ("name", Json::text(it.name.clone())),
                    ("input", Json::raw(it.arguments.as_str())),
                ]));
            }
            parts.push(part);
            ids.push(id);
        }
        self.say(Role::Assistant, parts, vec![("role", Json::text("assistant")), ("content", Json::List(content))]);
        if round.calls.is_empty() {
            return;
        }
        let mut parts = Vec::new();
        let mut content = Vec::new();
        for (call, id) in self.answers(round, &ids) {
            let answer = call.answer(&id, Format::Anthropic);
            let pieces = match answer.only_text() {
                Some(text) => Json::text(text.to_owned()),
                None => Json::List(answer.content.iter().map(anthropic_piece).collect()),
            };
            let mut block = vec![("type", Json::text("tool_result")), ("tool_use_id", Json::text(id))];
            block.push(("content", pieces));
            if answer.is_error {
                block.push(("is_error", Json::raw("true")));
            }
            content.push(Json::Object(block));
            parts.push(Part::ToolResult(answer));
        }
        if let Some(text) = &round.remark {
            content.push(anthropic_piece(&Part::text(text.clone())));
            parts.push(Part::text(text.clone()));
        }
        self.say(Role::User, parts, vec![("role", Json::text("user")), ("content", Json::List(content))]);
    }
}

fn anthropic_piece(part: &Part<'_>) -> Json {
    let Part::Image(Image { source, .. }) = part else { return text_piece("text", part) };
    let source = match source {
        Source::Base64(data) => vec![
            ("type", Json::text("base64")),
            ("media_type", Json::text("image/png")),
            ("data", Json::text(data.to_string())),
        ],
        _ => vec![("type", Json::text("url")), ("url", Json::text(LINK))],
    };
    Json::Object(vec![("type", Json::text("image")), ("source", Json::Object(source))])
}
