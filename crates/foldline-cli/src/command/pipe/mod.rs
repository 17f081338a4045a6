//! `foldline pipe`: the engine as a sidecar on standard input and output.
//!
//! This file has the command and the protocol: every input line gets exactly one answer. `session` has the conversation,
//! `error` the error answers.

mod error;
mod session;

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline::Policy;
use foldline::wire::Format;
use foldline_archive::{AccessMode, TenantArchive, UNFOLD_TOOL};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::command::pipe::error::PipeError;
use crate::command::pipe::session::{OpenParams, PipeDefaults, PipeSession, PushParams, UnfoldParams};
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{FoldGroups, SettingFlags};
use crate::settings::layers::SettingLayers;
use crate::settings::models;
use crate::settings::table::ARCHIVE;
use crate::units::TokensArg;

/// Drive the engine over a growing conversation, one JSON object per line
///
/// Any language can use the engine without sending the conversation again: open a session, push messages in the
/// provider's own JSON, and request the rendering before each call to the model. The answer contains only the
/// messages that changed. Terms are explained in docs/glossary.md.
///
/// Originals are kept in memory, so a handle resolves until the next `open` or the end of the process. With --archive
/// they are stored before each answer, and every handle resolves also later.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct PipeCommand {
    /// Maximum tokens per request, if `open` does not set it: 32000, 32k or 1M. Without either it is the budget of the
    /// model's window.
    #[arg(long, value_name = "TOKENS")]
    budget: Option<TokensArg>,

    /// Count and price for this model, if `open` does not set one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// A price table (anthropic-5m, openai, local, ..), if `open` does not set one.
    #[arg(long, value_name = "NAME")]
    prices: Option<String>,

    /// Fold policy: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,

    #[command(flatten)]
    settings: SettingFlags<FoldGroups>,
}

const HELP: &str = r#"Input lines and their answers:
  {"op":"open","format":"openai-chat","budget":32000,"model":"gpt-4o","tools":[..],"id":1}
      {"ok":true,"id":1,"budget":32000}
  {"op":"push","messages":[{..},..]}
      {"ok":true,"messages":41}
  {"op":"request"}
      {"ok":true,"tokens":12345,"received_tokens":40321,"creased":true,
       "set":[{"at":7,"message":{..}},..],"len":41}
  {"op":"unfold","handle":"7k3q9p2m4x1c"}     also "lines":"10..20", "grep":"error", "page":1
      {"ok":true,"text":".."}
  {"op":"tools"}                              the unfold tool, in the format of the session
      {"ok":true,"tools":[{..}]}
Every line gets exactly one answer, in order, with the "id" of the line if it has one. An error is
{"ok":false,"error":{"kind":"cannot_fit","floor":..,"budget":..,"message":".."}}; the conversation
is unchanged and the next line is read.

`set` contains the changed and new messages by their position in the rendering, `len` its length
after the change. Without "creased":true no message that was sent before has changed. A request
whose messages break a law of the provider, such as a call without its result, is an error of kind
law_broken; "laws":"ignore" in `open` turns the check off. docs/reference/laws.md lists the laws."#;

/// Operation and id of an input line. The other fields are parsed once the operation is known: an enum tagged by `op`
/// would parse the messages, and their original bytes are needed.
#[derive(Deserialize)]
struct PipeRequest<'a> {
    #[serde(borrow, default)]
    op: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PipeOp {
    Open,
    Push,
    Request,
    Unfold,
    Tools,
}

#[derive(Deserialize)]
struct ToolsParams {
    format: Option<Format>,
}

impl PipeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let layers = self.settings.load()?;
        let mut pipe = PipeState {
            defaults: PipeDefaults {
                table: models::model_table(&layers)?.into_owned(),
                budget: self.budget.map(|budget| budget.0),
                model: self.model,
                prices: self.prices,
                policy: self.policy,
            },
            archive: open_archive(&layers)?,
            session: None,
        };
        pipe.defaults.check()?;
        let mut out = stdout().lock();
        for line in stdin().lock().split(b'\n') {
            let line = line.context("could not read standard input")?;
            let answer = pipe.answer_line(&line);
            writeln!(out, "{answer}").and_then(|()| out.flush()).context("could not write to standard output")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Opens the archive if a flag, variable or settings file names one.
fn open_archive(layers: &SettingLayers) -> Result<Option<TenantArchive>> {
    if layers.path(&ARCHIVE).is_none() {
        return Ok(None);
    }
    let settings = ArchiveSettings::resolve(layers)?;
    let archive = settings.open(AccessMode::ReadWrite).context("the archive could not be opened")?;
    Ok(Some(archive.tenant(&settings.namespace)))
}

/// The state between lines.
struct PipeState {
    defaults: PipeDefaults,
    archive: Option<TenantArchive>,
    session: Option<PipeSession>,
}

impl PipeState {
    /// Returns the answer to a line, as one line of JSON.
    fn answer_line(&mut self, line: &[u8]) -> String {
        let not_a_line = |error: &dyn ToString| PipeError::new("bad_line", error.to_string());
        let parsed = std::str::from_utf8(line)
            .map_err(|error| not_a_line(&error))
            .and_then(|line| Ok((line, serde_json::from_str(line).map_err(|error| not_a_line(&error))?)));
        let (id, fields) = match parsed {
            Ok((line, PipeRequest { op, id })) => (id, self.run_operation(line, op)),
            Err(error) => (None, Err(error)),
        };
        let id = id.map_or_else(String::new, |id| format!(r#","id":{id}"#));
        match fields {
            Ok(fields) if fields.is_empty() => format!(r#"{{"ok":true{id}}}"#),
            Ok(fields) => format!(r#"{{"ok":true{id},{fields}}}"#),
            Err(error) => format!(r#"{{"ok":false{id},"error":{}}}"#, error.to_json()),
        }
    }

    /// Runs an operation. Returns the fields of its answer.
    fn run_operation(&mut self, line: &str, op: Option<&RawValue>) -> Result<String, PipeError> {
        fn read<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, PipeError> {
            serde_json::from_str(line).map_err(|error| PipeError::new("bad_line", error))
        }
        let op = op.ok_or_else(|| PipeError::new("bad_line", "the field \"op\" is missing"))?;
        let op: PipeOp = read(op.get())?;
        match op {
            PipeOp::Open => {
                let session = PipeSession::open(&read::<OpenParams<'_>>(line)?, &self.defaults)?;
                let fields = format!(r#""budget":{}"#, session.budget());
                self.session = Some(session);
                Ok(fields)
            }
            PipeOp::Tools => {
                let stated = read::<ToolsParams>(line)?.format;
                let format = stated.or(self.session.as_ref().map(PipeSession::format)).unwrap_or(Format::OpenAiChat);
                Ok(format!(r#""tools":[{}]"#, UNFOLD_TOOL.declaration(format)))
            }
            PipeOp::Push => self.session()?.push(&read::<PushParams<'_>>(line)?.messages),
            PipeOp::Request => {
                let archive = self.archive.clone();
                self.session()?.render_request(archive.as_ref())
            }
            PipeOp::Unfold => {
                session::unfold(self.session.as_ref(), self.archive.as_ref(), &read::<UnfoldParams>(line)?)
            }
        }
    }

    fn session(&mut self) -> Result<&mut PipeSession, PipeError> {
        let not_open = || PipeError::new("not_open", "no open conversation; send {\"op\":\"open\"} first");
        self.session.as_mut().ok_or_else(not_open)
    }
}
