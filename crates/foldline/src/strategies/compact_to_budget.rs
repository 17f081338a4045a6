//! The projection to a budget: a left fold over requests, as the engine's, with whole parts as its only folds.
//!
//! At every request point it is decided from the messages before it alone whether something is elided, and what is
//! elided stays so. Hence each projection begins with the one before it, unless something was elided anew, and
//! that happens rarely: when the budget is exceeded, a quarter of it is freed.

use std::collections::{HashSet, VecDeque};

use crate::conversation::{Message, Part, PartId};
use crate::engine::marker;
use crate::engine::passes::whole_results::shortened_arguments;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment, SegmentKind};
use crate::strategies::{call_id, referenced_ids, replace_text};
use crate::tokens::{Meter, Tokens};

/// What [`compact_to_budget`] does.
#[derive(Clone, Debug)]
pub struct CompactToBudget {
    /// The newest messages that are left alone.
    pub keep_last: usize,
    /// Texts of fewer characters stay.
    pub min_chars: usize,
    /// When the budget is exceeded, it is elided down to this share of it.
    pub target_ratio: f64,
    /// Counts the tokens.
    pub meter: Meter,
}

impl Default for CompactToBudget {
    /// The last 4 messages are left alone, texts below 256 characters stay, a quarter of the budget is freed, and
    /// tokens are estimated by bytes.
    fn default() -> Self {
        Self { keep_last: 4, min_chars: 256, target_ratio: 0.75, meter: Meter::for_byte_estimate() }
    }
}

/// What [`compact_to_budget`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// Tokens of the messages that were given.
    pub before: Tokens,
    /// Tokens of the messages that came of them.
    pub after: Tokens,
    /// Tokens that they may have.
    pub budget: Tokens,
    /// Texts that were elided.
    pub elided: usize,
}

impl CompactionStats {
    /// Whether what came of it is inside the budget. If not, it is the best that could be done.
    pub fn fits(&self) -> bool {
        self.after <= self.budget
    }
}

/// The messages, brought into a budget without touching the history: old tool results become markers that state
/// their size, the oldest first and failures last; if that is not enough, long arguments and prose of old
/// calls.
///
/// Instructions, the words of users, the last messages and the newest round stay. Ids, names and short arguments
/// stay everywhere, and so do results to which a marker refers, until nothing else is left. For a request's
/// budget see [`Budget::for_projection`](crate::Budget::for_projection); what stands beside the messages is the caller's
/// to subtract.
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
    let stats = CompactionStats { before: fold.before, after: fold.total, budget, elided: fold.elided.len() };
    let mut projected = messages.to_vec();
    for (at, text) in fold.elided {
        replace_text(&mut projected, at, text);
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
    /// Pieces that are not old yet.
    recent: VecDeque<Segment>,
    /// Pieces that may be elided, in the order in which they are spent.
    queues: [VecDeque<Segment>; 4],
    referenced: HashSet<&'f str>,
    elided: Vec<(PartId, String)>,
}

/// Where a piece waits: results, those that report a failure, what the model wrote, and what is referred to.
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

    /// Decides at the request that carries the messages before `at`, of which the newest round begins at `newest`.
    fn decide(&mut self, at: usize, newest: usize) {
        if self.total <= self.budget {
            return;
        }
        let tail = at.saturating_sub(self.options.keep_last).min(newest);
        while let Some(piece) = self.recent.pop_front_if(|piece| piece.at.message < tail) {
            let queue = match piece.kind {
                SegmentKind::Result if piece.failed => ElisionQueue::Failures,
                SegmentKind::Result => ElisionQueue::Results,
                SegmentKind::Prose | SegmentKind::Arguments => ElisionQueue::Authored,
                SegmentKind::InputText | SegmentKind::Reasoning | SegmentKind::Media => continue,
            };
            self.queues[queue as usize].push_back(piece);
        }
        for queue in [ElisionQueue::Results, ElisionQueue::Failures, ElisionQueue::Authored, ElisionQueue::Referenced] {
            // A queue is begun only for the budget itself; once begun, it is spent down to the low mark.
            if self.total <= self.budget {
                return;
            }
            while self.total > self.target_tokens {
                let Some(piece) = self.queues[queue as usize].pop_front() else { break };
                let is_referred = call_id(self.messages, piece.at).is_some_and(|id| self.referenced.contains(id));
                match queue {
                    ElisionQueue::Results | ElisionQueue::Failures | ElisionQueue::Authored if is_referred => {
                        self.queues[ElisionQueue::Referenced as usize].push_back(piece);
                    }
                    _ => self.elide(&piece),
                }
            }
        }
    }

    fn elide(&mut self, piece: &Segment) {
        let text = segment::segment_text(self.messages, piece.at);
        let short = || text.chars().take(self.options.min_chars).count() < self.options.min_chars;
        if marker::is_only_marker(text) || short() {
            return;
        }
        let marker = marker::without_handle(text, &piece.description());
        let short = match &self.messages[piece.at.message].parts[piece.at.part] {
            Part::ToolCall(call) => shortened_arguments(call, &marker),
            _ => Some(marker),
        };
        let Some(short) = short else { return };
        let tokens = self.options.meter.text(&short);
        if tokens < piece.tokens {
            self.total -= piece.tokens - tokens;
            self.elided.push((piece.at, short));
        }
    }
}
