//! `cargo xtask eval`: replays the development set of a corpus and writes docs/results.md, and the few numbers
//! of it that the README shows.
//!
//! The corpus is no part of the repository; it is looked for as by `cargo xtask corpus`. Nothing here decides or
//! measures: `foldline-replay` does. What is written depends on the set, the prices and the code alone, but for
//! the date and the section on speed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foldline::transcript::RecordedSession;
use foldline::{Meter, ModelTable, Policy, PriceTable, Prices};
use foldline_replay::baselines;
use foldline_replay::baselines::DropUnit;
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineError, EngineSession, EngineSetup, EngineSpec, EngineSummary,
    FoldlineEngine, IntervalEstimate, OracleSchedule, RecordingFiles, ReplayEngine, WINDOW_TOKENS, compare_engines,
    is_tuning_half,
};

use crate::{corpus, print_line, repository};

/// The prices of the main table: those of the models that most of the recorded sessions ran on.
const PRICE_TABLE_NAME: &str = "anthropic-5m";
/// The budget of the main table.
const BUDGET_TOKENS: u64 = 128_000;
/// The file that is written, and the one that quotes it.
const RESULTS_PATH: &str = "docs/results.md";
const README_PATH: &str = "README.md";
/// The README's numbers stand between these lines.
const README_MARKERS: [&str; 2] =
    ["<!-- numbers of docs/results.md, written by `cargo xtask eval` -->", "<!-- end -->"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let set = corpus::corpus_folder(arguments).join("dev.jsonl.zst");
    if !set.exists() {
        print_line(&format!("{} is not there: name the folder of a corpus, or set FOLDLINE_CORPUS", set.display()));
        return Ok(());
    }
    if cfg!(debug_assertions) {
        return rerun_optimized(arguments);
    }
    let eval = CorpusEval { stats: CorpusStats::from_recordings(read_recordings(&set)?), set };
    let page = eval.build_page()?;
    let root = repository::root();
    std::fs::write(root.join(RESULTS_PATH), &page.text).with_context(|| format!("{RESULTS_PATH} was not written"))?;
    let readme = std::fs::read_to_string(root.join(README_PATH)).context("the README can not be read")?;
    if let Some(readme) = replace_numbers(&readme, &page.readme_table) {
        std::fs::write(root.join(README_PATH), readme).context("the README was not written")?;
    }
    print_line(&page.text);
    Ok(())
}

/// Replaying a corpus without optimisation takes ten times as long.
fn rerun_optimized(arguments: &[String]) -> Result<()> {
    let status = repository::cargo_command()
        .args(["run", "--quiet", "--release", "--package", "xtask", "--", "eval"])
        .args(arguments)
        .status()
        .context("cargo did not start")?;
    if !status.success() {
        bail!("the optimised run failed");
    }
    Ok(())
}

/// The README with these numbers in their place, if it has one.
fn replace_numbers(readme: &str, quote: &str) -> Option<String> {
    let (before, rest) = readme.split_once(README_MARKERS[0])?;
    let (_, after) = rest.split_once(README_MARKERS[1])?;
    Some(format!("{before}{}\n{quote}\n{}{after}", README_MARKERS[0], README_MARKERS[1]))
}

fn read_recordings(set: &Path) -> Result<impl Iterator<Item = RecordedSession> + Send + use<>> {
    Ok(RecordingFiles::from_paths(from_ref(&set.to_owned()))?.filter_map(Result::ok))
}

struct CorpusEval {
    set: PathBuf,
    stats: CorpusStats,
}

struct ResultsPage {
    text: String,
    readme_table: String,
}

impl CorpusEval {
    fn compare_engines(&self, contestants: &[EngineSpec], prices: Prices) -> Result<EngineComparison> {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let options = CompareOptions { budget: BUDGET_TOKENS, prices, meter, min_calls: 1 };
        Ok(compare_engines(read_recordings(&self.set)?, &self.stats, contestants, &options, |_| ())?)
    }

