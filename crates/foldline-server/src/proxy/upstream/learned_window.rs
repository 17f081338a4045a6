//! Facts about a model that a server's responses reveal: its window, with the evidence for it, and how the server counts.
//!
//! | evidence | reading |
//! |---|---|
//! | a typed overflow error, or a whole error message of a known form, with a limit | the window |
//! | a count that stays the same while the prompt grows | the server truncates prompts: the window |
//! | a count that is lower than ours in proportion | the server counts differently: calibration |
//! | a count below a tenth of ours | not a count of the prompt: ignored |
//!
//! A learned window never outranks one that the user set, and a count never outranks a window that the server
//! stated. A learned window expires, and is dropped when a larger prompt succeeds.
//!
//! The current time is passed to all functions, and none of them decides what is sent.

use std::time::{Duration, Instant};

use foldline::tokens::{Calibration, CalibrationFit, CountExactness, Tokens};
use foldline::wire::LimitScope;
use serde::Serialize;

/// Prompts below this size are not compared with low counts.
const MIN_COMPARED_TOKENS: Tokens = 2_000;
/// A count below this share of the fewest tokens that were sent is suspicious.
const SUSPICIOUS_SHARE: f64 = 0.7;
/// A count is not one of the prompt if our count is more than this many times larger.
const MAX_UNDERCOUNT: Tokens = 10;
/// Counts that differ by at most this much are considered equal.
const SAME_COUNT_TOKENS: Tokens = 4;
/// A count is constant only if it should have grown by this much.
const MIN_GROWTH_TOKENS: Tokens = 128;
/// Smallest window that is inferred from counts: the smallest default of local servers.
const MIN_TRUNCATED_WINDOW_TOKENS: Tokens = 2_048;

/// A window that a server revealed, with the evidence for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedWindow {
    pub(crate) tokens: Tokens,
    pub(crate) bounds: LimitScope,
    pub(crate) evidence: WindowEvidence,
    pub(crate) learned_at: Instant,
}

impl LearnedWindow {
    /// Returns the window that a server reports.
    pub(crate) fn reported(tokens: Tokens) -> Self {
        let evidence = WindowEvidence::ServerReport;
        Self { tokens, bounds: LimitScope::Window, evidence, learned_at: Instant::now() }
    }
}

/// The evidence for a learned window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WindowEvidence {
    /// An overflow error with a typed code.
    ErrorCode,
    /// An overflow error whose whole message has a known form.
    ErrorMessage,
    /// Reported counts that stay the same while the prompt grows.
    ConstantCount,
    /// The server's own report of its window.
    ServerReport,
    /// The window that the request itself states.
    RequestOption,
}

impl WindowEvidence {
    /// Returns true if the server or the request states the window, so that it does not expire.
    pub(crate) fn is_stated(self) -> bool {
        matches!(self, Self::ServerReport | Self::RequestOption)
    }
}

/// The meaning of a count that a server reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountVerdict {
    /// It is a count of the prompt that was sent, or not conclusive yet.
    Accepted,
    /// It cannot be a count of the prompt and is ignored; `first` is true for the first one of this model.
    Implausible { first: bool },
    /// The server truncates prompts; this is its window.
    Truncated(Tokens),
}

/// Facts about a model by which reported counts are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountRules {
    pub(crate) exactness: CountExactness,
    /// True if the user set the window: then none is inferred.
    pub(crate) is_window_set: bool,
    /// Lifetime of a learned window.
    pub(crate) lifetime: Duration,
}

/// Our count of a prompt, and the count that the server reported for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountPair {
    ours: Tokens,
    reported: Tokens,
}

/// The relation of two counts of prompts of different sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountShape {
    /// The prompts are too similar in size to compare.
    TooClose,
    Constant,
    Proportional,
    Irregular,
}

/// The last query to the server for its window.
#[derive(Clone, Copy, Debug)]
struct WindowQuery {
    at: Instant,
    /// A count was suspicious since the query.
    suspected: bool,
    /// The server has to be queried again because of that.
    again: bool,
}

