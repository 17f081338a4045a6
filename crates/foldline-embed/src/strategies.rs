//! The classic strategies by their names, over the messages of a provider.
//!
//! The strategies themselves are in [`foldline::strategies`]. Here their options are parsed, and the messages that they
//! return are mapped back to those of the caller.

use foldline::conversation::OwnedMessage;
use foldline::engine::{JsonMessage, ReasoningRetention};
use foldline::laws;
use foldline::strategies::chunk::{CompressOptions, compress};
use foldline::strategies::{
    self, CompactToBudget, DedupToolCalls, DedupToolOutputs, PruneLowEntropy, PruneThinking, SnippetToolOutputs,
    StrategyOptions, TerminalTruncate, TrimMiddle,
};
use foldline::tokens::Tokens;
use foldline::wire::{Format, Request};
use foldline::{Conversation, Message, Meter, ModelTable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{EmbedError, EmbedErrorKind};
use crate::message_alignment::aligned_messages;
use crate::options::parse_format;

/// Messages after a strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortenedMessages {
    /// The messages to send. A note is a message that the caller does not have, such as a marker for dropped rounds.
    pub messages: Vec<JsonMessage>,
    /// The statistics of the strategy, as JSON.
    pub stats: String,
}

type StrategyResult = Result<(Vec<OwnedMessage>, Value), EmbedError>;
type StrategyFn = fn(Vec<OwnedMessage>, Format, Value) -> StrategyResult;

/// The strategies by their names.
const STRATEGIES: [(&str, StrategyFn); 10] = [
    ("apply_all", apply_all),
    ("compact_to_budget", compact_to_budget),
    ("dedup_tool_calls", |messages, _, options| {
        counted(strategies::dedup_tool_calls(messages, &parsed::<DedupToolCalls>(options)?))
    }),
    ("dedup_tool_outputs", |messages, _, options| {
        counted(strategies::dedup_tool_outputs(messages, &parsed::<DedupToolOutputs>(options)?))
    }),
    ("prune_low_entropy", |messages, _, options| {
        counted(strategies::prune_low_entropy(messages, &parsed::<PruneLowEntropy>(options)?))
    }),
    ("prune_thinking", |messages, _, options| {
        counted(strategies::prune_thinking(messages, &parsed::<ThinkingOptions>(options)?.into()))
    }),
    ("repair_orphans", |messages, format, options| {
        parsed::<NoOptions>(options)?;
        let (repaired, repairs) = laws::repair_as(Conversation { messages, ..Conversation::default() }, format);
        counted((repaired.messages, repairs))
    }),
    ("snippet_stale_tool_outputs", |messages, _, options| {
        counted(strategies::snippet_stale_tool_outputs(messages, &parsed::<SnippetToolOutputs>(options)?))
    }),
    ("terminal_truncate", terminal_truncate),
    ("trim_middle", |messages, _, options| counted(strategies::trim_middle(messages, &parsed::<TrimMiddle>(options)?))),
];

/// An object without fields besides `format`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoOptions {}

/// Options of `prune_thinking`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ThinkingOptions {
    keep_last: usize,
    retention: RetentionName,
    step_messages: usize,
}

/// A [`ReasoningRetention`] by name.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RetentionName {
    KeepAll,
    DropFinishedTurns,
    DropOld,
}

impl Default for ThinkingOptions {
    fn default() -> Self {
        let PruneThinking { keep_last, step_messages, .. } = PruneThinking::default();
        Self { keep_last, retention: RetentionName::DropOld, step_messages }
    }
}

impl From<ThinkingOptions> for PruneThinking {
    fn from(options: ThinkingOptions) -> Self {
        let retention = match options.retention {
            RetentionName::KeepAll => ReasoningRetention::KeepAll,
            RetentionName::DropFinishedTurns => ReasoningRetention::DropFinishedTurns,
            RetentionName::DropOld => ReasoningRetention::DropOld,
        };
        Self { keep_last: options.keep_last, retention, step_messages: options.step_messages.max(1) }
    }
}

/// Options of `apply_all`; a strategy that loses unique text is enabled by its options.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CombinedOptions {
    thinking: ThinkingOptions,
    middle: Option<TrimMiddle>,
    outputs: DedupToolOutputs,
    calls: Option<DedupToolCalls>,
    snippets: Option<SnippetToolOutputs>,
    prose: PruneLowEntropy,
}

/// Options of `compact_to_budget`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompactOptions {
    budget: Tokens,
    model: Option<String>,
    keep_last: Option<usize>,
    min_chars: Option<usize>,
    target_ratio: Option<f64>,
}

/// Options of `terminal_truncate`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TruncateOptions {
    budget: Tokens,
    model: Option<String>,
    keep_last: Option<usize>,
}

/// Options of [`compress_text`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    budget: Tokens,
    model: Option<String>,
    max_chunk_bytes: Option<usize>,
}

