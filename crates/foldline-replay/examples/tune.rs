//! Prints the table of policies over a set of recordings, and what the missteps have in common.
//!
//!     cargo run --release -p foldline-replay --example tune -- --engine "mask all" --missteps 20

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use foldline_replay::{Case, Common, Counter, Maker, Prices, Run, Score, policy, recordings, replay};
use rayon::prelude::*;

#[derive(Parser)]
struct Options {
    /// The set of recordings; the development corpus by default.
    file: Option<PathBuf>,
    /// Only engines whose name contains this.
    #[arg(long)]
    engine: Option<String>,
    /// Only one half of the set: a to look at, b to check.
    #[arg(long)]
    half: Option<Half>,
    /// Prints this many missteps, and tables of what is missed.
    #[arg(long)]
    missteps: Option<usize>,
    /// Conversations with at least this many calls.
    #[arg(long, default_value_t = 30)]
    calls: usize,
    /// Tokens that a rendering may have.
    #[arg(long, default_value_t = 128_000)]
    budget: u64,
    /// Counts a quarter of the bytes as tokens.
    #[arg(long)]
    quarter: bool,
    /// Prints one line for each conversation.
    #[arg(long)]
    each: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Half {
    A,
    B,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]
fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let corpus = std::env::var_os("FOLDLINE_CORPUS").map_or_else(|| PathBuf::from("../shared/corpus"), PathBuf::from);
    let file = options.file.clone().unwrap_or_else(|| corpus.join("dev.jsonl.zst"));
    if !file.exists() {
        println!("{} is not there; name a file or set FOLDLINE_CORPUS", file.display());
        return Ok(());
    }
    let started = Instant::now();
    let recordings = recordings(&file)?;
    let common = Common::of(&recordings);
    let counter = if options.quarter { Counter::Quarter } else { Counter::O200k };
    let cases: Vec<Case> = recordings
        .into_par_iter()
        .filter(|recording| match options.half {
            None => true,
            Some(half) => half == half_of(&recording.id),
        })
        .filter(|recording| recording.conversation.rounds().len() >= options.calls)
        .map(|recording| Case::new(recording, &common, counter))
        .collect();
    let calls: usize = cases.iter().map(|case| case.calls.len()).sum();
    eprintln!("read in {:.1?}; {} atoms are common", started.elapsed(), common.len());
    println!("{} conversations of {} calls and more, {calls} calls", cases.len(), options.calls);
    let prices = Prices::default();
    let run = |maker: &dyn Maker| -> anyhow::Result<Vec<Run>> {
        Ok(cases.par_iter().map(|case| replay(case, maker, options.budget, prices)).collect::<Result<Vec<_>, _>>()?)
    };
    let full = run(&policy::ALL[0])?;
    println!(
        "{:32} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}  {:>6}",
        "policy",
        "tokens",
        "bill",
        "repair",
        "worst",
        "support",
        "hard",
        "misstep",
        "anchors",
        "instr",
        "creases",
        "time"
    );
    for maker in policy::ALL {
        if options.engine.as_ref().is_some_and(|name| !maker.name().contains(name.as_str())) {
            continue;
        }
        let started = Instant::now();
        let runs = run(maker)?;
        let elapsed = started.elapsed();
        let (all, every) = (sum(&full), sum(&runs));
        let worst = runs
            .iter()
            .zip(&full)
            .map(|(run, full)| run.score.bill(&prices) / full.score.bill(&prices))
            .fold(0.0, f64::max);
        println!(
            "{:32} {:>7.1} {:>7.1} {:>7.1} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7}  {:>6.1?}",
            maker.name(),
            100.0 * every.tokens as f64 / all.tokens as f64,
            100.0 * every.bill(&prices) / all.bill(&prices),
            100.0 * every.repaired(&prices) / all.repaired(&prices),
            worst,
            100.0 * every.support.ratio(),
            100.0 * every.hard.ratio(),
            100.0 * every.missteps(),
            100.0 * every.anchors.ratio(),
            100.0 * every.instructions.ratio(),
            every.creases,
            elapsed,
        );
        let mean = |of: &dyn Fn(&Score) -> f64| {
            100.0 * runs.iter().zip(&full).map(|(run, full)| of(&run.score) / of(&full.score)).sum::<f64>()
                / runs.len() as f64
        };
        println!(
            "{:32} {:>7.1} {:>7.1} {:>7.1}",
            "  mean of conversations",
            mean(&|score| score.tokens as f64),
            mean(&|score| score.bill(&prices)),
            mean(&|score| score.repaired(&prices))
        );
        if options.each {
            for ((case, run), full) in cases.iter().zip(&runs).zip(&full) {
                println!(
                    "  {:24} {:4} calls, bill {:.3}, repaired {:.3}, hard {:.3}, {} missing",
                    case.id,
                    case.calls.len(),
                    run.score.bill(&prices) / full.score.bill(&prices),
                    run.score.repaired(&prices) / full.score.repaired(&prices),
                    run.score.hard.ratio(),
                    run.missteps.len()
                );
            }
        }
        if let Some(show) = options.missteps {
            missteps(&cases, &runs, show);
        }
    }
    Ok(())
}

fn half_of(id: &str) -> Half {
    if xxhash_rust::xxh3::xxh3_64(id.as_bytes()) & 1 == 0 { Half::A } else { Half::B }
}

fn sum(runs: &[Run]) -> Score {
    let mut all = Score::default();
    runs.iter().for_each(|run| all.add(&run.score));
    all
}

/// Tables of what was missing, then some of it.
#[expect(clippy::print_stdout, reason = "it is a program")]
fn missteps(cases: &[Case], runs: &[Run], show: usize) {
    let mut tables: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    let mut shown = Vec::new();
    for (case, run) in cases.iter().zip(runs) {
        for misstep in &run.missteps {
            let tool = case.tool_at(misstep.place);
            let kind = format!("{:?} {tool}", misstep.place.kind);
            let age = match misstep.age {
                0..4 => "age 00-03",
                4..8 => "age 04-07",
                8..16 => "age 08-15",
                16..32 => "age 16-31",
                32..64 => "age 32-63",
                _ => "age 64-",
            };
            *tables.entry("kind").or_default().entry(kind.clone()).or_default() += 1;
            *tables.entry("age").or_default().entry(age.to_owned()).or_default() += 1;
            *tables.entry("used").or_default().entry(format!("used before: {}", misstep.used_before)).or_default() += 1;
            *tables.entry("kind and age").or_default().entry(format!("{kind} {age}")).or_default() += 1;
            shown.push((case, misstep, kind));
        }
    }
    let all = shown.len();
    println!("{all} hard atoms were gone");
    for (title, table) in tables {
        println!("-- by {title}");
        let mut rows: Vec<_> = table.into_iter().collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (row, count) in rows.into_iter().take(25) {
            println!("{:6.1} % {count:6}  {row}", 100.0 * count as f64 / all as f64);
        }
    }
    // Evenly spread over all of them, so that one conversation does not fill the page.
    for (case, misstep, kind) in shown.iter().step_by((all / show.max(1)).max(1)).take(show) {
        println!(
            "{} call {} needs {:?}: message {} ({kind}, {} calls ago, used before: {})\n    {}\n    {}",
            case.id,
            misstep.call,
            misstep.atom,
            misstep.place.message,
            misstep.age,
            misstep.used_before,
            head(&case.asked_at(misstep.place)),
            head(&case.line_at(misstep.place)),
        );
    }
}

fn head(text: &str) -> String {
    text.chars().take(160).collect()
}
