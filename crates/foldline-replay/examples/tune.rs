//! Prints the table of policies over a set of recordings, and statistics of missing context.
//!
//!     cargo run --release -p foldline-replay --example tune -- --engine "mask all" --missing 20

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use foldline::models::PriceTable;
use foldline::{Meter, ModelTable};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineSpec, OracleSchedule, RecordingFiles, ReplayEngine,
    ReplayReport, ReplayScore, baselines, compare_engines, is_tuning_half,
};

#[derive(Parser)]
struct TuneArgs {
    /// The set of recordings; the development corpus by default.
    file: Option<PathBuf>,
    /// Only engines whose name contains this.
    #[arg(long)]
    engine: Option<String>,
    /// Only one half of the set: a to tune with, b to validate with.
    #[arg(long)]
    half: Option<CorpusHalf>,
    /// Print this many entries of missing context, and tables of what is missing.
    #[arg(long)]
    missing: Option<usize>,
    /// Minimum calls of a conversation.
    #[arg(long, default_value_t = 30)]
    min_calls: usize,
    /// Maximum tokens of a rendering.
    #[arg(long, default_value_t = 128_000)]
    budget: u64,
    /// The price table.
    #[arg(long, default_value = "anthropic-5m")]
    prices: String,
    /// Omit the oracles, which take the most time.
    #[arg(long)]
    no_bound: bool,
    /// Replay foldline with recall too: an experiment.
    #[arg(long)]
    recall: bool,
    /// Omit the random drops.
    #[arg(long)]
    no_random: bool,
    /// Write the HTML report to this file.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Change a field of foldline's policies: `keep_file_calls=12`, `min_gain_ratio=5`.
    #[arg(long)]
    set: Vec<String>,
    /// Print one line per conversation.
    #[arg(long)]
    each: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum CorpusHalf {
    A,
    B,
}

/// Sets one field of a policy.
fn set_policy_field(policy: &mut foldline::Policy, setting: &str) -> anyhow::Result<()> {
    let (name, value) = setting.split_once('=').context("write a setting as name=number")?;
    let number: f64 = value.parse().with_context(|| format!("{value} is not a number"))?;
    match name {
        "trigger_ratio" => policy.trigger_ratio = number,
        "target_ratio" => policy.target_ratio = number,
        "keep_file_calls" => policy.keep_file_calls = number as u32,
        "keep_other_calls" => policy.keep_other_calls = number as u32,
        "keep_share" => policy.keep_share = number,
        "remaining_ratio" => policy.remaining_ratio = number,
        "min_gain_ratio" => policy.min_gain_ratio = number,
        "space_value" => policy.space_value = number,
        other => anyhow::bail!("a policy has no field {other}"),
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "command-line program")]
fn main() -> anyhow::Result<()> {
    let arguments = TuneArgs::parse();
    let default_file = || std::env::var_os("FOLDLINE_CORPUS").map(|folder| Path::new(&folder).join("dev.jsonl.zst"));
    let Some(file) = arguments.file.clone().or_else(default_file) else {
        println!("name a file of recorded sessions, or set FOLDLINE_CORPUS to a folder with dev.jsonl.zst");
        return Ok(());
    };
    let started = Instant::now();
    let corpus = CorpusStats::from_recordings(RecordingFiles::from_paths(from_ref(&file))?.flatten());
    let in_half = |id: &str| arguments.half.is_none_or(|wanted| is_tuning_half(id) == (wanted == CorpusHalf::A));
    let chosen = RecordingFiles::from_paths(from_ref(&file))?.flatten().filter(|recording| in_half(&recording.id));
    let read = started.elapsed();
    let named = |name: &str| arguments.engine.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()));
    let mut engines = Vec::new();
    for policy in baselines::BASELINES[1..].iter().filter(|policy| named(policy.name())) {
        engines.push(EngineSpec::Engine(Box::new(policy.clone())));
    }
    for classic in baselines::CLASSIC_STRATEGIES.iter().filter(|classic| named(classic.name())) {
        engines.push(EngineSpec::Engine(Box::new(classic.clone())));
    }
    let mut policies = foldline::Policy::ALL;
    for setting in &arguments.set {
        policies.iter_mut().try_for_each(|policy| set_policy_field(policy, setting))?;
    }
    for ours in policies.into_iter().map(foldline_replay::FoldlineEngine::new).filter(|ours| named(ours.name())) {
        if arguments.recall {
            engines.push(EngineSpec::Engine(Box::new(foldline_replay::RecallEngine::new(ours.clone()))));
        }
        engines.push(EngineSpec::Engine(Box::new(ours)));
    }
    let balanced = engines.iter().position(|it| it.name() == "foldline balanced");
    if let Some(like) = balanced.or(engines.len().checked_sub(1)) {
        engines.push(EngineSpec::EqualTokens(like, baselines::DropUnit::OldestRounds));
        if !arguments.no_random {
            engines.push(EngineSpec::EqualTokens(like, baselines::DropUnit::Results));
            engines.push(EngineSpec::EqualTokens(like, baselines::DropUnit::Lines));
        }
    }
    if !arguments.no_bound {
        engines.push(EngineSpec::Oracle(OracleSchedule::Profitable));
        engines.push(EngineSpec::Oracle(OracleSchedule::Optimal));
    }
    let options = CompareOptions {
        budget: arguments.budget,
        prices: PriceTable::builtin().get(&arguments.prices).context("unknown price table")?,
        meter: Meter::for_model(ModelTable::builtin(), Some("gpt-4o")),
        min_calls: arguments.min_calls,
    };
    let started = Instant::now();
    let comparison = compare_engines(chosen, &corpus, &engines, &options, |_| ())?;
    println!(
        "{} conversations of {} calls and more, {} calls; prices {}; read in {read:.1?}, replayed in {:.1?}",
        comparison.outcomes.len(),
        arguments.min_calls,
        comparison.calls(),
        arguments.prices,
        started.elapsed(),
    );
    print_table(&comparison);
    if let Some(path) = &arguments.html {
        let report = ReplayReport::new(&comparison, 1, "development set", &arguments.prices, "", arguments.budget);
        std::fs::write(path, report.to_html())?;
    }
    if arguments.each {
        print_sessions(&comparison);
    }
    if let Some(show) = arguments.missing {
        for engine in 1..comparison.engine_names.len() {
            print_missing_context(&comparison, engine, show);
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "command-line program")]
fn print_table(comparison: &EngineComparison) {
    println!(
        "{:36} {:>6} {:>6} {:>17} {:>5} {:>4} {:>6} {:>17} {:>7} {:>6} {:>6} {:>11} {:>7} {:>6} {:>17} {:>17} {:>6} {:>7} {:>5}",
        "policy",
        "tokens",
        "cost",
        "incl. retries",
        "worst",
        "more",
        "kept",
        "needed",
        "strings",
        "missing",
        "edits",
        "trail",
        "foreign",
        "instr.",
        "oracle (optimal)",
        "oracle (pays)",
        "crease",
        "repeats",
        "<=32k"
    );
    for engine in 0..comparison.engine_names.len() {
        let it = comparison.summary(engine);
        let interval = |it: foldline_replay::IntervalEstimate| {
            format!("{:5.1} ({:5.1},{:5.1})", 100.0 * it.value, 100.0 * it.low, 100.0 * it.high)
        };
        println!(
            "{:36} {:>6.1} {:>6.1} {:>17} {:>5.2} {:>4} {:>6.2} {:>17} {:>7.2} {:>6.2} {:>6.2} {:>11} {:>7.1} {:>6.2} {:>17} {:>17} {:>6} {:>7} {:>5.1}{}",
            it.name,
            100.0 * it.tokens.value,
            100.0 * it.cost.value,
            interval(it.cost_with_retries),
            it.worst_cost,
            it.costlier_sessions,
            100.0 * it.context_kept.value,
            interval(it.needed_context_kept),
            100.0 * it.needed_strings_kept.value,
            100.0 * it.actions_missing_context.value,
            100.0 * it.edits_that_apply.value,
            format!("{:.1}/{:.1}", 100.0 * it.trail_recall.value, 100.0 * it.trail_precision.value),
            100.0 * it.foreign.value,
            100.0 * it.instructions_kept,
            it.optimal_oracle_share.map(interval).unwrap_or_default(),
            it.paying_oracle_share.map(interval).unwrap_or_default(),
            it.score.creases,
            it.score.repeated_reads,
            100.0 * it.fits[2],
            format_violations(&it.score),
        );
    }
}

