//! `foldline replay`: replays recorded sessions and reports what folding would have saved, cost and lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use foldline::models::PriceTable;
use foldline::transcript::{LogFormat, RecordedSession};
use foldline::{Meter, ModelTable, Policy, Prices};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineSpec, EngineSummary, ExternalEngine, FoldlineEngine,
    IntervalEstimate, MergedReplay, OracleSchedule, ReadError, RecordingFiles, RecordingSetHash, ReplayEngine,
    ReplayReport, ReplayShard, ShardContext, ShardResult, baselines, engine_names, merge_shards, open_decompressed,
    replay_recordings,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::environment::Terminal;
use crate::input::join_paths;
use crate::output::{print_stdout, report, write_output};
use crate::render::{plain, pluralize};
use crate::units::TokensArg;

/// Report what folding would have saved, cost and lost on recorded sessions
///
/// Every recorded call is replayed: the engine sees only the messages before it, and the request it would
/// have sent is compared with what the agent did next. Nothing leaves this machine. Terms are explained in
/// docs/glossary.md.
#[derive(Args)]
pub(crate) struct ReplayCommand {
    /// Recordings: files or folders, plain or compressed, of any supported agent
    /// (`~/.claude/projects`, `~/.codex/sessions`, ..). With --merge: the results of shards.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Replay another engine as well: a command that uses the protocol of `foldline pipe`. May be
    /// repeated; `NAME=CMD` gives it a name.
    #[arg(long, value_name = "CMD")]
    engine: Vec<String>,
    /// Maximum tokens per request: 128000, 128k or 1M.
    #[arg(long, value_name = "TOKENS", default_value = "128k")]
    budget: TokensArg,
    /// A price table for all sessions; `foldline models --prices` lists them [default: the prices of each session's
    /// model, with one-hour cache writes for Claude Code].
    #[arg(long, value_name = "NAME")]
    prices: Option<String>,
    /// Fold policy: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,
    /// Skip sessions with fewer calls.
    #[arg(long, value_name = "N", default_value_t = 10)]
    min_calls: usize,
    /// Replay only this many sessions, sampled evenly.
    #[arg(long, value_name = "N", value_parser = parse_sample)]
    sample: Option<NonZeroUsize>,
    /// Baselines to replay for comparison.
    #[arg(long, value_name = "SET", value_enum, default_value_t = BaselineSet::Some)]
    baselines: BaselineSet,
    /// Write the report as one self-contained HTML page. It quotes lines of the sessions.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Write the report as JSON; `-` is standard output, instead of the summary. It quotes lines of the sessions.
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Replay only one of N shards of the sessions, such as 2/8, and write its result for --merge to --json. Sessions
    /// are assigned by their names. Every shard needs all recordings.
    #[arg(long, value_name = "I/N", requires = "json", conflicts_with = "html")]
    shard: Option<ReplayShard>,
    /// Merge the results of all shards into the report of one replay.
    #[arg(long, conflicts_with_all = [
        "shard", "engine", "budget", "prices", "policy", "min_calls", "sample", "baselines",
    ])]
    merge: bool,
}

/// Baselines that are replayed next to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BaselineSet {
    /// Only "no compaction": every request is sent in full.
    None,
    /// Two simple policies, a random drop, truncation, and the oracle that knows the future.
    Some,
    /// Every simple policy and classic strategy, all drops at equal tokens and both oracles; much slower.
    All,
}

/// The results of all sessions and what a report needs besides them.
struct ReplayOutput {
    comparison: EngineComparison,
    context: ShardContext,
}

/// The version that results of shards must have in common.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The row whose sessions are reported: foldline's, after no compaction.
const SUBJECT: usize = 1;
/// Flags whose values a report shows.
const BUDGET_FLAG: &str = "--budget";
const PRICES_FLAG: &str = "--prices";
const MIN_CALLS_FLAG: &str = "--min-calls";

/// The simple policies that `--baselines some` replays.
const DEFAULT_BASELINES: [&str; 2] = ["mask all but 10 results", "clear above 100k, keep 3"];

