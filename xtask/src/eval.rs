//! `cargo xtask eval`: replays the development set of a corpus and writes docs/results.md and the numbers of the README.
//!
//! The corpus is not part of the repository; it is found in the same way as for `cargo xtask corpus`. This task only writes
//! tables; `foldline-replay` measures. Except for the date and the section on speed, the output depends only on the set,
//! the prices and the code.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foldline::models::PriceTable;
use foldline::transcript::RecordedSession;
use foldline::{Meter, ModelTable, Policy, Prices};
use foldline_replay::baselines;
use foldline_replay::baselines::DropUnit;
use foldline_replay::{
    CompareOptions, CorpusStats, EngineComparison, EngineError, EngineSession, EngineSetup, EngineSpec, EngineSummary,
    FoldlineEngine, IntervalEstimate, OracleSchedule, RecordingFiles, ReplayEngine, compare_engines, is_tuning_half,
};

use crate::output::print_line;
use crate::{corpus, repository};

/// Prices of the main table: those of the models of most recorded sessions.
const PRICE_TABLE_NAME: &str = "anthropic-5m";
/// Budget of the main table.
const BUDGET_TOKENS: u64 = 128_000;
/// The page with all numbers.
const RESULTS_PATH: &str = "docs/results.md";
/// The page with the most important ones.
const README_PATH: &str = "README.md";
/// Columns of the README's table; docs/results.md has the same names.
const README_COLUMNS: &str = "| | tokens | cost | cost incl. retries | % of oracle saving (optimal) | needed context kept | \
                              needed strings kept | edits that apply |\n|---|--:|--:|--:|--:|--:|--:|--:|";
/// Windows and price tables of the headline: small windows are those of local servers.
const HEADLINE_WINDOWS: [(u64, &str); 6] = [
    (128_000, PRICE_TABLE_NAME),
    (64_000, PRICE_TABLE_NAME),
    (32_000, PRICE_TABLE_NAME),
    (32_000, "local"),
    (16_000, "local"),
    (8_000, "local"),
];
/// The rows of foldline's policies are among the first: no compaction and at most three policies.
const MAX_POLICY_ROWS: usize = 4;
/// Rows of each window: foldline, truncation at equal tokens, truncation at equal window.
const ROWS_PER_WINDOW: usize = 3;
/// The lines around the README's numbers.
const README_MARKERS: [&str; 2] =
    ["<!-- numbers of docs/results.md, written by `cargo xtask eval` -->", "<!-- end of numbers -->"];

/// Replays the corpus and writes the results.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let set = corpus::development_set(arguments)?;
    if cfg!(debug_assertions) {
        return rerun_optimized(arguments);
    }
    let eval = CorpusEval { stats: CorpusStats::from_recordings(read_recordings(&set)?), set };
    let page = eval.build_page()?;
    let root = repository::root();
    std::fs::write(root.join(RESULTS_PATH), &page.text).with_context(|| format!("cannot write {RESULTS_PATH}"))?;
    let readme = std::fs::read_to_string(root.join(README_PATH)).context("cannot read the README")?;
    if let Some(readme) = replace_numbers(&readme, &page.readme_table) {
        std::fs::write(root.join(README_PATH), readme).context("cannot write the README")?;
    }
    print_line(&page.text);
    Ok(())
}

/// Runs this task again in release mode: without optimization a replay takes ten times as long.
fn rerun_optimized(arguments: &[String]) -> Result<()> {
    let status = repository::cargo_command()
        .args(["run", "--quiet", "--release", "--package", "xtask", "--", "eval"])
        .args(arguments)
        .status()
        .context("cargo did not start")?;
    if !status.success() {
        bail!("the optimized run failed");
    }
    Ok(())
}

