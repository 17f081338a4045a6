//! Token counts of messages, tools, images and conversations for a model.

use std::sync::Arc;

use crate::conversation::{Conversation, Message, OpaqueBlock, Part, ReasoningPart, ToolCall, ToolDefinition};
use crate::models::{ModelRow, ModelTable};
use crate::tokens::count_cache::CountCache;
use crate::tokens::images::strip_data_url;
use crate::tokens::text_meter::TextMeter;
use crate::tokens::{CalibrationFit, CountExactness, ImageSize, TokenCounter, Tokens, documents, tools};

/// Tokens of the closing frame after the list of functions (C8.1).
const TOOLS_FRAME_TOKENS: Tokens = 12;

/// A counter of messages and conversations for a model. Cheap to clone; clones share the cache of counts.
///
/// The count of a conversation is the sum of [`system`](Meter::system), [`tools`](Meter::tools), every
/// [`message`](Meter::message) and [`request_overhead`](Meter::request_overhead), so it can be updated incrementally.
///
/// ```
/// use foldline::{Conversation, Message, Meter, ModelTable, Role};
/// use foldline::tokens::CountExactness;
///
/// let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
/// assert_eq!(meter.exactness(), CountExactness::Exact);
/// assert_eq!(meter.text("hello world"), 2);
/// let hello = Message::text(Role::User, "hello world");
/// assert_eq!(meter.message(&hello), 2 + 3);
/// let conversation = Conversation { messages: vec![hello], ..Conversation::default() };
/// assert_eq!(meter.conversation(&conversation), 2 + 3 + 3);
/// ```
#[derive(Clone)]
pub struct Meter {
    texts: TextMeter,
}

impl Meter {
    /// Returns a meter for the model of this name, by its row of the table.
    pub fn for_model(table: &ModelTable, model: Option<&str>) -> Meter {
        Self::for_row(table.find(model))
    }

    /// Returns a meter for the model that a row describes.
    pub fn for_row(row: ModelRow) -> Meter {
        Meter { texts: TextMeter::for_row(row) }
    }

    /// Replaces the counter of text, for example by a user's own tokenizer, with an empty cache.
    pub fn with_counter(self, counter: Arc<dyn TokenCounter>) -> Meter {
        Meter { texts: self.texts.with_counter(counter) }
    }

    /// Scales the counts to reported usage. The fit must have been made from this meter's counts without a fit.
    pub fn with_fit(self, fit: Option<CalibrationFit>) -> Meter {
        Meter { texts: self.texts.with_fit(fit) }
    }

    /// Sets a cache that may be shared with other meters.
    pub fn with_cache(self, cache: CountCache) -> Meter {
        Meter { texts: self.texts.with_cache(cache) }
    }

    /// Returns the row of the model table that the meter uses.
    pub fn row(&self) -> &ModelRow {
        self.texts.row()
    }

    /// Returns how exact the counts are.
    pub fn exactness(&self) -> CountExactness {
        self.texts.exactness()
    }

    /// Returns the amount by which the true count may exceed our count of `tokens`.
    pub fn margin(&self, tokens: Tokens) -> Tokens {
        self.texts.margin(tokens)
    }

    /// Returns the counter of texts.
    pub(crate) fn texts(&self) -> &TextMeter {
        &self.texts
    }

    /// Returns the tokens of a text.
    pub fn text(&self, text: &str) -> Tokens {
        self.texts.text(text)
    }

    /// Returns the tokens of a text, counted line by line: lines that were counted in other texts are not counted
    /// again. The count equals that of [`text`](Meter::text).
    pub fn text_by_lines(&self, text: &str) -> Tokens {
        self.texts.text_by_lines(text)
    }

    /// Counts a text into the cache if it is larger than a megabyte, in pieces. Returns false if `stop` returned true
    /// between two of them; otherwise [`text`](Meter::text) does not take long.
    pub fn cache_large_text(&self, text: &str, stop: &dyn Fn() -> bool) -> bool {
        self.texts.cache_large(text, stop)
    }

