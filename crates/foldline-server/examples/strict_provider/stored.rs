//! Items that the provider stored: a client of the Responses API may send a reference in place of an item.

use std::borrow::Cow;
use std::collections::HashMap;

use foldline::wire::Format;
use serde_json::{Value, json};

/// Items of responses by their ids.
#[derive(Default)]
pub(crate) struct StoredItems(HashMap<String, Value>);

impl StoredItems {
    /// Stores the items of a response.
    pub(crate) fn keep(&mut self, response: &Value) {
        for item in response["output"].as_array().into_iter().flatten() {
            self.0.insert(item["id"].as_str().unwrap_or_default().to_owned(), item.clone());
        }
    }

    /// Returns the body with every reference replaced by its item.
    pub(crate) fn resolve<'b>(&self, format: Format, body: &'b [u8]) -> Result<Cow<'b, [u8]>, String> {
        if format != Format::OpenAiResponses {
            return Ok(Cow::Borrowed(body));
        }
        let Ok(mut parsed) = serde_json::from_slice::<Value>(body) else { return Ok(Cow::Borrowed(body)) };
        let mut has_references = false;
        for item in parsed["input"].as_array_mut().into_iter().flatten() {
            if item["type"] == "item_reference" {
                has_references = true;
                let id = item["id"].as_str().unwrap_or_default();
                let stored = self.0.get(id).ok_or_else(|| format!("Item with id '{id}' not found."))?;
                *item = stored.clone();
            }
        }
        match has_references {
            // The references are resolved on the server, which counts as a stored request.
            true => {
                parsed["store"] = json!(true);
                Ok(Cow::Owned(parsed.to_string().into_bytes()))
            }
            false => Ok(Cow::Borrowed(body)),
        }
    }
}
