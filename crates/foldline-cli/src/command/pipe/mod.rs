//! `foldline pipe`: the engine as a sidecar on standard input and output.

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline::conversation::ToolDefinition;
use foldline::engine::{JsonMessage, JsonSession};
use foldline::laws::LawProfile;
use foldline::models::PriceTable;
use foldline::tokens::Tokens;
use foldline::wire::Format;
use foldline::{ErrorKind, FoldOptions, Handle, Meter, ModelTable, Policy, Prices};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::settings::flags::{ModelGroups, SettingFlags};
use crate::settings::models;

/// Drive the engine over a growing conversation, one JSON object per line
///
/// Any language can use the engine without sending the conversation again: open a session, push messages in the
/// provider's own JSON, and request the rendering before each call to the model. The answer contains only the
/// messages that changed. Terms are explained in docs/glossary.md.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct PipeCommand {
    /// Maximum tokens per request, if `open` does not set it.
    #[arg(long, value_name = "N")]
    budget: Option<u64>,

    /// Count and price for this model, if `open` does not set one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    settings: SettingFlags<ModelGroups>,

    /// A price table (anthropic-5m, openai, local, ..), if `open` does not set one.
    #[arg(long, value_name = "NAME")]
    prices: Option<String>,

    /// Fold policy: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,
}

const HELP: &str = r#"Input lines and their answers:
  {"op":"open","format":"openai-chat","budget":32000,"model":"gpt-4o","tools":[..]}
  {"op":"push","messages":[{..},..]}
  {"op":"request"}
      {"ok":true,"tokens":12345,"received_tokens":40321,"creased":true,
       "set":[{"at":7,"message":{..}},..],"len":41}
  {"op":"unfold","handle":"7k3q9p2m4x1c"}
      {"ok":true,"text":".."}
An error is {"ok":false,"error":{"kind":"cannot_fit","floor":..,"budget":..,"message":".."}};
the conversation is unchanged and the next line is read.

`set` contains the changed and new messages by their position in the rendering, `len` its length
after the change. Without "creased":true no message that was sent before has changed."#;

/// Operation of an input line. The other fields are parsed once it is known: an enum tagged by `op` would parse the
/// messages, and their original bytes are needed.
#[derive(Deserialize)]
struct PipeRequest {
    op: PipeOp,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PipeOp {
    Open,
    Push,
    Request,
    Unfold,
}

#[derive(Deserialize)]
struct PushParams<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
}

#[derive(Deserialize)]
struct UnfoldParams {
    handle: String,
}

#[derive(Deserialize)]
struct OpenParams<'a> {
    format: Option<Format>,
    budget: Option<Tokens>,
    model: Option<String>,
    prices: Option<PriceChoice>,
    policy: Option<String>,
    #[serde(borrow, default)]
    tools: Vec<&'a RawValue>,
    /// Instructions outside the messages.
    system: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PriceChoice {
    Named(String),
    Given { read: f64, write: f64, output: f64 },
}

/// Error answer.
struct PipeError {
    kind: &'static str,
    message: String,
    floor_and_budget: Option<(Tokens, Tokens)>,
}

impl PipeError {
    fn new(kind: &'static str, message: impl ToString) -> Self {
        Self { kind, message: message.to_string(), floor_and_budget: None }
    }
}

impl From<foldline::Error> for PipeError {
    fn from(error: foldline::Error) -> Self {
        let (kind, floor_and_budget) = match error.kind() {
            ErrorKind::CannotFit { floor, budget, .. } => ("cannot_fit", Some((*floor, *budget))),
            ErrorKind::NotJson { .. } => ("not_json", None),
            ErrorKind::TooDeep { .. } => ("too_deep", None),
            ErrorKind::NotARequest => ("not_a_message", None),
            _ => ("failed", None),
        };
        Self { kind, message: error.to_string(), floor_and_budget }
    }
}