/// All facts learned about one model of one upstream for one tenant.
#[derive(Default)]
pub(crate) struct LearnedFacts {
    /// Window revealed by an error or by the shape of counts.
    revealed: Option<LearnedWindow>,
    /// Window reported by the server.
    reported: Option<LearnedWindow>,
    /// Window that requests state.
    requested: Option<Tokens>,
    calibration: Calibration,
    fit: Option<CalibrationFit>,
    /// Latest plausible pair, and latest suspicious pair.
    last: Option<CountPair>,
    suspect: Option<CountPair>,
    /// Largest plausible count, and its time.
    largest: Option<(Tokens, Instant)>,
    queried: Option<WindowQuery>,
    warned: bool,
}

impl LearnedFacts {
    /// Returns the window revealed by an error or by the shape of counts, unless it has expired.
    pub(crate) fn revealed(&self, now: Instant, lifetime: Duration) -> Option<LearnedWindow> {
        self.revealed.filter(|window| now.duration_since(window.learned_at) < lifetime)
    }

    /// Returns the window reported by the server.
    pub(crate) fn reported(&self) -> Option<LearnedWindow> {
        self.reported
    }

    /// Returns the window that requests state.
    pub(crate) fn requested(&self) -> Option<Tokens> {
        self.requested
    }

    /// Records the window that the current request states. If it changes, the server loads the model again, and nothing
    /// that was known of the window applies.
    pub(crate) fn set_requested(&mut self, requested: Option<Tokens>, now: Instant) {
        if std::mem::replace(&mut self.requested, requested) == requested {
            return;
        }
        (self.revealed, self.suspect, self.queried) = (None, None, None);
        self.reported = requested.map(|tokens| LearnedWindow {
            tokens,
            bounds: LimitScope::Window,
            evidence: WindowEvidence::RequestOption,
            learned_at: now,
        });
    }

    /// Makes the next claim succeed.
    pub(crate) fn repeat_query(&mut self) {
        if let Some(queried) = &mut self.queried {
            queried.again = true;
        }
    }

    pub(crate) fn fit(&self) -> Option<CalibrationFit> {
        self.fit
    }

    /// Records a window. A server's own report replaces a window inferred from counts.
    pub(crate) fn learn(&mut self, window: LearnedWindow) {
        match window.evidence {
            WindowEvidence::ServerReport | WindowEvidence::RequestOption => {
                self.reported = Some(window);
                self.revealed.take_if(|revealed| revealed.evidence == WindowEvidence::ConstantCount);
            }
            _ => self.revealed = Some(window),
        }
    }

    /// Records that a prompt of `ours` tokens by our count was accepted. A limit learned from an error that this refutes is
    /// dropped.
    pub(crate) fn accept(&mut self, model: &str, ours: Tokens, exactness: CountExactness) {
        let least = self.min_reported(ours, exactness);
        // A server that truncates accepts everything.
        let is_refuted =
            |window: &mut LearnedWindow| window.evidence != WindowEvidence::ConstantCount && window.tokens < least;
        if let Some(LearnedWindow { tokens, evidence, .. }) = self.revealed.take_if(is_refuted) {
            tracing::info!(
                model,
                sent = ours,
                limit = tokens,
                ?evidence,
                "a larger prompt than the learned limit passed"
            );
        }
    }