/// Lists the faults of an engine's requests.
fn format_violations(score: &ReplayScore) -> String {
    let all = [
        ("refused", score.refused),
        ("unannounced creases", score.unannounced),
        ("laws broken", score.laws_broken),
        ("bytes invented", score.invented_bytes),
    ];
    let lines: Vec<String> =
        all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if lines.is_empty() { String::new() } else { format!("  {}", lines.join(", ")) }
}

#[expect(clippy::print_stdout, reason = "command-line program")]
fn print_sessions(comparison: &EngineComparison) {
    for outcome in &comparison.outcomes {
        println!("{} ({} calls, {} tokens)", outcome.id, outcome.runs[0].score.calls, outcome.tokens);
        let full = outcome.runs[0].score.cost(&comparison.prices);
        for (name, run) in comparison.engine_names.iter().zip(&outcome.runs).skip(1) {
            println!(
                "  {name:32} cost {:.3}, incl. retries {:.3}, needed context kept {:.3}, {} identifiers missing, {} creases",
                run.score.cost(&comparison.prices) / full,
                run.score.cost_with_retries(&comparison.prices) / full,
                run.score.needed_context_kept.ratio(),
                run.missing_context.len(),
                run.score.creases,
            );
        }
    }
}

/// Prints tables of the missing context, then examples.
#[expect(clippy::print_stdout, reason = "command-line program")]
fn print_missing_context(comparison: &EngineComparison, engine: usize, show: usize) {
    let mut tables: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    let mut shown = Vec::new();
    for outcome in &comparison.outcomes {
        for missing in &outcome.runs[engine].missing_context {
            let kind = format!("{:?} {}", missing.position.kind, missing.tool);
            let age = match missing.age {
                0..4 => "age 00-03",
                4..8 => "age 04-07",
                8..16 => "age 08-15",
                16..32 => "age 16-31",
                32..64 => "age 32-63",
                _ => "age 64-",
            };
            let used = if missing.used_before { "used before" } else { "never used before" };
            *tables.entry("kind").or_default().entry(kind.clone()).or_default() += 1;
            *tables.entry("age").or_default().entry(age.to_owned()).or_default() += 1;
            *tables.entry("use").or_default().entry(used.to_owned()).or_default() += 1;
            *tables.entry("kind and age").or_default().entry(format!("{kind}, {age}")).or_default() += 1;
            *tables.entry("kind and use").or_default().entry(format!("{kind}, {used}")).or_default() += 1;
            shown.push((outcome, missing, kind));
        }
    }
    let all = shown.len();
    println!("\n{}: {all} needed identifiers were missing", comparison.engine_names[engine]);
    for (title, table) in tables {
        println!("-- by {title}");
        let mut rows: Vec<_> = table.into_iter().collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (row, count) in rows.into_iter().take(20) {
            println!("{:6.1} % {count:6}  {row}", 100.0 * count as f64 / all as f64);
        }
    }
    // Evenly spread over all of them, so that one conversation does not dominate.
    for (outcome, missing, kind) in shown.iter().step_by((all / show.max(1)).max(1)).take(show) {
        println!(
            "{} call {} needs {:?}: message {} ({kind}, {} calls ago, {})\n    {}\n    {}",
            outcome.id,
            missing.call,
            missing.identifier,
            missing.position.message,
            missing.age,
            if missing.used_before { "used before" } else { "never used before" },
            missing.arguments,
            missing.line,
        );
    }
}
