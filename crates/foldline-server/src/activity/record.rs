//! One request as the journal stores it.
//!
//! A record contains numbers, names of tools, targets of calls and the first words of a task. It is stored like an
//! original: in the tenant's part of the archive, encrypted if the archive is.

use std::collections::BTreeMap;

use foldline::wire::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::activity::bill::RequestBill;
use crate::activity::cache_break::BreakCause;
use crate::activity::totals::{ActivityTotals, NanoDollars};

/// Kind of the journal's events that carry records.
pub(crate) const EVENT_KIND: &str = "activity";
/// Maximum characters of a marker in a record.
const MAX_MARKER_CHARS: usize = 2_000;
/// Maximum characters of a name or a target in a record: clients and models choose them.
const MAX_NAME_CHARS: usize = 256;

/// A request and its response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestActivity {
    /// Random id of the process that wrote the record.
    pub writer: u64,
    /// Time at which the response ended, in milliseconds since 1970.
    pub at: i64,
    /// Name of the session.
    pub session: String,
    /// First words of the task, in the first record of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Name of the client.
    pub client: String,
    /// Name of the model.
    pub model: String,
    /// HTTP status of the response.
    pub status: u16,
    /// Time from the end of the request body to sending it, in microseconds.
    pub overhead_micros: u64,
    /// Prompt tokens as received, by our count.
    pub received_tokens: u64,
    /// Prompt tokens as sent, by our count.
    pub sent_tokens: u64,
    /// Prompt tokens that folding would have sent, in observe mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_send_tokens: Option<u64>,
    /// Group of the session, if sessions are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<SessionGroup>,
    /// Reported usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Dollars, if the model has a price and usage was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bill: Option<RequestBill>,
    /// Net saving that folding would have had, in observe mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_net: Option<NanoDollars>,
    /// Crease of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crease: Option<CreaseRecord>,
    /// New folds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<FoldRecord>,
    /// Originals that the model requested and received.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unfolds: Vec<UnfoldRecord>,
    /// Cause, if the provider's cache did not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_break: Option<BreakCause>,
    /// Tools that the client declares, in the first record of a session and when they change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolWeight>,
    /// New calls of tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<String, u64>,
    /// Contents of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowParts>,
    /// The provider's own verdict on its cache, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_verdict: Option<ProviderVerdict>,
    /// Folds and unfolds that are not in the lists; none in the journal.
    #[serde(skip_serializing_if = "UnlistedCounts::is_zero")]
    pub unlisted: UnlistedCounts,
}

/// Group of a session, if a share of the sessions is only observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionGroup {
    /// Its requests are folded.
    Fold,
    /// Its requests are only observed.
    Observe,
}

impl SessionGroup {
    /// All groups.
    pub const ALL: [SessionGroup; 2] = [SessionGroup::Fold, SessionGroup::Observe];

    /// Returns the name of the group, which is that of its mode.
    pub fn name(self) -> &'static str {
        match self {
            SessionGroup::Fold => "fold",
            SessionGroup::Observe => "observe",
        }
    }
}

/// What a provider reports about its cache, compared with the previous request of the session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderVerdict {
    /// The reason why the cached prefix was not used; none if it was kept.
    pub miss_reason: Option<String>,
}

/// Numbers of folds and unfolds whose descriptions are kept elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnlistedCounts {
    /// Number of folds.
    pub folds: u64,
    /// Number of unfolds.
    pub unfolds: u64,
}

impl UnlistedCounts {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// A crease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreaseRecord {
    /// Its trigger: `over_budget`, `profitable` or `cold_cache`.
    pub trigger: String,
    /// Tokens removed.
    pub saved_tokens: u64,
    /// Number of messages of the request.
    pub request_point: u64,
}

/// A new fold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoldRecord {
    /// Handle of the original, if it is archived.
    pub handle: Option<String>,
    /// Tool of the folded call or result.
    pub tool: Option<String>,
    /// File, command or query of the call; otherwise a description.
    pub target: String,
    /// Pass that proposed the fold.
    pub pass: String,
    /// Tokens of the original.
    pub tokens_before: u64,
    /// Tokens of the replacement.
    pub tokens_after: u64,
    /// Text that replaces the original.
    pub marker: String,
}

