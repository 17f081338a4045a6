//! `foldline demo`: the main job with nothing to set up.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline::wire::{Format, Request};
use foldline::{Meter, ModelTable};
use serde_json::json;

use super::{print, show};
use crate::environment::Look;
use crate::picture;

/// Watch a built-in agent outgrow its window, and see what fills it
///
/// A scripted agent looks for a bug: it lists, reads, searches, edits and tests, and sends its whole
/// conversation again at every step. The demo shows how its requests grow beyond a small window, and then
/// what `foldline show` says about the last of them. Nothing is sent anywhere.
#[derive(Args)]
pub(crate) struct Demo {}

/// Tokens that the demo's small model can take.
const WINDOW: u64 = 8_000;
/// The model by whose vocabulary the demo counts.
const MODEL: &str = "gpt-4o";

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let look = Look::of_stdout();
        let body = serde_json::to_string(&session())?;
        let request = Request::parse(Format::OpenAiChat, body.as_bytes())?;
        let conversation = request.conversation();
        let meter = Meter::for_model(ModelTable::builtin(), Some(MODEL));

        print(&format!("An agent looks for a bug, with a window of {} tokens.\n\n", picture::number(WINDOW)))?;
        let mut sent = meter.tools(&conversation.tools) + meter.request();
        let mut from = 0;
        for (step, &point) in conversation.request_points().iter().enumerate() {
            sent += conversation.messages[from..point].iter().map(|message| meter.message(message)).sum::<u64>();
            from = point;
            print(&picture::fill(&format!("request {:>2}", step + 1), sent, WINDOW, look))?;
        }
        print("\nFrom there on the provider refuses it. What fills the window:\n\n")?;
        let mut survey = show::survey("the agent's last request", Format::OpenAiChat.name(), conversation, &meter, 4);
        survey.sessions.iter_mut().for_each(|session| session.window = WINDOW);
        print(&picture::draw(&survey, look))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What the agent does, step by step: a tool, its arguments, what it gave back.
fn script() -> Vec<(&'static str, serde_json::Value, String)> {
    let read = |path: &str, from: usize| ("read_file", json!({ "path": path }), source(path, from));
    vec![
        ("list_files", json!({"path": "src"}), listing()),
        ("run", json!({"command": "cargo test"}), tests("empty_list ... FAILED")),
        read("src/parser.rs", 0),
        read("src/lexer.rs", 40),
        ("search", json!({"pattern": "fn parse_list"}), "src/parser.rs:12:fn parse_list(tokens: &[Token])".into()),
        read("src/parser.rs", 0),
        (
            "edit_file",
            json!({"path": "src/parser.rs", "old": "if tokens.len() > 1", "new": "if !tokens.is_empty()"}),
            "ok".into(),
        ),
        ("run", json!({"command": "cargo test"}), tests("empty_list ... FAILED")),
        read("src/lexer.rs", 40),
        read("src/parser.rs", 1),
        ("edit_file", json!({"path": "src/lexer.rs", "old": "skip(2)", "new": "skip(1)"}), "ok".into()),
        ("run", json!({"command": "cargo test"}), tests("empty_list ... ok")),
    ]
}

/// The request body of the agent after its last step.
fn session() -> serde_json::Value {
    let mut messages = vec![
        json!({"role": "system", "content": "You are a careful programmer. Look before you edit; test after it."}),
        json!({"role": "user", "content": "The parser rejects empty lists. Find out why and mend it."}),
    ];
    for (step, (tool, arguments, result)) in script().into_iter().enumerate() {
        let id = format!("call_{step}");
        let call =
            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let tools: Vec<_> = ["list_files", "read_file", "search", "edit_file", "run"].map(tool).into();
    json!({"model": MODEL, "tools": tools, "messages": messages})
}

/// A file as a tool lists it, with the lines numbered.
fn source(path: &str, from: usize) -> String {
    let rule = |line: usize| match line % 4 {
        0 => format!("fn rule_{line}(tokens: &[Token]) -> Result<Node, ParseError> {{"),
        1 => format!("    let (head, rest) = split(tokens, {line}).ok_or(ParseError::Empty({line}))?;"),
        2 => format!("    Node::build(head, rule_{}(rest)?)", line + 2),
        _ => "}".to_owned(),
    };
    let lines = (from..from + 60).enumerate().map(|(at, line)| format!("{:>4}→{}\n", at + 1, rule(line)));
    format!("// {path}\n") + &lines.collect::<String>()
}

fn listing() -> String {
    (0..40).map(|number| format!("src/rules/rule_{number}.rs\n")).collect::<String>() + "src/lexer.rs\nsrc/parser.rs\n"
}

fn tests(last: &str) -> String {
    let passed = (0..50).map(|number| format!("test rules::rule_{number}_reads_its_own_output ... ok\n"));
    format!("running 51 tests\n{}test lists::{last}\n", passed.collect::<String>())
}
