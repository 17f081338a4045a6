//! Token counts of texts and images for a model: the counter, its scale, and the cache.

use std::sync::Arc;

use crate::conversation::ImagePart;
use crate::models::ModelRow;
use crate::tokens::count_cache::CountCache;
use crate::tokens::line_counts::{LineCounter, LineCounts};
use crate::tokens::{CalibrationFit, CountExactness, ImageSize, TokenCounter, TokenEstimator, Tokens, Vocabulary};

/// Minimum length of a cached text; shorter texts are counted faster than looked up.
const MIN_CACHED_BYTES: usize = 32;
/// Minimum length of a text that is counted in advance, in pieces.
const MIN_LARGE_BYTES: usize = 1 << 20;

/// A counter of texts and images for a model. Cheap to clone; clones share the cache of counts.
#[derive(Clone)]
pub(crate) struct TextMeter {
    method: Arc<CountMethod>,
    cache: CountCache,
}

/// The counting method of a meter.
struct CountMethod {
    counter: Arc<dyn TokenCounter>,
    /// The same counter, if its counts are sums over lines.
    line_counter: Option<LineCounter>,
    exactness: CountExactness,
    row: ModelRow,
    fit: Option<CalibrationFit>,
    /// Separates the counts of different vocabularies in a shared cache.
    seed: u64,
}

impl TextMeter {
    /// Returns a meter for the model that a row describes.
    pub(crate) fn for_row(row: ModelRow) -> TextMeter {
        let (name, is_approximate) = match row.vocabulary.strip_prefix('~') {
            Some(name) => (name, true),
            None => (row.vocabulary.as_str(), false),
        };
        let vocabulary = Vocabulary::from_name(name);
        let line_counter = vocabulary.map_or(LineCounter::Estimated, LineCounter::Exact);
        let (counter, exactness): (Arc<dyn TokenCounter>, _) = match vocabulary {
            Some(vocabulary) if is_approximate || row.scale != 1.0 => (Arc::new(vocabulary), CountExactness::Estimated),
            Some(vocabulary) => (Arc::new(vocabulary), CountExactness::Exact),
            None => (Arc::new(TokenEstimator), CountExactness::Estimated),
        };
        let seed = xxhash_rust::xxh3::xxh3_64(if counter.is_monotone() { b"estimate" } else { name.as_bytes() });
        TextMeter {
            method: Arc::new(CountMethod {
                counter,
                line_counter: Some(line_counter),
                exactness,
                row,
                fit: None,
                seed,
            }),
            cache: CountCache::default(),
        }
    }

    /// Replaces the counter of text, for example by a user's own tokenizer, with an empty cache.
    pub(crate) fn with_counter(self, counter: Arc<dyn TokenCounter>) -> TextMeter {
        let exactness = counter.exactness();
        let row = ModelRow { scale: 1.0, ..self.method.row.clone() };
        let method = CountMethod { counter, line_counter: None, exactness, row, fit: None, seed: 0 };
        TextMeter { method: Arc::new(method), cache: CountCache::default() }
    }

    /// Scales the counts to reported usage. The fit must have been made from this meter's counts without a fit.
    pub(crate) fn with_fit(self, fit: Option<CalibrationFit>) -> TextMeter {
        let CountMethod { counter, line_counter, exactness, row, seed, .. } = &*self.method;
        let exactness = match fit {
            Some(_) if *exactness == CountExactness::Estimated => CountExactness::Calibrated,
            _ => *exactness,
        };
        let method = CountMethod {
            counter: counter.clone(),
            line_counter: *line_counter,
            exactness,
            row: row.clone(),
            fit,
            seed: *seed,
        };
        TextMeter { method: Arc::new(method), cache: self.cache }
    }

    /// Sets a cache that may be shared with other meters.
    pub(crate) fn with_cache(self, cache: CountCache) -> TextMeter {
        TextMeter { cache, ..self }
    }

    /// Returns the row of the model table that the meter uses.
    pub(crate) fn row(&self) -> &ModelRow {
        &self.method.row
    }

    /// Returns how exact the counts are.
    pub(crate) fn exactness(&self) -> CountExactness {
        self.method.exactness
    }