/// Returns the README with these numbers between the marker lines, or `None` if it has no such lines.
fn replace_numbers(readme: &str, numbers: &str) -> Option<String> {
    let (before, rest) = readme.split_once(README_MARKERS[0])?;
    let (_, after) = rest.split_once(README_MARKERS[1])?;
    Some(format!("{before}{}\n{numbers}\n{}{after}", README_MARKERS[0], README_MARKERS[1]))
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
    fn compare_engines(&self, engines: &[EngineSpec], prices: Prices) -> Result<EngineComparison> {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let options = CompareOptions { budget: BUDGET_TOKENS, prices, meter, min_calls: 1 };
        Ok(compare_engines(read_recordings(&self.set)?, &self.stats, engines, &options, |_| ())?)
    }

    fn build_page(&self) -> Result<ResultsPage> {
        let prices = PriceTable::builtin().get(PRICE_TABLE_NAME).context("the price table is built in")?;
        let (started, spent) = (Instant::now(), cpu_seconds());
        let alone = self.compare_engines(&default_engines(), prices)?;
        let took = (started.elapsed(), cpu_seconds().zip(spent).map(|(now, then)| now - then));
        let memory = peak_memory_bytes();
        // One pass for all rows, so that each session is prepared once. The rows after the main table have other prices
        // and budgets.
        let mut engines = all_engines();
        let main_rows = engines.len() + 1;
        let overridden = |name: &str, prices| OverriddenEngine {
            name: name.to_owned(),
            engine: Box::new(default_engine()),
            prices: Some(prices),
            budget: None,
        };
        engines.extend(price_rows().iter().map(|(name, prices)| engine_spec(overridden(name, *prices))));
        let window_rows = engines.len() + 1;
        engines.extend(window_engines(engines.len())?);
        let main = self.compare_engines(&engines, prices)?;

        let summaries = main.summaries();
        let mut text = introduction(&main, &prices);
        text += &headline_section(&main, &summaries, window_rows)?;
        text += "\n## Comparison\n\nIn percent. Tokens and costs are relative to no compaction.\n\n";
        text += &comparison_table(&summaries[..main_rows]);
        text += "\nWorst session: the highest cost of a session, 1 is no compaction; in parentheses the \
                 number of sessions that cost more than half a percent more than no compaction. Artifact trail: recall \
                 and precision. Foreign actions: needed context kept for the actions of another conversation, where knowing \
                 the future must not help. Unfolds exact: handles that gave their bytes back, from the running engine and \
                 from a new one. Invented kB: kilobytes that are neither verbatim nor a marker.\n";
        text += &halves_section(&main)?;
        text += &prices_section(&main, &summaries, main_rows)?;
        text += &speed_section(&alone, took, memory);
        Ok(ResultsPage { readme_table: readme_table(&summaries[..main_rows], main.outcomes.len(), main.calls()), text })
    }
}

/// Returns the rows of each window of the headline, after `engine_count` other engines.
fn window_engines(engine_count: usize) -> Result<Vec<EngineSpec>> {
    let mut engines = Vec::new();
    let truncation = baselines::BASELINES.iter().find(|it| it.name() == "truncation, equal window");
    let truncation = truncation.context("the truncation is a baseline")?;
    for (window, prices) in HEADLINE_WINDOWS {
        let prices = PriceTable::builtin().get(prices).context("the price table is built in")?;
        let overridden = |engine: Box<dyn ReplayEngine>| OverriddenEngine {
            name: engine.name().to_owned(),
            engine,
            prices: Some(prices),
            budget: Some(window),
        };
        let ours = engine_count + engines.len();
        engines.push(engine_spec(overridden(Box::new(default_engine()))));
        engines.push(EngineSpec::EqualTokens(ours, DropUnit::OldestRounds));
        engines.push(engine_spec(overridden(Box::new(truncation.clone()))));
    }
    Ok(engines)
}

/// Renders the one number, and the default engine next to truncation in every window; summaries begin at `first_row`.
fn headline_section(main: &EngineComparison, summaries: &[EngineSummary], first_row: usize) -> Result<String> {
    let ours = &summaries[1];
    let share = ours.optimal_oracle_share.map(format_interval).unwrap_or_default();
    let mut text = format!(
        "## Headline\n\n\
         **{} costs {} % of no compaction including all retries, {share} % of the saving of an oracle with the optimal \
         schedule.** A retry is charged for every action that misses needed context or the old text of an edit, and a \
         repeated read of folded content as it happened.\n\n\
         Truncation drops the oldest rounds: at the tokens of foldline in each request, or at the window. A request that \
         cannot fit is refused; a refused call costs the full request and loses all context.\n\n\
         | window, prices | | tokens | cost | cost incl. retries | needed context kept | needed strings kept | \
         edits that apply | refused |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|\n",
        ours.name,
        format_interval(ours.cost_with_retries),
    );
    for (at, (window, price_table)) in HEADLINE_WINDOWS.into_iter().enumerate() {
        let prices = PriceTable::builtin().get(price_table).context("the price table is built in")?;
        for row in (0..ROWS_PER_WINDOW).map(|row| first_row + at * ROWS_PER_WINDOW + row) {
            let it = &summaries[row];
            let [cost, cost_with_retries] = main.relative_costs(row, &prices);
            writeln!(
                text,
                "| {} k, `{price_table}` | {} | {} | {} | {} | {} | {} | {} | {} |",
                window / 1_000,
                it.name,
                format_percent(it.tokens.value),
                format_percent(cost),
                format_percent(cost_with_retries),
                format_interval(it.needed_context_kept),
                format_percent(it.needed_strings_kept.value),
                format_percent(it.edits_that_apply.value),
                it.score.refused,
            )?;
        }
    }
    Ok(text)
}

