//! A conversation that grows message by message, for whoever holds it in memory.
//!
//! It decides nothing by itself: every decision is the state's, so that a folder and the fold of the whole
//! conversation give the same bytes.

use std::borrow::Cow;

use crate::conversation::{Message, Role};
use crate::engine::archive::{OriginalStore, StoreError};
use crate::engine::handle::Handle;
use crate::engine::options::{FoldOptions, Ledger};
use crate::engine::overlay::RenderedItem;
use crate::engine::schedule::CreaseSchedule;
use crate::engine::state::{Crease, CreaseUndo, FoldState};
use crate::error::Error;
use crate::tokens::Tokens;
use crate::wire::RequestEdit;

/// A conversation that grows, and its rendering.
///
/// Give it every message with [`push_marker`](FoldSession::push_marker), and ask with [`request`](FoldSession::request) before each call to the model. It
/// gives the same rendering as [`fold_edit`](crate::fold_edit()) of the whole conversation.
#[derive(Clone)]
pub struct FoldSession {
    options: FoldOptions,
    ledger: Ledger,
    state: FoldState,
    messages: Vec<Message<'static>>,
    /// What was decided at a request that no answer has followed yet.
    tentative: Option<TentativeDecision>,
    /// Messages from here on are not rendered as they were when last asked.
    first_changed: usize,
}

/// A decision that counts only if the model answers: a client may add messages and ask again, and
/// whoever sees only the whole conversation knows nothing of the first question.
#[derive(Clone)]
struct TentativeDecision {
    request_point: usize,
    schedule: CreaseSchedule,
    crease: Option<(Crease, CreaseUndo)>,
}

impl FoldSession {
    /// An empty conversation.
    pub fn new(setup: FoldOptions) -> Self {
        Self {
            options: setup,
            ledger: Ledger::default(),
            state: FoldState::default(),
            messages: Vec::new(),
            tentative: None,
            first_changed: 0,
        }
    }

    /// The facts from outside. What is said of points that were decided already has no effect.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message<'static>) {
        let at = self.messages.len();
        let answers = message.opens_round(self.messages.last());
        match self.tentative.take() {
            Some(it) if !answers => {
                self.state.schedule = it.schedule;
                if let Some((crease, before)) = it.crease {
                    self.first_changed = self.first_changed.min(crease.first_message);
                    self.state.undo_crease(&self.messages, &crease, before);
                }
            }
            Some(_) => {}
            // An answer to a request that this folder was not asked for. It was sent all the same.
            None if answers && at > 0 => {
                if let Some(crease) = self.state.decide_past(&self.options, &self.ledger, &self.messages) {
                    self.first_changed = self.first_changed.min(crease.first_message);
                }
            }
            None => {}
        }
        self.state.ingest(&self.options, &message);
        self.messages.push(message);
    }

    /// Decides what to send now. Tells of a crease, if this request point is one.
    pub fn plan_request(&mut self) -> Result<Option<&Crease>, Error> {
        if self.tentative.as_ref().is_none_or(|it| it.request_point != self.messages.len()) {
            let clock = self.state.schedule;
            let planned = self.state.plan_crease(&self.options, &self.ledger, &self.messages)?;
            let creased = planned.map(|(plan, reason)| {
                self.first_changed = self.first_changed.min(plan.first_message);
                self.state.apply_plan(&self.options, &self.messages, plan, reason)
            });
            self.tentative =
                Some(TentativeDecision { request_point: self.messages.len(), schedule: clock, crease: creased });
        }
        Ok(self.tentative.as_ref().and_then(|it| it.crease.as_ref()).map(|(crease, ..)| crease))
    }

    /// The first message that is not rendered as it was when this was last asked: what a caller that
    /// keeps the rendering has to take anew.
    pub fn take_first_changed(&mut self) -> usize {
        std::mem::replace(&mut self.first_changed, self.messages.len()).min(self.messages.len())
    }

    /// The messages as they are to be sent, from the rendering of this message on.
    pub fn rendered_messages(&self, from: usize) -> impl Iterator<Item = Message<'static>> + '_ {
        let sequence = self.state.folds.render_order(&self.messages, from, self.options.alternate_roles);
        sequence.into_iter().map(|rendered| match rendered {
            RenderedItem::Message(at) => self.state.folds.render_message(at, &self.messages[at]),
            RenderedItem::Note(role, text) => Message::text(role, text.to_owned()),
        })
    }

    /// The rendering from that of this message on, as edits of the messages that were pushed: for
    /// whoever keeps them in a provider's own form.
    pub fn rendered_with_edits(&self, from: usize) -> Vec<RenderedMessage<'_>> {
        let folds = &self.state.folds;
        let sent = |rendered| match rendered {
            RenderedItem::Message(at) => RenderedMessage::Message { index: at, edits: folds.message_edits(at) },
            RenderedItem::Note(role, text) => RenderedMessage::Note { role, text },
        };
        folds.render_order(&self.messages, from, self.options.alternate_roles).into_iter().map(sent).collect()
    }

    /// Hands the originals of all that is folded to an archive. Do so before the rendering is sent, and
    /// send nothing that was folded when it fails.
    pub fn store_originals(&self, keep: &dyn OriginalStore) -> Result<(), StoreError> {
        self.state.store_originals(&self.messages, keep)
    }

    /// The original behind a handle of the rendering.
    pub fn unfold(&self, handle: Handle) -> Option<Vec<u8>> {
        let originals = self.state.folds.removed_originals(&self.messages);
        originals.into_iter().map(|it| it.bytes).find(|bytes| Handle::for_content(bytes) == handle).map(Cow::into_owned)
    }

    /// How many messages stand in the rendering before that of this message.
    pub fn rendered_position(&self, message: usize) -> usize {
        self.state.folds.render_order(&self.messages[..message], 0, self.options.alternate_roles).len()
    }

    /// The messages that were pushed.
    pub fn messages(&self) -> &[Message<'static>] {
        &self.messages
    }

    /// Tokens of the rendering, with all that stands beside the messages.
    pub fn tokens(&self) -> Tokens {
        self.state.rendered_tokens + self.options.overhead_tokens
    }

    /// Tokens without any fold.
    pub fn raw_tokens(&self) -> Tokens {
        self.state.raw_tokens + self.options.overhead_tokens
    }
}

/// One message of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedMessage<'f> {
    /// A message that was pushed, with the edits that make it what is sent.
    Message {
        /// Which message.
        index: usize,
        /// What changes in it; nothing for most.
        edits: Vec<RequestEdit>,
    },
    /// A message of ours, in the place of whole rounds.
    Note {
        /// Who says it.
        role: Role,
        /// What it says.
        text: &'f str,
    },
}
