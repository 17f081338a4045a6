//! Engines in other processes: `replay --engine CMD`.
//!
//! The process speaks the lines of `foldline pipe` on its standard input and output, in Chat
//! Completions messages. It serves one conversation after the other, each begun by `open`; as many
//! processes run as conversations are replayed at a time. What it writes to its standard error is
//! the user's to read.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use foldline::Handle;
use foldline::wire::{Format, Request};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::chat::chat;
use crate::engine::{Delta, Engine, Maker, Refusal, Setup, Shared};

/// An engine in other processes, started by a shell command.
pub struct External {
    name: String,
    command: String,
    idle: Idle,
}

type Idle = Arc<Mutex<Vec<Process>>>;

struct Process {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl External {
    /// An engine that this command starts. Nothing is started yet.
    pub fn new(command: impl Into<String>) -> Self {
        let command = command.into();
        Self { name: command.clone(), command, idle: Idle::default() }
    }

    /// The same under another name in tables.
    pub fn called(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    fn start(&self) -> Result<Process, Refusal> {
        let started = Command::new("sh")
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Refusal::Broken(format!("`{}` did not start: {error}", self.command)))?;
        let mut child = started;
        let input = BufWriter::new(child.stdin.take().expect("its input is piped"));
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        Ok(Process { child, input, output })
    }
}

impl Maker for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let waiting = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = match waiting {
            Some(process) => process,
            None => self.start()?,
        };
        let tools: Vec<&RawValue> = setup
            .tools
            .iter()
            .map(|tool| serde_json::from_str(&tool.definition))
            .collect::<Result<_, _>>()
            .map_err(|error| Refusal::Broken(format!("a tool of the recording is not JSON: {error}")))?;
        let mut open = json!({
            "op": "open",
            "format": Format::OpenAiChat.name(),
            "budget": setup.budget,
            "prices": { "read": setup.prices.read, "write": setup.prices.write, "output": setup.prices.output },
        });
        if let Some(model) = &setup.model {
            open["model"] = model.as_str().into();
        }
        if !tools.is_empty() {
            open["tools"] = json!(tools);
        }
        process.send(&open)?;
        Ok(Box::new(Remote { process: Some(process), idle: Arc::clone(&self.idle) }))
    }
}

impl Process {
    fn send(&mut self, line: &serde_json::Value) -> Result<(), Refusal> {
        let gone = |error| Refusal::Broken(format!("it no longer reads: {error}"));
        serde_json::to_writer(&mut self.input, line).map_err(|error| gone(error.into()))?;
        self.input.write_all(b"\n").map_err(gone)
    }

    /// The next line that answers a request. Mere acknowledgements are passed over.
    fn answer(&mut self) -> Result<Answer, Refusal> {
        self.input.flush().map_err(|error| Refusal::Broken(format!("it no longer reads: {error}")))?;
        let mut line = String::new();
        loop {
            line.clear();
            match self.output.read_line(&mut line) {
                Ok(0) => return Err(Refusal::Broken(self.how_it_ended())),
                Ok(_) => {}
                Err(error) => return Err(Refusal::Broken(format!("it no longer writes: {error}"))),
            }
            let answer: Answer = serde_json::from_str(&line)
                .map_err(|error| Refusal::Broken(format!("its line is no answer ({error}): {}", head(&line))))?;
            if !answer.ok || answer.len.is_some() || answer.text.is_some() {
                return Ok(answer);
            }
        }
    }

    fn how_it_ended(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => format!("it ended ({status}) before it answered"),
            Err(error) => format!("it ended before it answered: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its input closes behind this; an engine that does not end by that is ended.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

struct Remote {
    process: Option<Process>,
    idle: Idle,
}

#[derive(Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    creased: bool,
    #[serde(default)]
    set: Vec<Set>,
    len: Option<usize>,
    text: Option<String>,
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Set {
    at: usize,
    message: Box<RawValue>,
}

#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    kind: String,
    floor: Option<u64>,
    #[serde(default)]
    message: String,
}

impl Engine for Remote {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        let messages: Vec<_> = messages.iter().flat_map(|message| chat(message)).collect();
        self.process()?.send(&json!({ "op": "push", "messages": messages }))
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        let process = self.process()?;
        process.send(&json!({ "op": "request" }))?;
        let answer = process.answer()?;
        match answer.len {
            Some(len) if answer.ok => Ok(Delta { set: messages(&answer.set)?, len, creased: answer.creased }),
            _ => Err(match answer.error {
                Some(Fault { floor: Some(floor), .. }) => Refusal::CannotFit { floor },
                Some(Fault { kind, .. }) if kind == "cannot_fit" => Refusal::CannotFit { floor: 0 },
                Some(fault) => Refusal::Broken(format!("it says {}: {}", fault.kind, fault.message)),
                None => Refusal::Broken("it says that it failed, and not why".to_owned()),
            }),
        }
    }

    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, Refusal> {
        let process = self.process()?;
        process.send(&json!({ "op": "unfold", "handle": handle.as_str() }))?;
        Ok(process.answer()?.text.map(String::into_bytes))
    }
}

impl Remote {
    fn process(&mut self) -> Result<&mut Process, Refusal> {
        self.process.as_mut().ok_or_else(|| Refusal::Broken("it is gone".to_owned()))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The process waits for the next conversation.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.process.take());
    }
}

/// Reads the changed messages. An engine may answer with what is no chat message at all.
fn messages(set: &[Set]) -> Result<Vec<(usize, Shared)>, Refusal> {
    let texts: Vec<&str> = set.iter().map(|set| set.message.get()).collect();
    let body = format!("[{}]", texts.join(","));
    let request = Request::parse(Format::OpenAiChat, body.as_bytes())
        .map_err(|error| Refusal::Broken(format!("its messages can not be read: {error}")))?;
    let messages = &request.conversation().messages;
    if messages.len() != set.len() {
        return Err(Refusal::Broken("some of its messages are none".to_owned()));
    }
    Ok(set.iter().zip(messages).map(|(set, message)| (set.at, Arc::new(message.clone().into_owned()))).collect())
}

fn head(line: &str) -> String {
    line.trim().chars().take(200).collect()
}
