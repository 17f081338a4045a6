//! Facts about each model at each upstream, for each tenant: its meter, its prices, and the token budget of a request.
//!
//! The model table is only the starting point. Windows take precedence in this order: set by the user, revealed by an
//! error or by counts (`learned_window`), reported by the server, listed in the table. The budget is calibrated with the
//! counts that the provider reports; the meter itself never changes, so that a conversation is always counted the same.
//!
//! Every tenant has separate facts, so that no response to one tenant changes what is sent for another.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldline::tokens::{Budget, CountCache, CountExactness, Tokens};
use foldline::wire::{ContextOverflow, LearnedLimit, LimitScope, OverflowEvidence, ReportedTokens, Request};
use foldline::{Meter, ModelTable, Prices};

use crate::proxy::fold::tenant::TenantKey;
use crate::proxy::lru_map::{LruMap, map_key};
use crate::proxy::named_upstream::UpstreamChoice;
use crate::proxy::settings::UpstreamUrl;
use crate::proxy::upstream::learned_window::{CountRules, CountVerdict, LearnedFacts, LearnedWindow, WindowEvidence};

/// Maximum tenants whose models are cached; the least recently used is evicted.
const MAX_TENANTS: usize = 512;
/// Maximum models cached per tenant; clients choose the names.
const MAX_MODELS_PER_TENANT: usize = 64;

/// All known models.
pub(crate) struct ModelRegistry {
    table: Cow<'static, ModelTable>,
    count_cache: CountCache,
    window_override: Option<Tokens>,
    /// Lifetime of a learned window.
    lifetime: Duration,
    models: Mutex<LruMap<LruMap<Arc<UpstreamModel>>>>,
}

/// A model at an upstream, for a tenant.
pub(crate) struct UpstreamModel {
    pub(crate) meter: Meter,
    pub(crate) prices: Prices,
    name: String,
    pub(crate) upstream: UpstreamChoice,
    /// Window set by the user.
    window_override: Option<Tokens>,
    lifetime: Duration,
    learned: Mutex<LearnedFacts>,
}

/// A learned window and its model.
pub(crate) struct ModelWindow {
    pub(crate) model: String,
    pub(crate) upstream: UpstreamChoice,
    pub(crate) window: LearnedWindow,
}

/// The tokens of a prompt that a model accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptLimits {
    /// Tokens reserved for the response; none for the default.
    pub(crate) max_output: Option<Tokens>,
    /// Maximum tokens by our count.
    pub(crate) tokens: Tokens,
    /// Maximum tokens if windows learned from errors and counts are ignored.
    pub(crate) stated_tokens: Tokens,
}

/// Factor by which a prompt is reduced that was refused without a number.
const OVERFLOW_BACKOFF: f64 = 0.75;
/// Lowest ratio of reported to estimated tokens by which a budget is raised.
const MIN_BUDGET_RATIO: f64 = 0.5;

impl ModelRegistry {
    pub(crate) fn new(table: Cow<'static, ModelTable>, window: Option<Tokens>, lifetime: Duration) -> Self {
        Self { table, count_cache: CountCache::default(), window_override: window, lifetime, models: Mutex::default() }
    }

    pub(crate) fn get(&self, tenant: TenantKey, upstream: &UpstreamChoice, name: &str) -> Arc<UpstreamModel> {
        let key = map_key(format!("{} {name}", upstream.name()).as_bytes());
        if let Some(model) = self.lock().get_mut(tenant.0).and_then(|models| models.get_mut(key)) {
            return model.clone();
        }
        // Loading a vocabulary takes time and must not happen under the lock.
        let model = Arc::new(UpstreamModel {
            meter: Meter::for_model(&self.table, Some(name)).with_cache(self.count_cache.clone()),
            prices: Prices::for_model(&self.table, Some(name)),
            name: name.to_owned(),
            upstream: upstream.clone(),
            window_override: self.window_override,
            lifetime: self.lifetime,
            learned: Mutex::default(),
        });
        let mut tenants = self.lock();
        let models = tenants.get_or_insert_with(tenant.0, MAX_TENANTS, LruMap::default);
        models.get_or_insert_with(key, MAX_MODELS_PER_TENANT, || model).clone()
    }