impl PipeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = models::model_table(&self.settings.load()?)?;
        let mut session = None;
        let mut out = stdout().lock();
        for line in stdin().lock().lines() {
            let line = line.context("could not read standard input")?;
            if line.trim().is_empty() {
                continue;
            }
            let answer = match self.handle_line(&line, &table, &mut session) {
                Ok(Some(answer)) => answer,
                Ok(None) => continue,
                Err(error) => {
                    let mut object = json!({ "kind": error.kind, "message": error.message });
                    if let Some((floor, budget)) = error.floor_and_budget {
                        object["floor"] = floor.into();
                        object["budget"] = budget.into();
                    }
                    json!({ "ok": false, "error": object }).to_string()
                }
            };
            writeln!(out, "{answer}").and_then(|()| out.flush()).context("could not write to standard output")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn handle_line(
        &self,
        line: &str,
        table: &ModelTable,
        session: &mut Option<JsonSession>,
    ) -> Result<Option<String>, PipeError> {
        fn read<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, PipeError> {
            serde_json::from_str(line).map_err(|error| PipeError::new("bad_line", error))
        }
        let PipeRequest { op } = read(line)?;
        if let PipeOp::Open = op {
            *session = Some(self.open_session(&read(line)?, table)?);
            return Ok(None);
        }
        let Some(session) = session else {
            return Err(PipeError::new("not_open", "no open conversation; send {\"op\":\"open\"} first"));
        };
        match op {
            PipeOp::Open => Ok(None),
            PipeOp::Push => {
                session.push(read::<PushParams<'_>>(line)?.messages.get()).map(|()| None).map_err(PipeError::from)
            }
            PipeOp::Request => render_request(session).map(Some),
            PipeOp::Unfold => {
                let handle: Handle = read::<UnfoldParams>(line)?
                    .handle
                    .parse()
                    .map_err(|error| PipeError::new("not_a_handle", error))?;
                let bytes = session.unfold(handle);
                let bytes = bytes
                    .ok_or_else(|| PipeError::new("unknown_handle", "no fold of this conversation has this handle"))?;
                Ok(Some(json!({ "ok": true, "text": String::from_utf8_lossy(&bytes) }).to_string()))
            }
        }
    }

    fn open_session(&self, open: &OpenParams<'_>, table: &ModelTable) -> Result<JsonSession, PipeError> {
        let format = open.format.unwrap_or(Format::OpenAiChat);
        let model = open.model.as_deref().or(self.model.as_deref());
        let meter = Meter::for_model(table, model);
        let budget = open
            .budget
            .or(self.budget)
            .unwrap_or_else(|| foldline::tokens::Budget::for_model(meter.row(), None, &meter).tokens);
        let mut prices = Prices::for_model(table, model);
        let named = |name: &str| {
            let prices = PriceTable::builtin().get(name);
            prices.ok_or_else(|| PipeError::new("unknown_prices", format!("unknown price table \"{name}\"")))
        };
        match (&open.prices, &self.prices) {
            (Some(PriceChoice::Named(name)), _) | (None, Some(name)) => prices = named(name)?,
            (Some(PriceChoice::Given { read, write, output }), _) => {
                (prices.read, prices.write, prices.output) = (*read, *write, *output);
            }
            (None, None) => {}
        }
        let mut options = FoldOptions::new(meter, prices, budget).with_rules(&LawProfile::for_model(format, model));
        options.policy = match &open.policy {
            Some(name) => name.parse().map_err(|error: String| PipeError::new("unknown_policy", error))?,
            None => self.policy.clone(),
        };
        options.handles = true;
        let tool = |tool: &&RawValue| ToolDefinition { name: "".into(), definition: tool.get().to_owned().into() };
        let tools: Vec<ToolDefinition<'_>> = open.tools.iter().map(tool).collect();
        let system = open.system.as_ref().map(|system| foldline::Part::text(system.to_string())).into_iter().collect();
        let overhead = foldline::Conversation { tools, system, ..foldline::Conversation::default() };
        Ok(JsonSession::new(format, options.with_overhead_of(&overhead)))
    }
}

/// Returns the answer to a request: the messages that changed, by their position.
fn render_request(session: &mut JsonSession) -> Result<String, PipeError> {
    let rendering = session.plan_request()?;
    let message = |message| match message {
        JsonMessage::Unchanged(index) => session.raw_message(index).unwrap_or_default().to_owned(),
        JsonMessage::Edited { json, .. } | JsonMessage::Note { json } => json,
    };
    let set: Vec<String> = (rendering.first..)
        .zip(rendering.messages.into_iter().map(message))
        .map(|(at, message)| format!(r#"{{"at":{at},"message":{message}}}"#))
        .collect();
    Ok(format!(
        r#"{{"ok":true,"tokens":{},"received_tokens":{},"creased":{},"set":[{}],"len":{}}}"#,
        rendering.tokens,
        rendering.received_tokens,
        rendering.creased,
        set.join(","),
        rendering.len
    ))
}
