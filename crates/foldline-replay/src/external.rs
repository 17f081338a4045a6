//! Engines in other processes: `replay --engine CMD`.
//!
//! The process uses the protocol of `foldline pipe` on its standard input and output, with messages in
//! the session's own dialect. It serves one conversation after another, each started by `open`; as many
//! processes run as conversations are replayed at a time. Its standard error is passed to
//! the user.

use std::fmt;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use foldline::{Handle, Part};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
use crate::engine_messages::EngineMessages;

/// An engine in other processes, started by a shell command.
pub struct ExternalEngine {
    name: String,
    command: String,
    idle: IdleProcesses,
}

impl fmt::Debug for ExternalEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The command may contain a key, and is also the default name.
        f.debug_struct("ExternalEngine").finish_non_exhaustive()
    }
}

type IdleProcesses = Arc<Mutex<Vec<EngineProcess>>>;

struct EngineProcess {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Id of the last line.
    last_id: u64,
}

impl ExternalEngine {
    /// Creates an engine that is started by this shell command. Nothing is started yet.
    pub fn new(command: impl Into<String>) -> Self {
        let command = command.into();
        Self { name: command.clone(), command, idle: IdleProcesses::default() }
    }

    /// Sets the name shown in tables.
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    fn spawn(&self) -> Result<EngineProcess, EngineError> {
        let mut child = Command::new("sh")
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| EngineError::Failed(format!("could not start `{}`: {error}", self.command)))?;
        let input = BufWriter::new(child.stdin.take().expect("its input is piped"));
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        Ok(EngineProcess { child, input, output, last_id: 0 })
    }
}

impl ReplayEngine for ExternalEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let idle_process = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = match idle_process {
            Some(process) => process,
            None => self.spawn()?,
        };
        let tools: Vec<&RawValue> = setup
            .tools
            .iter()
            .map(|tool| serde_json::from_str(&tool.definition))
            .collect::<Result<_, _>>()
            .map_err(|error| EngineError::Failed(format!("a tool of the recording is not JSON: {error}")))?;
        let mut open = json!({
            "op": "open",
            "format": setup.format.name(),
            "laws": "ignore",
            "budget": setup.budget,
            "prices": { "read": setup.prices.read, "write": setup.prices.write, "output": setup.prices.output },
        });
        if let Some(model) = &setup.model {
            open["model"] = model.as_str().into();
        }
        if !tools.is_empty() {
            open["tools"] = json!(tools);
        }
        if !setup.system.is_empty() {
            open["system"] = setup.system.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n").into();
        }
        process.send(open)?;
        Ok(Box::new(ExternalSession {
            process: Some(process),
            idle: Arc::clone(&self.idle),
            messages: EngineMessages::new(setup.format),
        }))
    }
}

impl EngineProcess {
    /// Sends a line with the next id.
    fn send(&mut self, mut line: serde_json::Value) -> Result<(), EngineError> {
        let failed = |error| EngineError::Failed(format!("it stopped reading its input: {error}"));
        self.last_id += 1;
        line["id"] = self.last_id.into();
        serde_json::to_writer(&mut self.input, &line).map_err(|error| failed(error.into()))?;
        self.input.write_all(b"\n").map_err(failed)
    }

