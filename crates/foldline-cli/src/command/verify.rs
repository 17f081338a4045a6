//! `foldline verify`: checks the four guarantees on request bodies, of foldline or of any other tool.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use foldline::engine::marker;
use foldline::laws::{self, LawProfile, LawViolation};
use foldline::wire::{Format, Request};
use foldline::{Handle, Meter, ModelTable};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::input;
use crate::output::{EXIT_BAD_INPUT, print_stdout, report};
use crate::render::{format_number, plain, pluralize};
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{FoldGroups, SettingFlags};
use crate::settings::layers::SettingLayers;
use crate::settings::models;
use crate::units::TokensArg;

/// Check that a shortened request fits, is valid, stable and recoverable
///
/// BEFORE is the request of the client, AFTER the request that was sent instead, by foldline or by another tool. PREV is
/// the request that was sent before it in the same conversation. The exit code is 1 if a check fails.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct VerifyCommand {
    /// The request of the client.
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The request that was sent instead.
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// The request that was sent before AFTER; without it stability is not checked.
    #[arg(long, value_name = "PREV")]
    previous: Option<PathBuf>,
    /// Maximum tokens of the request, such as 32k [default: the window of the model].
    #[arg(long, value_name = "TOKENS")]
    budget: Option<TokensArg>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingFlags<FoldGroups>,
}

const HELP: &str = "\
Checks:
  fits         AFTER has at most the budgeted tokens
  valid        AFTER breaks no law of its format that BEFORE obeys
  stable       AFTER begins with the tools, instructions and messages of PREV, byte for byte;
               a request with new folds does not
  recoverable  every handle in AFTER resolves in the archive

Exit codes:
  0  all checks passed
  1  a check failed
  2  a file is not a request body";

/// Result of the check of one guarantee.
struct GuaranteeCheck {
    name: &'static str,
    /// None if it could not be checked.
    holds: Option<bool>,
    message: String,
}

/// The parts of a request body that a provider caches, as their bytes.
#[derive(Deserialize)]
struct BodyLists<'a> {
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, alias = "instructions", alias = "systemInstruction", alias = "system_instruction")]
    system: Option<&'a RawValue>,
    #[serde(borrow, default, alias = "input", alias = "contents")]
    messages: Vec<&'a RawValue>,
}

impl VerifyCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let checks = match self.run_checks() {
            Ok(checks) => checks,
            Err(error) => {
                report(&format!("foldline: {}", plain(&format!("{error:#}"))));
                return Ok(ExitCode::from(EXIT_BAD_INPUT));
            }
        };
        let failed = checks.iter().any(|check| check.holds == Some(false));
        print_stdout(&if self.json { json_text(&checks) } else { checks.iter().map(format_check).collect() })?;
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn run_checks(&self) -> Result<[GuaranteeCheck; 4]> {
        let layers = self.settings.load()?;
        let table = models::model_table(&layers)?;
        let (before, after) = (input::read_bytes(Some(&self.before))?, input::read_bytes(Some(&self.after))?);
        let format =
            Format::detect(&before).or_else(|| Format::detect(&after)).context("BEFORE is not a request body")?;
        let before = parse_request(&self.before, format, &before)?;
        let parsed = parse_request(&self.after, format, &after)?;
        Ok([
            check_fits(&parsed, &table, self.budget.map(|it| it.0)),
            check_valid(&before, &parsed),
            self.check_stable(&after)?,
            check_recoverable(&after, &layers),
        ])
    }

    fn check_stable(&self, after: &[u8]) -> Result<GuaranteeCheck> {
        let name = "stable";
        let Some(path) = &self.previous else {
            return Ok(GuaranteeCheck { name, holds: None, message: "not checked: --previous is not set".into() });
        };
        let previous = input::read_bytes(Some(path))?;
        let (sent, now) = (read_lists(path, &previous)?, read_lists(&self.after, after)?);
        let differ =
            |sent: Option<&RawValue>, now: Option<&RawValue>| sent.map(RawValue::get) != now.map(RawValue::get);
        for (what, differ) in
            [("tools", differ(sent.tools, now.tools)), ("instructions", differ(sent.system, now.system))]
        {
            if differ {
                let message = format!("the {what} of the previous request changed");
                return Ok(GuaranteeCheck { name, holds: Some(false), message });
            }
        }
        let (sent, now) = (sent.messages, now.messages);
        let kept = sent.iter().zip(&now).take_while(|(sent, now)| sent.get() == now.get()).count();
        let message = match kept == sent.len() {
            true => format!("begins with all {} of the previous request", pluralize(kept as u64, "message")),
            false => format!("message {kept} of {} of the previous request is changed or missing", sent.len()),
        };
        Ok(GuaranteeCheck { name, holds: Some(kept == sent.len()), message })
    }
}

