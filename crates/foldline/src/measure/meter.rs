//! Counts whole things for a model: messages, tools, pictures, a conversation.

use std::sync::Arc;

use super::cache::CountCache;
use super::{Counter, Estimator, Exactness, Fit, ImageSize, ModelRow, ModelTable, Tokens, Vocabulary, document, tool};
use crate::conversation::{Conversation, Message, Opaque, Part, Reasoning, Tool};

/// Texts below this many bytes are counted faster than looked up.
const CACHED_FROM: usize = 128;
/// Beside its name and arguments a call costs the frame around them.
const CALL_FRAME: Tokens = 4;
/// Beside its content a result costs the frame around it.
const RESULT_FRAME: Tokens = 3;
/// Behind the list of functions stands a closing frame (C8.1).
const TOOLS_FRAME: Tokens = 12;

/// Counts whole things for a model. Cheap to clone; clones share the cache of counts.
///
/// The count of a conversation is the sum of [`system`](Meter::system), [`tools`](Meter::tools), every
/// [`message`](Meter::message) and [`request`](Meter::request), so it can be kept up to date by what
/// was added.
///
/// ```
/// use foldline::{Conversation, Exactness, Message, Meter, ModelTable, Role};
///
/// let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
/// assert_eq!(meter.exactness(), Exactness::Exact);
/// assert_eq!(meter.text("hello world"), 2);
/// let hello = Message::text(Role::User, "hello world");
/// assert_eq!(meter.message(&hello), 2 + 3);
/// let conversation = Conversation { messages: vec![hello], ..Conversation::default() };
/// assert_eq!(meter.conversation(&conversation), 2 + 3 + 3);
/// ```
#[derive(Clone)]
pub struct Meter {
    way: Arc<Way>,
    cache: CountCache,
}

/// How a meter counts.
struct Way {
    counter: Arc<dyn Counter>,
    exactness: Exactness,
    row: ModelRow,
    fit: Option<Fit>,
    /// Keeps counts of different vocabularies apart in a shared cache.
    seed: u64,
}

impl Meter {
    /// Counts for the model of this name, by the row of the table.
    pub fn for_model(table: &ModelTable, model: Option<&str>) -> Meter {
        Self::for_row(table.find(model))
    }

    /// Counts for the model that a row describes.
    pub fn for_row(row: ModelRow) -> Meter {
        let (name, close) = match row.vocabulary.strip_prefix('~') {
            Some(name) => (name, true),
            None => (row.vocabulary.as_str(), false),
        };
        let (counter, exactness): (Arc<dyn Counter>, _) = match Vocabulary::named(name) {
            Some(vocabulary) if close || row.scale != 1.0 => (Arc::new(vocabulary), Exactness::Estimated),
            Some(vocabulary) => (Arc::new(vocabulary), Exactness::Exact),
            None => (Arc::new(Estimator), Exactness::Estimated),
        };
        let seed = xxhash_rust::xxh3::xxh3_64(if counter.is_monotone() { b"estimate" } else { name.as_bytes() });
        Meter { way: Arc::new(Way { counter, exactness, row, fit: None, seed }), cache: CountCache::default() }
    }

    /// The same model, its text counted by another counter, such as a user's own tokenizer. The cache
    /// starts anew.
    pub fn with_counter(self, counter: Arc<dyn Counter>) -> Meter {
        let exactness = counter.exactness();
        let row = ModelRow { scale: 1.0, ..self.way.row.clone() };
        let way = Way { counter, exactness, row, fit: None, seed: 0 };
        Meter { way: Arc::new(way), cache: CountCache::default() }
    }

    /// The same meter, its counts scaled to what was reported. The fit must be of this meter's own
    /// counts without a fit.
    pub fn with_fit(self, fit: Option<Fit>) -> Meter {
        let Way { counter, exactness, row, seed, .. } = &*self.way;
        let exactness = match fit {
            Some(_) if *exactness == Exactness::Estimated => Exactness::Calibrated,
            _ => *exactness,
        };
        let way = Way { counter: counter.clone(), exactness, row: row.clone(), fit, seed: *seed };
        Meter { way: Arc::new(way), cache: self.cache }
    }

    /// The same meter with a cache that others use too.
    pub fn with_cache(self, cache: CountCache) -> Meter {
        Meter { cache, ..self }
    }

    /// The row of the model table by which it counts.
    pub fn row(&self) -> &ModelRow {
        &self.way.row
    }

    /// How far its counts can be trusted.
    pub fn exactness(&self) -> Exactness {
        self.way.exactness
    }