    fn lock(&self) -> MutexGuard<'_, LruMap<LruMap<Arc<UpstreamModel>>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the windows that were learned for a tenant, sorted by model.
    pub(crate) fn learned_windows(&self, tenant: TenantKey) -> Vec<ModelWindow> {
        let models: Vec<_> =
            self.lock().get_mut(tenant.0).into_iter().flat_map(|models| models.values().cloned()).collect();
        let window = |model: Arc<UpstreamModel>| {
            let window = model.learned_window()?;
            Some(ModelWindow { model: model.name.clone(), upstream: model.upstream.clone(), window })
        };
        let mut windows: Vec<_> = models.into_iter().filter_map(window).collect();
        windows.sort_by(|a, b| a.model.cmp(&b.model));
        windows
    }
}

impl UpstreamModel {
    /// Returns the price of `tokens` tokens at base price, in dollars; zero for a server on this machine and for a model
    /// whose price is not known.
    pub(crate) fn dollars(&self, tokens: f64, upstream: &UpstreamUrl) -> f64 {
        if upstream.is_loopback() || !self.meter.row().has_list_price() { 0.0 } else { self.prices.dollars(tokens) }
    }

    /// Returns the limits of a request with its reserve for the response.
    pub(crate) fn limits_for(&self, request: &Request<'_>) -> PromptLimits {
        self.limits(self.reserved_output(request))
    }

    /// Returns the limits of a prompt with this reserve for the response.
    pub(crate) fn limits(&self, max_output: Option<Tokens>) -> PromptLimits {
        let (tokens, stated_tokens) = (self.budget(max_output), self.stated_budget(max_output));
        PromptLimits { max_output, tokens, stated_tokens }
    }

    /// Returns the tokens to reserve for the response. If the requested maximum would leave too little for the system
    /// prompt, the tools, the task and the results of one turn, the default is used instead (none).
    fn reserved_output(&self, request: &Request<'_>) -> Option<Tokens> {
        let requested = request.max_output_tokens();
        let (requested_budget, default_budget) = (self.budget(requested), self.budget(None));
        if requested_budget >= default_budget {
            return requested;
        }
        let conversation = request.conversation();
        let inputs = conversation.messages.split(|message| message.is_assistant());
        let mut inputs = inputs.map(|input| input.iter().map(|message| self.meter.message(message)).sum::<Tokens>());
        // The first input has the task, which is never folded, and what the client adds to it.
        let fixed = self.meter.system(&conversation.system)
            + self.meter.tools(&conversation.tools)
            + inputs.next().unwrap_or_default();
        // The largest input never shrinks as a conversation grows, so the reserve changes at most once.
        let largest_input = inputs.max().unwrap_or_default();
        let leaves_room = |_: &Tokens| fixed < requested_budget / 4 * 3 && fixed + largest_input <= requested_budget;
        requested.filter(leaves_room)
    }

    /// Returns the maximum tokens of a prompt, by our count.
    pub(crate) fn budget(&self, max_output: Option<Tokens>) -> Tokens {
        self.budget_within(self.learned_window().map(|window| (window.tokens, window.bounds)), max_output)
    }

    /// Returns the maximum tokens of a prompt if windows learned from errors and counts are ignored.
    fn stated_budget(&self, max_output: Option<Tokens>) -> Tokens {
        let reported = self.learned().reported().filter(|_| self.window_override.is_none());
        self.budget_within(reported.map(|window| (window.tokens, window.bounds)), max_output)
    }

