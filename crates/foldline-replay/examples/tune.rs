//! Prints the table of policies over a set of recordings, and what the missteps have in common.
//!
//!     cargo run --release -p foldline-replay --example tune -- --engine "mask all" --missteps 20

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::slice::from_ref;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use foldline::{Meter, ModelTable, PriceTable};
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
    /// Only one half of the set: a to look at, b to check.
    #[arg(long)]
    half: Option<CorpusHalf>,
    /// Prints this many missteps, and tables of what is missed.
    #[arg(long)]
    missteps: Option<usize>,
    /// Conversations with at least this many calls.
    #[arg(long, default_value_t = 30)]
    calls: usize,
    /// Tokens that a rendering may have.
    #[arg(long, default_value_t = 128_000)]
    budget: u64,
    /// The price table.
    #[arg(long, default_value = "anthropic-5m")]
    prices: String,
    /// Leaves the clairvoyant bound out, which takes the most time.
    #[arg(long)]
    no_bound: bool,
    /// Writes the report's page here.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Changes a choice of our policies: `keep_reads=12`, `patience=5`.
    #[arg(long)]
    set: Vec<String>,
    /// Prints one line for each conversation.
    #[arg(long)]
    each: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum CorpusHalf {
    A,
    B,
}

/// Changes one choice of a policy.
fn set_policy_field(policy: &mut foldline::Policy, choice: &str) -> anyhow::Result<()> {
    let (name, value) = choice.split_once('=').context("a choice is name=number")?;
    let number: f64 = value.parse().with_context(|| format!("{value} is not a number"))?;
    match name {
        "high" => policy.trigger_ratio = number,
        "low" => policy.target_ratio = number,
        "keep_reads" => policy.keep_file_calls = number as u32,
        "keep_rest" => policy.keep_other_calls = number as u32,
        "keep_share" => policy.keep_share = number,
        "remaining" => policy.remaining_ratio = number,
        "patience" => policy.min_gain_ratio = number,
        "thrift" => policy.space_value = number,
        other => anyhow::bail!("a policy has no choice named {other}"),
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn main() -> anyhow::Result<()> {
    let arguments = TuneArgs::parse();
    let corpus = std::env::var_os("FOLDLINE_CORPUS").map_or_else(|| PathBuf::from("../shared/corpus"), PathBuf::from);
    let file = arguments.file.clone().unwrap_or_else(|| corpus.join("dev.jsonl.zst"));
    if !file.exists() {
        println!("{} is not there; name a file or set FOLDLINE_CORPUS", file.display());
        return Ok(());
    }
    let started = Instant::now();
    let survey = CorpusStats::from_recordings(RecordingFiles::from_paths(from_ref(&file))?.flatten());
    let in_half = |id: &str| arguments.half.is_none_or(|wanted| is_tuning_half(id) == (wanted == CorpusHalf::A));
    let chosen = RecordingFiles::from_paths(from_ref(&file))?.flatten().filter(|recording| in_half(&recording.id));
    let read = started.elapsed();
    let named = |name: &str| arguments.engine.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()));
    let mut contestants = Vec::new();
    for policy in baselines::BASELINES[1..].iter().filter(|policy| named(policy.name())) {
        contestants.push(EngineSpec::Engine(Box::new(policy.clone())));
    }
    for classic in baselines::CLASSIC_STRATEGIES.iter().filter(|classic| named(classic.name())) {
        contestants.push(EngineSpec::Engine(Box::new(classic.clone())));
    }
    let mut policies = foldline::Policy::ALL;
    for choice in &arguments.set {
        policies.iter_mut().try_for_each(|policy| set_policy_field(policy, choice))?;
    }
    for ours in policies.into_iter().map(foldline_replay::FoldlineEngine::new).filter(|ours| named(ours.name())) {
        contestants.push(EngineSpec::Engine(Box::new(ours)));
    }
    let balanced = contestants.iter().position(|it| it.name() == "foldline balanced");
    if let Some(like) = balanced.or(contestants.len().checked_sub(1)) {
        contestants.push(EngineSpec::RandomMatching(like, baselines::DropUnit::Results));
        contestants.push(EngineSpec::RandomMatching(like, baselines::DropUnit::Lines));
    }
    if !arguments.no_bound {
        contestants.push(EngineSpec::Oracle(OracleSchedule::Profitable));
        contestants.push(EngineSpec::Oracle(OracleSchedule::Optimal));
    }
    let options = CompareOptions {
        budget: arguments.budget,
        prices: PriceTable::builtin().get(&arguments.prices).context("no such price table")?,
        meter: Meter::for_model(ModelTable::builtin(), Some("gpt-4o")),
        min_calls: arguments.calls,
    };
    let started = Instant::now();
    let comparison = compare_engines(chosen, &survey, &contestants, &options, |_| ())?;
    println!(
        "{} conversations of {} calls and more, {} calls; prices {}; read in {read:.1?}, replayed in {:.1?}",
        comparison.outcomes.len(),
        arguments.calls,
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
    if let Some(show) = arguments.missteps {
        for contestant in 1..comparison.engine_names.len() {
            print_missing_context(&comparison, contestant, show);
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn print_table(comparison: &EngineComparison) {
    println!(
        "{:36} {:>6} {:>6} {:>17} {:>5} {:>4} {:>6} {:>17} {:>6} {:>6} {:>11} {:>7} {:>6} {:>17} {:>17} {:>6} {:>5}",
        "policy",
        "tokens",
        "bill",
        "repaired",
        "worst",
        "more",
        "supp.",
        "hard",
        "misst.",
        "anchor",
        "trail",
        "foreign",
        "instr.",
        "gap (best)",
        "gap (pays)",
        "crease",
        "<=32k"
    );
    for contestant in 0..comparison.engine_names.len() {
        let it = comparison.summary(contestant);
        let interval = |it: foldline_replay::IntervalEstimate| {
            format!("{:5.1} ({:5.1},{:5.1})", 100.0 * it.value, 100.0 * it.low, 100.0 * it.high)
        };
        println!(
            "{:36} {:>6.1} {:>6.1} {:>17} {:>5.2} {:>4} {:>6.2} {:>17} {:>6.2} {:>6.2} {:>11} {:>7.1} {:>6.2} {:>17} {:>17} {:>6} {:>5.1}{}",
            it.name,
            100.0 * it.tokens.value,
            100.0 * it.cost.value,
            interval(it.cost_with_retries),
            it.worst_cost,
            it.costlier_sessions,
            100.0 * it.context_kept.value,
            interval(it.needed_context_kept),
            100.0 * it.actions_missing_context.value,
            100.0 * it.edits_that_apply.value,
            format!("{:.1}/{:.1}", 100.0 * it.trail_recall.value, 100.0 * it.trail_precision.value),
            100.0 * it.foreign.value,
            100.0 * it.instructions_kept,
            it.optimal_oracle_share.map(interval).unwrap_or_default(),
            it.paying_oracle_share.map(interval).unwrap_or_default(),
            it.score.creases,
            100.0 * it.fits[2],
            format_violations(&it.score),
        );
    }
}

/// What should not happen.
fn format_violations(score: &ReplayScore) -> String {
    let all = [
        ("refused", score.refused),
        ("unannounced creases", score.unannounced),
        ("laws broken", score.laws_broken),
        ("bytes invented", score.invented_bytes),
    ];
    let there: Vec<String> =
        all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if there.is_empty() { String::new() } else { format!("  {}", there.join(", ")) }
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn print_sessions(comparison: &EngineComparison) {
    for outcome in &comparison.outcomes {
        println!("{} ({} calls, {} tokens)", outcome.id, outcome.runs[0].score.calls, outcome.tokens);
        let full = outcome.runs[0].score.cost(&comparison.prices);
        for (name, run) in comparison.engine_names.iter().zip(&outcome.runs).skip(1) {
            println!(
                "  {name:32} bill {:.3}, repaired {:.3}, hard {:.3}, {} atoms missing, {} creases",
                run.score.cost(&comparison.prices) / full,
                run.score.cost_with_retries(&comparison.prices) / full,
                run.score.needed_context_kept.ratio(),
                run.missing_context.len(),
                run.score.creases,
            );
        }
    }
}

/// Tables of what was missing, then some of it.
#[expect(clippy::print_stdout, reason = "it is a program")]
fn print_missing_context(comparison: &EngineComparison, contestant: usize, show: usize) {
    let mut tables: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    let mut shown = Vec::new();
    for outcome in &comparison.outcomes {
        for misstep in &outcome.runs[contestant].missing_context {
            let kind = format!("{:?} {}", misstep.position.kind, misstep.tool);
            let age = match misstep.age {
                0..4 => "age 00-03",
                4..8 => "age 04-07",
                8..16 => "age 08-15",
                16..32 => "age 16-31",
                32..64 => "age 32-63",
                _ => "age 64-",
            };
            let used = if misstep.used_before { "used before" } else { "never used before" };
            *tables.entry("kind").or_default().entry(kind.clone()).or_default() += 1;
            *tables.entry("age").or_default().entry(age.to_owned()).or_default() += 1;
            *tables.entry("use").or_default().entry(used.to_owned()).or_default() += 1;
            *tables.entry("kind and age").or_default().entry(format!("{kind}, {age}")).or_default() += 1;
            *tables.entry("kind and use").or_default().entry(format!("{kind}, {used}")).or_default() += 1;
            shown.push((outcome, misstep, kind));
        }
    }
    let all = shown.len();
    println!("\n{}: {all} hard atoms were gone", comparison.engine_names[contestant]);
    for (title, table) in tables {
        println!("-- by {title}");
        let mut rows: Vec<_> = table.into_iter().collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (row, count) in rows.into_iter().take(20) {
            println!("{:6.1} % {count:6}  {row}", 100.0 * count as f64 / all as f64);
        }
    }
    // Evenly spread over all of them, so that one conversation does not fill the page.
    for (outcome, misstep, kind) in shown.iter().step_by((all / show.max(1)).max(1)).take(show) {
        println!(
            "{} call {} needs {:?}: message {} ({kind}, {} calls ago, {})\n    {}\n    {}",
            outcome.id,
            misstep.call,
            misstep.identifier,
            misstep.position.message,
            misstep.age,
            if misstep.used_before { "used before" } else { "never used before" },
            misstep.arguments,
            misstep.line,
        );
    }
}