    /// Counts the large texts of a message like [`cache_large_text`](Meter::cache_large_text).
    pub(crate) fn cache_large_texts(&self, message: &Message<'_>, stop: &dyn Fn() -> bool) -> bool {
        message.parts.iter().all(|part| match part {
            Part::Text { text } => self.cache_large_text(text, stop),
            Part::Reasoning(reasoning) => self.cache_large_text(&reasoning.text, stop),
            Part::ToolCall(call) => self.cache_large_text(call.arguments.as_str(), stop),
            Part::ToolResult(result) => result.texts().all(|text| self.cache_large_text(text, stop)),
            Part::Image(_) | Part::File(_) | Part::Opaque(_) => true,
        })
    }

    /// Returns the tokens of a part, without the overhead of its message.
    pub fn part(&self, part: &Part<'_>) -> Tokens {
        match part {
            Part::Text { text } => self.text(text),
            Part::Reasoning(reasoning) => self.reasoning(reasoning),
            Part::ToolCall(call) => self.call_overhead(call) + self.text(call.arguments.as_str()),
            Part::ToolResult(result) => result.content.iter().map(|part| self.part(part)).sum(),
            Part::Image(image) => self.texts.image(image),
            Part::File(file) => documents::file_tokens(file, &self.texts),
            Part::Opaque(opaque) => self.opaque(opaque),
        }
    }

    /// Returns the tokens of a call without its arguments.
    pub(crate) fn call_overhead(&self, call: &ToolCall<'_>) -> Tokens {
        self.text(&call.name) + self.row().per_call
    }

    /// Returns the tokens of a message without its parts.
    pub(crate) fn message_overhead(&self) -> Tokens {
        self.row().per_message
    }

    /// Returns the tokens of a message, with its overhead.
    pub fn message(&self, message: &Message<'_>) -> Tokens {
        message.parts.iter().map(|part| self.part(part)).sum::<Tokens>() + self.row().per_message
    }

