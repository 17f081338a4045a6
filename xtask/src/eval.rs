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
use foldline_replay::policy::{self, Grain};
use foldline_replay::{
    Comparison, Contestant, Engine, Estimate, Foresight, Maker, Options, Ours, Recordings, Refusal, Setup, Summary,
    Survey, WINDOWS, compare, half,
};

use crate::{corpus, repository, say};

/// The prices of the main table: those of the models that most of the recorded sessions ran on.
const PRICES: &str = "anthropic-5m";
/// The budget of the main table.
const BUDGET: u64 = 128_000;
/// The file that is written, and the one that quotes it.
const PAGE: &str = "docs/results.md";
const README: &str = "README.md";
/// The README's numbers stand between these lines.
const QUOTE: [&str; 2] = ["<!-- numbers of docs/results.md, written by `cargo xtask eval` -->", "<!-- end -->"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let set = corpus::folder(arguments).join("dev.jsonl.zst");
    if !set.exists() {
        say(&format!("{} is not there: name the folder of a corpus, or set FOLDLINE_CORPUS", set.display()));
        return Ok(());
    }
    if cfg!(debug_assertions) {
        return again_optimised(arguments);
    }
    let eval = Eval { survey: Survey::of(recordings(&set)?), set };
    let page = eval.page()?;
    let root = repository::root();
    std::fs::write(root.join(PAGE), &page.text).with_context(|| format!("{PAGE} was not written"))?;
    let readme = std::fs::read_to_string(root.join(README)).context("the README can not be read")?;
    if let Some(readme) = quoted(&readme, &page.quote) {
        std::fs::write(root.join(README), readme).context("the README was not written")?;
    }
    say(&page.text);
    Ok(())
}

