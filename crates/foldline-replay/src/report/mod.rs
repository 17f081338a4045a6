//! The report: everything a comparison tells, as data and as one page.
//!
//! The page is one self-contained file: no request leaves it, the pictures are drawn from the data
//! inside. It quotes lines of the recordings (what was missing, and where it stood), so it is as
//! private as they are.

use foldline::{PriceTable, Prices};
use serde::Serialize;

use crate::compare::{EngineComparison, EngineSummary};
use crate::score::{MissingContext, TokenSpend, WINDOW_TOKENS};

/// Everything a comparison tells.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// What was replayed, in the caller's words.
    pub data_set: String,
    /// The day of the replay.
    pub date: String,
    /// Tokens that a rendering might have.
    pub budget: u64,
    /// The name of the price table.
    pub price_table: String,
    /// Its prices; an input token is 1.
    pub prices: ReportedPrices,
    /// How many conversations were replayed.
    pub conversations: usize,
    /// How many calls they have.
    pub calls: u64,
    /// Tokens that the model wrote, as recorded. They are the same for everyone.
    pub output: u64,
    /// The windows of `fits`.
    pub windows: [u64; WINDOW_TOKENS.len()],
    /// One for each contestant, sending everything first.
    pub rows: Vec<ReportRow>,
    /// The bills at every price table, for renderings that were decided at the prices above.
    pub costs: Vec<PriceTableCosts>,
    /// The row that the sessions are told for.
    pub subject: usize,
    /// The sessions with the largest bills, largest first.
    pub sessions: Vec<ReplayedSession>,
}

/// The prices of a bill.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReportedPrices {
    /// A token read from the cache.
    pub read: f64,
    /// A token written to it.
    pub write: f64,
    /// A token of output.
    pub output: f64,
    /// Dollars for a million tokens of input; zero where time is what it costs.
    pub base_usd: f64,
}

/// The bills of all contestants at one price table.
#[derive(Clone, Debug, Serialize)]
pub struct PriceTableCosts {
    /// The name of the price table.
    pub price_table: String,
    /// Its prices.
    pub prices: ReportedPrices,
    /// The bill and the repaired bill of each row, relative to sending everything.
    pub rows: Vec<[f64; 2]>,
}

/// A contestant with its bill.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    /// Whether it knows the future.
    pub is_bound: bool,
    /// What its requests cost.
    pub usage: TokenSpend,
    /// What the round trips for missing originals cost on top.
    pub retry_usage: TokenSpend,
    /// The numbers.
    #[serde(flatten)]
    pub summary: EngineSummary,
}

/// One conversation under the subject of the report.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedSession {
    /// The recording's name.
    pub id: String,
    /// Tokens of each request when everything is sent.
    pub received_tokens: Vec<u64>,
    /// Tokens of each request as the subject sends it.
    pub sent_tokens: Vec<u64>,
    /// The calls at which bytes that were sent before have moved.
    pub creases: Vec<usize>,
    /// The bill, in input tokens, when everything is sent.
    pub baseline_cost: u64,
    /// The bill, in input tokens.
    pub cost: u64,
    /// The repaired bill, in input tokens.
    pub cost_with_retries: u64,
    /// Hard support.
    pub needed_context_kept: f64,
    /// How many calls missed something.
    pub actions_missing_context: u64,
    /// Some of what was missing.
    pub missing_context: Vec<MissingContext>,
}

/// More sessions than this make a page slow.
const MAX_SESSIONS: usize = 200;
/// More than this of one session nobody reads.
const MAX_MISSING_PER_SESSION: usize = 12;

impl ReplayReport {
    /// Puts a comparison into words and numbers. `subject` is the contestant that it is about.
    pub fn new(
        comparison: &EngineComparison,
        subject: usize,
        set: &str,
        price_table: &str,
        date: &str,
        budget: u64,
    ) -> Self {
        let prices = &comparison.prices;
        let rows = (0..comparison.engine_names.len())
            .map(|at| {
                let summary = comparison.summary(at);
                let is_bound = summary.name.starts_with("clairvoyant");
                ReportRow { is_bound, usage: summary.score.usage, retry_usage: summary.score.retry_usage, summary }
            })
            .collect();
        let mut sessions: Vec<ReplayedSession> =
            comparison.outcomes.iter().map(|outcome| replayed_session(outcome, subject, prices)).collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.baseline_cost));
        sessions.truncate(MAX_SESSIONS);
        Self {
            data_set: set.to_owned(),
            date: date.to_owned(),
            budget,
            price_table: price_table.to_owned(),
            prices: prices.into(),
            conversations: comparison.outcomes.len(),
            calls: comparison.calls(),
            output: comparison.outcomes.iter().map(|outcome| outcome.output).sum(),
            windows: WINDOW_TOKENS,
            rows,
            costs: costs_by_price_table(comparison),
            subject,
            sessions,
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data")
    }

    /// The report as one self-contained page.
    pub fn to_html(&self) -> String {
        // Inside a script element only its end tag has to be kept from appearing.
        let data = serde_json::to_string(self).expect("a report is plain data").replace("</", "<\\/");
        include_str!("page.html")
            .replace("/*STYLE*/", include_str!("page.css"))
            .replace("/*SCRIPT*/", include_str!("page.js"))
            .replace("/*DATA*/", &data)
    }
}

impl From<&Prices> for ReportedPrices {
    fn from(prices: &Prices) -> Self {
        Self { read: prices.read, write: prices.write, output: prices.output, base_usd: prices.base_usd }
    }
}

fn costs_by_price_table(comparison: &EngineComparison) -> Vec<PriceTableCosts> {
    let table = PriceTable::builtin();
    let at_prices = |name: &str| {
        let prices = table.get(name)?;
        let rows = (0..comparison.engine_names.len()).map(|row| comparison.relative_costs(row, &prices)).collect();
        Some(PriceTableCosts { price_table: name.to_owned(), prices: (&prices).into(), rows })
    };
    table.names().filter_map(at_prices).collect()
}

fn replayed_session(outcome: &crate::SessionOutcome, subject: usize, prices: &Prices) -> ReplayedSession {
    let (full, run) = (&outcome.runs[0], &outcome.runs[subject]);
    let whole = |tokens: f64| tokens.round() as u64;
    let moved = run.points.iter().enumerate().filter(|(_, point)| point.is_crease);
    // One of each call first: the second missing name of a call says little more.
    let mut missteps: Vec<MissingContext> = Vec::new();
    for misstep in &run.missing_context {
        if missteps.len() < MAX_MISSING_PER_SESSION && missteps.last().is_none_or(|last| last.call != misstep.call) {
            missteps.push(misstep.clone());
        }
    }
    ReplayedSession {
        id: outcome.id.clone(),
        received_tokens: full.points.iter().map(|point| point.tokens).collect(),
        sent_tokens: run.points.iter().map(|point| point.tokens).collect(),
        creases: moved.map(|(at, _)| at).collect(),
        baseline_cost: whole(full.score.cost(prices)),
        cost: whole(run.score.cost(prices)),
        cost_with_retries: whole(run.score.cost_with_retries(prices)),
        needed_context_kept: run.score.needed_context_kept.ratio(),
        actions_missing_context: run.score.complete_actions.total - run.score.complete_actions.hits,
        missing_context: missteps,
    }
}
