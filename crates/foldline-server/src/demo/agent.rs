//! The scripted agent: a simple loop over HTTP that sends its whole conversation with every request, as agents do, and
//! runs the tools that the model calls.

use bytes::Bytes;
use foldline::wire::{Format, StreamReader};
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::demo::constants::{DEMO_MODEL, DemoError, MAX_OUTPUT_TOKENS};
use crate::demo::script;
use crate::demo::script::{SYSTEM_PROMPT, TASK_TEXT, run_tool, tool_definitions};

pub(crate) struct ScriptedAgent {
    base_url: String,
    client: Client<HttpConnector, Full<Bytes>>,
    messages: Vec<Value>,
    test_runs: usize,
}

/// The outcome of a turn.
pub(crate) enum TurnOutcome {
    /// The model called a tool.
    Continued,
    /// The model is finished.
    Done,
    /// The provider refused the request.
    Refused { status: StatusCode, message: String },
}

impl ScriptedAgent {
    /// Creates an agent with this base URL.
    pub(crate) fn new(base_url: String) -> Self {
        let messages = vec![
            json!({ "role": "system", "content": SYSTEM_PROMPT }),
            json!({ "role": "user", "content": TASK_TEXT }),
        ];
        Self { base_url, client: Client::builder(TokioExecutor::new()).build_http(), messages, test_runs: 0 }
    }

    /// Returns true if the agent sent this text: as a message, a tool result, or a tool argument.
    pub(crate) fn has_sent(&self, text: &[u8]) -> bool {
        let matches = |value: &Value| value.as_str().is_some_and(|sent| sent.as_bytes() == text);
        self.messages.iter().any(|message| {
            let mut calls = message["tool_calls"].as_array().into_iter().flatten();
            matches(&message["content"])
                || calls.any(|call| {
                    let arguments = &call["function"]["arguments"];
                    let fields: Value =
                        arguments.as_str().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
                    matches(arguments) || fields.as_object().is_some_and(|fields| fields.values().any(matches))
                })
        })
    }

    /// Returns true if the model wrote the file back byte for byte.
    pub(crate) fn has_restored_file(&self) -> bool {
        self.messages.iter().any(|message| message["content"].as_str().is_some_and(script::is_restored))
    }

    pub(crate) async fn run_turn(&mut self) -> Result<TurnOutcome, DemoError> {
        let body = json!({ "model": DEMO_MODEL, "max_completion_tokens": MAX_OUTPUT_TOKENS, "stream": true,
            "stream_options": { "include_usage": true }, "tools": tool_definitions(), "messages": self.messages });
        let request =
            Request::post(format!("{}/chat/completions", self.base_url)).header(CONTENT_TYPE, "application/json");
        let response = self.client.request(request.body(Full::new(body.to_string().into()))?).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            let error: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let message = error["error"]["message"].as_str().unwrap_or("no error message").to_owned();
            return Ok(TurnOutcome::Refused { status, message });
        }
        let mut reader = StreamReader::new(Format::OpenAiChat);
        reader.push(&bytes);
        let response = reader.finish();
        let calls: Vec<(String, String, String)> = response
            .calls()
            .map(|call| (call.id.to_string(), call.name.to_string(), call.arguments.as_str().to_owned()))
            .collect();
        let mut reply = json!({ "role": "assistant", "content": response.text() });
        if calls.is_empty() {
            self.messages.push(reply);
            return Ok(TurnOutcome::Done);
        }
        reply["tool_calls"] = calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
            })
            .collect();
        self.messages.push(reply);
        for (id, name, arguments) in calls {
            if !["list_files", "read_file", "search", "edit_file", "write_file", "run"].contains(&name.as_str()) {
                return Err(format!("the model called {name}, which is not a tool of the agent").into());
            }
            let result = run_tool(&name, &serde_json::from_str(&arguments)?, &mut self.test_runs);
            self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": result }));
        }
        Ok(TurnOutcome::Continued)
    }
}