impl FoldRecord {
    /// Cuts the texts to the lengths that records keep.
    fn shorten(&mut self) {
        cut(&mut self.marker, MAX_MARKER_CHARS, "\n[..]");
        self.tool.iter_mut().chain([&mut self.target]).for_each(cut_name);
    }
}

/// An original that a model received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnfoldRecord {
    /// Its handle.
    pub handle: String,
}

/// A tool that a client declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolWeight {
    /// Its name.
    pub name: String,
    /// Tokens of its declaration.
    pub tokens: u64,
}

/// Contents of a window, in tokens by our count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowParts {
    /// Window of the model.
    pub window_tokens: u64,
    /// Maximum tokens of a request.
    pub budget_tokens: u64,
    /// Instructions.
    pub system_tokens: u64,
    /// Declarations of tools.
    pub tools_tokens: u64,
    /// User messages.
    pub user_tokens: u64,
    /// Markers and excerpts.
    pub folded_tokens: u64,
    /// Other messages.
    pub live_tokens: u64,
    /// Room for new messages.
    pub free_tokens: u64,
    /// Tokens until a crease is forced.
    pub crease_in_tokens: u64,
    /// Largest price of that crease, if the model has a price.
    pub crease_usd_at_most: Option<f64>,
}

/// Cuts a text that is longer than `max` characters, and appends `mark` to it.
fn cut(text: &mut String, max: usize, mark: &str) {
    // A text that was cut before stays as it is.
    if let Some((at, _)) = text.char_indices().nth(max).filter(|(at, _)| &text[*at..] != mark) {
        text.truncate(at);
        text.push_str(mark);
        text.shrink_to_fit();
    }
}

fn cut_name(name: &mut String) {
    cut(name, MAX_NAME_CHARS, "\u{2026}");
}

impl RequestActivity {
    /// Cuts texts to the lengths that records keep.
    pub(crate) fn shorten(&mut self) {
        self.folds.iter_mut().for_each(FoldRecord::shorten);
        let tools = self.tools.iter_mut().map(|tool| &mut tool.name);
        let unfolds = self.unfolds.iter_mut().map(|unfold| &mut unfold.handle);
        [&mut self.client, &mut self.model].into_iter().chain(tools).chain(unfolds).for_each(cut_name);
        if self.calls.keys().any(|name| name.chars().nth(MAX_NAME_CHARS).is_some()) {
            for (mut name, calls) in std::mem::take(&mut self.calls) {
                cut_name(&mut name);
                *self.calls.entry(name).or_default() += calls;
            }
        }
    }

    /// Returns the record as the totals of one request.
    pub fn totals(&self) -> ActivityTotals {
        let usage = self.usage.unwrap_or_default();
        let bill = self.bill.unwrap_or_default();
        let is_cold = self.crease.as_ref().is_some_and(|crease| crease.trigger == "cold_cache");
        let mut totals = ActivityTotals {
            requests: 1,
            usage_requests: u64::from(self.usage.is_some()),
            priced_requests: u64::from(self.bill.is_some()),
            received_tokens: self.received_tokens,
            sent_tokens: self.sent_tokens,
            would_send_tokens: self.would_send_tokens.unwrap_or(0),
            input_tokens: usage.input,
            cache_read_tokens: usage.cache_read.unwrap_or(0),
            cache_write_tokens: usage.cache_write.unwrap_or(0),
            output_tokens: usage.output,
            billed: bill.billed,
            saved: bill.saved,
            crease: bill.crease,
            unfold: bill.unfold,
            summary: bill.summary,
            would_net: self.would_net.unwrap_or_default(),
            cold_avoided: bill.cold_avoided,
            // In observe mode a crease is only what would have been.
            creases: u64::from(self.crease.is_some() && self.would_send_tokens.is_none()),
            cold_creases: u64::from(is_cold && self.would_send_tokens.is_none()),
            folds: self.folds.len() as u64 + self.unlisted.folds,
            unfolds: self.unfolds.len() as u64 + self.unlisted.unfolds,
            ..ActivityTotals::default()
        };
        if let Some(cause) = self.cache_break {
            totals.breaks[cause.index()] = 1;
        }
        totals
    }