impl ReplayCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let finished = if self.merge { Some(self.merge_results()?) } else { self.replay()? };
        let Some(ReplayOutput { comparison, context }) = finished else { return Ok(ExitCode::SUCCESS) };
        let setting = |flag: &str| context.settings.get(flag).map(String::as_str);
        if comparison.outcomes.is_empty() {
            let min_calls = setting(MIN_CALLS_FLAG).unwrap_or_default();
            bail!("no session in {} has {min_calls} calls or more; see --min-calls", context.data_set);
        }
        if let Some(line) = format_left_out(&context) {
            report(&line);
        }
        let price_label = setting(PRICES_FLAG).map_or_else(|| default_price_label(&comparison), ToOwned::to_owned);
        if !self.json.as_deref().is_some_and(is_stdout) {
            print_stdout(&format_summary(&comparison, &price_label))?;
        }
        if self.html.is_some() || self.json.is_some() {
            let budget =
                setting(BUDGET_FLAG).and_then(|tokens| tokens.parse().ok()).context("results have no --budget")?;
            let report =
                ReplayReport::new(&comparison, SUBJECT, &context.data_set, &price_label, &context.date, budget);
            if let Some(path) = &self.html {
                write_output(Some(path), report.to_html().as_bytes())?;
            }
            if let Some(path) = &self.json {
                write_json(path, &report.to_json())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads and merges the results of shards.
    fn merge_results(&self) -> Result<ReplayOutput> {
        let mut results = Vec::with_capacity(self.files.len());
        for path in &self.files {
            let name = path.display().to_string();
            let mut text = String::new();
            open_decompressed(path)
                .and_then(|mut input| input.read_to_string(&mut text))
                .with_context(|| format!("could not read {name}"))?;
            results.push((name.clone(), ShardResult::parse(&name, &text, VERSION)?));
        }
        let MergedReplay { comparison, context } = merge_shards(results)?;
        Ok(ReplayOutput { comparison, context })
    }

    /// Replays all sessions, or those of a shard. Returns the results of all sessions; those of a shard are written.
    fn replay(&self) -> Result<Option<ReplayOutput>> {
        let fixed_prices = self.prices.as_deref().map(named_prices).transpose()?;
        let options = CompareOptions {
            budget: self.budget.0,
            prices: fixed_prices.map_or_else(|| named_prices(FALLBACK_PRICES), Ok)?,
            meter: Meter::for_model(ModelTable::builtin(), Some("gpt-4o")),
            min_calls: self.min_calls.max(1),
        };
        let engines = self.engines();

        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg} {human_pos}")?);
        bar.set_message("reading sessions:");
        let corpus =
            CorpusStats::from_recordings(self.read_recordings(&bar, ReadErrorMode::Immediate)?.inspect(|_| bar.inc(1)));
        bar.finish_and_clear();
        if corpus.conversation_count() == 0 {
            bail!("no recorded session in {}", join_paths(&self.files));
        }
        // A replay takes a while: report an unwritable output before it.
        for path in [&self.html, &self.json].into_iter().flatten().filter(|path| !is_stdout(path)) {
            File::options().append(true).create(true).open(path).with_context(|| write_error(path))?;
        }
        let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} sessions, {eta} left")?;
        let sampled = self.sample.map(|count| corpus.sample(count.get(), options.min_calls));
        let count =
            sampled.as_ref().map_or_else(|| corpus.count_with_calls(options.min_calls), |sampled| sampled.len());
        let bar = ProgressBar::new(count as u64).with_style(style);
        let read_errors = AtomicUsize::new(0);
        let mut set_hash = RecordingSetHash::default();
        let recordings = self
            .read_recordings(&bar, ReadErrorMode::Counted(&read_errors))?
            .inspect(|recording| set_hash.add(recording))
            .enumerate()
            .filter(|(_, recording)| self.shard.is_none_or(|shard| shard.contains(&recording.id)))
            .filter(|(_, recording)| sampled.as_ref().is_none_or(|sampled| sampled.contains(&recording.id)));
        let prices = |recording: &RecordedSession| fixed_prices.unwrap_or_else(|| session_prices(recording, &options));
        let outcomes = replay_recordings(recordings, &corpus, &engines, &options, &prices, |_| bar.inc(1))?;
        bar.finish_and_clear();
        let unread = read_errors.into_inner();
        if unread > 0 {
            report(&format!("{unread} entries of the recordings could not be read and were skipped"));
        }
        let left_out = corpus.shorter_than(options.min_calls).into_iter().map(|(id, calls)| (id.to_owned(), calls));
        let context = ShardContext {
            settings: self.settings(&options),
            data_set: join_paths(&self.files),
            date: jiff::Zoned::now().date().to_string(),
            left_out: left_out.collect(),
        };
        let names = engine_names(&engines);
        let Some((shard, path)) = self.shard.zip(self.json.as_deref()) else {
            let outcomes = outcomes.into_iter().map(|placed| placed.outcome).collect();
            let comparison = EngineComparison::new(names, outcomes, options.prices);
            return Ok(Some(ReplayOutput { comparison, context }));
        };
        let result = ShardResult::new(shard, VERSION, context, &set_hash, names, outcomes, SUBJECT);
        write_json(path, &result.to_json())?;
        let sessions = pluralize(result.session_count() as u64, "session");
        report(&format!(
            "shard {shard}: {sessions} replayed; `foldline replay --merge` merges the results of all shards"
        ));
        Ok(None)
    }

    /// Returns the settings that all shards of a replay must share, by flag.
    fn settings(&self, options: &CompareOptions) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::from([
            (BUDGET_FLAG, options.budget.to_string()),
            (MIN_CALLS_FLAG, options.min_calls.to_string()),
            ("--policy", self.policy.name.to_owned()),
            ("--baselines", format!("{:?}", self.baselines).to_lowercase()),
        ]);
        settings.extend(self.prices.clone().map(|name| (PRICES_FLAG, name)));
        settings.extend(self.sample.map(|count| ("--sample", count.to_string())));
        settings.extend((!self.engine.is_empty()).then(|| ("--engine", self.engine.join(" --engine "))));
        settings.into_iter().map(|(flag, value)| (flag.to_owned(), value)).collect()
    }

    /// Returns the recordings, one by one. Read errors are reported in the first run only and counted in the second.
    fn read_recordings<'a>(
        &self,
        bar: &'a ProgressBar,
        error_mode: ReadErrorMode<'a>,
    ) -> Result<impl Iterator<Item = RecordedSession> + Send + use<'a>> {
        let all = RecordingFiles::from_paths(&self.files)?;
        Ok(all.filter_map(move |recording| {
            let on_error = |unread: &ReadError| match error_mode {
                ReadErrorMode::Counted(count) => _ = count.fetch_add(1, Ordering::Relaxed),
                ReadErrorMode::Immediate => bar.suspend(|| report(&plain(&unread.to_string()))),
            };
            recording.inspect_err(on_error).ok()
        }))
    }

    fn engines(&self) -> Vec<EngineSpec> {
        let mut engines = vec![EngineSpec::Engine(Box::new(FoldlineEngine::new(self.policy.clone())))];
        for command in &self.engine {
            let engine = match command.split_once('=') {
                Some((name, command)) if !name.contains(['/', '"', '\'']) => {
                    ExternalEngine::new(command).with_name(name)
                }
                _ => ExternalEngine::new(command),
            };
            engines.push(EngineSpec::Engine(Box::new(engine)));
        }
        let all = self.baselines == BaselineSet::All;
        if self.baselines == BaselineSet::None {
            return engines;
        }
        for policy in
            baselines::BASELINES.iter().skip(1).filter(|policy| all || DEFAULT_BASELINES.contains(&policy.name()))
        {
            engines.push(EngineSpec::Engine(Box::new(policy.clone())));
        }
        for classic in baselines::CLASSIC_STRATEGIES.iter().filter(|_| all) {
            engines.push(EngineSpec::Engine(Box::new(classic.clone())));
        }
        engines.push(EngineSpec::EqualTokens(0, baselines::DropUnit::Results));
        engines.push(EngineSpec::EqualTokens(0, baselines::DropUnit::OldestRounds));
        if all {
            engines.push(EngineSpec::EqualTokens(0, baselines::DropUnit::Lines));
        }
        if all {
            engines.push(EngineSpec::Oracle(OracleSchedule::Profitable));
        }
        engines.push(EngineSpec::Oracle(OracleSchedule::Optimal));
        engines
    }
}