/// Renders the head of the page: the set, the prices and what a replay measures.
fn introduction(main: &EngineComparison, prices: &Prices) -> String {
    let (calls, conversations) = (main.calls(), main.outcomes.len());
    let tokens: u64 = main.outcomes.iter().map(|outcome| outcome.tokens).sum();
    format!(
        "# Results\n\n\
         Written by `cargo xtask eval` on {}. {conversations} recorded sessions of agents (coding, research, customer \
         service), {calls} calls, {:.1} M tokens in their last requests; budget {} k tokens. Prices `{PRICE_TABLE_NAME}` unless \
         stated otherwise: relative to an input token, a write to the prompt cache costs {}, a read {}, output {}. \
         Intervals in parentheses: 95 %, paired bootstrap over sessions. Meaning of the columns: \
         [guide](guide/replay.md#columns).\n\n\
         A replay measures whether the information was present when the recorded action needed it, not whether a task \
         would have been solved.\n\n",
        jiff::Zoned::now().date(),
        tokens as f64 / 1e6,
        BUDGET_TOKENS / 1_000,
        prices.write,
        prices.read,
        prices.output,
    )
}

/// Renders foldline's policies on the half that their defaults were chosen on, and on the other half.
fn halves_section(main: &EngineComparison) -> Result<String> {
    let mut text = "\n## Tuning half and held-out half\n\n\
             The defaults of the engine were chosen on one half of the set and checked on the other. No policy may be \
             dominated: another one must not be better in cost incl. retries and in what is kept.\n\n\
             | half | | sessions | cost incl. retries | needed context kept | needed strings kept | edits that apply | \
             % of oracle saving (pays) | % of oracle saving (optimal) |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (name, wanted) in [("tuning", true), ("held-out", false)] {
        let part = EngineComparison {
            engine_names: main.engine_names.clone(),
            outcomes: main.outcomes.iter().filter(|outcome| is_tuning_half(&outcome.id) == wanted).cloned().collect(),
            prices: main.prices,
        };
        let ours = part.engine_names.iter().enumerate().take(MAX_POLICY_ROWS);
        for (row, _) in ours.filter(|(_, engine)| engine.starts_with("foldline ")) {
            let it = part.summary(row);
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                it.name,
                part.outcomes.len(),
                format_interval(it.cost_with_retries),
                format_interval(it.needed_context_kept),
                format_interval(it.needed_strings_kept),
                format_interval(it.edits_that_apply),
                it.paying_oracle_share.map(format_interval).unwrap_or_default(),
                it.optimal_oracle_share.map(format_interval).unwrap_or_default(),
            )?;
        }
    }
    Ok(text)
}

/// Renders the default engine under each price table; its summaries begin at `first_row`.
fn prices_section(main: &EngineComparison, summaries: &[EngineSummary], first_row: usize) -> Result<String> {
    let mut text = "\n## Price tables\n\n\
             The default engine, deciding by each table's prices. Dollars are the input cost of the whole set, where the table \
             states prices; on a local server tokens cost time.\n\n\
             | prices | write | read | tokens | cost | cost incl. retries | needed context kept | needed strings kept | \
             dollars, no compaction | dollars, folded |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (at, (name, prices)) in price_rows().into_iter().enumerate() {
        let row = first_row + at;
        let [cost, cost_with_retries] = main.relative_costs(row, &prices);
        let it = &summaries[row];
        let dollars = |row: usize| match prices.base_usd {
            0.0 => String::new(),
            _ => format!("{:.0}", prices.dollars(summaries[row].score.cost(&prices))),
        };
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            prices.write,
            prices.read,
            format_percent(it.tokens.value),
            format_percent(cost),
            format_percent(cost_with_retries),
            format_percent(it.needed_context_kept.value),
            format_percent(it.needed_strings_kept.value),
            dollars(0),
            dollars(row),
        )?;
    }
    Ok(text)
}