    fn build_page(&self) -> Result<ResultsPage> {
        let prices = PriceTable::builtin().get(PRICE_TABLE_NAME).context("the price table is built in")?;
        let (started, spent) = (Instant::now(), cpu_seconds());
        let alone = self.compare_engines(&default_engines(), prices)?;
        let took = (started.elapsed(), cpu_seconds().zip(spent).map(|(now, then)| now - then));
        let memory = peak_memory_bytes();
        // All in one pass, so that each session is prepared once. The rows behind `beside` are ours under other
        // prices and budgets.
        let mut contestants = all_engines();
        let beside = contestants.len() + 1;
        let told = |name: &str, prices, budget| OverriddenEngine {
            name: name.to_owned(),
            engine: default_engine(),
            prices,
            budget,
        };
        contestants.extend(price_rows().iter().map(|(name, prices)| engine_spec(told(name, Some(*prices), None))));
        contestants.extend(WINDOW_TOKENS.map(|window| engine_spec(told(&window.to_string(), None, Some(window)))));
        let main = self.compare_engines(&contestants, prices)?;

        let (calls, conversations) = (main.calls(), main.outcomes.len());
        let tokens: u64 = main.outcomes.iter().map(|outcome| outcome.tokens).sum();
        let mut text = format!(
            "# Results\n\n\
             Written by `cargo xtask eval` on {}. {conversations} recorded sessions of agents (coding, research, customer \
             service), {calls} calls, {:.1} M tokens in their last requests; budget {} k tokens. Prices `{PRICE_TABLE_NAME}` unless said \
             otherwise: writing to the prompt cache costs {}, reading from it {}, output {}, an input token being 1. In \
             brackets 95 % bootstrap intervals over sessions, paired. What the numbers mean: [guide](guide/replay.md).\n\n\
             The replay tells whether the information was there when the recorded action needed it, not whether a task \
             would have been solved.\n\n\
             ## Side by side\n\n\
             In percent. Tokens, bill and repaired bill relative to sending everything.\n\n",
            jiff::Zoned::now().date(),
            tokens as f64 / 1e6,
            BUDGET_TOKENS / 1_000,
            prices.write,
            prices.read,
            prices.output,
        );
        let summaries: Vec<EngineSummary> = (0..main.engine_names.len()).map(|row| main.summary(row)).collect();
        text += &comparison_table(&summaries[..beside]);
        text += "\nWorst: the dearest session's bill, 1 being that of sending everything; in brackets how many sessions were \
                 dearer by more than half a percent. Trail: recall and precision of the artifact trail. Other's future: hard \
                 support for the actions of another conversation, where knowing what matters must not help. Unfolds: handles \
                 that gave the same bytes back, asked of the engine and of one started anew. Own words: kilobytes that are \
                 neither verbatim nor a marker.\n";

        text += "\n## The half that was looked at, and the other\n\n\
                 The defaults of the engine were chosen on one half of the set and checked on the other.\n\n\
                 | half | sessions | repaired | hard support | edit anchors | gap closed | to the best schedule |\n\
                 |---|--:|--:|--:|--:|--:|--:|\n";
        for (name, wanted) in [("looked at", true), ("checked", false)] {
            let part = EngineComparison {
                engine_names: main.engine_names.clone(),
                outcomes: main
                    .outcomes
                    .iter()
                    .filter(|outcome| is_tuning_half(&outcome.id) == wanted)
                    .cloned()
                    .collect(),
                prices,
            };
            let it = part.summary(1);
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} |",
                part.outcomes.len(),
                format_interval(it.cost_with_retries),
                format_interval(it.needed_context_kept),
                format_interval(it.edits_that_apply),
                it.paying_oracle_share.map(format_interval).unwrap_or_default(),
                it.optimal_oracle_share.map(format_interval).unwrap_or_default(),
            )?;
        }

        text += "\n## At every price table\n\n\
                 The engine, deciding by these prices. Dollars are those of the input over the whole set, where the table \
                 states them; on a local server tokens cost time.\n\n\
                 | prices | write | read | tokens | bill | repaired | hard support | dollars, everything | dollars, folded |\n\
                 |---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
        for (at, (name, prices)) in price_rows().into_iter().enumerate() {
            let row = beside + at;
            let [bill, repaired] = main.relative_costs(row, &prices);
            let it = &summaries[row];
            let dollars = |row: usize| match prices.base_usd {
                0.0 => String::new(),
                _ => format!("{:.0}", prices.dollars(summaries[row].score.cost(&prices))),
            };
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                prices.write,
                prices.read,
                format_percent(it.tokens.value),
                format_percent(bill),
                format_percent(repaired),
                format_percent(it.needed_context_kept.value),
                dollars(0),
                dollars(row),
            )?;
        }

        text += "\n## In small windows\n\n\
                 The engine with each window as its budget. Survival: calls whose request fits. What does not fit is \
                 refused with the floor that it has; a refused call counts as the full request, and as all lost.\n\n\
                 | window | survival, everything | survival | refused | tokens | repaired | hard support | edit anchors |\n\
                 |--:|--:|--:|--:|--:|--:|--:|--:|\n";
        for (at, window) in WINDOW_TOKENS.into_iter().enumerate() {
            let it = &summaries[beside + price_rows().len() + at];
            writeln!(
                text,
                "| {} k | {} | {} | {} | {} | {} | {} | {} |",
                window / 1_000,
                format_percent(summaries[0].fits[at]),
                format_percent(it.fits[at]),
                it.score.refused,
                format_percent(it.tokens.value),
                format_percent(it.cost_with_retries.value),
                format_percent(it.needed_context_kept.value),
                format_percent(it.edits_that_apply.value),
            )?;
        }

        text += &speed_section(&alone, took, memory);
        Ok(ResultsPage { readme_table: readme_table(&summaries[..beside], conversations, calls), text })
    }
}

