//! Projection to a budget: a left fold over requests, like the engine's, with whole parts as its only folds.
//!
//! At every request point the decision to elide depends only on the messages before it, and elided parts remain
//! elided. Hence each projection begins with the previous one unless something new was elided. In a loop that should
//! happen rarely: [`CompactToBudget::for_loop`] frees a quarter of the budget whenever it is exceeded.

use std::collections::{HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::passes::whole_results::shortened_arguments;
use crate::engine::segment::{PendingCalls, Segment, SegmentKind};
use crate::engine::{marker, segment};
use crate::models::table::ModelTable;
use crate::strategies::references::detach_references;
use crate::strategies::support::{call_id, referenced_ids, replace_text};
use crate::tokens::{Meter, Tokens};

/// Options of [`compact_to_budget`].
#[derive(Clone, Debug)]
pub struct CompactToBudget {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum length of an elided text, in characters.
    pub min_chars: usize,
    /// Fraction of the budget down to which texts are elided once the budget is exceeded. With 1, elision stops as soon
    /// as the messages fit; below 1, the steps of a loop between two elisions extend each other.
    pub target_ratio: f64,
    /// Meter that counts the tokens.
    pub meter: Meter,
}

impl Default for CompactToBudget {
    /// Returns the defaults: the last 4 messages are unchanged, texts below 256 characters are kept, elision stops as soon
    /// as the messages fit, and tokens are estimated by bytes.
    fn default() -> Self {
        Self { keep_last: 4, min_chars: 256, target_ratio: 1.0, meter: Meter::for_byte_estimate() }
    }
}

impl CompactToBudget {
    /// Returns the defaults with the meter of a model from the built-in table. The estimate by bytes can be below the
    /// count of a model, and then messages that fit by estimate do not fit the model; its own meter is exact for models
    /// with a public vocabulary.
    pub fn for_model(model: &str) -> Self {
        Self { meter: Meter::for_model(ModelTable::builtin(), Some(model)), ..Self::default() }
    }

    /// Returns options for the steps of a loop: whenever the budget is exceeded, a quarter of it is freed, so that most
    /// steps elide nothing and extend the previous one.
    ///
    /// ```
    /// use foldline::strategies::CompactToBudget;
    ///
    /// let options = CompactToBudget { keep_last: 8, ..CompactToBudget::for_model("gpt-4o").for_loop() };
    /// assert_eq!(options.target_ratio, 0.75);
    /// ```
    #[must_use]
    pub fn for_loop(self) -> Self {
        Self { target_ratio: 0.75, ..self }
    }
}

/// The result of [`compact_to_budget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionStats {
    /// Tokens of the input messages.
    pub before: Tokens,
    /// Tokens of the projected messages.
    pub after: Tokens,
    /// Maximum tokens.
    pub budget: Tokens,
    /// Number of elided texts.
    pub elided: usize,
}

impl CompactionStats {
    /// Returns true if the projection is inside the budget, by the meter of the options. If not, it is the smallest one
    /// possible.
    pub fn fits(&self) -> bool {
        self.after <= self.budget
    }
}

/// Projects the messages into a budget without changing the history: old tool results become markers that state their
/// size, oldest first and failures last; if that is not enough, long arguments and prose of old calls.
///
/// Instructions, messages of users, the last messages and the newest round are kept. Ids, names and short arguments
/// are always kept, and so are results that a marker refers to, until nothing else is left. For a request's budget
/// see [`Budget::for_projection`](crate::tokens::Budget::for_projection); the caller subtracts everything outside the
/// messages.
///
/// ```
/// use foldline::strategies::{CompactToBudget, compact_to_budget};
/// use foldline::{Message, Part, Role};
///
/// let mut history = vec![Message::text(Role::User, "read them all")];
/// for at in 0..10 {
///     let call = Part::call(format!("c{at}"), "read", format!(r#"{{"path":"{at}.txt"}}"#));
///     history.push(Message::new(Role::Assistant, vec![call]));
///     history.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "a line of it\n".repeat(100))]));
/// }
/// let (messages, stats) = compact_to_budget(&history, 3_000, &CompactToBudget::default());
/// assert_eq!(messages[2].parts, [Part::result("c0", "[folded: 100 lines, 1.3 kB of read 0.txt]")]);
/// assert_eq!(messages[20], history[20]);
/// assert!(stats.fits() && stats.before > 3_000);
/// ```
pub fn compact_to_budget<'m>(
    messages: &[Message<'m>],
    budget: Tokens,
    options: &CompactToBudget,
) -> (Vec<Message<'m>>, CompactionStats) {
    let mut fold = BudgetProjection::new(messages, budget, options);
    let mut newest = messages.len();
    for (at, message) in messages.iter().enumerate() {
        if message.opens_round(at.checked_sub(1).map(|before| &messages[before])) {
            fold.decide(at, newest);
            newest = at;
        }
        fold.ingest(at, message);
    }
    fold.decide(messages.len(), newest);
    let mut stats = CompactionStats { before: fold.before, after: fold.total, budget, elided: fold.elided.len() };
    let mut projected = messages.to_vec();
    let is_referenced = |at: &PartId| call_id(messages, *at).is_some_and(|id| fold.referenced.contains(id));
    let is_result = |part: &&Part<'_>| matches!(part, Part::ToolResult(_));
    let elided_parts = fold.elided.iter().map(|(at, _)| at).filter(|at| is_referenced(at));
    let gone: Vec<Part<'m>> =
        elided_parts.map(|at| &messages[at.message].parts[at.part]).filter(is_result).cloned().collect();
    for (at, text) in fold.elided {
        replace_text(&mut projected, at, text);
    }
    if !gone.is_empty() {
        detach_references(&mut projected, &[Message::new(Role::Tool, gone)], false);
        stats.after = projected.iter().map(|message| options.meter.message(message)).sum();
    }
    (projected, stats)
}