fn default_engine() -> FoldlineEngine {
    FoldlineEngine::new(Policy::default())
}

/// Returns the default engine alone.
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

/// An engine with other prices or another budget.
struct OverriddenEngine {
    name: String,
    engine: Box<dyn ReplayEngine>,
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

/// Returns all engines that need no other program.
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
    all.extend([DropUnit::Results, DropUnit::Lines].map(|grain| EngineSpec::EqualTokens(0, grain)));
    all.extend([OracleSchedule::Profitable, OracleSchedule::Optimal].map(EngineSpec::Oracle));
    all
}

fn comparison_table(summaries: &[EngineSummary]) -> String {
    let mut text = "| | tokens | cost | cost incl. retries | worst session | context kept | needed context kept | needed strings kept | \
                    actions missing context | edits that apply | artifact trail | instructions kept | \
                    % of oracle saving (pays) | % of oracle saving (optimal) | foreign actions | creases | unfolds exact | \
                    laws broken | invented kB |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
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
            format_percent(it.needed_strings_kept.value),
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
    let processor = processor.map_or_else(String::new, |seconds| format!(" ({seconds:.1} s of CPU time)"));
    let memory = memory.map_or_else(String::new, |bytes| format!(", {} MB peak memory", bytes / 1_000_000));
    format!(
        "\n## Speed\n\n{} sessions with {} calls, replayed and measured in {:.1} s{processor}{memory}, on a machine with {} cores.\n",
        alone.outcomes.len(),
        alone.calls(),
        took.as_secs_f64(),
        std::thread::available_parallelism().map_or(1, usize::from),
    )
}

/// Renders the README's table.
fn readme_table(summaries: &[EngineSummary], conversations: usize, calls: u64) -> String {
    let baselines = ["mask all but 10 results", "clear above 100k, keep 3", "truncation, equal window"];
    let (no_compaction, default) = (&summaries[0].name, &summaries[1].name);
    let oracle = OracleSchedule::Optimal.name();
    let mut text = format!(
        "{conversations} recorded sessions with {calls} calls, prices `{PRICE_TABLE_NAME}`, in percent \
         ([all numbers](docs/results.md)):\n\n\
         {README_COLUMNS}\n"
    );
    let shown = |it: &&EngineSummary| {
        [no_compaction, default].contains(&&it.name) || baselines.contains(&it.name.as_str()) || it.name == oracle
    };
    for it in summaries.iter().filter(shown) {
        let name = if &it.name == default { format!("**{}**", it.name) } else { it.name.clone() };
        let share = it.optimal_oracle_share.map(|it| format_percent(it.value)).unwrap_or_default();
        let [tokens, cost, with_retries] =
            [it.tokens, it.cost, it.cost_with_retries].map(|it| format_percent(it.value));
        let kept = [it.needed_context_kept, it.needed_strings_kept, it.edits_that_apply];
        let kept = kept.map(|it| format_percent(it.value)).join(" | ");
        text += &format!("| {name} | {tokens} | {cost} | {with_retries} | {share} | {kept} |\n");
    }
    text.trim_end().to_owned()
}

/// Returns the CPU seconds of this process, on systems that report them.
fn cpu_seconds() -> Option<f64> {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program name is in parentheses and can contain anything; the fields after it are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / TICKS_PER_SEC)
}

/// Returns the peak memory of this process, on systems that report it.
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
        assert_eq!(replace_numbers("no markers", "new"), None);
    }

    #[test]
    fn readme_has_the_marker_lines() {
        let readme = std::fs::read_to_string(repository::root().join(README_PATH)).unwrap();
        assert!(replace_numbers(&readme, "new").is_some());
    }

    #[test]
    fn readme_has_the_columns_of_the_table() {
        let readme = std::fs::read_to_string(repository::root().join(README_PATH)).unwrap();
        assert!(readme.contains(README_COLUMNS));
    }
}
