//! `foldline replay`: what folding would have saved, cost and lost on recorded sessions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use foldline::transcript::RecordedSession;
use foldline::{Meter, ModelTable, Policy, PriceTable};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineSpec, EngineSummary, ExternalEngine, FoldlineEngine,
    IntervalEstimate, OracleSchedule, ReadError, RecordingFiles, ReplayEngine, ReplayReport, baselines,
    compare_engines,
};
use indicatif::{ProgressBar, ProgressStyle};

use super::{print_stdout, report};
use crate::environment::Terminal;
use crate::input::join_paths;

/// Tell what folding would have saved, cost and lost on recorded sessions.
///
/// Every recorded call is replayed: the engine sees the messages before it and no more, and what it
/// would have sent is measured against what the agent did next. Nothing leaves this machine.
#[derive(Args)]
pub(crate) struct ReplayCommand {
    /// Recordings: files or folders, plain or compressed, of any agent that is known
    /// (`~/.claude/projects`, `~/.codex/sessions`, ..).
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Replay another engine as well: a command that speaks the lines of `foldline pipe`. May be
    /// repeated; `NAME=CMD` gives it a name.
    #[arg(long, value_name = "CMD")]
    engine: Vec<String>,
    /// Tokens that a request may have.
    #[arg(long, value_name = "N", default_value_t = 128_000)]
    budget: u64,
    /// The price table of the bills.
    #[arg(long, value_name = "NAME", default_value = "anthropic-5m")]
    prices: String,
    /// What may be folded, and when: none, lossless, balanced or tight.
    #[arg(long, value_name = "NAME", default_value = "balanced")]
    policy: Policy,
    /// Leave out sessions with fewer calls.
    #[arg(long, value_name = "N", default_value_t = 10)]
    calls: usize,
    /// Replay this many sessions, drawn evenly.
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// What is replayed beside the engine, to set its numbers against.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = BaselineSet::Some)]
    beside: BaselineSet,
    /// Write the report as one self-contained page. It quotes lines of the sessions.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Write the report as JSON. It quotes lines of the sessions.
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
}

/// What stands beside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BaselineSet {
    /// Nothing but sending everything.
    None,
    /// Two simple policies, a random drop, and a bound that knows the future.
    Some,
    /// Every simple policy and classic strategy, both random drops and both bounds; takes many times as long.
    All,
}

/// The simple policies that stand beside the engine when not all are asked for.
const DEFAULT_BASELINES: [&str; 2] = ["mask all but 10 results", "clear above 100k, keep 3"];

impl ReplayCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let table = PriceTable::builtin();
        let prices = table.get(&self.prices).with_context(|| {
            format!(
                "there is no price table {:?}; there are {}",
                self.prices,
                table.names().collect::<Vec<_>>().join(", ")
            )
        })?;
        let options = CompareOptions {
            budget: self.budget,
            prices,
            meter: Meter::for_model(ModelTable::builtin(), Some("gpt-4o")),
            min_calls: self.calls.max(1),
        };
        let contestants = self.engines();

        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg} {human_pos}")?);
        bar.set_message("looking at the sessions:");
        let survey =
            CorpusStats::from_recordings(self.read_recordings(&bar, ReadErrorMode::Immediate)?.inspect(|_| bar.inc(1)));
        bar.finish_and_clear();
        if survey.conversation_count() == 0 {
            bail!("there is no recorded session in {}", join_paths(&self.files));
        }
        // A replay takes a while: where its report can not go is told before it.
        for path in [&self.html, &self.json].into_iter().flatten() {
            File::options().append(true).create(true).open(path).with_context(|| write_error(path))?;
        }
        let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} sessions, {eta} left")?;
        let drawn = self.sample.map(|count| survey.sample(count, options.min_calls));
        let count = drawn.as_ref().map_or_else(|| survey.count_with_calls(options.min_calls), |drawn| drawn.len());
        let bar = ProgressBar::new(count as u64).with_style(style);
        let faults = AtomicUsize::new(0);
        let recordings = self
            .read_recordings(&bar, ReadErrorMode::Counted(&faults))?
            .filter(|recording| drawn.as_ref().is_none_or(|drawn| drawn.contains(&recording.id)));
        let comparison = compare_engines(recordings, &survey, &contestants, &options, |_| bar.inc(1))?;
        bar.finish_and_clear();
        if comparison.outcomes.is_empty() {
            bail!("no session in {} has {} calls or more; see --calls", join_paths(&self.files), options.min_calls);
        }
        let unread = faults.into_inner();
        if unread > 0 {
            report(&format!("{unread} places in the recordings could not be read and were left out"));
        }

        print_stdout(&format_summary(&comparison, &self.prices))?;
        if self.html.is_some() || self.json.is_some() {
            let today = jiff::Zoned::now().date().to_string();
            let report = ReplayReport::new(&comparison, 1, &join_paths(&self.files), &self.prices, &today, self.budget);
            let write = |path: &Option<PathBuf>, text: String| match path {
                Some(path) => std::fs::write(path, text).with_context(|| write_error(path)),
                None => Ok(()),
            };
            write(&self.html, report.to_html())?;
            write(&self.json, report.to_json())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The recordings, one by one. What can not be read is told once, and not again on the second way.
    fn read_recordings<'a>(
        &self,
        bar: &'a ProgressBar,
        telling: ReadErrorMode<'a>,
    ) -> Result<impl Iterator<Item = RecordedSession> + Send + use<'a>> {
        let all = RecordingFiles::from_paths(&self.files)?;
        Ok(all.filter_map(move |recording| {
            let tell = |unread: &ReadError| match telling {
                ReadErrorMode::Counted(faults) => _ = faults.fetch_add(1, Ordering::Relaxed),
                ReadErrorMode::Immediate => bar.suspend(|| report(&unread.to_string())),
            };
            recording.inspect_err(tell).ok()
        }))
    }

    fn engines(&self) -> Vec<EngineSpec> {
        let mut contestants = vec![EngineSpec::Engine(Box::new(FoldlineEngine::new(self.policy.clone())))];
        for command in &self.engine {
            let engine = match command.split_once('=') {
                Some((name, command)) if !name.contains(['/', '"', '\'']) => {
                    ExternalEngine::new(command).with_name(name)
                }
                _ => ExternalEngine::new(command),
            };
            contestants.push(EngineSpec::Engine(Box::new(engine)));
        }
        let all = self.beside == BaselineSet::All;
        if self.beside == BaselineSet::None {
            return contestants;
        }
        for policy in
            baselines::BASELINES.iter().skip(1).filter(|policy| all || DEFAULT_BASELINES.contains(&policy.name()))
        {
            contestants.push(EngineSpec::Engine(Box::new(policy.clone())));
        }
        for classic in baselines::CLASSIC_STRATEGIES.iter().filter(|_| all) {
            contestants.push(EngineSpec::Engine(Box::new(classic.clone())));
        }
        contestants.push(EngineSpec::RandomMatching(0, baselines::DropUnit::Results));
        if all {
            contestants.push(EngineSpec::RandomMatching(0, baselines::DropUnit::Lines));
        }
        contestants.push(EngineSpec::Oracle(OracleSchedule::Profitable));
        if all {
            contestants.push(EngineSpec::Oracle(OracleSchedule::Optimal));
        }
        contestants
    }
}

