//! A conversation that grows message by message in the caller's memory.
//!
//! No fold is decided here: every decision is made by [`FoldState`], so that a session and the fold of
//! the whole conversation give the same bytes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use crate::conversation::{Conversation, Message, PartId, Role};
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::crease::Crease;
use crate::engine::decide::CreaseUndo;
use crate::engine::handle::Handle;
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::original;
use crate::engine::overlay::RenderedItem;
use crate::engine::schedule::CreaseSchedule;
use crate::engine::state::FoldState;
use crate::engine::unfold_tool;
use crate::error::Error;
use crate::tokens::Tokens;
use crate::wire::{InjectedTool, RequestEdit};

/// A growing conversation and its rendering.
///
/// Add every message with [`push`](FoldSession::push), and call [`plan_request`](FoldSession::plan_request) before each
/// call to the model. The rendering is the same as that of [`fold`](crate::fold()) for the whole conversation. The
/// session holds all messages, so [`unfold`](FoldSession::unfold) restores the original of every handle that was ever
/// rendered.
///
/// ```
/// use foldline::{FoldSession, Message, Part, Role};
/// use foldline::engine::marker;
///
/// let mut session = FoldSession::for_model("gpt-4o", 2_000);
/// session.push(Message::text(Role::User, "Make the parser faster."));
/// for at in 0..30 {
///     let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
///     session.push(Message::new(Role::Assistant, vec![call]));
///     let source = format!("let value_{at} = parse(input);\n").repeat(20);
///     session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source)]));
///
///     session.plan_request()?; // before each call to the model
///     assert!(session.tokens() <= 2_000);
/// }
/// let sent: Vec<Message> = session.rendered_messages(0).collect();
/// let texts = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
/// let handle = texts.flat_map(marker::handles).next().expect("old rounds were folded");
/// assert!(session.unfold(handle).is_some());
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone)]
pub struct FoldSession {
    options: FoldOptions,
    ledger: Ledger,
    state: FoldState,
    messages: Vec<Message<'static>>,
    /// The decision of a request that has no answer yet.
    tentative: Option<TentativeDecision>,
    /// First message whose rendering changed since the last call of `take_first_changed`.
    first_changed: usize,
    /// Positions of all originals that ever left the rendering, by handle.
    original_places: HashMap<Handle, OriginalPlace>,
    /// Parts whose originals are in `original_places`.
    remembered_parts: HashSet<PartId>,
    /// Rounds of the notes whose originals are in `original_places`.
    remembered_rounds: HashSet<Range<usize>>,
}

/// The position of an original in the messages. Messages never change, so the position restores the bytes.
#[derive(Clone, Debug)]
enum OriginalPlace {
    Part(PartId),
    Rounds(Range<usize>),
}

/// A decision that takes effect only if the model answers. A caller may add messages and send another request
/// instead, and a fold of the whole conversation does not see the first request.
#[derive(Clone)]
struct TentativeDecision {
    request_point: usize,
    schedule: CreaseSchedule,
    crease: Option<(Crease, CreaseUndo)>,
}

impl FoldSession {
    /// Creates a session with an empty conversation.
    pub fn new(options: FoldOptions) -> Self {
        Self {
            options,
            ledger: Ledger::default(),
            state: FoldState::default(),
            messages: Vec::new(),
            tentative: None,
            first_changed: 0,
            original_places: HashMap::new(),
            remembered_parts: HashSet::new(),
            remembered_rounds: HashSet::new(),
        }
    }

    /// Creates a session for a model of the built-in table, with at most `budget` tokens per request. Markers carry
    /// handles, which [`unfold`](FoldSession::unfold) restores; offer the model a tool that calls it.
    pub fn for_model(model: &str, budget: Tokens) -> Self {
        Self::new(FoldOptions::for_model(model, budget))
    }

    /// Returns the ledger. Entries for request points that were already decided have no effect.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Returns the options.
    pub fn options(&self) -> &FoldOptions {
        &self.options
    }