/// Replaying a corpus without optimisation takes ten times as long.
fn again_optimised(arguments: &[String]) -> Result<()> {
    let status = repository::cargo()
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
fn quoted(readme: &str, quote: &str) -> Option<String> {
    let (before, rest) = readme.split_once(QUOTE[0])?;
    let (_, after) = rest.split_once(QUOTE[1])?;
    Some(format!("{before}{}\n{quote}\n{}{after}", QUOTE[0], QUOTE[1]))
}

fn recordings(set: &Path) -> Result<impl Iterator<Item = RecordedSession> + Send + use<>> {
    Ok(Recordings::under(from_ref(&set.to_owned()))?.filter_map(Result::ok))
}

struct Eval {
    set: PathBuf,
    survey: Survey,
}

struct Page {
    text: String,
    quote: String,
}

impl Eval {
    fn compare(&self, contestants: &[Contestant], prices: Prices) -> Result<Comparison> {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let options = Options { budget: BUDGET, prices, meter, calls: 1 };
        Ok(compare(recordings(&self.set)?, &self.survey, contestants, &options, |_| ())?)
    }

    fn page(&self) -> Result<Page> {
        let prices = PriceTable::builtin().get(PRICES).context("the price table is built in")?;
        let (started, spent) = (Instant::now(), processor_time());
        let alone = self.compare(&ours(), prices)?;
        let took = (started.elapsed(), processor_time().zip(spent).map(|(now, then)| now - then));
        let memory = peak_memory();
        // All in one pass, so that each session is prepared once. The rows behind `beside` are ours under other
        // prices and budgets.
        let mut contestants = everyone();
        let beside = contestants.len() + 1;
        let told =
            |name: &str, prices, budget| Told { name: name.to_owned(), engine: default_engine(), prices, budget };
        contestants.extend(price_rows().iter().map(|(name, prices)| engine(told(name, Some(*prices), None))));
        contestants.extend(WINDOWS.map(|window| engine(told(&window.to_string(), None, Some(window)))));
        let main = self.compare(&contestants, prices)?;

        let (calls, conversations) = (main.calls(), main.outcomes.len());
        let tokens: u64 = main.outcomes.iter().map(|outcome| outcome.tokens).sum();
        let mut text = format!(
            "# Results\n\n\
             Written by `cargo xtask eval` on {}. {conversations} recorded sessions of agents (coding, research, customer \
             service), {calls} calls, {:.1} M tokens in their last requests; budget {} k tokens. Prices `{PRICES}` unless said \
             otherwise: writing to the prompt cache costs {}, reading from it {}, output {}, an input token being 1. In \
             brackets 95 % bootstrap intervals over sessions, paired. What the numbers mean: [guide](guide/replay.md).\n\n\
             The replay tells whether the information was there when the recorded action needed it, not whether a task \
             would have been solved.\n\n\
             ## Side by side\n\n\
             In percent. Tokens, bill and repaired bill relative to sending everything.\n\n",
            jiff::Zoned::now().date(),
            tokens as f64 / 1e6,
            BUDGET / 1_000,
            prices.write,
            prices.read,
            prices.output,
        );
        let summaries: Vec<Summary> = (0..main.names.len()).map(|row| main.summary(row)).collect();
        text += &side_by_side(&summaries[..beside]);
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
            let part = Comparison {
                names: main.names.clone(),
                outcomes: main.outcomes.iter().filter(|outcome| half(&outcome.id) == wanted).cloned().collect(),
                prices,
            };
            let it = part.summary(1);
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} |",
                part.outcomes.len(),
                interval(it.repaired),
                interval(it.hard),
                interval(it.anchors),
                it.gap_closed_paying.map(interval).unwrap_or_default(),
                it.gap_closed.map(interval).unwrap_or_default(),
            )?;
        }

        text += "\n## At every price table\n\n\
                 The engine, deciding by these prices. Dollars are those of the input over the whole set, where the table \
                 states them; on a local server tokens cost time.\n\n\
                 | prices | write | read | tokens | bill | repaired | hard support | dollars, everything | dollars, folded |\n\
                 |---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
        for (at, (name, prices)) in price_rows().into_iter().enumerate() {
            let row = beside + at;
            let [bill, repaired] = main.billed(row, &prices);
            let it = &summaries[row];
            let dollars = |row: usize| match prices.base_usd {
                0.0 => String::new(),
                _ => format!("{:.0}", prices.dollars(summaries[row].score.bill(&prices))),
            };
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                prices.write,
                prices.read,
                percent(it.tokens.value),
                percent(bill),
                percent(repaired),
                percent(it.hard.value),
                dollars(0),
                dollars(row),
            )?;
        }

        text += "\n## In small windows\n\n\
                 The engine with each window as its budget. Survival: calls whose request fits. What does not fit is \
                 refused with the floor that it has; a refused call counts as the full request, and as all lost.\n\n\
                 | window | survival, everything | survival | refused | tokens | repaired | hard support | edit anchors |\n\
                 |--:|--:|--:|--:|--:|--:|--:|--:|\n";
        for (at, window) in WINDOWS.into_iter().enumerate() {
            let it = &summaries[beside + price_rows().len() + at];
            writeln!(
                text,
                "| {} k | {} | {} | {} | {} | {} | {} | {} |",
                window / 1_000,
                percent(summaries[0].fits[at]),
                percent(it.fits[at]),
                it.score.refused,
                percent(it.tokens.value),
                percent(it.repaired.value),
                percent(it.hard.value),
                percent(it.anchors.value),
            )?;
        }

        text += &speed(&alone, took, memory);
        Ok(Page { quote: quote(&summaries[..beside], conversations, calls), text })
    }
}

fn default_engine() -> Ours {
    Ours::new(Policy::default())
}

/// Our engine alone.
fn ours() -> Vec<Contestant> {
    vec![engine(default_engine())]
}

fn engine(maker: impl Maker + 'static) -> Contestant {
    Contestant::Engine(Box::new(maker))
}

fn price_rows() -> Vec<(String, Prices)> {
    let table = PriceTable::builtin();
    table.names().filter_map(|name| Some((name.to_owned(), table.get(name)?))).collect()
}

/// Our engine, told other prices or another budget than the rest.
struct Told {
    name: String,
    engine: Ours,
    prices: Option<Prices>,
    budget: Option<u64>,
}