    /// Returns the tokens of the declared tools, with the fixed cost of declaring any.
    pub fn tools(&self, tools: &[ToolDefinition<'_>]) -> Tokens {
        if tools.is_empty() {
            return 0;
        }
        tools.iter().map(|tool| tools::tool_tokens(tool, &self.texts)).sum::<Tokens>()
            + TOOLS_FRAME_TOKENS
            + self.row().tool_prompt
    }

    /// Returns the tokens of instructions outside the messages.
    pub fn system(&self, system: &[Part<'_>]) -> Tokens {
        if system.is_empty() {
            return 0;
        }
        system.iter().map(|part| self.part(part)).sum::<Tokens>() + self.row().per_message
    }

    /// Returns the tokens of a request without its content.
    pub fn request_overhead(&self) -> Tokens {
        self.texts.request_overhead()
    }

    /// Returns the tokens of a whole request.
    pub fn conversation(&self, conversation: &Conversation<'_>) -> Tokens {
        let messages: Tokens = conversation.messages.iter().map(|message| self.message(message)).sum();
        self.system(&conversation.system) + self.tools(&conversation.tools) + messages + self.request_overhead()
    }

    /// Counts reasoning by its full text, not by the visible part: the seal is the full text, encrypted.
    fn reasoning(&self, reasoning: &ReasoningPart<'_>) -> Tokens {
        let sealed = reasoning.seal.as_deref().map_or(0, encrypted_tokens);
        self.text(&reasoning.text).max(sealed)
    }

    /// Counts an unknown block as its JSON, except long base64 in it, which is an image or encrypted text.
    fn opaque(&self, opaque: &OpaqueBlock<'_>) -> Tokens {
        let is_encoded = |string: &&str| string.len() >= MIN_ENCODED_BYTES && is_base64(string);
        let strings = || opaque.raw.split('"');
        if !strings().any(|string| is_encoded(&string)) {
            return self.text(&opaque.raw);
        }
        let payloads: Tokens = strings()
            .filter(is_encoded)
            .map(|string| match ImageSize::from_base64(string) {
                Some(size) => self.texts.image_of_size(size, None),
                None => encrypted_tokens(string),
            })
            .sum();
        let frame: Vec<&str> = strings().map(|string| if is_encoded(&string) { "" } else { string }).collect();
        self.text(&frame.join("\"")) + payloads
    }
}

/// Minimum length of encoded data in an unknown block; shorter strings are counted as text.
const MIN_ENCODED_BYTES: usize = 512;

fn is_base64(string: &str) -> bool {
    let payload = strip_data_url(string);
    payload.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=' | b'\\'))
}

/// Estimates the tokens of a text that is encrypted in this base64: three bytes per four characters, four bytes per
/// token. Measured on signatures: 0.19 per character (docs/decisions/0002).
fn encrypted_tokens(seal: &str) -> Tokens {
    (seal.len() as Tokens * 3).div_ceil(16)
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter")
            .field("prefix", &self.row().prefix)
            .field("vocabulary", &self.row().vocabulary)
            .field("exactness", &self.exactness())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{ImagePart, MediaSource, Role};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn meter(model: &str) -> Meter {
        Meter::for_model(ModelTable::builtin(), Some(model))
    }

    /// Claude has no published vocabulary; its counts must not be reported as exact.
    #[test]
    fn claude_is_never_exact() {
        for row in ModelTable::builtin().rows().into_iter().filter(|row| row.prefix.contains("claude")) {
            assert_ne!(Meter::for_row(row.clone()).exactness(), CountExactness::Exact, "{}", row.prefix);
        }
    }

    #[test]
    fn exactness_follows_the_vocabulary() {
        assert_eq!(meter("gpt-5.5").exactness(), CountExactness::Exact);
        assert_eq!(meter("qwen3-32b").exactness(), CountExactness::Exact);
        assert_eq!(meter("grok-4").exactness(), CountExactness::Estimated);
        assert_eq!(meter("unheard-of").exactness(), CountExactness::Estimated);
        let fit = CalibrationFit { ratio: 1.1, overhead: 100, margin: 0.01 };
        assert_eq!(meter("unheard-of").with_fit(Some(fit)).exactness(), CountExactness::Calibrated);
        assert_eq!(meter("unheard-of").with_fit(None).exactness(), CountExactness::Estimated);
    }

    #[test]
    fn newer_claude_models_count_more_tokens() {
        let text = "The same text is more tokens for the newer models. ".repeat(100);
        let ratio = meter("claude-opus-4-7").text(&text) as f64 / meter("claude-opus-4-6").text(&text) as f64;
        assert!((ratio - 1.35).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn request_count_is_the_sum_of_its_parts() {
        let conversation = Conversation {
            system: vec![Part::text("Be brief.")],
            tools: vec![ToolDefinition { name: "sh".into(), definition: r#"{"name":"sh"}"#.into() }],
            messages: vec![
                Message::text(Role::User, "what is here?"),
                Message::new(Role::Assistant, vec![Part::text("I look."), Part::call("c1", "sh", r#"{"cmd":"ls"}"#)]),
                Message::new(Role::Tool, vec![Part::result("c1", "src\nCargo.toml\n")]),
            ],
            ..Conversation::default()
        };
        for model in ["gpt-5.5", "claude-opus-5", "unheard-of"] {
            let meter = meter(model);
            let messages: Tokens = conversation.messages.iter().map(|message| meter.message(message)).sum();
            let sum = meter.system(&conversation.system)
                + meter.tools(&conversation.tools)
                + messages
                + meter.request_overhead();
            assert_eq!(meter.conversation(&conversation), sum);
        }
        let gpt = meter("gpt-5.5");
        let call = gpt.text("I look.") + gpt.text("sh") + gpt.text(r#"{"cmd":"ls"}"#) + 6 + 12;
        assert_eq!(gpt.message(&conversation.messages[1]), call);
        assert_eq!(gpt.message(&conversation.messages[2]), gpt.text("src\nCargo.toml\n") + 6);
        assert_eq!(meter("gpt-5.5").conversation(&Conversation::default()), gpt.request_overhead());
    }

    /// The seal is the full reasoning, encrypted; the visible text may be a summary or empty.
    #[test]
    fn hidden_reasoning_is_counted_by_its_signature() {
        let meter = meter("claude-opus-4-6");
        let reasoning = |text: &'static str, seal: Option<String>| {
            meter.part(&Part::Reasoning(ReasoningPart {
                text: text.into(),
                seal: seal.map(Into::into),
                redacted: false,
            }))
        };
        assert_eq!(reasoning("", Some("A".repeat(1_600))), 300);
        assert_eq!(reasoning("short", Some("A".repeat(1_600))), 300);
        assert_eq!(reasoning("a thought without a seal", None), meter.text("a thought without a seal"));
        assert_eq!(reasoning("", None), 0);
    }

    #[test]
    fn base64_in_unknown_blocks_is_not_counted_as_text() {
        let meter = meter("gpt-5.5");
        let block = |data: &str| {
            let raw = format!(r#"{{"type":"image_generation_call","id":"ig_1","result":"{data}"}}"#);
            meter.part(&Part::Opaque(OpaqueBlock { kind: "image_generation_call".into(), pair: None, raw: raw.into() }))
        };
        let frame = block("");
        assert_eq!(block(&"gAAAAABk".repeat(500)), frame + 750);
        let data = format!("R0lGODlh{}", "QAYABA".repeat(200));
        let image = ImagePart { source: MediaSource::Base64(data.clone().into()), detail: None };
        let size = ImageSize::from_image(&image).expect("valid GIF header");
        assert_eq!(block(&data), frame + meter.texts().image_of_size(size, None));
        assert!(block("short+base64==") > frame);
    }

    #[test]
    fn images_use_the_models_rule_everywhere() {
        let image =
            || Part::Image(ImagePart { source: MediaSource::Url("https://example.com/a.png".into()), detail: None });
        let result = Part::ToolResult(crate::conversation::ToolResult {
            call_id: "c".into(),
            content: vec![Part::text("seen"), image()],
            is_error: false,
        });
        let meter = meter("unheard-of");
        assert_eq!(meter.part(&image()), 512);
        assert_eq!(meter.part(&result), 512 + meter.text("seen"));
    }

    /// A counter that records the number of its calls.
    struct CallCountingCounter(AtomicUsize);

    impl TokenCounter for CallCountingCounter {
        fn count(&self, text: &str) -> Tokens {
            self.0.fetch_add(1, Ordering::Relaxed);
            text.len() as Tokens
        }

        fn exactness(&self) -> CountExactness {
            CountExactness::Exact
        }
    }

    #[test]
    fn repeated_message_is_not_recounted() {
        let busy = Arc::new(CallCountingCounter(AtomicUsize::new(0)));
        let meter = meter("gpt-4o").with_counter(busy.clone());
        let message = Message::text(Role::User, "a long message ".repeat(100));
        let first = meter.message(&message);
        assert_eq!(meter.clone().message(&message), first);
        assert_eq!(busy.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_cache_serves_several_models() {
        let cache = CountCache::default();
        let text = "the same text for both of them ".repeat(50);
        let old = meter("gpt-4").with_cache(cache.clone());
        let new = meter("gpt-4o").with_cache(cache.clone());
        let alone = (meter("gpt-4").text(&text), meter("gpt-4o").text(&text));
        assert_eq!((old.text(&text), new.text(&text)), alone);
        assert_eq!((old.text(&text), new.text(&text)), alone);
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn fit_scales_and_adds_its_overhead_once() {
        let plain = meter("unheard-of");
        let fitted = plain.clone().with_fit(Some(CalibrationFit { ratio: 2.0, overhead: 1_000, margin: 0.05 }));
        assert_eq!(fitted.text("some words"), 2 * plain.text("some words"));
        assert_eq!(fitted.request_overhead(), plain.request_overhead() + 1_000);
        assert_eq!(fitted.margin(10_000), 32 + 500);
        assert!(plain.margin(10_000) > meter("gpt-4o").margin(10_000));
        assert!(plain.margin(Tokens::MAX) > 0);
    }
}