    /// Returns the amount by which the true count may exceed our count of `tokens`.
    pub(crate) fn margin(&self, tokens: Tokens) -> Tokens {
        let share = match (self.method.exactness, self.method.fit) {
            (_, Some(fit)) => fit.margin,
            (CountExactness::Exact, None) => 0.002,
            (_, None) => 0.08,
        };
        32_u64.saturating_add((tokens as f64 * share).ceil() as Tokens)
    }

    /// Returns the tokens of a text.
    pub(crate) fn text(&self, text: &str) -> Tokens {
        self.scaled(self.raw_count(text))
    }

    /// Counts a text into the cache if it is large, so that [`text`](TextMeter::text) does not take long. Returns false
    /// if `stop` returned true meanwhile.
    pub(crate) fn cache_large(&self, text: &str, stop: &dyn Fn() -> bool) -> bool {
        if text.len() < MIN_LARGE_BYTES {
            return true;
        }
        let key = CountCache::key(text, self.method.seed);
        if self.cache.get(key).is_some() {
            return true;
        }
        let counted = self.method.counter.count_until(text, stop);
        counted.map(|tokens| self.cache.insert(key, tokens)).is_some()
    }

    /// Returns the tokens of a text, counted line by line: lines that were counted in other texts are not counted
    /// again. The count equals that of [`text`](TextMeter::text).
    pub(crate) fn text_by_lines(&self, text: &str) -> Tokens {
        self.text_and_line_counts(text, xxhash_rust::xxh3::xxh3_128(text.as_bytes())).0
    }

    /// Returns the tokens of the text with this hash, and of its lines if these add up to it and the text was not
    /// cached.
    pub(crate) fn text_and_line_counts(&self, text: &str, hash: u128) -> (Tokens, Option<LineCounts>) {
        let Some(line_counter) = self.method.line_counter.filter(|_| text.len() >= MIN_CACHED_BYTES) else {
            return (self.text(text), None);
        };
        let mut lines = None;
        let count = || {
            let (tokens, counted) = line_counter.count_by_lines(text, &self.cache.line_cache, self.method.seed);
            lines = counted;
            tokens
        };
        let tokens = self.cache.get_or_count(CountCache::key_for_hash(hash, self.method.seed), count);
        (self.scaled(tokens), lines)
    }

    pub(crate) fn line_counter(&self) -> Option<LineCounter> {
        self.method.line_counter
    }

    /// Returns the tokens of an image of this size.
    pub(crate) fn image_of_size(&self, size: ImageSize, detail: Option<&str>) -> Tokens {
        self.scaled_by_fit(self.method.row.images.tokens_for_size(size, detail))
    }

    /// Returns the unscaled count, from the cache if possible.
    fn raw_count(&self, text: &str) -> Tokens {
        let count = || self.method.counter.count(text);
        match text.len() < MIN_CACHED_BYTES {
            true => count(),
            false => self.cache.get_or_count(CountCache::key(text, self.method.seed), count),
        }
    }

    /// Returns a cost computed from this text in another way than counting it, from the cache if possible. Scaled
    /// costs are not cached.
    pub(crate) fn cached(&self, text: &str, cost: impl FnOnce() -> Tokens) -> Tokens {
        match self.method.row.scale != 1.0 || self.method.fit.is_some() {
            true => cost(),
            false => self.cache.get_or_count(CountCache::key(text, !self.method.seed), cost),
        }
    }

    pub(crate) fn scaled(&self, tokens: Tokens) -> Tokens {
        let scale = self.method.row.scale;
        let tokens = if scale == 1.0 { tokens } else { (tokens as f64 * scale).ceil() as Tokens };
        self.scaled_by_fit(tokens)
    }

    fn scaled_by_fit(&self, tokens: Tokens) -> Tokens {
        self.method.fit.map_or(tokens, |fit| fit.scale(tokens))
    }

    /// Returns the tokens of a request besides its content.
    pub(crate) fn request_overhead(&self) -> Tokens {
        self.method.row.per_request + self.method.fit.map_or(0, |fit| fit.overhead)
    }

    /// Returns the tokens of an image.
    pub(crate) fn image(&self, image: &ImagePart<'_>) -> Tokens {
        self.scaled_by_fit(self.method.row.images.tokens(image))
    }
}
