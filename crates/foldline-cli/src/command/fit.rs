//! `foldline fit`: folds one request body until it fits a budget.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use foldline::laws::LawProfile;
use foldline::tokens::CountExactness;
use foldline::wire::{Dialect, Format, Request};
use foldline::{ErrorKind, FoldEvent, FoldOptions, FoldedRequest, Ledger, Meter, OriginalStore, Policy, Prices, apply};
use serde_json::json;

use crate::input;
use crate::output::{EXIT_BAD_INPUT, EXIT_CANNOT_FIT, report, write_output};
use crate::render::plain;
use crate::settings::archive::{ArchiveSettings, NoArchive};
use crate::settings::flags::{FoldGroups, SettingFlags};
use crate::settings::models;
use crate::units::TokensArg;

/// Fold one request body until it fits a budget
///
/// Reads a request body of any provider's API that foldline knows (see --format), folds old parts into short
/// markers until it fits the budget, and writes the new body. Everything else is copied byte for byte. The
/// newest round, user messages and all instructions are kept as long as anything else can be folded.
///
/// Originals are stored in the archive first, and `foldline unfold` restores them. If the archive fails, a
/// body that already fits is written unchanged, and any other is folded without handles; a message on standard
/// error reports it. Terms are explained in docs/glossary.md.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct FitCommand {
    /// The request body; standard input if omitted or `-`.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Maximum tokens of the body, including tools and instructions: 32000, 32k or 1M.
    #[arg(long, value_name = "TOKENS")]
    budget: TokensArg,

    /// Share of the budget to fold to, from 0.1 to 1: 1 stops as soon as the body fits; less leaves room for messages
    /// that will be appended to the result.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = parse_target)]
    target: f64,

    /// Count and price for this model instead of the one in the body.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// The API format of the body.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = format_names())]
    format: String,

    /// Write the body here instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write statistics as JSON to this file (`-` is standard error).
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    /// Fold policy: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,

    /// List each fold on standard error: what was folded, by which pass, and the tokens saved.
    #[arg(long)]
    explain: bool,

    /// Store nothing: markers carry no handles, and folds cannot be unfolded.
    #[arg(long, conflicts_with = "archive")]
    no_archive: bool,

    #[command(flatten)]
    settings: SettingFlags<FoldGroups>,
}

const HELP: &str = "\
Examples:
  foldline fit request.json --budget 32000 > smaller.json
  foldline fit --budget 32000 --explain < request.json > smaller.json
  foldline fit request.json --budget 8000 --policy tight --stats -
  foldline fit request.json --budget 32000 --target 0.55   leave room for the next requests

Policies:
  none       folds nothing; a body over the budget is an error
  lossless   only text that appears in the body more than once, or has a verified inverse
  balanced   also old text that costs more to keep than to request again
  tight      like balanced, but values free space higher

Exit codes:
  0  the body that was written fits
  2  the input is not a request body; it was written unchanged
  3  the body cannot fit; nothing was written, and standard error reports the smallest possible size";

/// Returns the parser of the names of formats.
fn format_names() -> PossibleValuesParser {
    PossibleValuesParser::new(std::iter::once("auto").chain(Dialect::all().map(|dialect| dialect.name)))
}

fn parse_target(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.1..=1.0).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is not a share of the budget; use a number from 0.1 to 1"))
}

