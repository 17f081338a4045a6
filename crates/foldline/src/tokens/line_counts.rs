//! Token counts per line, so that a text assembled from some of its lines need not be counted again.
//!
//! A vocabulary splits text into words before it forms tokens, and no word continues after a line break, with few
//! exceptions: the next line must not be blank and must not begin with a slash. So the count of a text is the sum of
//! the counts of its lines, with their breaks, wherever such a line follows. The estimator is in the same state after
//! every break. Sums are exact or not computed.
//!
//! A quarter of all tool output is lines that were printed before, and exact counts are expensive, so they are
//! cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::tokens::vocabulary::has_long_run;
use crate::tokens::{TokenCounter, TokenEstimator, Tokens, Vocabulary};

/// A counter whose counts are sums over lines.
#[derive(Clone, Copy)]
pub(crate) enum LineCounter {
    /// Counts in tokens.
    Exact(Vocabulary),
    /// Counts in hundredths of a token.
    Estimated,
}

/// The count of each line of a text, including its line break.
#[derive(Clone, Debug)]
pub(crate) struct LineCounts(Arc<[u16]>);

/// Marks a line that was not counted separately.
const UNKNOWN_COUNT: u16 = u16::MAX;

impl LineCounts {
    /// Returns the count of a line, if it is known.
    pub(crate) fn get(&self, line: usize) -> Option<u16> {
        self.0.get(line).copied().filter(|&count| count != UNKNOWN_COUNT)
    }
}

/// A cache of exact counts of lines, by hash, in a table of fixed size: a newer line replaces an older one.
/// Lock-free, since an entry is one number.
#[derive(Default)]
pub(crate) struct LineCountCache(OnceLock<Box<[AtomicU64]>>);

/// Number of slots (256 KiB); a power of two. The low bits of a hash select the slot and are replaced by the count in
/// the stored value.
const CACHE_SLOTS: u64 = 1 << 15;

impl LineCountCache {
    /// Returns the count of a line, computed by `count` if it is missing.
    fn get_or_count(&self, line: &str, seed: u64, count: impl FnOnce() -> Tokens) -> Tokens {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), seed);
        let table = self.0.get_or_init(|| (0..CACHE_SLOTS).map(|_| AtomicU64::new(0)).collect());
        let slot = &table[(hash % CACHE_SLOTS) as usize];
        let stored = slot.load(Ordering::Relaxed);
        let (stored_hash, stored_count) = (stored / CACHE_SLOTS, stored % CACHE_SLOTS);
        // A count is never zero, so zero marks an empty slot.
        if stored_hash == hash / CACHE_SLOTS && stored_count > 0 {
            return stored_count;
        }
        let counted = count();
        if counted < CACHE_SLOTS {
            slot.store(hash / CACHE_SLOTS * CACHE_SLOTS + counted, Ordering::Relaxed);
        }
        counted
    }
}

impl LineCounter {
    /// Returns the count of a text after a line break.
    pub(crate) fn units_after_newline(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths_after_newline(text),
        }
    }

    pub(crate) fn to_tokens(self, units: Tokens) -> Tokens {
        match self {
            Self::Exact(_) => units,
            Self::Estimated => units.div_ceil(100),
        }
    }

    /// Returns the count of a text at the start.
    pub(crate) fn units_at_start(self, text: &str) -> Tokens {
        match self {
            Self::Exact(vocabulary) => vocabulary.count(text),
            Self::Estimated => TokenEstimator::hundredths(text),
        }
    }

    /// Returns true if the text before this one, up to a line break, counts the same without it.
    pub(crate) fn starts_new_token(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => {
                let indent = text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match text.as_bytes().get(indent) {
                    Some(b'/') => indent > 0,
                    Some(b'!'..=b'~') => true,
                    _ => text[indent..].chars().next().is_some_and(|first| !first.is_whitespace()),
                }
            }
            Self::Estimated => true,
        }
    }

    /// Returns true if the counts of the lines of a text add up.
    pub(crate) fn is_additive(self, text: &str) -> bool {
        match self {
            Self::Exact(_) => !has_long_run(text),
            Self::Estimated => true,
        }
    }

    /// Returns the count of a text and of its lines. `seed` separates the counts of different vocabularies.
    pub(crate) fn count_by_lines(self, text: &str, cache: &LineCountCache, seed: u64) -> (Tokens, Option<LineCounts>) {
        if !self.is_additive(text) {
            return (self.to_tokens(self.units_at_start(text)), None);
        }
        let (sum, counts) = match self {
            Self::Exact(vocabulary) => {
                self.exact_lines(text, |lines| cache.get_or_count(lines, seed, || vocabulary.count(lines)))
            }
            Self::Estimated => Self::estimated_lines(text),
        };
        (self.to_tokens(sum), Some(LineCounts(counts.into())))
    }

    /// Returns the count of a text and of each line; lines that are joined with the next are counted together.
    fn exact_lines(self, text: &str, count_lines: impl Fn(&str) -> Tokens) -> (Tokens, Vec<u16>) {
        let mut counts = Vec::with_capacity(text.len() / 32 + 1);
        let (mut sum, mut from, mut start) = (0, 0, 0);
        let mut rest = memchr::memchr_iter(b'\n', text.as_bytes()).map(|newline| newline + 1);
        while start < text.len() {
            let end = rest.next().unwrap_or(text.len());
            counts.push(UNKNOWN_COUNT);
            let starts_new = end == text.len() || self.starts_new_token(&text[end..]);
            if starts_new {
                let count = count_lines(&text[from..end]);
                sum += count;
                let alone = from == start && text.as_bytes()[end - 1] == b'\n';
                if let (true, Some(last)) = (alone, counts.last_mut()) {
                    *last = u16::try_from(count).unwrap_or(UNKNOWN_COUNT);
                }
                from = end;
            }
            start = end;
        }
        (sum, counts)
    }

    /// Returns the estimate of a text and of each line; lines are independent.
    fn estimated_lines(text: &str) -> (Tokens, Vec<u16>) {
        let weights = TokenEstimator::hundredths_by_line(text);
        let mut counts: Vec<u16> =
            weights.iter().map(|&weight| u16::try_from(weight).unwrap_or(UNKNOWN_COUNT)).collect();
        // The first line may count differently at the start of a text, and a last line without a break differently
        // elsewhere.
        if let Some(first) = counts.first_mut() {
            *first = UNKNOWN_COUNT;
        }
        if let (false, Some(last)) = (text.ends_with('\n'), counts.last_mut()) {
            *last = UNKNOWN_COUNT;
        }
        (weights.iter().sum(), counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line keeps its own count whatever replaces it, and is counted once per vocabulary.
    #[test]
    fn line_is_counted_once_per_vocabulary() {
        let cache = LineCountCache::default();
        let lines: Vec<String> = (0..3 * CACHE_SLOTS).map(|number| format!("line {number}")).collect();
        for line in lines.iter().chain(&lines) {
            assert_eq!(cache.get_or_count(line, 1, || line.len() as Tokens), line.len() as Tokens);
        }
        let last = &lines[lines.len() - 1];
        assert_eq!(cache.get_or_count(last, 1, || unreachable!("the last line is cached")), last.len() as Tokens);
        assert_eq!(cache.get_or_count(last, 2, || 7), 7);
        // A count that is too large to store is computed again.
        assert_eq!(cache.get_or_count("long", 1, || CACHE_SLOTS), CACHE_SLOTS);
        assert_eq!(cache.get_or_count("long", 1, || CACHE_SLOTS + 1), CACHE_SLOTS + 1);
    }
}
