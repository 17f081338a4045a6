//! `foldline demo`: the main job with nothing to set up.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline::wire::{Format, Request};

use super::print;
use crate::environment::Look;

/// Watch a built-in agent outgrow its window.
#[derive(Args)]
pub(crate) struct Demo {}

/// Bytes of text that the demo's small model can take.
const WINDOW: usize = 24_000;

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let body = session(12)?;
        let request = Request::parse(Format::OpenAiChat, body.as_bytes())?;
        let conversation = request.conversation();
        let points = conversation.request_points();
        let mut text = format!("An agent sends everything again at every step; its window holds {WINDOW} bytes.\n\n");
        let (mut sent, mut from) = (0, 0);
        for (step, &point) in points.iter().enumerate() {
            sent += (from..point).filter_map(|at| request.raw_message(at)).map(str::len).sum::<usize>();
            from = point;
            let bar = "#".repeat(sent * Look::of_stdout().width.saturating_sub(30) / (2 * WINDOW));
            let verdict = if sent > WINDOW { " too long" } else { "" };
            writeln!(text, "request {:>2} {sent:>7} {bar}{verdict}", step + 1)?;
        }
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The request body of an agent that looks for a bug, after so many rounds.
fn session(rounds: usize) -> Result<String> {
    let mut messages = vec![
        serde_json::json!({"role": "system", "content": "You are a careful programmer. Use the tools."}),
        serde_json::json!({"role": "user", "content": "The parser rejects empty lists. Find out why and mend it."}),
    ];
    for round in 0..rounds {
        let id = format!("call_{round}");
        let path = format!("src/parser_{}.rs", round % 5);
        let arguments = serde_json::to_string(&serde_json::json!({ "path": path }))?;
        messages.push(serde_json::json!({"role": "assistant", "content": format!("Let me look at {path}."),
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}}]}));
        messages.push(serde_json::json!({"role": "tool", "tool_call_id": id, "content": source(round % 5)}));
    }
    Ok(serde_json::to_string(&serde_json::json!({"model": "demo", "messages": messages}))?)
}

/// A file that the agent reads.
fn source(number: usize) -> String {
    (0..40).map(|line| format!("{line:>4}  fn rule_{number}_{line}(tokens: &[Token]) -> Result<Node> {{\n")).collect()
}