    /// Sets the overhead of the requests from now on to the tokens of this conversation's system prompt, tools and
    /// request overhead. Decisions at earlier request points remain.
    pub fn set_overhead_of(&mut self, conversation: &Conversation<'_>) {
        self.options = self.options.clone().with_overhead_of(conversation);
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message<'static>) {
        let at = self.messages.len();
        let answers = self.options.has_request_point_before(&message, self.messages.last());
        match self.tentative.take() {
            Some(decision) if !answers => {
                self.state.schedule = decision.schedule;
                if let Some((crease, before)) = decision.crease {
                    self.first_changed = self.first_changed.min(crease.first_message);
                    self.state.undo_crease(&self.messages, before);
                }
            }
            Some(_) => {}
            // The caller sent a request without `plan_request`; it is a request point nevertheless.
            None if answers && at > 0 => {
                if let Some(crease) = self.state.decide_past(&self.options, &self.ledger, &self.messages) {
                    self.first_changed = self.first_changed.min(crease.first_message);
                }
            }
            None => {}
        }
        self.state.ingest(&self.options, &message, true);
        self.messages.push(message);
    }

    /// Decides what to send now. Returns the crease if there is one at this request point.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CannotFit`](crate::ErrorKind::CannotFit) if the conversation cannot be folded to the budget,
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the caller cancelled the fold.
    pub fn plan_request(&mut self) -> Result<Option<&Crease>, Error> {
        let request_point = self.messages.len();
        if self.tentative.as_ref().is_none_or(|decision| decision.request_point != request_point) {
            let schedule = self.state.schedule;
            let planned = self.state.plan_crease(&self.options, &self.ledger, &self.messages);
            // The point is decided again when the next message shows whether the model answered.
            let planned = planned.inspect_err(|_| self.state.schedule = schedule)?;
            let crease = planned.map(|(plan, trigger)| {
                self.first_changed = self.first_changed.min(plan.first_message);
                self.state.apply_plan(&self.options, &self.messages, plan, trigger)
            });
            self.tentative = Some(TentativeDecision { request_point, schedule, crease });
            self.remember_originals();
        }
        Ok(self.tentative.as_ref().and_then(|decision| decision.crease.as_ref()).map(|(crease, ..)| crease))
    }

    /// Returns the first message whose rendering changed since the last call, and resets it. A caller that keeps
    /// the rendering renders again from this message.
    pub fn take_first_changed(&mut self) -> usize {
        std::mem::replace(&mut self.first_changed, self.messages.len()).min(self.messages.len())
    }

    /// Returns the messages to send, starting with the rendering of message `from`.
    pub fn rendered_messages(&self, from: usize) -> impl Iterator<Item = Message<'static>> + '_ {
        let sequence = self.state.folds.render_order(&self.messages, from, self.options.alternate_roles);
        sequence.into_iter().map(|rendered| match rendered {
            RenderedItem::Message(at) => self.state.folds.render_message(at, &self.messages[at]),
            RenderedItem::Note(role, text) => Message::text(role, text.to_owned()),
        })
    }

