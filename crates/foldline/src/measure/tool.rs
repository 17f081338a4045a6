//! What the declaration of a tool costs.

use serde_json::Value;

use super::{Meter, Tokens};
use crate::conversation::Tool;

/// The tokens of a declaration in the form in which OpenAI shows functions to its models (C8.1): name and
/// description, then a line for every property. What that form does not describe (nested schemas,
/// hosted tools) is counted as the JSON it is, which is more.
pub(super) fn tokens(tool: &Tool<'_>, meter: &Meter) -> Tokens {
    let whole = meter.text(&tool.definition);
    let listed = match serde_json::from_str::<Value>(&tool.definition) {
        Ok(definition) => as_function(&definition, meter),
        Err(_) => None,
    };
    listed.unwrap_or(whole)
}

fn as_function(definition: &Value, meter: &Meter) -> Option<Tokens> {
    let function = definition.get("function").unwrap_or(definition);
    let name = function.get("name")?.as_str()?;
    let description = function.get("description").and_then(Value::as_str).unwrap_or_default();
    let mut tokens = 7 + meter.text(&format!("{name}:{description}"));
    let properties = function.get("parameters").and_then(|parameters| parameters.get("properties"));
    if let Some(properties) = properties.and_then(Value::as_object).filter(|properties| !properties.is_empty()) {
        tokens += 3;
        for (key, schema) in properties {
            tokens += 3 + property(key, schema, meter);
        }
    }
    Some(tokens)
}

fn property(key: &str, schema: &Value, meter: &Meter) -> Tokens {
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