/// Prices by which folds are decided for models that have none.
pub(crate) const FALLBACK_PRICES: &str = "anthropic-5m";
/// The most sessions that are named in a message.
const MAX_NAMED_SESSIONS: usize = 5;

pub(crate) fn named_prices(name: &str) -> Result<Prices> {
    let table = PriceTable::builtin();
    table.get(name).with_context(|| {
        format!("unknown price table {name:?}; available: {}", table.names().collect::<Vec<_>>().join(", "))
    })
}

/// Returns the prices of a session's own model. Folds of unknown and local models are decided by the usual prices; in
/// dollars they cost nothing.
pub(crate) fn session_prices(recording: &RecordedSession, options: &CompareOptions) -> Prices {
    let (table, model) = (ModelTable::builtin(), recording.conversation.model.as_deref());
    if model.is_none() || !table.find(model).has_list_price() {
        let mut prices = options.prices;
        prices.base_usd = 0.0;
        return prices;
    }
    // Claude Code keeps its cache entries for an hour.
    let one_hour = (recording.format == LogFormat::ClaudeCode).then(|| Prices::for_one_hour_cache(table, model));
    one_hour.flatten().unwrap_or_else(|| Prices::for_model(table, model))
}

fn parse_sample(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number of sessions; use 1 or more"))
}