    fn budget_within(&self, learned: Option<(Tokens, LimitScope)>, max_output: Option<Tokens>) -> Tokens {
        let mut row = self.meter.row().clone();
        match self.window_override.map(|window| (window, LimitScope::Window)).or(learned) {
            Some((window, LimitScope::Window)) => (row.window, row.max_input) = (window, None),
            Some((input, LimitScope::Input)) => row.max_input = Some(input),
            None => {}
        }
        let fit = self.learned().fit();
        let meter = self.meter.clone().with_fit(fit);
        let budget = Budget::for_model(&row, max_output, &meter).tokens;
        let Some(fit) = fit else { return budget };
        // An exact count that is reported lower omits something, and a window set by the user refers to our count.
        let is_firm = self.window_override.is_some() || self.meter.exactness() == CountExactness::Exact;
        let least = if is_firm { 1.0 } else { MIN_BUDGET_RATIO };
        (budget.saturating_sub(fit.overhead) as f64 / fit.ratio.max(least)) as Tokens
    }

    /// Returns the learned window in force; none if the user set the window.
    fn learned_window(&self) -> Option<LearnedWindow> {
        let learned = self.learned();
        let window = learned.revealed(Instant::now(), self.lifetime).or(learned.reported());
        window.filter(|_| self.window_override.is_none())
    }

    /// Compares the reported count of a prompt with ours.
    pub(crate) fn observe_usage(&self, ours: Tokens, reported: Tokens) -> CountVerdict {
        self.learned().compare((ours, reported), self.count_rules(), Instant::now())
    }

    fn count_rules(&self) -> CountRules {
        let (exactness, is_window_set) = (self.meter.exactness(), self.window_override.is_some());
        CountRules { exactness, is_window_set, lifetime: self.lifetime }
    }

    /// Records that a prompt of `ours` tokens by our count was accepted.
    pub(crate) fn accepted(&self, ours: Tokens) {
        self.learned().accept(&self.name, ours, self.meter.exactness());
    }

    /// Returns the maximum tokens of the next attempt, after a prompt of `ours` tokens by our count was refused. Any number
    /// in the error is used for that; a limit is learned only from strict evidence.
    pub(crate) fn learn_from_overflow(
        &self,
        overflow: ContextOverflow,
        ours: Tokens,
        max_output: Option<Tokens>,
    ) -> Tokens {
        let LearnedLimit::Stated { tokens, bounds } = overflow.learned_limit(ours) else {
            return (ours as f64 * OVERFLOW_BACKOFF) as Tokens;
        };
        let evidence = window_evidence(overflow.evidence);
        if let Some(evidence) = evidence.filter(|_| self.window_override.is_none()) {
            tracing::info!(model = self.name, window = tokens, ?bounds, ?evidence, "learned a window from an error");
            self.learned().learn(LearnedWindow { tokens, bounds, evidence, learned_at: Instant::now() });
        }
        // The server's own numbers are better than estimates: its count of the prompt, and its reserve.
        let room = match bounds {
            LimitScope::Window => tokens.saturating_sub(overflow.output_tokens.unwrap_or(0)),
            LimitScope::Input => tokens,
        };
        let counted = match overflow.prompt_tokens {
            Some(ReportedTokens::Exact(sent)) if sent > 0 => room as f64 * ours as f64 / sent as f64 * 0.98,
            _ => room as f64,
        };
        let budget = self.budget_within(Some((tokens, bounds)), max_output);
        budget.min(counted as Tokens).min((ours as f64 * 0.95) as Tokens)
    }

    /// Records the window that the server reports.
    pub(crate) fn set_reported_window(&self, tokens: Tokens) {
        self.learned().learn(LearnedWindow::reported(tokens));
    }

    /// Records the window with which the server loads the model for the current request, if a request states it. The
    /// server is queried again when it changes.
    pub(crate) fn set_requested_window(&self, tokens: Option<Tokens>) {
        self.learned().set_requested(tokens, Instant::now());
    }

    /// Returns the window that the current request states.
    pub(crate) fn requested_window(&self) -> Option<Tokens> {
        self.learned().requested()
    }

    /// Makes the next request query the server again: it does not know the window yet.
    pub(crate) fn repeat_probe(&self) {
        self.learned().repeat_query();
    }

