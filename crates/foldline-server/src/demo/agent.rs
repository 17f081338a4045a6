//! The agent's side: a simple loop over HTTP that sends its whole conversation at every turn, as agents
//! do, and performs what the model asks for.

use bytes::Bytes;
use foldline::wire::{Format, StreamReader};
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::demo::script;
use crate::demo::script::{SYSTEM_PROMPT, TASK_TEXT, run_tool, tool_definitions};
use crate::demo::{DEMO_MODEL, DemoError, MAX_OUTPUT_TOKENS};

pub(crate) struct ScriptedAgent {
    base_url: String,
    client: Client<HttpConnector, Full<Bytes>>,
    messages: Vec<Value>,
    test_runs: usize,
}

/// What a turn came to.
pub(crate) enum TurnOutcome {
    /// The model wants to go on.
    Continued,
    /// The model is done.
    Done,
    /// The provider refused the request.
    Refused { status: StatusCode, message: String },
}

impl ScriptedAgent {
    /// An agent whose base URL is this.
    pub(crate) fn new(base: String) -> Self {
        let messages = vec![
            json!({ "role": "system", "content": SYSTEM_PROMPT }),
            json!({ "role": "user", "content": TASK_TEXT }),
        ];
        Self { base_url: base, client: Client::builder(TokioExecutor::new()).build_http(), messages, test_runs: 0 }
    }

    /// Whether a text is one that it sent: what was said, what a tool gave back, or what a tool was given.
    pub(crate) fn has_sent(&self, text: &[u8]) -> bool {
        let is = |value: &Value| value.as_str().is_some_and(|it| it.as_bytes() == text);
        self.messages.iter().any(|message| {
            let mut calls = message["tool_calls"].as_array().into_iter().flatten();
            is(&message["content"])
                || calls.any(|call| {
                    let arguments = &call["function"]["arguments"];
                    let given: Value =
                        arguments.as_str().and_then(|it| serde_json::from_str(it).ok()).unwrap_or_default();
                    is(arguments) || given.as_object().is_some_and(|given| given.values().any(is))
                })
        })
    }

    /// Whether what was written back is what it was.
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
            let message = error["error"]["message"].as_str().unwrap_or("no reason was given").to_owned();
            return Ok(TurnOutcome::Refused { status, message });
        }
        let mut reader = StreamReader::new(Format::OpenAiChat);
        reader.push(&bytes);
        let answer = reader.finish();
        let calls: Vec<(String, String, String)> = answer
            .calls()
            .map(|call| (call.id.to_string(), call.name.to_string(), call.arguments.as_str().to_owned()))
            .collect();
        let mut said = json!({ "role": "assistant", "content": answer.text() });
        if calls.is_empty() {
            self.messages.push(said);
            return Ok(TurnOutcome::Done);
        }
        said["tool_calls"] = calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
            })
            .collect();
        self.messages.push(said);
        for (id, name, arguments) in calls {
            if !["list_files", "read_file", "search", "edit_file", "write_file", "run"].contains(&name.as_str()) {
                return Err(format!("the model called {name}, which is no tool of the agent's").into());
            }
            let result = run_tool(&name, &serde_json::from_str(&arguments)?, &mut self.test_runs);
            self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": result }));
        }
        Ok(TurnOutcome::Continued)
    }
}