fn parse_request<'b>(path: &Path, format: Format, body: &'b [u8]) -> Result<Request<'b>> {
    Request::parse(format, body).map_err(|error| anyhow!("{} is not a request body: {error}", path.display()))
}

fn read_lists<'b>(path: &Path, body: &'b [u8]) -> Result<BodyLists<'b>> {
    serde_json::from_slice(body).with_context(|| format!("{} is not a request body", path.display()))
}

fn check_fits(request: &Request<'_>, table: &ModelTable, budget: Option<u64>) -> GuaranteeCheck {
    let conversation = request.conversation();
    let meter = Meter::for_model(table, conversation.model.as_deref());
    let row = meter.row();
    let (tokens, budget) = (meter.conversation(conversation), budget.unwrap_or(row.max_input.unwrap_or(row.window)));
    let message = format!("{} tokens, budget {}", format_number(tokens), format_number(budget));
    GuaranteeCheck { name: "fits", holds: Some(tokens <= budget), message }
}

fn check_valid(before: &Request<'_>, after: &Request<'_>) -> GuaranteeCheck {
    let violations = |request: &Request<'_>| laws::check(request, &LawProfile::for_request(request));
    let name = |violation: &LawViolation| violation.to_string();
    let known: BTreeSet<String> = violations(before).iter().map(law_name).collect();
    let new: Vec<String> = violations(after).iter().filter(|it| !known.contains(&law_name(it))).map(name).collect();
    let message = match new.first() {
        None => "breaks no law that the request of the client obeys".to_owned(),
        Some(first) => format!("{} broken, first: {}", pluralize(new.len() as u64, "law"), plain(first)),
    };
    GuaranteeCheck { name: "valid", holds: Some(new.is_empty()), message }
}

fn check_recoverable(after: &[u8], layers: &SettingLayers) -> GuaranteeCheck {
    let name = "recoverable";
    let handles: BTreeSet<Handle> = marker::handles(&String::from_utf8_lossy(after)).collect();
    if handles.is_empty() {
        return GuaranteeCheck { name, holds: None, message: "not checked: the request contains no handle".into() };
    }
    let tenant = ArchiveSettings::resolve(layers).and_then(|settings| settings.open_tenant());
    let tenant = match tenant {
        Ok(tenant) => tenant,
        Err(error) => return GuaranteeCheck { name, holds: Some(false), message: plain(&format!("{error:#}")) },
    };
    let missing: Vec<&Handle> = handles.iter().filter(|handle| tenant.unfold(handle.as_str()).is_err()).collect();
    let message = match missing.first() {
        None => format!("{} resolve in the archive", pluralize(handles.len() as u64, "handle")),
        Some(first) => format!("{} of {} handles do not resolve, first: {first}", missing.len(), handles.len()),
    };
    GuaranteeCheck { name, holds: Some(missing.is_empty()), message }
}

/// Returns the name of the law that is broken.
fn law_name(violation: &LawViolation) -> String {
    violation.law.name().to_owned()
}

fn format_check(check: &GuaranteeCheck) -> String {
    let word = match check.holds {
        Some(true) => "ok",
        Some(false) => "FAIL",
        None => "-",
    };
    format!("{word:<5} {:<12} {}\n", check.name, check.message)
}

fn json_text(checks: &[GuaranteeCheck]) -> String {
    let object =
        |check: &GuaranteeCheck| (check.name.to_owned(), json!({ "holds": check.holds, "message": check.message }));
    let object: serde_json::Map<String, serde_json::Value> = checks.iter().map(object).collect();
    format!("{:#}\n", serde_json::Value::Object(object))
}