    /// Returns the rendering from message `from` on as edits of the pushed messages, for callers that
    /// keep the messages in a provider's wire format.
    pub fn rendered_with_edits(&self, from: usize) -> Vec<RenderedMessage<'_>> {
        let folds = &self.state.folds;
        let with_edits = |rendered| match rendered {
            RenderedItem::Message(index) => RenderedMessage::Message { index, edits: folds.message_edits(index) },
            RenderedItem::Note(role, text) => RenderedMessage::Note { role, text },
        };
        folds.render_order(&self.messages, from, self.options.alternate_roles).into_iter().map(with_edits).collect()
    }

    /// Writes the originals of all folds to a store. Call this before the rendering is sent; if it fails, do not send
    /// the rendering.
    ///
    /// # Errors
    ///
    /// The error of the store.
    pub fn store_originals(&self, store: &dyn OriginalStore) -> Result<(), StoreError> {
        let refused = self.state.store_originals(&self.messages, store)?;
        if refused.is_empty() { Ok(()) } else { Err(StoreError("the archive refused some of them".into())) }
    }

    /// Returns the original of a handle in this rendering or in an earlier one.
    pub fn unfold(&self, handle: Handle) -> Option<Vec<u8>> {
        if let Some(place) = self.original_places.get(&handle) {
            return self.original_at(place).map(Cow::into_owned);
        }
        let originals = self.state.folds.removed_originals(&self.messages).into_iter();
        originals.map(|original| original.bytes).find(|bytes| Handle::for_content(bytes) == handle).map(Cow::into_owned)
    }

    /// Tool with which a model restores originals: declare it in every request, and answer its calls with
    /// [`answer_unfold`](FoldSession::answer_unfold).
    pub const UNFOLD_TOOL: InjectedTool<'static> = unfold_tool::UNFOLD_TOOL;

    /// Returns the answer to a call of [`UNFOLD_TOOL`](FoldSession::UNFOLD_TOOL): the original or the requested part of it
    /// in its readable view, at most one page, or a sentence for the model about what is wrong with its arguments.
    /// [`unfold`](FoldSession::unfold) returns the exact bytes.
    ///
    /// ```
    /// use foldline::FoldSession;
    ///
    /// let session = FoldSession::for_model("gpt-4o", 32_000);
    /// assert!(session.answer_unfold(r#"{"handle":"7k3q9p2m4x1c"}"#).starts_with("No original"));
    /// ```
    pub fn answer_unfold(&self, arguments: &str) -> String {
        let answer = unfold_tool::answer_unfold(arguments, |handle| Ok(self.unfold(handle)), || false);
        answer.map_or_else(|problem| problem, |(_, text)| text)
    }

    /// Notes the positions of originals that left the rendering since the last request.
    fn remember_originals(&mut self) {
        if !self.options.handles {
            return;
        }
        let folds = &self.state.folds;
        for note in folds.notes().map(|(_, note)| note) {
            if let Some(hash) = note.hash.as_ref().filter(|_| self.remembered_rounds.insert(note.messages.clone())) {
                self.original_places.insert(hash.handle(), OriginalPlace::Rounds(note.messages.clone()));
            }
        }
        let is_new = |at: &PartId| !self.remembered_parts.contains(at);
        let parts: Vec<PartId> = folds.visible_parts().map(|(at, _)| at).filter(is_new).collect();
        for at in parts {
            let place = OriginalPlace::Part(at);
            self.remembered_parts.insert(at);
            if let Some(handle) = self.original_at(&place).map(|bytes| Handle::for_content(&bytes)) {
                self.original_places.insert(handle, place);
            }
        }
    }

    /// Returns the originals that ever left the rendering, in no order; [`unfold`](FoldSession::unfold) restores each.
    /// None without handles.
    pub fn folded_originals(&self) -> impl Iterator<Item = FoldedOriginal<'_>> {
        self.original_places.iter().map(|(&handle, place)| match place {
            OriginalPlace::Part(at) => {
                let call = self.state.segments.get(*at).and_then(|segment| segment.tool_call.as_ref());
                FoldedOriginal { handle, message: at.message, tool: call.map(|call| call.tool.as_str()) }
            }
            OriginalPlace::Rounds(rounds) => FoldedOriginal { handle, message: rounds.start, tool: None },
        })
    }

    fn original_at(&self, place: &OriginalPlace) -> Option<Cow<'_, [u8]>> {
        match place {
            OriginalPlace::Part(at) => original::bytes_of(self.messages.get(at.message)?, *at),
            OriginalPlace::Rounds(rounds) => Some(Cow::Owned(original::rounds_bytes(&self.messages[rounds.clone()]))),
        }
    }

    /// Returns the number of rendered messages before the rendering of `message`.
    pub fn rendered_position(&self, message: usize) -> usize {
        self.state.folds.render_order(&self.messages[..message], 0, self.options.alternate_roles).len()
    }

    /// Returns the pushed messages.
    pub fn messages(&self) -> &[Message<'static>] {
        &self.messages
    }

    /// Returns the tokens of the rendering, including system, tools and request overhead.
    pub fn tokens(&self) -> Tokens {
        self.state.totals.rendered() + self.options.overhead_tokens
    }

    /// Returns the tokens without any fold, including system, tools and request overhead.
    pub fn raw_tokens(&self) -> Tokens {
        self.state.totals.raw() + self.options.overhead_tokens
    }
}

impl fmt::Debug for FoldSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoldSession")
            .field("messages", &self.messages.len())
            .field("tokens", &self.tokens())
            .field("raw_tokens", &self.raw_tokens())
            .field("budget", &self.options.budget)
            .finish_non_exhaustive()
    }
}

/// An original that left the rendering of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoldedOriginal<'s> {
    /// Its handle.
    pub handle: Handle,
    /// Index of its message, or of the first message of its rounds.
    pub message: usize,
    /// Tool that produced it.
    pub tool: Option<&'s str>,
}

/// One message of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedMessage<'f> {
    /// A pushed message with its edits.
    Message {
        /// Index of the message.
        index: usize,
        /// Edits of the message; empty for most.
        edits: Vec<RequestEdit>,
    },
    /// A message that replaces whole rounds.
    Note {
        /// Role of the message.
        role: Role,
        /// Text of the message.
        text: &'f str,
    },
}