fn write_error(path: &Path) -> String {
    format!("{} could not be written", path.display())
}

/// When a person is told of what could not be read.
#[derive(Clone, Copy)]
enum ReadErrorMode<'a> {
    Immediate,
    Counted(&'a AtomicUsize),
}

/// What fits on one screen: a few sentences, and the table.
fn format_summary(comparison: &EngineComparison, prices: &str) -> String {
    let (full, ours) = (comparison.summary(0), comparison.summary(1));
    let dollars = |summary: &EngineSummary| comparison.prices.dollars(summary.score.cost(&comparison.prices));
    let money = if comparison.prices.base_usd > 0.0 {
        format!(", ${:.2} instead of ${:.2}", dollars(&ours), dollars(&full))
    } else {
        String::new()
    };
    let tokens = |summary: &EngineSummary| summary.score.tokens as f64 / 1e6;
    let mut text = format!(
        "{} sessions, {} calls; prices {prices} (write {}, read {}).\n\n\
         {} would have sent {:.1} M input tokens instead of {:.1} M ({}).\n\
         The input bill: {}{money}; {} with round trips for what was missing.\n\
         {} of the actions would have missed something; {} of the edits found their old text.\n\n",
        comparison.outcomes.len(),
        comparison.calls(),
        comparison.prices.write,
        comparison.prices.read,
        ours.name,
        tokens(&ours),
        tokens(&full),
        format_share(ours.tokens.value),
        format_share(ours.cost.value),
        format_share(ours.cost_with_retries.value),
        format_share(ours.actions_missing_context.value),
        format_share(ours.edits_that_apply.value),
    );
    let summaries: Vec<EngineSummary> = (0..comparison.engine_names.len()).map(|row| comparison.summary(row)).collect();
    text.push_str(&summary_table(&summaries).to_string());
    text.push('\n');
    summaries.iter().filter_map(format_violations).for_each(|line| text.push_str(&line));
    let brackets = if shows_intervals() { "; in brackets 95 % intervals over sessions" } else { "" };
    text.push_str(&format!(
        "\nIn percent of sending everything{brackets}. Repaired: with a round\n\
         trip for each action that missed something. Hard: of what an action needed and recency does not\n\
         give away, the share that stood verbatim. Anchors: old texts of edits in one piece. Words: of users\n\
         and of the system, verbatim. Gap: how far to a bound that knows the future.\n\
         The replay tells whether the information was there, not whether a task would have been solved.\n",
    ));
    text
}

/// Whether the screen has room for intervals.
fn shows_intervals() -> bool {
    Terminal::for_stdout().width >= 100
}

/// What should not happen to a request.
fn format_violations(it: &EngineSummary) -> Option<String> {
    let told = [
        (it.score.refused, "calls refused"),
        (it.score.laws_broken, "laws of the provider broken"),
        (it.score.unannounced, "unannounced changes of what was sent"),
        (it.score.unfolded.total - it.score.unfolded.hits, "handles without their original"),
    ];
    let there: Vec<String> =
        told.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!there.is_empty()).then(|| format!("{}: {}\n", it.name, there.join(", ")))
}

fn summary_table(summaries: &[EngineSummary]) -> Table {
    let width = Terminal::for_stdout().width;
    let number = |share: f64| format!("{:.1}", 100.0 * share);
    let repaired = |it: IntervalEstimate| match shows_intervals() {
        false => number(it.value),
        true => format!("{} ({}-{})", number(it.value), number(it.low), number(it.high)),
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width.try_into().unwrap_or(u16::MAX));
    table.set_header(["", "tokens", "bill", "repaired", "hard", "missteps", "anchors", "words", "gap"]);
    for it in summaries {
        table.add_row([
            it.name.clone(),
            number(it.tokens.value),
            number(it.cost.value),
            repaired(it.cost_with_retries),
            number(it.needed_context_kept.value),
            number(it.actions_missing_context.value),
            number(it.edits_that_apply.value),
            number(it.instructions_kept),
            it.paying_oracle_share.map(|gap| number(gap.value)).unwrap_or_default(),
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

fn format_share(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