    /// Returns true if the server has to be queried for its window now. The caller must then query it.
    pub(crate) fn claim_probe(&self) -> bool {
        self.window_override.is_none() && self.learned().claim_query(Instant::now(), self.lifetime)
    }

    fn learned(&self) -> MutexGuard<'_, LearnedFacts> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the evidence for a window that an overflow provides; none if it proves nothing.
fn window_evidence(evidence: OverflowEvidence) -> Option<WindowEvidence> {
    match evidence {
        OverflowEvidence::Code => Some(WindowEvidence::ErrorCode),
        OverflowEvidence::Message => Some(WindowEvidence::ErrorMessage),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::{Format, RequestRejection};

    const TENANT: TenantKey = TenantKey(1);

    fn openai() -> UpstreamChoice {
        Format::OpenAiChat.dialect().family.into()
    }

    fn anthropic() -> UpstreamChoice {
        Format::Anthropic.dialect().family.into()
    }

    fn models(window: Option<Tokens>) -> ModelRegistry {
        ModelRegistry::new(Cow::Borrowed(ModelTable::builtin()), window, Duration::from_secs(3_600))
    }

    #[test]
    fn learned_limits_override_the_model_table() {
        let model = models(None).get(TENANT, &openai(), "some-local-model");
        let guessed = model.budget(Some(1_000));
        assert!(guessed > 100_000, "{guessed}");
        model.set_reported_window(32_768);
        let reported = model.budget(Some(1_000));
        assert!((25_000..31_800).contains(&reported), "{reported}");
        let refused = |body: &str| match RequestRejection::from_body(400, body.as_bytes()) {
            RequestRejection::Overflow(overflow) => overflow,
            other => panic!("{other:?}"),
        };
        let limit = r#"{"error":{"message":"prompt is too long: 9000 tokens > 8192 maximum"}}"#;
        let next = model.learn_from_overflow(refused(limit), 10_000, Some(1_000));
        let learned = model.budget(Some(1_000));
        assert!((6_000..7_200).contains(&learned) && next <= learned, "{learned} {next}");
        let without_number = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
        assert_eq!(model.learn_from_overflow(refused(without_number), 4_000, Some(1_000)), 3_000);
        assert_eq!(model.budget(Some(1_000)), learned, "a guess is not learned");
        let echoed = r#"{"error":{"message":"Invalid value: 'prompt is too long: 9000 tokens > 2048 maximum'"}}"#;
        assert!(model.learn_from_overflow(refused(echoed), 10_000, Some(1_000)) < 2_048, "for the retry");
        assert_eq!(model.budget(Some(1_000)), learned, "an echoed value is not learned");
        let set_by_user = models(Some(4_096)).get(TENANT, &openai(), "some-local-model");
        set_by_user.learn_from_overflow(refused(limit), 10_000, None);
        assert!(set_by_user.budget(Some(1_000)) < 3_100);
    }

    /// Claude Code requests 64,000 output tokens, and has 30,000 tokens of instructions and tools.
    #[test]
    fn oversized_max_output_leaves_room_for_the_prompt() {
        let model = models(Some(60_000)).get(TENANT, &anthropic(), "claude-opus-4-6");
        let reserved = |system: usize| {
            let system = "one two three four ".repeat(system / 4);
            let body =
                format!(r#"{{"max_tokens":64000,"system":"{system}","messages":[{{"role":"user","content":"hi"}}]}}"#);
            model.reserved_output(&Request::parse(Format::Anthropic, body.as_bytes()).unwrap())
        };
        assert_eq!(reserved(1_000), Some(64_000));
        assert_eq!(reserved(30_000), None);
        assert!(model.budget(None) > 40_000 && model.budget(Some(64_000)) < 30_000);
    }

    /// Claude Code puts its reminders into the message of the task; next to them and its tools, every turn would be
    /// above the budget.
    #[test]
    fn oversized_max_output_leaves_room_next_to_the_task() {
        let model = models(Some(60_000)).get(TENANT, &anthropic(), "claude-opus-4-6");
        let words = |tokens: usize| "one two three four ".repeat(tokens / 4);
        let reserved = |task: usize| {
            let (system, task) = (words(15_000), words(task));
            let body = format!(
                r#"{{"max_tokens":64000,"system":"{system}","messages":[{{"role":"user","content":"{task}"}}]}}"#
            );
            model.reserved_output(&Request::parse(Format::Anthropic, body.as_bytes()).unwrap())
        };
        assert_eq!(reserved(1_000), Some(64_000));
        assert_eq!(reserved(8_000), None);
    }

    /// Claude Code reads three files in one turn: they fit into the window, but not next to the requested output.
    #[test]
    fn oversized_max_output_leaves_room_for_new_results() {
        let model = models(Some(100_000)).get(TENANT, &anthropic(), "claude-opus-4-6");
        let words = |tokens: usize| "one two three four ".repeat(tokens / 4);
        let call = |id: usize| {
            format!(
                r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"t{id}","name":"read","input":{{}}}}]}}"#
            )
        };
        let result = |id: usize, tokens: usize| {
            let text = words(tokens);
            format!(
                r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{id}","content":"{text}"}}]}}"#
            )
        };
        let reserved = |turns: &[usize]| {
            let turns: String =
                turns.iter().enumerate().map(|(id, &it)| format!(",{},{}", call(id), result(id, it))).collect();
            let system = words(20_000);
            let body = format!(
                r#"{{"max_tokens":64000,"system":"{system}","messages":[{{"role":"user","content":"hi"}}{turns}]}}"#
            );
            model.reserved_output(&Request::parse(Format::Anthropic, body.as_bytes()).unwrap())
        };
        assert_eq!(reserved(&[1_000, 1_000]), Some(64_000));
        assert_eq!(reserved(&[1_000, 30_000]), None);
        assert_eq!(reserved(&[30_000, 1_000]), None, "the reserve does not change back");
    }

    #[test]
    fn budget_follows_reported_usage() {
        let model = models(Some(10_000)).get(TENANT, &anthropic(), "claude-opus-4-6");
        let before = model.budget(Some(1_000));
        for ours in [2_000, 3_000, 4_000, 6_000] {
            assert_eq!(model.observe_usage(ours, ours * 3 / 2 + 100), CountVerdict::Accepted);
        }
        let after = model.budget(Some(1_000));
        assert!(after < before * 3 / 4, "{before} {after}");
        assert!(after * 3 / 2 + 100 <= 9_000, "{after}");
    }

    #[test]
    fn undercount_raises_the_budget_of_an_estimate_only() {
        for (name, raised) in [("some-local-model", true), ("gpt-4o", false)] {
            let model = models(None).get(TENANT, &openai(), name);
            let before = model.budget(None);
            for ours in (2..40).map(|turn| turn * 1_000) {
                assert_eq!(model.observe_usage(ours, ours * 57 / 100), CountVerdict::Accepted);
            }
            let after = model.budget(None);
            assert_eq!(after > before * 3 / 2, raised, "{name}: {before} {after}");
            assert!(after <= before * 2 + before / 5, "{name}: {before} {after}");
        }
    }

    #[test]
    fn tenants_neither_share_nor_evict_learned_windows() {
        let models = models(None);
        models.get(TENANT, &openai(), "a").set_reported_window(8_192);
        assert!(models.get(TenantKey(2), &openai(), "a").budget(None) > 100_000);
        assert!(models.get(TENANT, &anthropic(), "a").budget(None) > 100_000, "another upstream");
        for synthetic in 0..2_000 {
            models.get(TenantKey(2), &openai(), &synthetic.to_string());
        }
        assert!(models.get(TENANT, &openai(), "a").budget(None) < 8_192);
        assert_eq!(models.learned_windows(TENANT).len(), 1);
        assert_eq!(models.learned_windows(TenantKey(2)).len(), 0);
    }
}
