//! `foldline fit`: one request body in, one that fits out.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline::apply;
use foldline::laws::LawProfile;
use foldline::wire::{Format, Request};
use foldline::{
    CountExactness, ErrorKind, FoldEvent, FoldOptions, FoldedRequest, Ledger, Meter, OriginalStore, Policy, Prices,
};
use serde_json::json;

use super::{EXIT_BAD_INPUT, EXIT_CANNOT_FIT, report, write_output};
use crate::input;
use crate::settings::{ArchiveFlags, ModelFlags, NoArchive};

/// Fold one request body until it fits a budget
///
/// Reads a request body of OpenAI Chat Completions, OpenAI Responses or Anthropic Messages, folds old parts
/// into short markers until it has at most so many tokens, and writes the new body. What is not folded is
/// copied byte for byte. The newest round, the words of users and all instructions stay as they are as
/// long as anything else can go.
///
/// What is folded is kept in the archive first, and `foldline unfold` gives it back. When the archive
/// fails, a body that fits is written as it came, and another one folded without handles; standard error says so.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct FitCommand {
    /// The request body; standard input when left out or `-`.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Tokens that the body may have, its tools and instructions included.
    #[arg(long, value_name = "N")]
    budget: u64,

    /// Count and price for this model, whatever the body says.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    models: ModelFlags,

    /// The API that the body is for.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = ["auto", "openai-chat", "openai-responses", "anthropic"])]
    format: String,

    /// Write the body here instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write what was done, in numbers, to this file as JSON (`-` is standard error).
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    /// What may be folded, and when: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,

    /// Tell on standard error what was folded, why, and what it saved, one line each.
    #[arg(long)]
    explain: bool,

    /// Keep nothing: markers carry no handles, and what is folded can not be unfolded.
    #[arg(long, conflicts_with = "archive")]
    no_archive: bool,

    #[command(flatten)]
    archive: ArchiveFlags,
}

const HELP: &str = "\
Examples:
  foldline fit request.json --budget 32000 > smaller.json
  foldline fit --budget 32000 --explain < request.json > smaller.json
  foldline fit request.json --budget 8000 --policy tight --stats -

Policies:
  none       folds nothing; a body over the budget is an error
  lossless   only what stands in the body a second time, or has a verified inverse
  balanced   also old text whose keeping costs more than asking for it again would
  tight      the same, valuing room higher than recall

Exit codes:
  0  the body that was written fits
  2  the input is not a request: it was written as it came
  3  it can not fit: nothing was written, and standard error tells the floor";

impl FitCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let body = input::read_bytes(self.file.as_deref())?;
        let format = match self.format.as_str() {
            "auto" => Format::detect(&body).unwrap_or(Format::OpenAiChat),
            name => serde_json::from_value(json!(name)).context("no such format")?,
        };
        let request = match Request::parse(format, &body) {
            Ok(request) => request,
            Err(error) => {
                match body.trim_ascii().is_empty() {
                    true => report("foldline: the input is empty"),
                    false => report(&format!("foldline: {error}; the input was written as it came")),
                }
                write_output(self.output.as_deref(), &body)?;
                return Ok(ExitCode::from(EXIT_BAD_INPUT));
            }
        };
        let table = &self.models.resolve()?;
        let model = self.model.as_deref().or(request.conversation().model.as_deref());
        let meter = Meter::for_model(table, model);
        let mut setup = FoldOptions::new(meter, Prices::for_model(table, model), self.budget)
            .with_rules(&LawProfile::for_model(format, model));
        setup.policy = self.policy.clone();
        let keep: Option<Box<dyn OriginalStore>> = match self.archive.resolve() {
            _ if self.no_archive => None,
            Ok(settings) => Some(Box::new(settings)),
            Err(error) => Some(Box::new(NoArchive(format!("{error:#}")))),
        };
        let listener = |event| {
            if let FoldEvent::Refused { reason: why } = event {
                report(&format!("foldline: {why}"));
            }
        };
        match apply(&request, &setup, &Ledger::default(), keep.as_deref(), &listener) {
            Ok(applied) => {
                write_output(self.output.as_deref(), &applied.body)?;
                self.report_folds(&applied, &setup, format)?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if matches!(error.kind(), ErrorKind::CannotFit { .. }) => {
                report(&format!("foldline: {error}"));
                Ok(ExitCode::from(EXIT_CANNOT_FIT))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn report_folds(&self, applied: &FoldedRequest, setup: &FoldOptions, format: Format) -> Result<()> {
        let explained = applied.folded.as_ref().map(|folded| folded.fold_stats()).unwrap_or_default();
        if self.explain {
            for fold in &explained {
                report(&format!(
                    "{:<8} {:<10} {:>7} -> {:<6} {}",
                    fold.part.to_string(),
                    fold.pass,
                    fold.tokens_before,
                    fold.tokens_after,
                    fold.description.lines().next().unwrap_or_default()
                ));
            }
            report(&format!("{} of {} tokens, budget {}", applied.tokens, applied.raw_tokens, setup.budget));
        }
        let Some(path) = &self.stats else { return Ok(()) };
        let mut passes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for fold in &explained {
            let (count, saved) = passes.entry(fold.pass).or_default();
            *count += 1;
            *saved += fold.tokens_before.saturating_sub(fold.tokens_after);
        }
        let stats = json!({
            "format": format.name(),
            "policy": setup.policy.name,
            "budget": setup.budget,
            "raw_tokens": applied.raw_tokens,
            "tokens": applied.tokens,
            "exact": setup.meter.exactness() == CountExactness::Exact,
            "folds": explained.len(),
            "creases": applied.creases().len(),
            "by_pass": passes.iter().map(|(pass, (count, saved))| (*pass, json!({ "folds": count, "saved": saved }))).collect::<BTreeMap<_, _>>(),
        });
        let mut text = serde_json::to_string_pretty(&stats)?;
        text.push('\n');
        if path.as_os_str() == "-" {
            report(text.trim_end());
            return Ok(());
        }
        fs::write(path, text).with_context(|| format!("{} could not be written", path.display()))
    }
}
