//! A complete agent: a model over HTTP, two tools, and a conversation that stays inside its window.
//!
//! ```text
//! cargo run -p foldline-summarize --example tiny_agent -- https://api.openai.com gpt-4o "What does this project do?"
//! cargo run -p foldline-summarize --example tiny_agent
//! ```
//!
//! The key is read from `OPENAI_API_KEY`. Without arguments a scripted server on loopback is the model.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use foldline_summarize::foldline::conversation::{OwnedMessage, ToolCall};
use foldline_summarize::foldline::wire::{Format, ToolSpec};
use foldline_summarize::foldline::{FoldSession, Message, Part, Role};
use foldline_summarize::{HttpModel, LanguageModel, ModelEndpoint, ModelRequest};
use serde_json::{Value, json};

/// Tokens that a request may have.
const BUDGET_TOKENS: u64 = 6_000;
/// Maximum number of calls to the model.
const MAX_STEPS: usize = 60;

const READ_FILE_TOOL: ToolSpec<'static> = ToolSpec {
    name: "read_file",
    description: "Returns the text of a file.",
    parameters: r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#,
};

/// The agent: a model and a conversation.
struct TinyAgent {
    model: HttpModel,
    session: FoldSession,
}

impl TinyAgent {
    /// Runs until the model answers without calling a tool.
    async fn run(&mut self, task: &str) -> Result<String, Box<dyn std::error::Error>> {
        self.session.push(Message::text(Role::User, task.to_owned()));
        for _ in 0..MAX_STEPS {
            self.session.plan_request()?;
            let messages: Vec<OwnedMessage> = self.session.rendered_messages(0).collect();
            let request = ModelRequest {
                system: "You answer questions about files.",
                messages: &messages,
                tools: &[READ_FILE_TOOL, FoldSession::UNFOLD_TOOL.into()],
                max_output: 1_000,
            };
            let response = self.model.complete(&request).await?;
            if response.calls.is_empty() {
                return Ok(response.text);
            }
            let mut parts = Vec::new();
            if !response.text.trim().is_empty() {
                parts.push(Part::text(response.text));
            }
            parts.extend(response.calls.iter().cloned().map(Part::ToolCall));
            self.session.push(Message::new(Role::Assistant, parts));
            for call in response.calls {
                let result = self.run_tool(&call);
                self.session.push(Message::new(Role::Tool, vec![Part::result(call.id, result)]));
            }
        }
        Err("the model did not finish".into())
    }

    fn run_tool(&self, call: &ToolCall<'_>) -> String {
        match &*call.name {
            "unfold" => self.session.answer_unfold(call.arguments.as_str()),
            "read_file" => {
                let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
                let path = arguments["path"].as_str().unwrap_or_default();
                std::fs::read_to_string(path).unwrap_or_else(|error| format!("could not read {path:?}: {error}"))
            }
            other => format!("There is no tool {other}."),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (base_url, model, task) = match arguments.as_slice() {
        [] => (start_scripted_server()?, "gpt-4o".to_owned(), "Read the manifest many times.".to_owned()),
        [base_url, model, task] => (base_url.clone(), model.clone(), task.clone()),
        _ => return Err("usage: tiny_agent [SERVER MODEL TASK]".into()),
    };
    let api_key = std::env::var("OPENAI_API_KEY").ok();
    let endpoint =
        ModelEndpoint { format: Format::OpenAiChat, base_url, model: model.clone(), api_key, headers: Vec::new() };
    let session = FoldSession::for_model(&model, BUDGET_TOKENS);
    let mut agent = TinyAgent { model: HttpModel::new(endpoint)?, session };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}", runtime.block_on(agent.run(&task))?);
    println!("{} tokens in the last request instead of {}", agent.session.tokens(), agent.session.raw_tokens());
    Ok(())
}

/// Starts a model that reads a file in each of 40 steps and then answers. Returns its address.
fn start_scripted_server() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        let mut steps = 0;
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            while let Some(body) = read_request(&mut reader) {
                // No request is larger than the budget, whatever was read before.
                assert!(body.len() < BUDGET_TOKENS as usize * 6, "{} bytes", body.len());
                steps += 1;
                let call = json!({ "id": format!("c{steps}"), "type": "function", "function": {
                    "name": "read_file", "arguments": json!({ "path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml") }).to_string(),
                } });
                let message = match steps {
                    1..=40 => json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
                    _ => json!({ "role": "assistant", "content": format!("Read it {} times.", steps - 1) }),
                };
                let body = json!({ "model": "gpt-4o", "choices": [{ "index": 0, "message": message }] }).to_string();
                if respond(reader.get_mut(), &body).is_err() {
                    break;
                }
            }
        }
    });
    Ok(address)
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn respond(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")?;
    stream.flush()
}
