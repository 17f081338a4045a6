//! What is known of each model at each upstream: how to count for it, what it costs, and how much of
//! its window a request may take.
//!
//! The table of models is only the beginning. What the user says beats what an error taught, that beats
//! what the server reports, and that beats the table. Counts are compared with what the provider
//! reports, and the budget follows; the meter itself never changes, so that a conversation is always
//! counted in the same way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldline::wire::{Bounds, Count, Lesson, Overflow, Request};
use foldline::{Budget, Calibration, CountCache, Exactness, Fit, Meter, ModelTable, Prices, Tokens};

use super::route::Side;

/// Names of models that are remembered; a client can make up as many as it likes.
const KNOWN: usize = 1024;

/// What is known of all models.
pub(crate) struct Models {
    table: Cow<'static, ModelTable>,
    counts: CountCache,
    window: Option<Tokens>,
    known: RwLock<HashMap<(Side, String), Arc<Model>>>,
}

/// What is known of a model at an upstream.
pub(crate) struct Model {
    pub(crate) meter: Meter,
    pub(crate) prices: Prices,
    /// What the user says its window is.
    window: Option<Tokens>,
    asked: AtomicBool,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    /// The server named its limit when it refused a prompt.
    limit: Option<(Tokens, Bounds)>,
    /// The server says that its window is this.
    reported: Option<Tokens>,
    calibration: Calibration,
    fit: Option<Fit>,
    /// Answers in a row to prompts of which the server saw only a part.
    truncated: u32,
}

/// What is left of a prompt that was refused without a number.
const LESS: f64 = 0.75;
/// A prompt this small says nothing about truncation.
const WORTH_COMPARING: Tokens = 2_000;
/// A server that counts less than this share of the least that it was sent has cut the rest off.
const SEEN: f64 = 0.7;

impl Models {
    pub(crate) fn new(table: Cow<'static, ModelTable>, window: Option<Tokens>) -> Self {
        Self { table, counts: CountCache::default(), window, known: RwLock::default() }
    }

    pub(crate) fn get(&self, side: Side, name: &str) -> Arc<Model> {
        let key = (side, name.to_owned());
        if let Some(model) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return model.clone();
        }
        let model = Arc::new(Model {
            meter: Meter::for_model(&self.table, Some(name)).with_cache(self.counts.clone()),
            prices: Prices::for_model(&self.table, Some(name)),
            window: self.window,
            asked: AtomicBool::new(self.window.is_some()),
            learned: Mutex::default(),
        });
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN {
            known.clear();
        }
        known.entry(key).or_insert(model).clone()
    }
}

impl Model {
    /// The longest answer that room is left for beside this request. A client may wish for so much that what
    /// it must say itself would not fit: then it is given the usual.
    pub(crate) fn answer_beside(&self, request: &Request<'_>) -> Option<Tokens> {
        let wish = request.max_output();
        let (wished, usual) = (self.budget(wish), self.budget(None));
        let conversation = request.conversation();
        let said = || self.meter.system(&conversation.system) + self.meter.tools(&conversation.tools);
        wish.filter(|_| wished >= usual || said() < wished / 4 * 3)
    }

    /// Tokens that a prompt may have, as our meter counts them.
    pub(crate) fn budget(&self, max_output: Option<Tokens>) -> Tokens {
        let learned = self.learned();
        let mut row = self.meter.row().clone();
        match (self.window, learned.limit, learned.reported) {
            (Some(window), ..) | (None, Some((window, Bounds::Window)), _) => {
                (row.window, row.max_input) = (window, None);
            }
            (None, Some((input, Bounds::Input)), _) => row.max_input = Some(input),
            (None, None, Some(window)) => (row.window, row.max_input) = (window, None),
            (None, None, None) => {}
        }
        let meter = self.meter.clone().with_fit(learned.fit);
        let budget = Budget::for_model(&row, max_output, &meter).tokens;
        match learned.fit {
            Some(fit) => (budget.saturating_sub(fit.overhead) as f64 / fit.ratio) as Tokens,
            None => budget,
        }
    }

    /// Lays what a provider reported against what we counted. A server that saw only a part of what it
    /// was sent, twice in a row or in a way that gives it away, is caught: its window is returned, and
    /// believed from then on.
    pub(crate) fn compare(&self, ours: Tokens, reported: Tokens) -> Option<Tokens> {
        let least = self.at_least(ours);
        let mut learned = self.learned();
        if ours < WORTH_COMPARING || reported as f64 >= least as f64 * SEEN {
            learned.truncated = 0;
            learned.calibration.observe(ours, reported);
            learned.fit = learned.calibration.fit();
            return None;
        }
        learned.truncated += 1;
        let halved = halved_window(reported);
        if learned.truncated < 2 && halved.is_none() {
            return None;
        }
        let window = halved.unwrap_or_else(|| reported.next_multiple_of(256));
        learned.reported = Some(learned.reported.map_or(window, |known| known.min(window)));
        Some(window)
    }