    /// Sends messages, byte for byte.
    fn send_messages(&mut self, messages: &[Box<RawValue>]) -> Result<(), EngineError> {
        self.last_id += 1;
        let list = messages.iter().map(|message| message.get()).collect::<Vec<_>>().join(",");
        writeln!(self.input, r#"{{"op":"push","id":{},"messages":[{list}]}}"#, self.last_id)
            .map_err(|error| EngineError::Failed(format!("it stopped reading its input: {error}")))
    }

    /// Reads the answer to the last line. Answers to the lines before it are skipped; an engine that repeats no ids may
    /// leave out those.
    fn read_response(&mut self) -> Result<PipeResponse, EngineError> {
        self.input.flush().map_err(|error| EngineError::Failed(format!("it stopped reading its input: {error}")))?;
        let mut line = String::new();
        loop {
            line.clear();
            match self.output.read_line(&mut line) {
                Ok(0) => return Err(EngineError::Failed(self.exit_message())),
                Ok(_) => {}
                Err(error) => return Err(EngineError::Failed(format!("its output could not be read: {error}"))),
            }
            let answer: PipeResponse = serde_json::from_str(&line).map_err(|error| {
                EngineError::Failed(format!("its line is not a valid answer ({error}): {}", truncated(&line)))
            })?;
            let is_awaited = match answer.id {
                Some(id) => id == self.last_id,
                None => answer.len.is_some() || answer.text.is_some(),
            };
            if !answer.ok || is_awaited {
                return Ok(answer);
            }
        }
    }

    fn exit_message(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => format!("it exited ({status}) before it answered"),
            Err(error) => format!("it exited before it answered: {error}"),
        }
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        // Its input closes after this; an engine that has not exited by then is killed.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

struct ExternalSession {
    process: Option<EngineProcess>,
    idle: IdleProcesses,
    messages: EngineMessages,
}

#[derive(Deserialize)]
struct PipeResponse {
    ok: bool,
    id: Option<u64>,
    #[serde(default)]
    creased: bool,
    #[serde(default)]
    set: Vec<ChangedMessage>,
    len: Option<usize>,
    text: Option<String>,
    error: Option<PipeErrorBody>,
}

#[derive(Deserialize)]
struct ChangedMessage {
    at: usize,
    message: Box<RawValue>,
}

#[derive(Deserialize)]
struct PipeErrorBody {
    #[serde(default)]
    kind: String,
    floor: Option<u64>,
    #[serde(default)]
    message: String,
}

impl EngineSession for ExternalSession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        let mut written = Vec::new();
        for message in messages {
            let unwritable = |error| EngineError::Failed(format!("a message could not be sent to it: {error}"));
            written.extend(self.messages.write(message).map_err(unwritable)?);
        }
        self.process()?.send_messages(&written)
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        let process = self.process()?;
        process.send(json!({ "op": "request" }))?;
        let answer = process.read_response()?;
        match answer.len {
            Some(len) if answer.ok => {
                let changed = parse_messages(&self.messages, &answer.set)?;
                Ok(RenderingDelta { changed, len, is_crease: answer.creased })
            }
            _ => Err(match answer.error {
                Some(PipeErrorBody { floor: Some(floor), .. }) => EngineError::CannotFit { floor },
                Some(PipeErrorBody { kind, .. }) if kind == "cannot_fit" => EngineError::CannotFit { floor: 0 },
                Some(error) => EngineError::Failed(format!("it reported {}: {}", error.kind, error.message)),
                None => EngineError::Failed("it reported a failure without a reason".to_owned()),
            }),
        }
    }

    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, EngineError> {
        let process = self.process()?;
        process.send(json!({ "op": "unfold", "handle": handle.as_str() }))?;
        Ok(process.read_response()?.text.map(String::into_bytes))
    }
}

impl ExternalSession {
    fn process(&mut self) -> Result<&mut EngineProcess, EngineError> {
        self.process.as_mut().ok_or_else(|| EngineError::Failed("its process has ended".to_owned()))
    }
}

impl Drop for ExternalSession {
    fn drop(&mut self) {
        // The process is reused for the next conversation.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.process.take());
    }
}

/// Parses the changed messages. An engine may answer with something other than messages.
fn parse_messages(format: &EngineMessages, set: &[ChangedMessage]) -> Result<Vec<(usize, SharedMessage)>, EngineError> {
    let json: Vec<&RawValue> = set.iter().map(|set| &*set.message).collect();
    let messages = format
        .read(&json)
        .map_err(|error| EngineError::Failed(format!("its messages could not be parsed: {error}")))?;
    if messages.len() != set.len() {
        return Err(EngineError::Failed("some of its messages are not messages of the dialect".to_owned()));
    }
    Ok(set.iter().zip(messages).map(|(set, message)| (set.at, Arc::new(message))).collect())
}

fn truncated(line: &str) -> String {
    line.trim().chars().take(200).collect()
}
