//! A conversation that grows message by message, for whoever holds it in memory.
//!
//! It decides nothing by itself: every decision is the state's, so that a folder and the fold of the whole
//! conversation give the same bytes.

use std::borrow::Cow;

use crate::clock::Clock;
use crate::conversation::{Message, Role};
use crate::error::Error;
use crate::fold::{Before, Crease, State};
use crate::folds::Rendered;
use crate::handle::Handle;
use crate::keep::{Keep, KeepError};
use crate::measure::Tokens;
use crate::setup::{Ledger, Setup};
use crate::wire::Edit;

/// A conversation that grows, and its rendering.
///
/// Give it every message with [`push`](Folder::push), and ask with [`request`](Folder::request) before each call to the model. It
/// gives the same rendering as [`fold`](crate::fold()) of the whole conversation.
#[derive(Clone)]
pub struct Folder {
    setup: Setup,
    ledger: Ledger,
    state: State,
    messages: Vec<Message<'static>>,
    /// What was decided at a request that no answer has followed yet.
    tentative: Option<Tentative>,
    /// Messages from here on are not rendered as they were when last asked.
    changed: usize,
}

/// A decision that counts only if the model answers: a client may add messages and ask again, and
/// whoever sees only the whole conversation knows nothing of the first question.
#[derive(Clone)]
struct Tentative {
    at: usize,
    clock: Clock,
    creased: Option<(Crease, Before)>,
}

impl Folder {
    /// An empty conversation.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            ledger: Ledger::default(),
            state: State::default(),
            messages: Vec::new(),
            tentative: None,
            changed: 0,
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
                self.state.clock = it.clock;
                if let Some((crease, before)) = it.creased {
                    self.changed = self.changed.min(crease.first);
                    self.state.undo(&self.messages, &crease, before);
                }
            }
            Some(_) => {}
            // An answer to a request that this folder was not asked for. It was sent all the same.
            None if answers && at > 0 => {
                if let Some(crease) = self.state.decide_past(&self.setup, &self.ledger, &self.messages) {
                    self.changed = self.changed.min(crease.first);
                }
            }
            None => {}
        }
        self.state.ingest(&self.setup, &message);
        self.messages.push(message);
    }

    /// Decides what to send now. Tells of a crease, if this request point is one.
    pub fn request(&mut self) -> Result<Option<&Crease>, Error> {
        if self.tentative.as_ref().is_none_or(|it| it.at != self.messages.len()) {
            let clock = self.state.clock;
            let planned = self.state.plan(&self.setup, &self.ledger, &self.messages)?;
            let creased = planned.map(|(plan, reason)| {
                self.changed = self.changed.min(plan.first);
                self.state.crease(&self.setup, &self.messages, plan, reason)
            });
            self.tentative = Some(Tentative { at: self.messages.len(), clock, creased });
        }
        Ok(self.tentative.as_ref().and_then(|it| it.creased.as_ref()).map(|(crease, ..)| crease))
    }

    /// The first message that is not rendered as it was when this was last asked: what a caller that
    /// keeps the rendering has to take anew.
    pub fn take_changed(&mut self) -> usize {
        std::mem::replace(&mut self.changed, self.messages.len()).min(self.messages.len())
    }

    /// The messages as they are to be sent, from the rendering of this message on.
    pub fn rendered(&self, from: usize) -> impl Iterator<Item = Message<'static>> + '_ {
        let sequence = self.state.folds.sequence(&self.messages, from, self.setup.alternate);
        sequence.into_iter().map(|rendered| match rendered {
            Rendered::Message(at) => self.state.folds.render(at, &self.messages[at]),
            Rendered::Note(role, text) => Message::text(role, text.to_owned()),
        })
    }

    /// The rendering from that of this message on, as edits of the messages that were pushed: for
    /// whoever keeps them in a provider's own form.
    pub fn sent(&self, from: usize) -> Vec<Sent<'_>> {
        let folds = &self.state.folds;
        let sent = |rendered| match rendered {
            Rendered::Message(at) => Sent::Message { at, edits: folds.message_edits(at) },
            Rendered::Note(role, text) => Sent::Note { role, text },
        };
        folds.sequence(&self.messages, from, self.setup.alternate).into_iter().map(sent).collect()
    }

    /// Hands the originals of all that is folded to an archive. Do so before the rendering is sent, and
    /// send nothing that was folded when it fails.
    pub fn keep(&self, keep: &dyn Keep) -> Result<(), KeepError> {
        self.state.keep(&self.messages, keep)
    }

    /// The original behind a handle of the rendering.
    pub fn unfold(&self, handle: Handle) -> Option<Vec<u8>> {
        let originals = self.state.folds.originals(&self.messages);
        originals.into_iter().map(|it| it.bytes).find(|bytes| Handle::of(bytes) == handle).map(Cow::into_owned)
    }

    /// How many messages stand in the rendering before that of this message.
    pub fn position(&self, message: usize) -> usize {
        self.state.folds.sequence(&self.messages[..message], 0, self.setup.alternate).len()
    }

    /// The messages that were pushed.
    pub fn messages(&self) -> &[Message<'static>] {
        &self.messages
    }

    /// Tokens of the rendering, with all that stands beside the messages.
    pub fn tokens(&self) -> Tokens {
        self.state.rendered + self.setup.fixed
    }

    /// Tokens without any fold.
    pub fn raw_tokens(&self) -> Tokens {
        self.state.raw + self.setup.fixed
    }
}

/// One message of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent<'f> {
    /// A message that was pushed, with the edits that make it what is sent.
    Message {
        /// Which message.
        at: usize,
        /// What changes in it; nothing for most.
        edits: Vec<Edit>,
    },
    /// A message of ours, in the place of whole rounds.
    Note {
        /// Who says it.
        role: Role,
        /// What it says.
        text: &'f str,
    },
}
