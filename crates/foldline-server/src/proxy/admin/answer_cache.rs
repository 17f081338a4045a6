//! Answers of the API that may be given again, so that many open dashboards cost no more than a few.
//!
//! Answers are written two at a time. As long as that takes less than a fifth of the time, every answer is new. Beyond
//! it, an answer to the same query of the same tenant is given again for up to a second.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::proxy::fold::tenant::TenantKey;

/// Answers that are written at once.
const MAX_WRITERS: usize = 2;
/// The time over which the work is counted, and how much of it writing answers may take.
const BUSY_WINDOW: Duration = Duration::from_secs(1);
const MAX_BUSY_TIME: Duration = Duration::from_millis(200);
/// Age up to which an answer is given again under load.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(1);
/// An answer that took longer than this is given again for this multiple of that time, up to a minute.
const SLOW_ANSWER_TIME: Duration = Duration::from_millis(20);
const SLOW_ANSWER_FACTOR: u32 = 50;
const MAX_SLOW_ANSWER_AGE: Duration = Duration::from_secs(60);
/// Answers that are kept, and bytes of all of them.
const MAX_ANSWERS: usize = 512;
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Answers of the last second.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    answers: Mutex<RecentAnswers>,
    writers: Arc<Semaphore>,
}

/// A tenant and what it requested.
pub(crate) type AnswerKey = (TenantKey, String);

#[derive(Debug, Default)]
struct RecentAnswers {
    by_key: HashMap<AnswerKey, RecentAnswer>,
    /// Slow answers that are being written.
    slow: HashSet<AnswerKey>,
    bytes: usize,
    window_begin: Option<Instant>,
    busy: Duration,
    /// Work of the window before.
    busy_before: Duration,
}

#[derive(Debug)]
struct RecentAnswer {
    at: Instant,
    took: Duration,
    text: Bytes,
}

impl Default for AnswerCache {
    fn default() -> Self {
        Self { answers: Mutex::default(), writers: Arc::new(Semaphore::new(MAX_WRITERS)) }
    }
}

impl AnswerCache {
    /// Returns a recent answer, if there is one and writing answers takes too much time.
    pub(crate) fn reuse(&self, key: &AnswerKey) -> Option<Bytes> {
        let mut answers = self.lock();
        let is_busy = answers.is_busy(Instant::now());
        let answer = answers.by_key.get(key).filter(|answer| is_busy && answer.at.elapsed() < MAX_ANSWER_AGE);
        answer.map(|answer| answer.text.clone())
    }

    /// Returns the last answer if it took long to write, and true if it is not old in proportion to that.
    pub(crate) fn reuse_slow(&self, key: &AnswerKey) -> Option<(Bytes, bool)> {
        let answers = self.lock();
        let answer = answers.by_key.get(key).filter(|answer| answer.took > SLOW_ANSWER_TIME)?;
        let max_age = (answer.took * SLOW_ANSWER_FACTOR).min(MAX_SLOW_ANSWER_AGE);
        Some((answer.text.clone(), answer.at.elapsed() < max_age))
    }

    /// Returns true if the caller shall write a slow answer: it is the only one then, until it calls
    /// [`end_slow`](Self::end_slow).
    pub(crate) fn begin_slow(&self, key: &AnswerKey) -> bool {
        self.lock().slow.insert(key.clone())
    }

    /// Notes that a slow answer was written, or failed.
    pub(crate) fn end_slow(&self, key: &AnswerKey) {
        self.lock().slow.remove(key);
    }

    /// Returns the permits for writing answers.
    pub(crate) fn writers(&self) -> Arc<Semaphore> {
        self.writers.clone()
    }