    /// Learns from a prompt of so many tokens, as we count, that was refused. Says how many the next one
    /// may have.
    pub(crate) fn overflowed(&self, overflow: Overflow, ours: Tokens, max_output: Option<Tokens>) -> Tokens {
        let lesson = overflow.lesson(ours);
        let below = (ours as f64 * LESS) as Tokens;
        let Lesson::Limit { tokens, bounds } = lesson else { return below };
        self.learned().limit = Some((tokens, bounds));
        // The server's own numbers beat any estimate: its count of the prompt, and what it reserves.
        let room = match bounds {
            Bounds::Window => tokens.saturating_sub(overflow.output.unwrap_or(0)),
            Bounds::Input => tokens,
        };
        let counted = match overflow.sent {
            Some(Count::Exactly(sent)) if sent > 0 => room as f64 * ours as f64 / sent as f64 * 0.98,
            _ => room as f64,
        };
        self.budget(max_output).min(counted as Tokens).min((ours as f64 * 0.95) as Tokens)
    }

    /// The server says that its window is this.
    pub(crate) fn reported(&self, window: Tokens) {
        self.learned().reported = Some(window);
    }

    /// Whether nobody has asked the server for its window yet. Whoever is told so is to ask.
    pub(crate) fn is_to_be_asked(&self) -> bool {
        !self.asked.swap(true, Ordering::Relaxed)
    }

    /// The fewest tokens that a provider would count for what we count as so many.
    fn at_least(&self, ours: Tokens) -> Tokens {
        match (self.learned().fit, self.meter.exactness()) {
            (Some(fit), _) => (fit.scale(ours) as f64 * (1.0 - fit.margin.min(0.5))) as Tokens,
            (None, Exactness::Exact) => ours,
            (None, _) => ours * 3 / 4,
        }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The window of a server that, when a prompt is too long, keeps half of its window and a little more:
/// so does Ollama, by default and without a word.
fn halved_window(reported: Tokens) -> Option<Tokens> {
    (11..=18).map(|bits| 1 << bits).find(|window: &Tokens| reported.abs_diff(window / 2 + 2) <= 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::{Format, Refusal};

    fn models(window: Option<Tokens>) -> Models {
        Models::new(Cow::Borrowed(ModelTable::builtin()), window)
    }

    #[test]
    fn what_is_known_better_wins() {
        let model = models(None).get(Side::OpenAi, "some-local-model");
        let guessed = model.budget(Some(1_000));
        assert!(guessed > 100_000, "{guessed}");
        model.reported(32_768);
        let reported = model.budget(Some(1_000));
        assert!((25_000..31_800).contains(&reported), "{reported}");
        let refused = |body: &str| match Refusal::of_body(400, body.as_bytes()) {
            Refusal::Overflow(overflow) => overflow,
            other => panic!("{other:?}"),
        };
        let limit = r#"{"error":{"message":"prompt is too long: 9000 tokens > 8192 maximum"}}"#;
        let next = model.overflowed(refused(limit), 10_000, Some(1_000));
        let learned = model.budget(Some(1_000));
        assert!((6_000..7_200).contains(&learned) && next <= learned, "{learned} {next}");
        let silent = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
        assert_eq!(model.overflowed(refused(silent), 4_000, Some(1_000)), 3_000);
        assert_eq!(model.budget(Some(1_000)), learned, "a guess is not learned");
        let told = models(Some(4_096)).get(Side::OpenAi, "some-local-model");
        told.overflowed(refused(limit), 10_000, None);
        assert!(told.budget(Some(1_000)) < 3_100);
    }

    /// Claude Code asks for 64,000 tokens of answer, and has 30,000 of instructions and tools.
    #[test]
    fn a_wish_for_a_long_answer_leaves_room_for_what_must_be_said() {
        let model = models(Some(60_000)).get(Side::Anthropic, "claude-opus-4-6");
        let answer = |system: usize| {
            let system = "one two three four ".repeat(system / 4);
            let body =
                format!(r#"{{"max_tokens":64000,"system":"{system}","messages":[{{"role":"user","content":"hi"}}]}}"#);
            model.answer_beside(&Request::parse(Format::Anthropic, body.as_bytes()).unwrap())
        };
        assert_eq!(answer(1_000), Some(64_000));
        assert_eq!(answer(30_000), None);
        assert!(model.budget(None) > 40_000 && model.budget(Some(64_000)) < 30_000);
    }

    #[test]
    fn the_budget_follows_what_is_reported() {
        let model = models(Some(10_000)).get(Side::Anthropic, "claude-opus-4-6");
        let before = model.budget(Some(1_000));
        for ours in [2_000, 3_000, 4_000, 6_000] {
            assert_eq!(model.compare(ours, ours * 3 / 2 + 100), None);
        }
        let after = model.budget(Some(1_000));
        assert!(after < before * 3 / 4, "{before} {after}");
        assert!(after * 3 / 2 + 100 <= 9_000, "{after}");
    }

    #[test]
    fn a_server_that_truncates_silently_is_caught() {
        let model = || models(None).get(Side::OpenAi, "some-local-model");
        let ollama = model();
        assert_eq!(ollama.compare(20_000, 2_050), Some(4_096), "half of its window and two more");
        assert!(ollama.budget(Some(500)) < 3_600);
        let other = model();
        assert_eq!(other.compare(20_000, 7_900), None, "once may be anything");
        assert_eq!(other.compare(21_000, 7_930), Some(7_936));
        let honest = model();
        for ours in [3_000, 5_000, 9_000, 20_000] {
            assert_eq!(honest.compare(ours, ours * 7 / 10), None, "an estimate may be too high");
        }
    }
}