    /// By how much the true count of so many tokens may be above ours.
    pub fn margin(&self, tokens: Tokens) -> Tokens {
        let share = match (self.way.exactness, self.way.fit) {
            (_, Some(fit)) => fit.margin,
            (Exactness::Exact, None) => 0.002,
            (_, None) => 0.08,
        };
        32_u64.saturating_add((tokens as f64 * share).ceil() as Tokens)
    }

    /// The tokens of a text.
    pub fn text(&self, text: &str) -> Tokens {
        self.scaled(self.raw(text))
    }

    /// The tokens of a part, without the overhead of its message.
    pub fn part(&self, part: &Part<'_>) -> Tokens {
        match part {
            Part::Text { text } => self.text(text),
            Part::Reasoning(reasoning) => self.reasoning(reasoning),
            Part::ToolCall(call) => self.text(&call.name) + self.text(call.arguments.as_str()) + CALL_FRAME,
            Part::ToolResult(result) => {
                result.content.iter().map(|part| self.part(part)).sum::<Tokens>() + RESULT_FRAME
            }
            Part::Image(image) => self.scaled_by_fit(self.way.row.images.tokens(image)),
            Part::File(file) => document::tokens(file, self),
            Part::Opaque(opaque) => self.opaque(opaque),
        }
    }

    /// The tokens of a message, with its overhead.
    pub fn message(&self, message: &Message<'_>) -> Tokens {
        message.parts.iter().map(|part| self.part(part)).sum::<Tokens>() + self.way.row.per_message
    }

    /// The tokens of the declared tools, with what declaring any costs.
    pub fn tools(&self, tools: &[Tool<'_>]) -> Tokens {
        if tools.is_empty() {
            return 0;
        }
        tools.iter().map(|tool| tool::tokens(tool, self)).sum::<Tokens>() + TOOLS_FRAME + self.way.row.tool_prompt
    }

    /// The tokens of instructions that stand outside the messages.
    pub fn system(&self, system: &[Part<'_>]) -> Tokens {
        if system.is_empty() {
            return 0;
        }
        system.iter().map(|part| self.part(part)).sum::<Tokens>() + self.way.row.per_message
    }

    /// The tokens that any request costs beside its content.
    pub fn request(&self) -> Tokens {
        self.way.row.per_request + self.way.fit.map_or(0, |fit| fit.overhead)
    }

    /// The tokens of a whole request.
    pub fn conversation(&self, conversation: &Conversation<'_>) -> Tokens {
        let messages: Tokens = conversation.messages.iter().map(|message| self.message(message)).sum();
        self.system(&conversation.system) + self.tools(&conversation.tools) + messages + self.request()
    }

    /// The tokens of a picture of this size.
    pub(super) fn picture(&self, size: ImageSize, detail: Option<&str>) -> Tokens {
        self.scaled_by_fit(self.way.row.images.of_size(size, detail))
    }

    /// The counter's own count, from the cache if it was made before.
    fn raw(&self, text: &str) -> Tokens {
        let count = || self.way.counter.count(text);
        match text.len() < CACHED_FROM {
            true => count(),
            false => self.cache.get_or(CountCache::key(text, self.way.seed), count),
        }
    }

    fn scaled(&self, tokens: Tokens) -> Tokens {
        let scale = self.way.row.scale;
        let tokens = if scale == 1.0 { tokens } else { (tokens as f64 * scale).ceil() as Tokens };
        self.scaled_by_fit(tokens)
    }

    fn scaled_by_fit(&self, tokens: Tokens) -> Tokens {
        self.way.fit.map_or(tokens, |fit| fit.scale(tokens))
    }

    /// Reasoning counts as what the model thought, not as what is shown of it: the seal is that text,
    /// encrypted.
    fn reasoning(&self, reasoning: &Reasoning<'_>) -> Tokens {
        let sealed = reasoning.seal.as_deref().map_or(0, sealed_tokens);
        self.text(&reasoning.text).max(sealed)
    }

    fn opaque(&self, opaque: &Opaque<'_>) -> Tokens {
        self.text(&opaque.raw)
    }
}

/// About the tokens of a text that is encrypted in this base64.
fn sealed_tokens(seal: &str) -> Tokens {
    (seal.len() as Tokens * 3).div_ceil(16)
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter")
            .field("prefix", &self.way.row.prefix)
            .field("vocabulary", &self.way.row.vocabulary)
            .field("exactness", &self.way.exactness)
            .finish_non_exhaustive()
    }
}
