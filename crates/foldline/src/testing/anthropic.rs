//! Samples of Anthropic Messages.

use crate::conversation::{ImagePart, MediaSource, OpaqueBlock, Part, ReasoningPart, Role};
use crate::testing::json::{JsonFields, SampleJson};
use crate::testing::sample::{
    IMAGE_URL, SampleDialect, SampleImage, SampleRequest, SampleRound, SampleTurn, SampleWriter, TOOL_DESCRIPTION,
    text_block, tool_schema,
};
use crate::wire::Format;

pub(crate) static SAMPLES: SampleDialect = SampleDialect {
    format: Format::Anthropic,
    write: |writer, turns| writer.write_anthropic(turns),
    tool_declaration: |name| {
        SampleJson::Object(vec![
            ("name", SampleJson::text(name)),
            ("description", SampleJson::text(TOOL_DESCRIPTION)),
            ("input_schema", tool_schema()),
        ])
    },
    tools_parent: None,
    has_free_text_tools: false,
    has_images_in_results: true,
    marks_failed_results: true,
};

impl SampleWriter<'_> {
    pub(crate) fn write_anthropic(mut self, turns: &[SampleTurn]) -> SampleRequest {
        let (model, mode) =
            [("claude-opus-4-1", None), ("claude-opus-4-8", Some("adaptive")), ("claude-sonnet-4-5", Some("enabled"))]
                [self.setting.model];
        let mut needs_thinking = false;
        for turn in turns {
            match turn {
                SampleTurn::User { texts, image } => {
                    // In manual mode a turn begins with thinking.
                    needs_thinking = mode == Some("enabled");
                    let mut parts: Vec<_> = texts.iter().map(|text| Part::text(text.clone())).collect();
                    parts.extend(image.map(SampleImage::part));
                    let content = match parts.as_slice() {
                        [Part::Text { text }] => SampleJson::text(text.clone()),
                        _ => SampleJson::List(parts.iter().map(anthropic_block).collect()),
                    };
                    self.push_message(
                        Role::User,
                        parts,
                        vec![("role", SampleJson::text("user")), ("content", content)],
                    );
                }
                SampleTurn::Round(round) => {
                    let after_user = self.messages.last().is_some_and(|message| message.role == Role::User);
                    if let Some(note) = round.instruction.as_ref().filter(|_| after_user && model == "claude-opus-4-8")
                    {
                        let json =
                            vec![("role", SampleJson::text("system")), ("content", SampleJson::text(note.clone()))];
                        self.push_message(Role::System, vec![Part::text(note.clone())], json);
                    }
                    let thought = round.reasoning.clone().filter(|_| mode.is_some());
                    self.write_anthropic_round(round, thought.or_else(|| needs_thinking.then(|| "hm".into())));
                    needs_thinking = false;
                }
            }
        }
        let mut rest: JsonFields = vec![("max_tokens", SampleJson::raw("4096"))];
        match mode {
            Some("enabled") => rest.push(("thinking", SampleJson::raw(r#"{"type":"enabled","budget_tokens":2048}"#))),
            Some(mode) => rest.push(("thinking", SampleJson::Object(vec![("type", SampleJson::text(mode))]))),
            None => {}
        }
        let mut system = Vec::new();
        if let Some(text) = &self.setting.system {
            system.push(Part::text(text.clone()));
            rest.push((
                "system",
                match self.setting.system_as_list {
                    false => SampleJson::text(text.clone()),
                    true => SampleJson::List(vec![SampleJson::Object(vec![
                        ("type", SampleJson::text("text")),
                        ("text", SampleJson::text(text.clone())),
                        ("cache_control", SampleJson::raw(r#"{"type":"ephemeral","ttl":"1h"}"#)),
                    ])]),
                },
            ));
        }
        self.finish(&SAMPLES, model, system, rest)
    }

    fn write_anthropic_round(&mut self, round: &SampleRound, thought: Option<String>) {
        let mut parts = Vec::new();
        let mut content = Vec::new();
        if let Some(text) = thought {
            let seal = self.next_id("EqQBCkYIBRgC");
            content.push(SampleJson::Object(vec![
                ("type", SampleJson::text("thinking")),
                ("thinking", SampleJson::text(text.clone())),
                ("signature", SampleJson::text(seal.clone())),
            ]));
            parts.push(Part::Reasoning(ReasoningPart { text: text.into(), seal: Some(seal.into()), redacted: false }));
        }
        if round.has_web_search {
            let id = self.next_id("srvtoolu_");
            let call_block = vec![
                ("type", SampleJson::text("server_tool_use")),
                ("id", SampleJson::text(id.clone())),
                ("name", SampleJson::text("web_search")),
                ("input", SampleJson::raw(r#"{"query":"q"}"#)),
            ];
            let result_block = vec![
                ("type", SampleJson::text("web_search_tool_result")),
                ("tool_use_id", SampleJson::text(id.clone())),
                ("content", SampleJson::raw(r#"[{"type":"web_search_result","encrypted_content":"Eo8C"}]"#)),
            ];
            for block in [call_block, result_block] {
                let Some((_, SampleJson::Text(kind))) = block.first() else { continue };
                let kind = kind.clone();
                let raw = self.quirks.write(&SampleJson::Object(block));
                content.push(SampleJson::Raw(raw.clone()));
                parts.push(Part::Opaque(OpaqueBlock { kind, pair: Some(id.clone().into()), raw: raw.into() }));
            }
        }
        if let Some(text) = &round.text {
            content.push(anthropic_block(&Part::text(text.clone())));
            parts.push(Part::text(text.clone()));
        }
        let mut ids = Vec::new();
        for call in &round.calls {
            let id = self.next_id("toolu_0");
            let part = call.part(&id, &SAMPLES, &mut self.quirks);
            if let Part::ToolCall(tool_call) = &part {
                content.push(SampleJson::Object(vec![
                    ("type", SampleJson::text("tool_use")),
                    ("id", SampleJson::text(id.clone())),
                    ("name", SampleJson::text(tool_call.name.clone())),
                    ("input", SampleJson::raw(tool_call.arguments.as_str())),
                ]));
            }
            parts.push(part);
            ids.push(id);
        }
        self.push_message(
            Role::Assistant,
            parts,
            vec![("role", SampleJson::text("assistant")), ("content", SampleJson::List(content))],
        );
        if round.calls.is_empty() {
            return;
        }
        let mut parts = Vec::new();
        let mut content = Vec::new();
        for (call, id) in self.results_in_order(round, &ids) {
            let result = call.tool_result(&id, &SAMPLES);
            let result_content = match result.only_text() {
                Some(text) => SampleJson::text(text.to_owned()),
                None => SampleJson::List(result.content.iter().map(anthropic_block).collect()),
            };
            let mut block = vec![("type", SampleJson::text("tool_result")), ("tool_use_id", SampleJson::text(id))];
            block.push(("content", result_content));
            if result.is_error {
                block.push(("is_error", SampleJson::raw("true")));
            }
            content.push(SampleJson::Object(block));
            parts.push(Part::ToolResult(result));
        }
        if let Some(text) = &round.user_remark {
            content.push(anthropic_block(&Part::text(text.clone())));
            parts.push(Part::text(text.clone()));
        }
        self.push_message(
            Role::User,
            parts,
            vec![("role", SampleJson::text("user")), ("content", SampleJson::List(content))],
        );
    }
}

fn anthropic_block(part: &Part<'_>) -> SampleJson {
    let Part::Image(ImagePart { source, .. }) = part else { return text_block("text", part) };
    let source = match source {
        MediaSource::Base64(data) => vec![
            ("type", SampleJson::text("base64")),
            ("media_type", SampleJson::text("image/png")),
            ("data", SampleJson::text(data.to_string())),
        ],
        _ => vec![("type", SampleJson::text("url")), ("url", SampleJson::text(IMAGE_URL))],
    };
    SampleJson::Object(vec![("type", SampleJson::text("image")), ("source", SampleJson::Object(source))])
}
