//! The report: all results of a comparison, as JSON and as one HTML page.
//!
//! The page is one self-contained file: it loads nothing, and its plots are drawn from the data
//! inside. It quotes lines of the recordings (missing context and its position), so it is as
//! private as they are.

use foldline::Prices;
use foldline::models::PriceTable;
use serde::Serialize;

use crate::compare::{EngineComparison, EngineSummary, SessionOrigin};
use crate::oracle::OracleSchedule;
use crate::score::{MissingContext, TokenSpend, WINDOW_TOKENS};

/// All results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Description of the recordings, given by the caller.
    pub data_set: String,
    /// The day of the replay.
    pub date: String,
    /// Maximum tokens of a rendering.
    pub budget: u64,
    /// The name of the price table.
    pub price_table: String,
    /// Its prices, relative to an input token.
    pub prices: ReportedPrices,
    /// Number of replayed conversations.
    pub conversations: usize,
    /// Number of their calls.
    pub calls: u64,
    /// Output tokens of the model, as recorded; the same for every engine.
    pub output: u64,
    /// The windows of `fits`.
    pub windows: [u64; WINDOW_TOKENS.len()],
    /// One row per engine, no compaction first.
    pub rows: Vec<ReportRow>,
    /// The costs at every price table, for renderings that were decided at the prices above.
    pub costs: Vec<PriceTableCosts>,
    /// Index of the row whose sessions are reported.
    pub subject: usize,
    /// The sessions with the highest costs, highest first.
    pub sessions: Vec<ReplayedSession>,
}

/// The prices of a cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReportedPrices {
    /// A token read from the cache.
    pub read: f64,
    /// A token written to the cache.
    pub write: f64,
    /// An output token.
    pub output: f64,
    /// US dollars per million input tokens; zero if the cost is time.
    pub base_usd: f64,
}

/// The costs of all engines at one price table.
#[derive(Clone, Debug, Serialize)]
pub struct PriceTableCosts {
    /// The name of the price table.
    pub price_table: String,
    /// Its prices.
    pub prices: ReportedPrices,
    /// The cost and the cost including retries of each row, relative to no compaction.
    pub rows: Vec<[f64; 2]>,
}

/// An engine with its usage.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    /// True for an oracle, which knows the future.
    pub is_bound: bool,
    /// Tokens of its requests.
    pub usage: TokenSpend,
    /// Additional tokens of the retries for missing context.
    pub retry_usage: TokenSpend,
    /// The results.
    #[serde(flatten)]
    pub summary: EngineSummary,
}

/// One conversation under the report's subject.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedSession {
    /// The recording's name.
    pub id: String,
    /// Its day, project and task.
    #[serde(flatten)]
    pub origin: SessionOrigin,
    /// Tokens of each request without compaction.
    pub received_tokens: Vec<u64>,
    /// Tokens of each request as the subject sends it.
    pub sent_tokens: Vec<u64>,
    /// The calls at which previously sent bytes changed.
    pub creases: Vec<usize>,
    /// The cost without compaction, in input tokens.
    pub baseline_cost: u64,
    /// The cost, in input tokens.
    pub cost: u64,
    /// The cost including retries, in input tokens.
    pub cost_with_retries: u64,
    /// Share of needed context that was kept.
    pub needed_context_kept: f64,
    /// Number of actions that miss needed context.
    pub actions_missing_context: u64,
    /// Examples of missing context.
    pub missing_context: Vec<MissingContext>,
}

/// More sessions than this make the page slow.
const MAX_SESSIONS: usize = 200;
/// Maximum examples of missing context per session.
const MAX_MISSING_PER_SESSION: usize = 12;

impl ReplayReport {
    /// Builds the report of a comparison. `subject` is the index of the engine that it is about.
    pub fn new(
        comparison: &EngineComparison,
        subject: usize,
        data_set: &str,
        price_table: &str,
        date: &str,
        budget: u64,
    ) -> Self {
        let prices = &comparison.prices;
        let summaries = comparison.summaries().into_iter();
        let rows = summaries
            .map(|summary| {
                let is_bound = OracleSchedule::ALL.iter().any(|schedule| schedule.name() == summary.name);
                ReportRow { is_bound, usage: summary.score.usage, retry_usage: summary.score.retry_usage, summary }
            })
            .collect();
        let mut sessions: Vec<ReplayedSession> =
            comparison.outcomes.iter().map(|outcome| replayed_session(outcome, subject, &outcome.prices)).collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.baseline_cost));
        sessions.truncate(MAX_SESSIONS);
        Self {
            data_set: data_set.to_owned(),
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

    /// Returns the report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data")
    }

    /// Returns the report as one self-contained HTML page.
    pub fn to_html(&self) -> String {
        // A script element ends at its end tag, and `<!--<script>` changes where that is. In JSON a `<` appears only
        // inside texts, where it may be escaped.
        let data = serde_json::to_string(self).expect("a report is plain data").replace('<', "\\u003c");
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
    let rounded = |tokens: f64| tokens.round() as u64;
    let creases = run.points.iter().enumerate().filter(|(_, point)| point.is_crease);
    // At most one entry per call: a second missing identifier of a call adds little.
    let mut missing_context: Vec<MissingContext> = Vec::new();
    for missing in &run.missing_context {
        if missing_context.len() < MAX_MISSING_PER_SESSION
            && missing_context.last().is_none_or(|last| last.call != missing.call)
        {
            missing_context.push(missing.clone());
        }
    }
    ReplayedSession {
        id: outcome.id.clone(),
        origin: outcome.origin.clone(),
        received_tokens: full.points.iter().map(|point| point.tokens).collect(),
        sent_tokens: run.points.iter().map(|point| point.tokens).collect(),
        creases: creases.map(|(at, _)| at).collect(),
        baseline_cost: rounded(full.score.cost(prices)),
        cost: rounded(run.score.cost(prices)),
        cost_with_retries: rounded(run.score.cost_with_retries(prices)),
        needed_context_kept: run.score.needed_context_kept.ratio(),
        actions_missing_context: run.score.complete_actions.total - run.score.complete_actions.hits,
        missing_context,
    }
}