/// Describes the prices that were chosen by model.
fn default_price_label(comparison: &EngineComparison) -> String {
    let outcomes = &comparison.outcomes;
    match outcomes.iter().all(|outcome| outcome.prices == comparison.prices) {
        true if comparison.unpriced_count() == outcomes.len() => FALLBACK_PRICES.to_owned(),
        true => "of the sessions' model".to_owned(),
        false => "of each session's model, on average".to_owned(),
    }
}

/// Describes the sessions that are too short to be replayed; `None` if there are none.
fn format_left_out(context: &ShardContext) -> Option<String> {
    let short = &context.left_out;
    if short.is_empty() {
        return None;
    }
    let min_calls = context.settings.get(MIN_CALLS_FLAG).map_or("", String::as_str);
    let named: Vec<String> =
        short.iter().take(MAX_NAMED_SESSIONS).map(|(id, calls)| format!("{} ({calls})", plain(id))).collect();
    let more = if short.len() > named.len() { ", .." } else { "" };
    Some(format!(
        "{} left out with fewer than {min_calls} calls (--min-calls): {}{more}",
        pluralize(short.len() as u64, "session"),
        named.join(", ")
    ))
}

/// Writes JSON to a file or to standard output.
fn write_json(path: &Path, json: &str) -> Result<()> {
    let file = Some(path).filter(|path| !is_stdout(path));
    write_output(file, format!("{json}\n").as_bytes())
}

/// Returns true for the argument that means standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn write_error(path: &Path) -> String {
    format!("could not write {}", path.display())
}

/// Handling of recordings that cannot be read.
#[derive(Clone, Copy)]
enum ReadErrorMode<'a> {
    Immediate,
    Counted(&'a AtomicUsize),
}