impl Maker for Told {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        let prices = self.prices.unwrap_or(setup.prices);
        let budget = self.budget.unwrap_or(setup.budget);
        self.engine.open(&Setup { prices, budget, ..setup.clone() })
    }
}

/// Everyone who needs no other program.
fn everyone() -> Vec<Contestant> {
    let mut all = ours();
    let default = all[0].name().to_owned();
    for other in Policy::ALL.into_iter().map(Ours::new).filter(|it| it.name() != default && it.name().contains("tight"))
    {
        all.push(engine(other));
    }
    all.extend(policy::ALL[1..].iter().map(|it| engine(it.clone())));
    all.extend(policy::CLASSIC.iter().map(|it| engine(it.clone())));
    all.extend([Grain::Results, Grain::Lines].map(|grain| Contestant::RandomLike(0, grain)));
    all.extend([Foresight::WhenItPays, Foresight::BestSchedule].map(Contestant::Clairvoyant));
    all
}

fn side_by_side(summaries: &[Summary]) -> String {
    let mut text = "| | tokens | bill | repaired | worst | support | hard support | missteps | edit anchors | trail | \
                    instructions | gap closed | to the best schedule | other's future | creases | unfolds | laws broken | \
                    own words |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for it in summaries {
        let unfolds = match it.score.unfolded.of {
            0 => String::new(),
            _ => percent(it.score.unfolded.ratio()),
        };
        let cells = [
            it.name.clone(),
            percent(it.tokens.value),
            percent(it.bill.value),
            interval(it.repaired),
            format!("{:.2} ({})", it.worst, it.dearer),
            percent(it.support.value),
            interval(it.hard),
            percent(it.missteps.value),
            percent(it.anchors.value),
            format!("{} / {}", percent(it.trail_recall.value), percent(it.trail_precision.value)),
            percent(it.instructions),
            it.gap_closed_paying.map(interval).unwrap_or_default(),
            it.gap_closed.map(interval).unwrap_or_default(),
            percent(it.foreign.value),
            it.score.creases.to_string(),
            unfolds,
            it.score.laws_broken.to_string(),
            (it.score.invented / 1_000).to_string(),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn speed(alone: &Comparison, (took, processor): (Duration, Option<f64>), memory: Option<u64>) -> String {
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
fn quote(summaries: &[Summary], conversations: usize, calls: u64) -> String {
    let shown = ["everything", "mask all but 10 results", "clear above 100k, keep 3", "trim to the last 64k"];
    let ours = &summaries[1].name;
    let bound = Foresight::WhenItPays.name();
    let mut text = format!(
        "On {conversations} recorded sessions with {calls} calls (`{PRICES}`, [all numbers](docs/results.md)), in percent:\n\n\
         | | tokens | bill | with repairs | needed and there | edits that find their text |\n|---|--:|--:|--:|--:|--:|\n"
    );
    let wanted = |it: &&Summary| shown.contains(&it.name.as_str()) || &it.name == ours || it.name == bound;
    for it in summaries.iter().filter(wanted) {
        let name = if &it.name == ours { format!("**{}**", it.name) } else { it.name.clone() };
        let numbers = [it.tokens, it.bill, it.repaired, it.hard, it.anchors].map(|it| percent(it.value));
        text += &format!("| {name} | {} |\n", numbers.join(" | "));
    }
    text.trim_end().to_owned()
}

/// Seconds that this process has computed, where the system tells.
fn processor_time() -> Option<f64> {
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may hold anything; behind it the fields are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / TICKS)
}

/// The most memory that this process had, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

fn interval(it: Estimate) -> String {
    format!("{} ({} to {})", percent(it.value), percent(it.low), percent(it.high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_keeps_what_stands_around_its_numbers() {
        let readme = format!("a\n{}\nold\n{}\nb\n", QUOTE[0], QUOTE[1]);
        assert_eq!(quoted(&readme, "new").unwrap(), format!("a\n{}\nnew\n{}\nb\n", QUOTE[0], QUOTE[1]));
        assert_eq!(quoted("no place", "new"), None);
    }
}