impl FitCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let body = input::read_bytes(self.file.as_deref())?;
        let format = match self.format.as_str() {
            "auto" => Format::detect(&body).unwrap_or(Format::OpenAiChat),
            name => serde_json::from_value(json!(name)).context("unknown format")?,
        };
        // Formats are similar enough that a body can be parsed in the wrong one.
        let marked = Format::detect_marked(&body).filter(|_| self.format != "auto");
        let parsed = match marked.filter(|marked| *marked != format) {
            Some(marked) => Err(self.wrong_format(marked)),
            None => Request::parse(format, &body).map_err(|error| self.explain_error(&error.to_string(), &body)),
        };
        let request = match parsed {
            Ok(request) => request,
            Err(problem) => {
                match body.trim_ascii().is_empty() {
                    true => report("foldline: the input is empty"),
                    false => report(&format!("foldline: {problem}; the input was written unchanged")),
                }
                write_output(self.output.as_deref(), &body)?;
                return Ok(ExitCode::from(EXIT_BAD_INPUT));
            }
        };
        let layers = self.settings.load()?;
        let table = &models::model_table(&layers)?;
        let model = self.model.as_deref().or(request.conversation().model.as_deref());
        let meter = Meter::for_model(table, model);
        let mut options = FoldOptions::new(meter, Prices::for_model(table, model), self.budget.0)
            .with_rules(&LawProfile::for_model(format, model));
        options.policy = self.policy.clone().once();
        options.policy.target_ratio = self.target;
        let store: Option<Box<dyn OriginalStore>> = match ArchiveSettings::resolve(&layers) {
            _ if self.no_archive => None,
            Ok(settings) => Some(Box::new(settings)),
            Err(error) => Some(Box::new(NoArchive(format!("{error:#}")))),
        };
        let listener = |event| {
            if let FoldEvent::Refused { reason } = event {
                report(&format!("foldline: {reason}"));
            }
        };
        match apply(&request, &options, &Ledger::default(), store.as_deref(), &listener) {
            Ok(folded) => {
                write_output(self.output.as_deref(), &folded.body)?;
                self.report_folds(&folded, &options, format)?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if matches!(error.kind(), ErrorKind::CannotFit { .. }) => {
                report(&format!("foldline: {error}"));
                Ok(ExitCode::from(EXIT_CANNOT_FIT))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Explains why a body could not be parsed: often it has another format than the one that was given.
    fn explain_error(&self, error: &str, body: &[u8]) -> String {
        match Format::detect(body).filter(|format| format.name() != self.format) {
            Some(other) if self.format != "auto" => self.wrong_format(other),
            _ => plain(error),
        }
    }

    fn wrong_format(&self, other: Format) -> String {
        let (given, other) = (&self.format, other.name());
        format!("the body is not in the format {given}; it looks like {other} (use --format {other}, or omit it)")
    }

    fn report_folds(&self, folded: &FoldedRequest, options: &FoldOptions, format: Format) -> Result<()> {
        let folds = folded.folded.as_ref().map(|folded| folded.fold_stats()).unwrap_or_default();
        if self.explain {
            for fold in &folds {
                report(&format!(
                    "{:<8} {:<10} {:>7} -> {:<6} {}",
                    fold.part.to_string(),
                    fold.pass,
                    fold.tokens_before,
                    fold.tokens_after,
                    plain(fold.description.lines().next().unwrap_or_default())
                ));
            }
            report(&format!("{} of {} tokens, budget {}", folded.tokens, folded.raw_tokens, options.budget));
        }
        let Some(path) = &self.stats else { return Ok(()) };
        let mut passes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for fold in &folds {
            let (count, saved) = passes.entry(fold.pass).or_default();
            *count += 1;
            *saved += fold.tokens_before.saturating_sub(fold.tokens_after);
        }
        let stats = json!({
            "format": format.name(),
            "policy": options.policy.name,
            "budget": options.budget,
            "received_tokens": folded.raw_tokens,
            "tokens": folded.tokens,
            "exact": options.meter.exactness() == CountExactness::Exact,
            "folds": folds.len(),
            "creases": folded.creases().len(),
            "by_pass": passes.iter().map(|(pass, (count, saved))| (*pass, json!({ "folds": count, "saved": saved }))).collect::<BTreeMap<_, _>>(),
        });
        let mut text = serde_json::to_string_pretty(&stats)?;
        text.push('\n');
        if path.as_os_str() == "-" {
            report(text.trim_end());
            return Ok(());
        }
        write_output(Some(path), text.as_bytes())
    }
}