    /// Keeps an answer that took this long to write.
    pub(crate) fn store(&self, key: AnswerKey, text: Bytes, took: Duration) {
        let mut answers = self.lock();
        let now = Instant::now();
        answers.count_work(now, took);
        if answers.by_key.len() >= MAX_ANSWERS || answers.bytes + text.len() > MAX_ANSWER_BYTES {
            answers.by_key.clear();
            answers.bytes = 0;
        }
        if text.len() <= MAX_ANSWER_BYTES {
            answers.bytes += text.len();
            let replaced = answers.by_key.insert(key, RecentAnswer { at: now, took, text });
            answers.bytes -= replaced.map_or(0, |answer| answer.text.len());
        }
    }

    /// Removes all answers of a tenant: it has changed something.
    pub(crate) fn forget(&self, tenant: TenantKey) {
        let mut answers = self.lock();
        answers.by_key.retain(|(owner, _), _| *owner != tenant);
        answers.bytes = answers.by_key.values().map(|answer| answer.text.len()).sum();
    }

    fn lock(&self) -> MutexGuard<'_, RecentAnswers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentAnswers {
    /// Begins a new window if the last one is over.
    fn move_window(&mut self, now: Instant) {
        let age = self.window_begin.map_or(Duration::MAX, |begin| now.saturating_duration_since(begin));
        if age >= BUSY_WINDOW {
            self.busy_before = if age < 2 * BUSY_WINDOW { self.busy } else { Duration::ZERO };
            (self.window_begin, self.busy) = (Some(now), Duration::ZERO);
        }
    }

    fn count_work(&mut self, now: Instant, took: Duration) {
        self.move_window(now);
        self.busy += took;
    }

    fn is_busy(&mut self, now: Instant) -> bool {
        self.move_window(now);
        self.busy.max(self.busy_before) > MAX_BUSY_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: u128, query: &str) -> AnswerKey {
        (TenantKey(tenant), query.to_owned())
    }

    #[test]
    fn answers_are_given_again_only_under_load() {
        let cache = AnswerCache::default();
        cache.store(key(1, "overview"), Bytes::from("a"), Duration::from_millis(5));
        assert_eq!(cache.reuse(&key(1, "overview")), None);
        cache.store(key(1, "table"), Bytes::from("b"), Duration::from_millis(300));
        assert_eq!(cache.reuse(&key(1, "overview")), Some(Bytes::from("a")));
        assert_eq!(cache.reuse(&key(2, "overview")), None, "another tenant has its own");
        cache.forget(TenantKey(1));
        assert_eq!(cache.reuse(&key(1, "overview")), None);
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn load_is_forgotten_after_two_windows() {
        let (mut answers, begin) = (RecentAnswers::default(), Instant::now());
        answers.count_work(begin, Duration::from_millis(300));
        assert!(answers.is_busy(begin + Duration::from_millis(1_500)));
        assert!(!answers.is_busy(begin + Duration::from_millis(4_000)));
    }

    #[test]
    fn slow_answers_are_given_again_in_proportion() {
        let cache = AnswerCache::default();
        cache.store(key(1, "fast"), Bytes::new(), Duration::from_millis(2));
        cache.store(key(1, "slow"), Bytes::new(), Duration::from_secs(2));
        assert!(cache.reuse_slow(&key(1, "fast")).is_none());
        assert!(cache.reuse_slow(&key(1, "slow")).is_some_and(|(_, is_fresh)| is_fresh));
        assert!(cache.begin_slow(&key(1, "slow")) && !cache.begin_slow(&key(1, "slow")));
        cache.end_slow(&key(1, "slow"));
        assert!(cache.begin_slow(&key(1, "slow")));
    }

    #[test]
    fn kept_answers_take_bounded_memory() {
        let cache = AnswerCache::default();
        for at in 0..2_000 {
            cache.store(key(at, "overview"), Bytes::from(vec![0; 1 << 20]), Duration::ZERO);
        }
        let answers = cache.lock();
        assert!(answers.bytes <= MAX_ANSWER_BYTES && answers.by_key.len() <= MAX_ANSWERS);
    }
}