fn default_engine() -> FoldlineEngine {
    FoldlineEngine::new(Policy::default())
}

/// Our engine alone.
fn default_engines() -> Vec<EngineSpec> {
    vec![engine_spec(default_engine())]
}

fn engine_spec(maker: impl ReplayEngine + 'static) -> EngineSpec {
    EngineSpec::Engine(Box::new(maker))
}

fn price_rows() -> Vec<(String, Prices)> {
    let table = PriceTable::builtin();
    table.names().filter_map(|name| Some((name.to_owned(), table.get(name)?))).collect()
}

/// Our engine, told other prices or another budget than the rest.
struct OverriddenEngine {
    name: String,
    engine: FoldlineEngine,
    prices: Option<Prices>,
    budget: Option<u64>,
}

impl ReplayEngine for OverriddenEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let prices = self.prices.unwrap_or(setup.prices);
        let budget = self.budget.unwrap_or(setup.budget);
        self.engine.open(&EngineSetup { prices, budget, ..setup.clone() })
    }
}

/// Everyone who needs no other program.
fn all_engines() -> Vec<EngineSpec> {
    let mut all = default_engines();
    let default = all[0].name().to_owned();
    for other in Policy::ALL
        .into_iter()
        .map(FoldlineEngine::new)
        .filter(|it| it.name() != default && it.name().contains("tight"))
    {
        all.push(engine_spec(other));
    }
    all.extend(baselines::BASELINES[1..].iter().map(|it| engine_spec(it.clone())));
    all.extend(baselines::CLASSIC_STRATEGIES.iter().map(|it| engine_spec(it.clone())));
    all.extend([DropUnit::Results, DropUnit::Lines].map(|grain| EngineSpec::RandomMatching(0, grain)));
    all.extend([OracleSchedule::Profitable, OracleSchedule::Optimal].map(EngineSpec::Oracle));
    all
}