/// Formats the console summary: a few sentences and the table.
fn format_summary(comparison: &EngineComparison, prices: &str) -> String {
    let summaries = comparison.summaries();
    let (full, ours) = (&summaries[0], &summaries[SUBJECT]);
    let money = match comparison.dollars(1).zip(comparison.dollars(0)) {
        Some((ours, full)) => format!(", ${ours:.2} instead of ${full:.2} at list prices"),
        None => String::new(),
    };
    let unpriced = match comparison.unpriced_count() {
        0 => String::new(),
        count if count == comparison.outcomes.len() => {
            "Unknown and local models have no price; costs are relative.\n".to_owned()
        }
        count => format!("{} of unknown or local models without a price.\n", pluralize(count as u64, "session")),
    };
    let tokens = |summary: &EngineSummary| summary.score.tokens as f64 / 1e6;
    let mut text = format!(
        "{} sessions, {} calls; prices {prices} (write {}, read {}).\n\n\
         {} would have sent {:.1} M input tokens instead of {:.1} M ({}).\n\
         Input cost: {}{money}; {} including retries for missing context.\n\
         {} of the actions would have missed needed context; {} of the edits would have applied.\n{unpriced}\n",
        comparison.outcomes.len(),
        comparison.calls(),
        rounded(comparison.prices.write),
        rounded(comparison.prices.read),
        ours.name,
        tokens(ours),
        tokens(full),
        format_share(ours.tokens.value),
        format_share(ours.cost.value),
        format_share(ours.cost_with_retries.value),
        format_share(ours.actions_missing_context.value),
        format_share(ours.edits_that_apply.value),
    );
    text.push_str(&summary_table(&summaries).to_string());
    text.push('\n');
    summaries.iter().filter_map(format_violations).for_each(|line| text.push_str(&line));
    let brackets = if shows_intervals() { "; 95 % intervals over sessions in parentheses" } else { "" };
    text.push_str(&format!(
        "\nPercent of no compaction{brackets}. Cost incl. retries: with one more\n\
         request for each action that missed context or the text of an edit. Needed context kept: share of\n\
         what an action needed, and recency alone does not give, that was sent verbatim; needed strings kept:\n\
         the same by a second, independent definition. Edits that apply: edits whose old text was sent in one\n\
         piece. Instructions kept: user and system text sent verbatim. % of oracle saving: share of what an\n\
         oracle that knows the future would save with the optimal schedule. See docs/glossary.md.\n\
         Read cost incl. retries together with needed context kept: what a row saves, and what it loses for it.\n\
         With a subscription nothing is billed per token; the saving is in its usage limits.\n\
         The replay measures whether the information was sent, not whether a task would have been solved.\n",
    ));
    text
}

/// Returns true if the terminal is wide enough for intervals.
fn shows_intervals() -> bool {
    Terminal::for_stdout().width >= 100
}

/// Lists the faults of an engine's requests; `None` if there are none.
fn format_violations(it: &EngineSummary) -> Option<String> {
    let faults = [
        (it.score.refused, "requests refused"),
        (it.score.laws_broken, "provider laws broken"),
        (it.score.unannounced, "unannounced changes of sent messages"),
        (it.score.unfolded.total - it.score.unfolded.hits, "handles without their original"),
    ];
    let lines: Vec<String> =
        faults.iter().filter(|(count, _)| *count > 0).map(|(count, fault)| format!("{count} {fault}")).collect();
    let by_law = it.score.violations_by_law.iter().map(|(law, count)| format!("  {count} {law}\n"));
    (!lines.is_empty()).then(|| format!("{}: {}\n{}", it.name, lines.join(", "), by_law.collect::<String>()))
}

fn summary_table(summaries: &[EngineSummary]) -> Table {
    let width = Terminal::for_stdout().width;
    let number = |share: f64| format!("{:.1}", 100.0 * share);
    let with_interval = |it: IntervalEstimate| match shows_intervals() {
        false => number(it.value),
        true => format!("{} ({}-{})", number(it.value), number(it.low), number(it.high)),
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width.try_into().unwrap_or(u16::MAX));
    // Broken over lines: the titles are wider than their numbers.
    table.set_header([
        "",
        "tokens",
        "cost",
        "cost\nincl.\nretries",
        "needed\ncontext\nkept",
        "needed\nstrings\nkept",
        "actions\nmissing\ncontext",
        "edits\nthat\napply",
        "instructions\nkept",
        "% of\noracle\nsaving",
    ]);
    for it in summaries {
        table.add_row([
            it.name.clone(),
            number(it.tokens.value),
            number(it.cost.value),
            with_interval(it.cost_with_retries),
            number(it.needed_context_kept.value),
            number(it.needed_strings_kept.value),
            number(it.actions_missing_context.value),
            number(it.edits_that_apply.value),
            number(it.instructions_kept),
            it.optimal_oracle_share.map(|share| number(share.value)).unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
        if column.index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Rounds a relative price, which can be a mean, to thousandths.
fn rounded(price: f64) -> f64 {
    (price * 1_000.0).round() / 1_000.0
}

fn format_share(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
