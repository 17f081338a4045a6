//! Packs whose objects could not be read a moment ago. Indexing skips them for a while, so that they do not hold up the
//! others.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a pack is skipped.
const SKIP_TIME: Duration = Duration::from_secs(60);

/// Packs that are remembered. If there are more, the first ones are tried again earlier.
const MAX_PACKS: usize = 1_024;

/// The packs that are skipped, with the times at which they could not be read, oldest first.
#[derive(Debug, Default)]
pub(crate) struct UnreadablePacks(Mutex<VecDeque<(i64, Instant)>>);

impl UnreadablePacks {
    /// Records that a pack could not be read.
    pub(crate) fn add(&self, pack: i64) {
        self.add_at(pack, Instant::now());
    }

    /// Returns the packs to skip.
    pub(crate) fn current(&self) -> Vec<i64> {
        self.packs_at(Instant::now())
    }

    fn add_at(&self, pack: i64, now: Instant) {
        let mut packs = self.lock();
        if packs.len() >= MAX_PACKS {
            packs.pop_front();
        }
        packs.push_back((pack, now));
    }

    fn packs_at(&self, now: Instant) -> Vec<i64> {
        let mut packs = self.lock();
        while packs.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) >= SKIP_TIME) {
            packs.pop_front();
        }
        packs.iter().map(|(pack, _)| *pack).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(i64, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_skipped_for_a_while() {
        let (packs, now) = (UnreadablePacks::default(), Instant::now());
        packs.add_at(1, now);
        packs.add_at(2, now + SKIP_TIME / 2);
        assert_eq!(packs.packs_at(now + SKIP_TIME / 2), [1, 2]);
        assert_eq!(packs.packs_at(now + SKIP_TIME), [2]);
        assert!(packs.packs_at(now + 2 * SKIP_TIME).is_empty());
    }

    #[test]
    fn number_of_packs_is_bounded() {
        let packs = UnreadablePacks::default();
        (0..2 * MAX_PACKS as i64).for_each(|pack| packs.add(pack));
        assert_eq!(packs.current(), (MAX_PACKS as i64..2 * MAX_PACKS as i64).collect::<Vec<_>>());
    }
}