    /// Compares a reported count with ours.
    pub(crate) fn compare(
        &mut self,
        (ours, reported): (Tokens, Tokens),
        rules: CountRules,
        now: Instant,
    ) -> CountVerdict {
        let CountRules { exactness, is_window_set, lifetime } = rules;
        let pair = CountPair { ours, reported };
        let least = self.min_reported(ours, exactness);
        if reported as f64 >= least as f64 * SUSPICIOUS_SHARE {
            // A constant count is the start of truncation, and would distort the calibration.
            if self.last.replace(pair).is_none_or(|last| last.shape(pair) != CountShape::Constant) {
                self.calibrate(pair);
            }
            self.largest = self.largest.filter(|(largest, at)| *largest >= reported && now - *at < lifetime);
            self.largest = self.largest.or(Some((reported, now)));
            self.revealed.take_if(|window| window.tokens < reported);
            return CountVerdict::Accepted;
        }
        if ours < MIN_COMPARED_TOKENS {
            return CountVerdict::Accepted;
        }
        self.request_query();
        if reported.saturating_mul(MAX_UNDERCOUNT) < ours {
            return CountVerdict::Implausible { first: !std::mem::replace(&mut self.warned, true) };
        }
        let earlier = *self.suspect.get_or_insert(pair);
        match earlier.shape(pair) {
            CountShape::TooClose => {}
            CountShape::Constant => {
                let stated = is_window_set || self.reported.is_some() || self.revealed(now, lifetime).is_some();
                let seen = self.largest.filter(|(_, at)| now - *at < lifetime).map_or(0, |(largest, _)| largest);
                if let Some(tokens) = truncated_window(reported, seen, least).filter(|_| !stated) {
                    self.suspect = None;
                    let evidence = WindowEvidence::ConstantCount;
                    self.learn(LearnedWindow { tokens, bounds: LimitScope::Window, evidence, learned_at: now });
                    return CountVerdict::Truncated(tokens);
                }
            }
            CountShape::Proportional => {
                self.suspect = Some(pair);
                self.calibrate(earlier);
                self.calibrate(pair);
            }
            CountShape::Irregular => self.suspect = Some(pair),
        }
        CountVerdict::Accepted
    }

    /// Returns true if the server has to be queried for its window now: at first, again after a suspicious count, and when
    /// the last report is old. The caller must then query it.
    pub(crate) fn claim_query(&mut self, now: Instant, lifetime: Duration) -> bool {
        match &mut self.queried {
            Some(queried) if now.duration_since(queried.at) < lifetime => std::mem::take(&mut queried.again),
            _ => {
                self.queried = Some(WindowQuery { at: now, suspected: false, again: false });
                true
            }
        }
    }

    fn request_query(&mut self) {
        if let Some(queried) = self.queried.as_mut().filter(|queried| !queried.suspected) {
            (queried.suspected, queried.again) = (true, true);
        }
    }

    fn calibrate(&mut self, pair: CountPair) {
        self.calibration.observe(pair.ours, pair.reported);
        self.fit = self.calibration.fit();
    }

    /// Returns the fewest tokens that a server would count for a prompt of `ours` tokens by our count.
    fn min_reported(&self, ours: Tokens, exactness: CountExactness) -> Tokens {
        match (self.fit, exactness) {
            (Some(fit), _) => (fit.scale(ours) as f64 * (1.0 - fit.margin.min(0.5))) as Tokens,
            (None, CountExactness::Exact) => ours,
            (None, _) => ours / 4 * 3,
        }
    }
}

impl CountPair {
    fn shape(self, later: Self) -> CountShape {
        let expected = self.reported as f64 * (later.ours as f64 / self.ours.max(1) as f64 - 1.0);
        let grown = later.reported as f64 - self.reported as f64;
        if expected.abs() < MIN_GROWTH_TOKENS as f64 {
            CountShape::TooClose
        } else if grown.abs() <= SAME_COUNT_TOKENS as f64 {
            CountShape::Constant
        } else if (grown - expected).abs() <= expected.abs() / 2.0 {
            CountShape::Proportional
        } else {
            CountShape::Irregular
        }
    }
}