    /// Returns the request as the API shows it.
    pub fn to_json(&self) -> Value {
        let totals = self.totals();
        let bill = self.bill.unwrap_or_default();
        let crease = self.crease.as_ref().map(|crease| {
            json!({
                "trigger": crease.trigger,
                "saved_tokens": crease.saved_tokens,
                "price_usd": bill.crease.dollars(),
                "avoided_usd": bill.cold_avoided.dollars(),
                "request_point": crease.request_point,
            })
        });
        json!({
            "at": self.at,
            "session": self.session,
            "model": self.model,
            "status": self.status,
            "overhead_ms": self.overhead_micros as f64 / 1e3,
            "usage": self.usage.is_some(),
            "received_tokens": totals.received_tokens,
            "sent_tokens": totals.sent_tokens,
            "input_tokens": totals.input_tokens,
            "cache_read_tokens": totals.cache_read_tokens,
            "cache_write_tokens": totals.cache_write_tokens,
            "fresh_tokens": totals.fresh_tokens(),
            "output_tokens": totals.output_tokens,
            "billed_usd": totals.billed.dollars(),
            "saved_usd": totals.saved.dollars(),
            "crease_usd": totals.crease.dollars(),
            "unfold_usd": totals.unfold.dollars(),
            "summary_usd": totals.summary.dollars(),
            "net_usd": totals.net().dollars(),
            "folds": totals.folds,
            "unfolds": totals.unfolds,
            "break": self.cache_break.map(BreakCause::name),
            "crease": crease,
            "provider_verdict": self.provider_verdict.as_ref().map(|verdict| {
                json!({ "is_kept": verdict.miss_reason.is_none(), "reason": verdict.miss_reason })
            }),
        })
    }

    /// Returns the record without the lists that are kept elsewhere.
    pub(crate) fn without_lists(&self) -> Self {
        let totals = self.totals();
        Self {
            session: self.session.clone(),
            title: None,
            client: self.client.clone(),
            model: self.model.clone(),
            crease: self.crease.clone(),
            provider_verdict: self.provider_verdict.clone(),
            folds: Vec::new(),
            unfolds: Vec::new(),
            tools: Vec::new(),
            calls: BTreeMap::new(),
            unlisted: UnlistedCounts { folds: totals.folds, unfolds: totals.unfolds },
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_the_journal() {
        let record = RequestActivity {
            session: "s".into(),
            usage: Some(Usage::default()),
            crease: Some(CreaseRecord { trigger: "cold_cache".into(), saved_tokens: 3, request_point: 4 }),
            cache_break: Some(BreakCause::Expired),
            folds: vec![FoldRecord { target: "a.rs".into(), ..FoldRecord::default() }],
            ..RequestActivity::default()
        };
        let bytes = serde_json::to_vec(&record).unwrap();
        assert_eq!(serde_json::from_slice::<RequestActivity>(&bytes).unwrap(), record);
        let totals = record.totals();
        assert_eq!((totals.creases, totals.cold_creases, totals.folds, totals.breaks), (1, 1, 1, [0, 0, 0, 1, 0]));
        assert_eq!(record.without_lists().totals(), totals);
        assert!(serde_json::from_slice::<RequestActivity>(b"{\"from_the_future\":1}").is_ok());
    }

    #[test]
    fn long_texts_are_cut_at_a_character_once() {
        let long = "\u{e9}".repeat(5_000);
        let fold = FoldRecord { marker: long.clone(), target: long.clone(), ..FoldRecord::default() };
        let calls = BTreeMap::from([(format!("{long}a"), 2), (format!("{long}b"), 3)]);
        let mut record = RequestActivity { folds: vec![fold], calls, ..RequestActivity::default() };
        record.shorten();
        assert_eq!(record.folds[0].marker.chars().count(), MAX_MARKER_CHARS + 5);
        assert_eq!(record.folds[0].target.chars().count(), MAX_NAME_CHARS + 1);
        assert_eq!(record.calls.values().collect::<Vec<_>>(), [&5]);
        let before = record.clone();
        record.shorten();
        assert_eq!(record, before);
    }
}
