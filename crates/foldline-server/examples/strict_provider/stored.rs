//! History that the provider stores: items of responses, to which a client of the Responses API may refer, and message
//! threads, of which a client of the Anthropic API sends the new messages only.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use foldline::wire::Format;
use serde_json::{Value, json};

use crate::validate::without_cache_control;

/// Fields that a thread keeps from the request which created it; Claude Code sends them again, libraries do not.
const INHERITED_FIELDS: [&str; 2] = ["system", "tools"];

/// Stored items and threads.
#[derive(Default)]
pub(crate) struct StoredHistory {
    /// Items of responses by their ids.
    items: HashMap<String, Value>,
    /// Requests with their responses appended, by the ids of the responses.
    threads: HashMap<String, Value>,
    /// Ids of responses that were continued; each may be continued once.
    continued: HashSet<String>,
}

impl StoredHistory {
    /// Stores what a later request may refer to.
    pub(crate) fn keep(&mut self, format: Format, body: &[u8], response: &Value) {
        for item in response["output"].as_array().into_iter().flatten() {
            self.items.insert(item["id"].as_str().unwrap_or_default().to_owned(), item.clone());
        }
        let Some(thread) = thread_of(format, body) else { return };
        let Some(mut request) = self.resolve(format, body).ok().and_then(|body| serde_json::from_slice(&body).ok())
        else {
            return;
        };
        push_messages(&mut request, &[json!({ "role": "assistant", "content": response["content"] })]);
        self.threads.insert(response["id"].as_str().unwrap_or_default().to_owned(), request);
        self.continued.extend(thread["previous_message_id"].as_str().map(str::to_owned));
    }

    /// Returns the body with the stored history in it.
    ///
    /// # Errors
    ///
    /// The history is not stored, or was continued before.
    pub(crate) fn resolve<'b>(&self, format: Format, body: &'b [u8]) -> Result<Cow<'b, [u8]>, String> {
        match (format, thread_of(format, body)) {
            (Format::OpenAiResponses, _) => self.with_items(body),
            (_, Some(thread)) => self.with_thread(&thread, body),
            _ => Ok(Cow::Borrowed(body)),
        }
    }

    fn with_items<'b>(&self, body: &'b [u8]) -> Result<Cow<'b, [u8]>, String> {
        let Ok(mut parsed) = serde_json::from_slice::<Value>(body) else { return Ok(Cow::Borrowed(body)) };
        let mut has_references = false;
        for item in parsed["input"].as_array_mut().into_iter().flatten() {
            if item["type"] == "item_reference" {
                has_references = true;
                let id = item["id"].as_str().unwrap_or_default();
                let stored = self.items.get(id).ok_or_else(|| format!("Item with id '{id}' not found."))?;
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

    fn with_thread<'b>(&self, thread: &Value, body: &'b [u8]) -> Result<Cow<'b, [u8]>, String> {
        let mut request: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if let Some(fields) = request.as_object_mut() {
            fields.remove("thread");
        }
        if thread["type"] == "continue" {
            let id = thread["previous_message_id"].as_str().unwrap_or_default();
            let stored =
                self.threads.get(id).ok_or("No thread state was found for the requested previous_message_id")?;
            if self.continued.contains(id) {
                return Err("The requested `previous_message_id` has already been continued.".to_owned());
            }
            let new = request["messages"].take();
            // Cache marks apply to one request.
            request["messages"] = without_cache_control(&stored["messages"]);
            push_messages(&mut request, new.as_array().map_or(&[], Vec::as_slice));
            for field in INHERITED_FIELDS.into_iter().filter(|field| stored.get(field).is_some()) {
                request[field] = stored[field].clone();
            }
        }
        Ok(Cow::Owned(request.to_string().into_bytes()))
    }
}

/// Returns the field that makes a request part of a message thread.
fn thread_of(format: Format, body: &[u8]) -> Option<Value> {
    if format != Format::Anthropic {
        return None;
    }
    let mut body: Value = serde_json::from_slice(body).ok()?;
    Some(body["thread"].take()).filter(Value::is_object)
}

fn push_messages(request: &mut Value, messages: &[Value]) {
    if let Some(list) = request["messages"].as_array_mut() {
        list.extend_from_slice(messages);
    }
}
