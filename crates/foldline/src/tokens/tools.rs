//! Token costs of tool declarations.
//!
//! Most models receive the JSON of a declaration. OpenAI rewrites functions into a shorter form, whose cost is
//! published (C8.1).

use serde_json::Value;

use crate::conversation::ToolDefinition;
use crate::tokens::Tokens;
use crate::tokens::text_meter::TextMeter;

/// Returns the tokens of a declaration.
pub(crate) fn tool_tokens(tool: &ToolDefinition<'_>, meter: &TextMeter) -> Tokens {
    if meter.row().provider != "openai" {
        return meter.text(&tool.definition);
    }
    meter.cached(&tool.definition, || {
        let definition = serde_json::from_str(&tool.definition).ok();
        let function = definition.and_then(|definition: Value| function_tokens(&definition, meter));
        function.unwrap_or_else(|| meter.text(&tool.definition))
    })
}

/// Returns the tokens in OpenAI's form: name and description, then a line per property. Nested schemas and hosted
/// tools, which that form does not cover, are counted as JSON, which is more.
fn function_tokens(definition: &Value, meter: &TextMeter) -> Option<Tokens> {
    let function = definition.get("function").unwrap_or(definition);
    let name = function.get("name")?.as_str()?;
    let description = function.get("description").and_then(Value::as_str).unwrap_or_default();
    let parameters = function.get("parameters")?;
    let mut tokens = 7 + meter.text(&format!("{name}:{description}"));
    let properties = parameters.get("properties");
    if let Some(properties) = properties.and_then(Value::as_object).filter(|properties| !properties.is_empty()) {
        tokens += 3;
        for (key, schema) in properties {
            tokens += 3 + property_tokens(key, schema, meter);
        }
    }
    Some(tokens)
}

fn property_tokens(key: &str, schema: &Value, meter: &TextMeter) -> Tokens {
    let text = |name: &str| schema.get(name).and_then(Value::as_str);
    let Some(kind) = text("type").filter(|kind| !matches!(*kind, "object" | "array")) else {
        return meter.text(key) + meter.text(&schema.to_string());
    };
    let description = text("description").unwrap_or_default();
    let line = meter.text(&format!("{key}:{kind}:{description}"));
    let choices = schema.get("enum").and_then(Value::as_array).map_or(0, |choices| {
        choices.iter().map(|choice| 3 + meter.text(choice.as_str().unwrap_or(&choice.to_string()))).sum()
    });
    line + choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelTable;
    use crate::tokens::Meter;

    fn meter(model: &str) -> Meter {
        Meter::for_model(ModelTable::builtin(), Some(model))
    }

    fn tool(definition: &'static str) -> ToolDefinition<'static> {
        ToolDefinition { name: "t".into(), definition: definition.into() }
    }

    const WEATHER: &str = r#"{"type":"function","function":{"name":"get_current_weather",
        "description":"Get the current weather in a given location","parameters":{"type":"object","properties":{
        "location":{"type":"string","description":"The city and state, e.g. San Francisco, CA"},
        "unit":{"type":"string","description":"The unit of temperature to return","enum":["celsius","fahrenheit"]}},
        "required":["location"]}}}"#;

    /// The published example of this function, with a system and a user message, is 101 tokens on GPT-4o.
    #[test]
    fn function_cost_matches_openai_example() {
        let meter = meter("gpt-4o");
        let system = "You are a helpful assistant that can answer to questions about the weather.";
        let messages = meter.text(system)
            + meter.text("What's the weather like in San Francisco?")
            + 2 * 3
            + meter.request_overhead();
        let all = messages + meter.tools(&[tool(WEATHER)]);
        assert!(all.abs_diff(101) <= 4, "{all}");
    }

    #[test]
    fn other_models_count_the_json() {
        let claude = meter("claude-opus-4-6");
        let definition = r#"{"name":"read","description":"Reads a file.","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}"#;
        assert_eq!(tool_tokens(&tool(definition), claude.texts()), claude.text(definition));
        assert!(claude.tools(&[tool(definition)]) > 497 + claude.text(definition));
        assert_eq!(claude.tools(&[]), 0);
    }

    /// Nested schemas, hosted tools and invalid ones cost their JSON and are never free.
    #[test]
    fn unsupported_schemas_are_counted_as_json() {
        let meter = meter("gpt-5");
        let nested = r#"{"name":"edit","parameters":{"properties":{"edits":{"type":"array","items":{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"}}}}}}}"#;
        assert!(tool_tokens(&tool(nested), meter.texts()) > 25);
        for definition in [
            r#"{"type":"web_search"}"#,
            "{broken",
            r#"{"name":"custom","format":{"type":"grammar","definition":"start: WORD"}}"#,
        ] {
            assert_eq!(tool_tokens(&tool(definition), meter.texts()), meter.text(definition));
        }
    }
}