struct BudgetProjection<'f, 'm> {
    messages: &'f [Message<'m>],
    options: &'f CompactToBudget,
    budget: Tokens,
    target_tokens: Tokens,
    before: Tokens,
    total: Tokens,
    pending_calls: PendingCalls,
    /// Segments that are not old yet.
    recent: VecDeque<Segment>,
    /// Segments that may be elided, in the order in which they are used.
    queues: [VecDeque<Segment>; 4],
    referenced: HashSet<&'f str>,
    elided: Vec<(PartId, String)>,
}

/// The queue of a segment: results, failed results, text written by the model, and referenced results.
#[derive(Clone, Copy)]
enum ElisionQueue {
    Results,
    Failures,
    Authored,
    Referenced,
}

impl<'f, 'm> BudgetProjection<'f, 'm> {
    fn new(messages: &'f [Message<'m>], budget: Tokens, options: &'f CompactToBudget) -> Self {
        Self {
            messages,
            options,
            budget,
            target_tokens: (budget as f64 * options.target_ratio.clamp(0.0, 1.0)) as Tokens,
            before: 0,
            total: 0,
            pending_calls: PendingCalls::new(),
            recent: VecDeque::new(),
            queues: Default::default(),
            referenced: messages.iter().flat_map(referenced_ids).collect(),
            elided: Vec::new(),
        }
    }

    fn ingest(&mut self, at: usize, message: &'f Message<'m>) {
        let tokens = self.options.meter.message(message);
        self.before += tokens;
        self.total += tokens;
        self.recent.extend(segment::message_segments(at, message, 0, &mut self.pending_calls, &self.options.meter));
    }

    /// Decides at the request that carries the messages before `at`, whose newest round begins at `newest`.
    fn decide(&mut self, at: usize, newest: usize) {
        if self.total <= self.budget {
            return;
        }
        let tail = at.saturating_sub(self.options.keep_last).min(newest);
        while let Some(segment) = self.recent.pop_front_if(|segment| segment.at.message < tail) {
            let queue = match segment.kind {
                SegmentKind::Result if segment.failed => ElisionQueue::Failures,
                SegmentKind::Result => ElisionQueue::Results,
                SegmentKind::Prose | SegmentKind::Arguments => ElisionQueue::Authored,
                SegmentKind::InputText | SegmentKind::Reasoning | SegmentKind::Media => continue,
            };
            self.queues[queue as usize].push_back(segment);
        }
        for queue in [ElisionQueue::Results, ElisionQueue::Failures, ElisionQueue::Authored, ElisionQueue::Referenced] {
            // A queue is started only to reach the budget; once started, it is used down to the target.
            if self.total <= self.budget {
                return;
            }
            while self.total > self.target_tokens {
                let Some(segment) = self.queues[queue as usize].pop_front() else { break };
                let is_referenced = call_id(self.messages, segment.at).is_some_and(|id| self.referenced.contains(id));
                match queue {
                    ElisionQueue::Results | ElisionQueue::Failures | ElisionQueue::Authored if is_referenced => {
                        self.queues[ElisionQueue::Referenced as usize].push_back(segment);
                    }
                    _ => self.elide(&segment),
                }
            }
        }
    }

    fn elide(&mut self, segment: &Segment) {
        let text = segment::segment_text(self.messages, segment.at);
        let short = || text.chars().take(self.options.min_chars).count() < self.options.min_chars;
        if marker::is_only_marker(text) || short() {
            return;
        }
        let marker = marker::without_handle(text, &segment.description());
        let short = match &self.messages[segment.at.message].parts[segment.at.part] {
            Part::ToolCall(call) => shortened_arguments(call, &marker),
            _ => Some(marker),
        };
        let Some(short) = short else { return };
        let tokens = self.options.meter.text(&short);
        if tokens < segment.tokens {
            self.total -= segment.tokens - tokens;
            self.elided.push((segment.at, short));
        }
    }
}