/// Applies a classic strategy to the messages of a JSON list (or of a request body), with options in JSON: `format`, and
/// the fields of the strategy's own options. A missing field has its default.
///
/// ```
/// use foldline::engine::JsonMessage;
/// use foldline_embed::apply_strategy;
///
/// let list = r#"[{"role":"user","content":"hi"},{"role":"tool","tool_call_id":"gone","content":"an orphan"}]"#;
/// let shortened = apply_strategy("repair_orphans", list, r#"{"format":"openai-chat"}"#)?;
/// assert_eq!(shortened.messages, [JsonMessage::Unchanged(0)]);
/// assert_eq!(shortened.stats, r#"{"duplicates":0,"moved":0,"orphans":1,"unanswered":0}"#);
/// # Ok::<(), foldline_embed::EmbedError>(())
/// ```
///
/// # Errors
///
/// If the name or an option is unknown, the text is not a list of messages, or the dialect has no form for a result.
pub fn apply_strategy(name: &str, messages: &str, options: &str) -> Result<ShortenedMessages, EmbedError> {
    let (_, strategy) = STRATEGIES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| EmbedError::invalid(format_args!("unknown strategy {name:?}")))?;
    let mut options: Map<String, Value> = serde_json::from_str(options).map_err(invalid_options)?;
    let format = match options.remove("format") {
        Some(Value::String(name)) => parse_format(&name)?,
        None => Format::OpenAiChat,
        Some(other) => return Err(EmbedError::invalid(format_args!("bad options: format is {other}"))),
    };
    let request = Request::parse(format, messages.as_bytes())?;
    let owned = request.conversation().messages.iter().map(|message| message.clone().into_owned()).collect();
    let (shortened, stats) = strategy(owned, format, Value::Object(options))?;
    Ok(ShortenedMessages { messages: aligned_messages(&request, &shortened)?, stats: stats.to_string() })
}

/// Estimates the tokens of a text by its bytes, or of messages or a request body if a format is given.
///
/// # Errors
///
/// If the text is not JSON of the format.
pub fn estimate_tokens(text: &str, format: Option<&str>) -> Result<Tokens, EmbedError> {
    let Some(format) = format else { return Ok(strategies::estimate_tokens(text)) };
    let request = Request::parse(parse_format(format)?, text.as_bytes())?;
    Ok(strategies::total_tokens(request.conversation()))
}

/// Compresses a text to a budget of tokens. The result is JSON: `text`, `before`, `after` and `omitted_lines`.
///
/// # Errors
///
/// If an option is unknown, or there is no budget.
pub fn compress_text(text: &str, options: &str) -> Result<String, EmbedError> {
    let options: TextOptions = serde_json::from_str(options).map_err(invalid_options)?;
    let default = CompressOptions::default();
    let max_chunk_bytes = options.max_chunk_bytes.unwrap_or(default.max_chunk_bytes);
    let compress_options = CompressOptions { max_chunk_bytes, meter: meter_of(options.model.as_deref()) };
    let compressed = compress(text, options.budget, &compress_options);
    let (before, after, omitted_lines) = (compressed.before, compressed.after, compressed.omitted_lines);
    Ok(json!({ "text": compressed.text, "before": before, "after": after, "omitted_lines": omitted_lines }).to_string())
}

fn apply_all(mut messages: Vec<OwnedMessage>, format: Format, options: Value) -> StrategyResult {
    let CombinedOptions { thinking, middle, outputs, calls, snippets, prose } = parsed(options)?;
    let thinking = thinking.into();
    let options = StrategyOptions { format: Some(format), thinking, middle, outputs, calls, snippets, prose };
    let stats = strategies::apply_all_with(&mut messages, &options);
    counted((messages, stats))
}

fn compact_to_budget(messages: Vec<OwnedMessage>, _: Format, options: Value) -> StrategyResult {
    let given: CompactOptions = parsed(options)?;
    let default = CompactToBudget { meter: meter_of(given.model.as_deref()), ..CompactToBudget::default() };
    let options = CompactToBudget {
        keep_last: given.keep_last.unwrap_or(default.keep_last),
        min_chars: given.min_chars.unwrap_or(default.min_chars),
        target_ratio: given.target_ratio.unwrap_or(default.target_ratio),
        ..default
    };
    let (messages, stats) = strategies::compact_to_budget(&messages, given.budget, &options);
    let (_, mut fields) = counted((Vec::new(), stats))?;
    fields["fits"] = stats.fits().into();
    Ok((messages, fields))
}

fn terminal_truncate(messages: Vec<OwnedMessage>, _: Format, options: Value) -> StrategyResult {
    let given: TruncateOptions = parsed(options)?;
    let default = TerminalTruncate { meter: meter_of(given.model.as_deref()), ..TerminalTruncate::default() };
    let options = TerminalTruncate { keep_last: given.keep_last.unwrap_or(default.keep_last), ..default };
    let truncated = strategies::terminal_truncate(messages, given.budget, &options);
    let stats = json!({
        "before": truncated.before,
        "after": truncated.after,
        "budget": truncated.budget,
        "dropped": truncated.dropped.len(),
        "clipped": truncated.clipped,
        "fits": truncated.fits(),
    });
    Ok((truncated.messages, stats))
}

/// Returns the meter of a model, or the estimate by bytes.
fn meter_of(model: Option<&str>) -> Meter {
    model.map_or_else(Meter::for_byte_estimate, |model| Meter::for_model(ModelTable::builtin(), Some(model)))
}

fn parsed<T: DeserializeOwned>(options: Value) -> Result<T, EmbedError> {
    serde_json::from_value(options).map_err(invalid_options)
}

fn invalid_options(error: serde_json::Error) -> EmbedError {
    EmbedError::invalid(format_args!("bad options: {error}"))
}

/// Returns messages with their statistics as JSON.
fn counted((messages, stats): (Vec<Message<'static>>, impl Serialize)) -> StrategyResult {
    let stats = serde_json::to_value(stats).map_err(|error| EmbedError::new(EmbedErrorKind::Failed, error))?;
    Ok((messages, stats))
}
