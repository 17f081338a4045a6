//! The conversation of `foldline pipe`: messages in the provider's JSON, and their rendering.

use anyhow::{Context, Result};
use foldline::conversation::{PartId, ToolDefinition};
use foldline::engine::{JsonMessage, JsonSession};
use foldline::laws::{self, LawProfile, LawViolation, RequestLocation};
use foldline::models::PriceTable;
use foldline::tokens::{Budget, Tokens};
use foldline::wire::Format;
use foldline::{Conversation, FoldOptions, Handle, Meter, ModelTable, Part, Policy, Prices};
use foldline_archive::{ExcerptQuery, TenantArchive, excerpt};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::command::pipe::error::PipeError;

/// Values for fields that `open` does not set.
pub(super) struct PipeDefaults {
    pub(super) table: ModelTable,
    pub(super) budget: Option<Tokens>,
    pub(super) model: Option<String>,
    pub(super) prices: Option<String>,
    pub(super) policy: Policy,
}

impl PipeDefaults {
    /// Reports invalid flags before the first line is read.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(name) = &self.prices {
            named_prices(name).map_err(|error| anyhow::anyhow!(error.message)).context("--prices")?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
pub(super) struct PushParams<'a> {
    #[serde(borrow)]
    pub(super) messages: Vec<&'a RawValue>,
}

/// The handle of an original, and the part of it that is wanted.
#[derive(Deserialize)]
pub(super) struct UnfoldParams {
    handle: String,
    #[serde(default)]
    lines: Option<String>,
    #[serde(default)]
    grep: Option<String>,
    #[serde(default)]
    page: Option<usize>,
}

#[derive(Deserialize)]
pub(super) struct OpenParams<'a> {
    format: Option<Format>,
    budget: Option<Tokens>,
    model: Option<String>,
    prices: Option<PriceChoice>,
    policy: Option<String>,
    #[serde(default)]
    laws: LawChecks,
    #[serde(borrow, default)]
    tools: Vec<&'a RawValue>,
    /// Instructions outside the messages.
    system: Option<Value>,
}

/// Whether messages that break laws of the provider are errors.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LawChecks {
    #[default]
    Check,
    Ignore,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PriceChoice {
    Named(String),
    Given { read: f64, write: f64, output: f64 },
}

/// One conversation.
pub(super) struct PipeSession {
    json_session: JsonSession,
    /// Laws that pushed messages must obey; `None` if they are not checked.
    profile: Option<LawProfile>,
    /// Messages before this one obey the laws.
    checked: usize,
}

impl PipeSession {
    /// Opens a conversation.
    pub(super) fn open(open: &OpenParams<'_>, defaults: &PipeDefaults) -> Result<Self, PipeError> {
        let format = open.format.unwrap_or(Format::OpenAiChat);
        let model = open.model.as_deref().or(defaults.model.as_deref());
        let meter = Meter::for_model(&defaults.table, model);
        let budget = match open.budget.or(defaults.budget) {
            Some(budget) => budget,
            None => model_budget(model, &meter)?,
        };
        let profile = LawProfile::for_model(format, model);
        let prices = session_prices(open.prices.as_ref(), defaults, model)?;
        let mut options = FoldOptions::new(meter, prices, budget).with_rules(&profile);
        options.policy = match &open.policy {
            Some(name) => name.parse().map_err(|error: String| PipeError::new("unknown_policy", error))?,
            None => defaults.policy.clone(),
        };
        options.handles = true;
        let tool = |tool: &&RawValue| ToolDefinition { name: "".into(), definition: tool.get().to_owned().into() };
        let tools: Vec<ToolDefinition<'_>> = open.tools.iter().map(tool).collect();
        let system = open.system.as_ref().map(|system| Part::text(system.to_string())).into_iter().collect();
        let overhead = Conversation { tools, system, ..Conversation::default() };
        Ok(PipeSession {
            json_session: JsonSession::new(format, options.with_overhead_of(&overhead)),
            profile: (open.laws == LawChecks::Check).then_some(profile),
            checked: 0,
        })
    }

    pub(super) fn format(&self) -> Format {
        self.json_session.format()
    }

    pub(super) fn budget(&self) -> Tokens {
        self.json_session.budget()
    }

