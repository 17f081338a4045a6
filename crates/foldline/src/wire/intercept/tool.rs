//! Injects foldline's tool after the client's, where that is safe.
//!
//! Tools are at the start of a provider's cached prefix. An injected tool must therefore be present from the first
//! request of a conversation on, always last and always with the same bytes, so the decision depends only on properties
//! that do not change from turn to turn.

use crate::conversation::ToolDefinition;
use crate::wire::compose::ToolSpec;
use crate::wire::format::Format;
use crate::wire::json::scan::JsonValue;
use crate::wire::json::splice::RequestEdit;
use crate::wire::request::Request;

/// The tool that foldline injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedTool<'a> {
    /// The name in the model's calls.
    pub name: &'a str,
    /// The description for the model.
    pub description: &'a str,
    /// The JSON schema of its arguments.
    pub schema: &'a str,
}

impl<'a> From<InjectedTool<'a>> for ToolSpec<'a> {
    /// Converts the tool for a request that the caller composes.
    fn from(tool: InjectedTool<'a>) -> Self {
        Self { name: tool.name, description: tool.description, parameters: tool.schema }
    }
}

/// Maximum number of tools that OpenAI accepts (C4.2).
const MAX_OPENAI_TOOLS: usize = 128;

impl InjectedTool<'_> {
    /// Returns the declaration of the tool as JSON of a dialect.
    pub fn declaration(&self, format: Format) -> String {
        (format.dialect().intercept.tool_declaration)(self)
    }

    /// Returns the edit that injects the tool into a request. Returns `None` where it would do harm: without client
    /// tools, next to one of the same name, or where an answer could not be split.
    pub fn append_edit(&self, request: &Request<'_>) -> Option<RequestEdit> {
        let tools = &request.conversation().tools;
        let is_taken = tools.iter().any(|tool| tool.name == self.name);
        // Tools without a name run at the provider, and some models do not mix them with others.
        let only_hosted = tools.iter().all(|tool| tool.name.is_empty());
        let choices = [&["n"][..], &["generationConfig", "candidateCount"]];
        let several = choices.iter().any(|path| request.top_level().u64(path).is_some_and(|choices| choices > 1));
        // A background response is fetched later, by a path on which hidden calls are not removed.
        let is_background = request.top_level().get("background").and_then(JsonValue::bool).unwrap_or(false);
        // A chain of responses sends its tools with every request, and had the tool injected in the first. In other
        // forms of provider-held history it is unknown whether it was injected.
        let has_unknown_history = request.is_continuation() && request.previous_response_id().is_none();
        let unsafe_to_inject = is_taken
            || only_hosted
            || several
            || is_background
            || has_unknown_history
            || tools.len() >= MAX_OPENAI_TOOLS;
        (!unsafe_to_inject).then(|| RequestEdit::AppendTool { json: self.declaration(request.format()) })
    }
}

impl Request<'_> {
    /// Returns the request with the tool injected after the client's, where that is safe. From then on it is one of the
    /// request's tools, and every splice writes it.
    pub fn with_injected_tool(mut self, offer: &InjectedTool<'_>) -> Self {
        if let Some(edit) = offer.append_edit(&self) {
            let definition = offer.declaration(self.format());
            let tool = ToolDefinition { name: offer.name.to_owned().into(), definition: definition.into() };
            self.inject_tool(tool, edit);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNFOLD_TOOL: InjectedTool<'static> =
        InjectedTool { name: "unfold", description: "Gives it back.", schema: r#"{"type":"object"}"# };

    fn with_tool(format: Format, body: &str) -> Option<String> {
        let request = Request::parse(format, body.as_bytes()).unwrap();
        let body = request.splice(&[UNFOLD_TOOL.append_edit(&request)?]).unwrap();
        Some(String::from_utf8(body.into_owned()).unwrap())
    }

    #[test]
    fn injected_tool_is_last_and_nothing_else_changes() {
        let body = r#"{"messages":[], "tools":[ {"name":"a","input_schema":{}} ],"x":1}"#;
        let tool = r#"{"name":"unfold","description":"Gives it back.","input_schema":{"type":"object"}}"#;
        let with = with_tool(Format::Anthropic, body).unwrap();
        assert!(with.contains(tool) && with.replace(tool, "").len() <= body.len() + 1, "{with}");
    }

    /// A request with an injected tool equals the request parsed from its bytes.
    #[test]
    fn injected_tool_is_part_of_the_request() {
        for (format, body) in [
            (Format::Anthropic, r#"{"messages":[],"tools":[{"name":"a","input_schema":{}}]}"#),
            (Format::OpenAiChat, r#"{"tools":[{"type":"function","function":{"name":"a"}}],"messages":[]}"#),
            (Format::OpenAiResponses, r#"{"input":[],"tools":[{"type":"function","name":"a"}]}"#),
        ] {
            let request = Request::parse(format, body.as_bytes()).unwrap();
            let spliced = request.splice(&[UNFOLD_TOOL.append_edit(&request).unwrap()]).unwrap();
            let offering = request.with_injected_tool(&UNFOLD_TOOL);
            assert!(offering.has_injected_tool());
            assert_eq!(offering.splice(&[]).unwrap(), spliced);
            let read = Request::parse(format, &spliced).unwrap();
            assert_eq!(offering.conversation(), read.conversation());
            assert!(!read.with_injected_tool(&UNFOLD_TOOL).has_injected_tool(), "injected twice");
        }
    }

    #[test]
    fn tool_is_not_injected_where_unsafe() {
        for body in [
            r#"{"messages":[]}"#,
            r#"{"messages":[],"tools":[]}"#,
            r#"{"messages":[],"tools":[{"type":"function","function":{"name":"unfold"}}]}"#,
            r#"{"messages":[],"n":2,"tools":[{"type":"function","function":{"name":"a"}}]}"#,
        ] {
            assert_eq!(with_tool(Format::OpenAiChat, body), None, "{body}");
        }
        for body in [
            r#"{"input":[],"tools":[{"type":"web_search"}]}"#,
            r#"{"input":[],"background":true,"tools":[{"type":"function","name":"a"}]}"#,
            r#"{"input":[],"conversation":"c","tools":[{"type":"function","name":"a"}]}"#,
        ] {
            assert_eq!(with_tool(Format::OpenAiResponses, body), None, "{body}");
        }
        for body in [
            r#"{"input":"hi","tools":[{"type":"function","name":"a"}]}"#,
            r#"{"input":[],"previous_response_id":"r","tools":[{"type":"function","name":"a"}]}"#,
        ] {
            assert!(
                with_tool(Format::OpenAiResponses, body).is_some(),
                "a chain is offered it from its first word on: {body}"
            );
        }
    }
}