fn comparison_table(summaries: &[EngineSummary]) -> String {
    let mut text = "| | tokens | bill | repaired | worst | support | hard support | missteps | edit anchors | trail | \
                    instructions | gap closed | to the best schedule | other's future | creases | unfolds | laws broken | \
                    own words |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for it in summaries {
        let unfolds = match it.score.unfolded.total {
            0 => String::new(),
            _ => format_percent(it.score.unfolded.ratio()),
        };
        let cells = [
            it.name.clone(),
            format_percent(it.tokens.value),
            format_percent(it.cost.value),
            format_interval(it.cost_with_retries),
            format!("{:.2} ({})", it.worst_cost, it.costlier_sessions),
            format_percent(it.context_kept.value),
            format_interval(it.needed_context_kept),
            format_percent(it.actions_missing_context.value),
            format_percent(it.edits_that_apply.value),
            format!("{} / {}", format_percent(it.trail_recall.value), format_percent(it.trail_precision.value)),
            format_percent(it.instructions_kept),
            it.paying_oracle_share.map(format_interval).unwrap_or_default(),
            it.optimal_oracle_share.map(format_interval).unwrap_or_default(),
            format_percent(it.foreign.value),
            it.score.creases.to_string(),
            unfolds,
            it.score.laws_broken.to_string(),
            (it.score.invented_bytes / 1_000).to_string(),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn speed_section(alone: &EngineComparison, (took, processor): (Duration, Option<f64>), memory: Option<u64>) -> String {
    let processor = processor.map_or_else(String::new, |seconds| format!(" ({seconds:.1} s of processor time)"));
    let memory = memory.map_or_else(String::new, |bytes| format!(", {} MB at the peak", bytes / 1_000_000));
    format!(
        "\n## Speed\n\n{} sessions with {} calls, replayed through the engine and measured in {:.1} s{processor}{memory}; the machine has \
         {} cores.\n",
        alone.outcomes.len(),
        alone.calls(),
        took.as_secs_f64(),
        std::thread::available_parallelism().map_or(1, usize::from),
    )
}

/// What the README shows.
fn readme_table(summaries: &[EngineSummary], conversations: usize, calls: u64) -> String {
    let shown = ["everything", "mask all but 10 results", "clear above 100k, keep 3", "trim to the last 64k"];
    let ours = &summaries[1].name;
    let bound = OracleSchedule::Profitable.name();
    let mut text = format!(
        "On {conversations} recorded sessions with {calls} calls (`{PRICE_TABLE_NAME}`, [all numbers](docs/results.md)), in percent:\n\n\
         | | tokens | bill | with repairs | needed and there | edits that find their text |\n|---|--:|--:|--:|--:|--:|\n"
    );
    let wanted = |it: &&EngineSummary| shown.contains(&it.name.as_str()) || &it.name == ours || it.name == bound;
    for it in summaries.iter().filter(wanted) {
        let name = if &it.name == ours { format!("**{}**", it.name) } else { it.name.clone() };
        let numbers = [it.tokens, it.cost, it.cost_with_retries, it.needed_context_kept, it.edits_that_apply]
            .map(|it| format_percent(it.value));
        text += &format!("| {name} | {} |\n", numbers.join(" | "));
    }
    text.trim_end().to_owned()
}

/// Seconds that this process has computed, where the system tells.
fn cpu_seconds() -> Option<f64> {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may hold anything; behind it the fields are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / TICKS_PER_SEC)
}

/// The most memory that this process had, where the system tells.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

fn format_percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

fn format_interval(it: IntervalEstimate) -> String {
    format!("{} ({} to {})", format_percent(it.value), format_percent(it.low), format_percent(it.high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_text_around_the_numbers_is_kept() {
        let readme = format!("a\n{}\nold\n{}\nb\n", README_MARKERS[0], README_MARKERS[1]);
        assert_eq!(
            replace_numbers(&readme, "new").unwrap(),
            format!("a\n{}\nnew\n{}\nb\n", README_MARKERS[0], README_MARKERS[1])
        );
        assert_eq!(replace_numbers("no place", "new"), None);
    }
}