    /// Adds messages: all, or none if one of them is bad.
    pub(super) fn push(&mut self, messages: &[&RawValue]) -> Result<String, PipeError> {
        if messages.iter().any(|message| !message.get().starts_with('{')) {
            return Err(PipeError::new("not_a_message", "some of the messages are not JSON objects"));
        }
        let list = messages.iter().map(|message| message.get()).collect::<Vec<_>>().join(",");
        self.json_session.push(&format!("[{list}]"))?;
        Ok(format!(r#""messages":{}"#, self.json_session.len()))
    }

    /// Plans the next request, stores its originals and returns what changed.
    pub(super) fn render_request(&mut self, archive: Option<&TenantArchive>) -> Result<String, PipeError> {
        self.check_laws()?;
        let rendering = self.json_session.plan_request()?;
        if let Some(archive) = archive
            && let Err(error) = self.json_session.store_originals(archive)
        {
            // The caller did not receive this rendering; the next one starts at its first message.
            self.json_session.forget_rendering();
            return Err(PipeError::new("archive_failed", error));
        }
        let message = |message| match message {
            JsonMessage::Unchanged(index) => self.json_session.raw_message(index).unwrap_or_default().to_owned(),
            JsonMessage::Edited { json, .. } | JsonMessage::Note { json } => json,
        };
        let set: Vec<String> = (rendering.first..)
            .zip(rendering.messages.into_iter().map(message))
            .map(|(at, message)| format!(r#"{{"at":{at},"message":{message}}}"#))
            .collect();
        Ok(format!(
            r#""tokens":{},"received_tokens":{},"creased":{},"set":[{}],"len":{}"#,
            rendering.tokens,
            rendering.received_tokens,
            rendering.creased,
            set.join(","),
            rendering.len
        ))
    }

    /// Checks the messages since the last check, together with the turn before them, to whose calls they may belong.
    fn check_laws(&mut self) -> Result<(), PipeError> {
        let Some(profile) = &self.profile else { return Ok(()) };
        let messages = self.json_session.messages();
        let before = &messages[..self.checked];
        let opens_turn = |at: &usize| before[*at].opens_round(at.checked_sub(1).map(|at| &before[at]));
        // The turn begins with the user message that it answers, as every conversation does.
        let turn = (0..before.len()).rev().find(opens_turn).unwrap_or(0);
        let start = (0..turn).rev().find(|&at| before[at].role == foldline::Role::User).unwrap_or(0);
        let conversation = Conversation { messages: messages[start..].to_vec(), ..Conversation::default() };
        let violations = laws::check_before_sending(&conversation, profile);
        // Laws about the beginning of a conversation do not apply to the beginning of the checked part.
        let applies = |violation: &&LawViolation| start == 0 || message_at(violation.at).is_none_or(|at| at > 0);
        if let Some(violation) = violations.iter().find(applies) {
            let mut violation = violation.clone();
            violation.at = shifted(violation.at, start);
            return Err(PipeError::law_broken(&violation));
        }
        self.checked = messages.len();
        Ok(())
    }
}

/// Returns the text of an original in this conversation or in the archive.
pub(super) fn unfold(
    session: Option<&PipeSession>,
    archive: Option<&TenantArchive>,
    params: &UnfoldParams,
) -> Result<String, PipeError> {
    let handle: Handle = params.handle.parse().map_err(|error| PipeError::new("not_a_handle", error))?;
    let bytes = match session.and_then(|session| session.json_session.unfold(handle)) {
        Some(bytes) => bytes,
        None => match archive.map(|archive| archive.unfold(handle.as_str())) {
            Some(Ok(unfolded)) => unfolded.bytes,
            Some(Err(error)) => return Err(PipeError::new("unknown_handle", error)),
            None => return Err(PipeError::new("unknown_handle", "no fold of this conversation has this handle")),
        },
    };
    let bad_query = |error: foldline_archive::Error| PipeError::new("bad_line", error);
    let bad_lines = |error: foldline::Error| PipeError::new("bad_line", error);
    let lines = params.lines.as_deref().map(str::parse).transpose().map_err(bad_lines)?;
    let query = ExcerptQuery { lines, grep: params.grep.clone(), page: params.page, ..ExcerptQuery::default() };
    let excerpt = excerpt(&bytes, &query).map_err(bad_query)?;
    let mut fields = format!(r#""text":{}"#, json!(String::from_utf8_lossy(&excerpt.bytes)));
    if excerpt.pages > 1 {
        fields.push_str(&format!(r#","page":{},"pages":{}"#, excerpt.page, excerpt.pages));
    }
    Ok(fields)
}

/// Returns the budget of a model that the table knows.
fn model_budget(model: Option<&str>, meter: &Meter) -> Result<Tokens, PipeError> {
    let missing = |reason: String| PipeError::new("missing_budget", format!("{reason}; set \"budget\" or --budget"));
    match model {
        None => Err(missing("neither a budget nor a model is set".to_owned())),
        Some(model) if meter.row().prefix == "*" => Err(missing(format!("the window of model {model:?} is unknown"))),
        Some(_) => Ok(Budget::for_model(meter.row(), None, meter).tokens),
    }
}

fn session_prices(
    choice: Option<&PriceChoice>,
    defaults: &PipeDefaults,
    model: Option<&str>,
) -> Result<Prices, PipeError> {
    let mut prices = Prices::for_model(&defaults.table, model);
    match (choice, &defaults.prices) {
        (Some(PriceChoice::Named(name)), _) | (None, Some(name)) => return named_prices(name),
        (Some(PriceChoice::Given { read, write, output }), _) => {
            if [read, write, output].into_iter().any(|price| !price.is_finite() || *price < 0.0) {
                return Err(PipeError::new("unknown_prices", "prices must be positive numbers or 0"));
            }
            (prices.read, prices.write, prices.output) = (*read, *write, *output);
        }
        (None, None) => {}
    }
    Ok(prices)
}

fn named_prices(name: &str) -> Result<Prices, PipeError> {
    let table = PriceTable::builtin();
    table.get(name).ok_or_else(|| {
        let names = table.names().collect::<Vec<_>>().join(", ");
        PipeError::new("unknown_prices", format!("unknown price table \"{name}\"; available: {names}"))
    })
}

/// Returns the message of a location.
fn message_at(location: RequestLocation) -> Option<usize> {
    match location {
        RequestLocation::Message(at) => Some(at),
        RequestLocation::Part(at) => Some(at.message),
        _ => None,
    }
}

/// Returns a location in messages that begin at `start`, as a location in the conversation.
fn shifted(location: RequestLocation, start: usize) -> RequestLocation {
    match location {
        RequestLocation::Message(at) => RequestLocation::Message(at + start),
        RequestLocation::Part(at) => RequestLocation::Part(PartId { message: at.message + start, ..at }),
        other => other,
    }
}