/// Returns the window of a server that reports this count for prompts of at least `least` tokens, after it accepted
/// prompts of up to `seen` tokens untruncated.
///
/// Most servers keep as much as fits. Ollama keeps `num_keep` tokens (4, or 5 with a start token) and half of the rest
/// of its window.
fn truncated_window(reported: Tokens, seen: Tokens, least: Tokens) -> Option<Tokens> {
    let doubled = |kept: Tokens| 2 * reported.saturating_sub(kept);
    let halved = [2, 3].map(doubled).into_iter().find(|window| window.is_power_of_two());
    let candidates = [halved, Some(reported), Some(doubled(3))];
    let is_possible = |window: &Tokens| (seen.max(MIN_TRUNCATED_WINDOW_TOKENS)..least).contains(window);
    candidates.into_iter().flatten().find(is_possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(3_600);

    /// Compares counts of a growing prompt and returns the verdicts.
    fn verdicts(facts: &mut LearnedFacts, exactness: CountExactness, pairs: &[(Tokens, Tokens)]) -> Vec<CountVerdict> {
        let now = Instant::now();
        let rules = CountRules { exactness, is_window_set: false, lifetime: LIFETIME };
        pairs.iter().map(|&pair| facts.compare(pair, rules, now)).collect()
    }

    /// Another window in a request reloads the model.
    #[test]
    fn requested_window_replaces_what_was_known() {
        let (mut facts, now) = (LearnedFacts::default(), Instant::now());
        let report = |tokens| LearnedWindow {
            tokens,
            bounds: LimitScope::Window,
            evidence: WindowEvidence::ServerReport,
            learned_at: now,
        };
        assert!(facts.claim_query(now, LIFETIME));
        facts.learn(report(4_096));
        facts.set_requested(None, now);
        assert_eq!(facts.reported().map(|window| window.tokens), Some(4_096));
        facts.set_requested(Some(32_768), now);
        assert_eq!(facts.reported().map(|window| window.tokens), Some(32_768));
        assert!(facts.claim_query(now, LIFETIME), "the server may have a lower ceiling");
        facts.learn(report(8_192));
        facts.set_requested(Some(32_768), now);
        assert_eq!(facts.reported().map(|window| window.tokens), Some(8_192));
        facts.set_requested(None, now);
        assert_eq!(facts.reported(), None);
    }

    fn window(facts: &LearnedFacts) -> Option<Tokens> {
        facts.revealed(Instant::now(), LIFETIME).map(|window| window.tokens)
    }

    #[test]
    fn implausible_counts_are_ignored_and_reported_once() {
        for reported in [0, 10, 900] {
            let mut facts = LearnedFacts::default();
            let pairs: Vec<_> = (10..20).map(|ours| (ours * 1_000, reported)).collect();
            let verdicts = verdicts(&mut facts, CountExactness::Exact, &pairs);
            assert_eq!(verdicts[0], CountVerdict::Implausible { first: true });
            assert!(
                verdicts[1..].iter().all(|verdict| *verdict == CountVerdict::Implausible { first: false }),
                "{verdicts:?}"
            );
            assert_eq!((window(&facts), facts.fit()), (None, None));
        }
    }

    #[test]
    fn proportional_undercount_calibrates() {
        for exactness in [CountExactness::Exact, CountExactness::Estimated] {
            for percent in [15, 35, 57] {
                let mut facts = LearnedFacts::default();
                let noise = [100, 102, 99, 101, 98];
                let counts = (0..30).map(|step| (4_000 + step * 700, noise[step as usize % 5]));
                let pairs: Vec<_> = counts.map(|(ours, noise)| (ours, ours * percent / 100 * noise / 100)).collect();
                assert!(
                    verdicts(&mut facts, exactness, &pairs).iter().all(|verdict| *verdict == CountVerdict::Accepted)
                );
                assert_eq!(window(&facts), None, "{percent}");
                let ratio = facts.fit().expect("calibrated").ratio;
                assert!((ratio - percent as f64 / 100.0).abs() < 0.05, "{exactness:?} {percent}: {ratio}");
            }
        }
    }

    #[test]
    fn half_window_count_differs_from_full_window_count() {
        for (reported, expected) in [(2_048, 2_048), (2_050, 4_096), (2_051, 4_096), (4_096, 4_096), (16_386, 32_768)] {
            let mut facts = LearnedFacts::default();
            let pairs: Vec<_> = [3, 4].map(|times| (reported * times, reported)).into();
            let verdicts = verdicts(&mut facts, CountExactness::Exact, &pairs);
            assert_eq!(verdicts, [CountVerdict::Accepted, CountVerdict::Truncated(expected)]);
            assert_eq!(window(&facts), Some(expected));
        }
    }

    /// A session slowly outgrows the window of a server with any `num_ctx`.
    #[test]
    fn truncation_of_a_growing_session_is_found() {
        for exactness in [CountExactness::Exact, CountExactness::Estimated] {
            for (reported, expected) in [(10_000, 10_000), (5_002, 9_998), (5_003, 10_000)] {
                let mut facts = LearnedFacts::default();
                let sent = (1..60).map(|turn| turn * 600);
                let pairs: Vec<_> = sent.map(|ours| (ours, if ours <= 10_000 { ours } else { reported })).collect();
                let verdicts = verdicts(&mut facts, exactness, &pairs);
                let found = verdicts.iter().position(|verdict| *verdict == CountVerdict::Truncated(expected));
                assert!(found.is_some_and(|at| at < 32), "{exactness:?} {reported}: {verdicts:?}");
                let ratio = facts.fit().unwrap().ratio;
                assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
            }
        }
    }

    #[test]
    fn constant_count_below_a_whole_prompt_is_not_a_window() {
        let mut facts = LearnedFacts::default();
        verdicts(
            &mut facts,
            CountExactness::Exact,
            &[(20_000, 20_000), (24_000, 3_000), (27_000, 3_000), (30_000, 3_000)],
        );
        assert_eq!(window(&facts), None);
    }

    /// Images that only we count make our count grow, and the server's hardly.
    #[test]
    fn slowly_growing_count_is_not_truncation() {
        let mut facts = LearnedFacts::default();
        let pairs: Vec<_> = (0..20).map(|turn| (10_000 + turn * 1_600, 5_000 + turn * 60)).collect();
        verdicts(&mut facts, CountExactness::Exact, &pairs);
        assert_eq!(window(&facts), None);
    }

    #[test]
    fn server_is_asked_again_after_a_suspicious_count() {
        let (mut facts, start) = (LearnedFacts::default(), Instant::now());
        let queried = |facts: &mut LearnedFacts, after| facts.claim_query(start + after, LIFETIME);
        assert!(queried(&mut facts, Duration::ZERO));
        assert!(!queried(&mut facts, Duration::ZERO));
        for expected in [true, false] {
            verdicts(&mut facts, CountExactness::Exact, &[(20_000, 0)]);
            assert_eq!(queried(&mut facts, Duration::ZERO), expected);
        }
        assert!(queried(&mut facts, LIFETIME));
    }

    #[test]
    fn stated_window_outranks_a_constant_count() {
        let mut facts = LearnedFacts::default();
        let now = Instant::now();
        let learned =
            |tokens, evidence| LearnedWindow { tokens, bounds: LimitScope::Window, evidence, learned_at: now };
        facts.learn(learned(32_768, WindowEvidence::ServerReport));
        verdicts(&mut facts, CountExactness::Exact, &[(20_000, 4_098), (25_000, 4_098), (30_000, 4_098)]);
        assert_eq!(window(&facts), None);
        facts = LearnedFacts::default();
        facts.learn(learned(4_096, WindowEvidence::ConstantCount));
        facts.learn(learned(32_768, WindowEvidence::ServerReport));
        assert_eq!(window(&facts), None, "the server's own report wins");
    }

    #[test]
    fn learned_window_expires() {
        let mut facts = LearnedFacts::default();
        let now = Instant::now();
        let evidence = WindowEvidence::ErrorCode;
        facts.learn(LearnedWindow { tokens: 8_192, bounds: LimitScope::Window, evidence, learned_at: now });
        assert!(facts.revealed(now + LIFETIME - Duration::from_secs(1), LIFETIME).is_some());
        assert!(facts.revealed(now + LIFETIME, LIFETIME).is_none());
    }

    #[test]
    fn learned_limit_is_dropped_when_a_larger_prompt_succeeds() {
        let evidence = WindowEvidence::ErrorMessage;
        let learned = LearnedWindow { tokens: 8_192, bounds: LimitScope::Window, evidence, learned_at: Instant::now() };
        let mut facts = LearnedFacts::default();
        facts.learn(learned);
        facts.accept("m", 8_000, CountExactness::Exact);
        facts.accept("m", 9_000, CountExactness::Estimated);
        assert!(window(&facts).is_some(), "it may have been 6,750");
        facts.accept("m", 9_000, CountExactness::Exact);
        assert_eq!(window(&facts), None);
        facts.learn(learned);
        verdicts(&mut facts, CountExactness::Exact, &[(9_000, 9_000)]);
        assert_eq!(window(&facts), None);
    }
}
