//! `foldline pipe`: the engine as a sidecar on standard input and output.

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline::laws::LawProfile;
use foldline::wire::{Format, Request, RequestEdit};
use foldline::{
    ErrorKind, FoldOptions, FoldSession, Handle, Meter, ModelTable, PartId, Policy, PriceTable, Prices,
    RenderedMessage, Role, Tokens, ToolDefinition,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::settings::ModelFlags;

/// Drive the engine over a growing conversation, one JSON object a line
///
/// Any language can use the engine without re-sending the conversation: open it, push messages in the
/// provider's own JSON, and before each call to the model ask for the rendering. The answer holds only the
/// messages that changed.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct PipeCommand {
    /// Tokens that a request may have, when `open` does not say.
    #[arg(long, value_name = "N")]
    budget: Option<u64>,

    /// Count and price for this model, when `open` does not say.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    models: ModelFlags,

    /// A price table (anthropic-5m, openai, local, ..), when `open` does not say.
    #[arg(long, value_name = "NAME")]
    prices: Option<String>,

    /// What may be folded, and when: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,
}

const HELP: &str = r#"Lines to it, and what it answers:
  {"op":"open","format":"openai-chat","budget":32000,"model":"gpt-4o","tools":[..]}
  {"op":"push","messages":[{..},..]}
  {"op":"request"}
      {"ok":true,"tokens":12345,"raw_tokens":40321,"creased":true,"set":[{"at":7,"message":{..}},..],"len":41}
  {"op":"unfold","handle":"7k3q9p2m4x1c"}
      {"ok":true,"text":".."}
An error is {"ok":false,"error":{"kind":"cannot_fit","floor":..,"budget":..,"message":".."}};
the conversation stays as it was and the next line is read.

`set` holds the changed and new messages by their place in the rendering, `len` the rendering's
length after the change. Without "creased":true no message that was sent before has changed."#;

/// What a line asks for. The rest of it is read when that is known: an enum tagged by `op` would take the messages
/// apart, and their bytes are needed as they came.
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
    messages: Vec<&'a RawValue>,
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
    /// Instructions that stand outside the messages.
    system: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PriceChoice {
    Named(String),
    Given { read: f64, write: f64, output: f64 },
}

/// An answer that says what went wrong.
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
        let (kind, numbers) = match error.kind() {
            ErrorKind::CannotFit { floor, budget, .. } => ("cannot_fit", Some((*floor, *budget))),
            ErrorKind::NotJson { .. } => ("not_json", None),
            ErrorKind::TooDeep { .. } => ("too_deep", None),
            ErrorKind::NotARequest => ("not_a_message", None),
            _ => ("failed", None),
        };
        Self { kind, message: error.to_string(), floor_and_budget: numbers }
    }
}

/// One conversation.
struct PipeSession {
    format: Format,
    fold_session: FoldSession,
    /// The messages as they were pushed.
    raw_messages: Vec<String>,
    /// Messages of the rendering that was given last, and of the conversation then.
    rendered_len: usize,
    last_message_count: usize,
}

impl PipeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = self.models.resolve()?;
        let mut session = None;
        let mut out = stdout().lock();
        for line in stdin().lock().lines() {
            let line = line.context("standard input could not be read")?;
            if line.trim().is_empty() {
                continue;
            }
            let answer = match self.handle_line(&line, &table, &mut session) {
                Ok(Some(answer)) => answer,
                Ok(None) => continue,
                Err(fault) => {
                    let mut error = json!({ "kind": fault.kind, "message": fault.message });
                    if let Some((floor, budget)) = fault.floor_and_budget {
                        error["floor"] = floor.into();
                        error["budget"] = budget.into();
                    }
                    json!({ "ok": false, "error": error }).to_string()
                }
            };
            writeln!(out, "{answer}").and_then(|()| out.flush()).context("standard output could not be written")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn handle_line(
        &self,
        line: &str,
        table: &ModelTable,
        session: &mut Option<PipeSession>,
    ) -> Result<Option<String>, PipeError> {
        fn read<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, PipeError> {
            serde_json::from_str(line).map_err(|error| PipeError::new("bad_line", error))
        }
        let PipeRequest { op } = read(line)?;
        if let PipeOp::Open = op {
            *session = Some(self.open_session(&read(line)?, table)?);
            return Ok(None);
        }
        let Some(session) = session else { return Err(PipeError::new("not_open", "say {\"op\":\"open\"} first")) };
        match op {
            PipeOp::Open => Ok(None),
            PipeOp::Push => session.push(&read::<PushParams<'_>>(line)?.messages).map(|()| None),
            PipeOp::Request => session.render_request().map(Some),
            PipeOp::Unfold => {
                let handle: Handle = read::<UnfoldParams>(line)?
                    .handle
                    .parse()
                    .map_err(|error| PipeError::new("not_a_handle", error))?;
                let bytes = session.fold_session.unfold(handle);
                let bytes =
                    bytes.ok_or_else(|| PipeError::new("unknown", "no fold of this conversation has this handle"))?;
                Ok(Some(json!({ "ok": true, "text": String::from_utf8_lossy(&bytes) }).to_string()))
            }
        }
    }

    fn open_session(&self, open: &OpenParams<'_>, table: &ModelTable) -> Result<PipeSession, PipeError> {
        let format = open.format.unwrap_or(Format::OpenAiChat);
        let model = open.model.as_deref().or(self.model.as_deref());
        let meter = Meter::for_model(table, model);
        let budget = open
            .budget
            .or(self.budget)
            .unwrap_or_else(|| foldline::Budget::for_model(meter.row(), None, &meter).tokens);
        let mut prices = Prices::for_model(table, model);
        let named = |name: &str| {
            let prices = PriceTable::builtin().get(name);
            prices.ok_or_else(|| PipeError::new("no_such_prices", format!("there is no price table \"{name}\"")))
        };
        match (&open.prices, &self.prices) {
            (Some(PriceChoice::Named(name)), _) | (None, Some(name)) => prices = named(name)?,
            (Some(PriceChoice::Given { read, write, output }), _) => {
                (prices.read, prices.write, prices.output) = (*read, *write, *output);
            }
            (None, None) => {}
        }
        let mut setup = FoldOptions::new(meter, prices, budget).with_rules(&LawProfile::for_model(format, model));
        setup.policy = match &open.policy {
            Some(name) => name.parse().map_err(|error: String| PipeError::new("no_such_policy", error))?,
            None => self.policy.clone(),
        };
        setup.handles = true;
        let tool = |tool: &&RawValue| ToolDefinition { name: "".into(), definition: tool.get().to_owned().into() };
        let tools: Vec<ToolDefinition<'_>> = open.tools.iter().map(tool).collect();
        let system = open.system.as_ref().map(|system| foldline::Part::text(system.to_string())).into_iter().collect();
        let beside = foldline::Conversation { tools, system, ..foldline::Conversation::default() };
        Ok(PipeSession {
            format,
            fold_session: FoldSession::new(setup.with_overhead_of(&beside)),
            raw_messages: Vec::new(),
            rendered_len: 0,
            last_message_count: 0,
        })
    }
}

impl PipeSession {
    fn push(&mut self, messages: &[&RawValue]) -> Result<(), PipeError> {
        // All of them are read before any is taken, so that a bad one changes nothing.
        let list = format!("[{}]", messages.iter().map(|message| message.get()).collect::<Vec<_>>().join(","));
        let request = Request::parse(self.format, list.as_bytes())?;
        for (message, raw) in request.conversation().messages.iter().zip(messages) {
            self.fold_session.push(message.clone().into_owned());
            self.raw_messages.push(raw.get().to_owned());
        }
        Ok(())
    }

    fn render_request(&mut self) -> Result<String, PipeError> {
        self.fold_session.plan_request()?;
        let from = self.fold_session.take_first_changed();
        let creased = from < self.last_message_count;
        let first = if creased { self.fold_session.rendered_position(from) } else { self.rendered_len };
        let mut set = Vec::new();
        for (at, sent) in self.fold_session.rendered_with_edits(from).into_iter().enumerate() {
            let message = match sent {
                RenderedMessage::Message { index: at, edits } => self.render_message(at, edits)?,
                RenderedMessage::Note { role, text } => note_message(role, text),
            };
            set.push(format!(r#"{{"at":{},"message":{message}}}"#, first + at));
        }
        self.rendered_len = first + set.len();
        self.last_message_count = self.raw_messages.len();
        Ok(format!(
            r#"{{"ok":true,"tokens":{},"raw_tokens":{},"creased":{creased},"set":[{}],"len":{}}}"#,
            self.fold_session.tokens(),
            self.fold_session.raw_tokens(),
            set.join(","),
            self.rendered_len
        ))
    }

    /// A message as it is sent, in the provider's own JSON.
    fn render_message(&self, at: usize, edits: Vec<RequestEdit>) -> Result<String, PipeError> {
        let raw = &self.raw_messages[at];
        if edits.is_empty() {
            return Ok(raw.clone());
        }
        let alone = |at: PartId| PartId { message: 0, ..at };
        let edits: Vec<RequestEdit> = edits
            .into_iter()
            .map(|edit| match edit {
                RequestEdit::Text { at, text } => RequestEdit::Text { at: alone(at), text },
                RequestEdit::Arguments { at, arguments } => RequestEdit::Arguments { at: alone(at), arguments },
                RequestEdit::DropPart(at) => RequestEdit::DropPart(alone(at)),
                other => other,
            })
            .collect();
        let list = format!("[{raw}]");
        let body = Request::parse(self.format, list.as_bytes())?.splice(&edits)?;
        let text = String::from_utf8(body.into_owned()).map_err(|error| PipeError::new("failed", error))?;
        Ok(text[1..text.len() - 1].to_owned())
    }
}

fn note_message(role: Role, text: &str) -> String {
    let role = if role == Role::Assistant { "assistant" } else { "user" };
    json!({ "role": role, "content": text }).to_string()
}
