//! A growing conversation in a client's own message type.
//!
//! No fold is decided here: [`FoldSession`] decides, and only the messages that it folds are written again.

use foldline::engine::{RenderedMessage, StoreError};
use foldline::tokens::Tokens;
use foldline::{Conversation, FoldOptions, FoldSession, OriginalStore};

use crate::client_message::{CallNames, ClientMessage};
use crate::error::Error;

/// A growing conversation whose messages are of a client's type.
///
/// Add every message with [`push`](ClientSession::push), and send what
/// [`request_messages`](ClientSession::request_messages) returns.
#[derive(Clone, Debug)]
pub struct ClientSession<C> {
    session: FoldSession,
    messages: Vec<C>,
    /// The messages of the last request.
    sent: Vec<C>,
    /// Number of messages that were rendered for the last request; 0 if they have to be rendered again.
    rendered_messages: usize,
}

impl<C: ClientMessage> ClientSession<C> {
    /// Creates a session for a model of the built-in table, with at most `budget` tokens per request. Markers carry
    /// handles, which [`FoldSession::unfold`] restores; declare [`FoldSession::UNFOLD_TOOL`] to the model.
    pub fn for_model(model: &str, budget: Tokens) -> Self {
        Self::new(FoldOptions::for_model(model, budget))
    }

    /// Creates a session with an empty conversation.
    pub fn new(options: FoldOptions) -> Self {
        Self { session: FoldSession::new(options), messages: Vec::new(), sent: Vec::new(), rendered_messages: 0 }
    }

    /// Adds a message.
    ///
    /// # Errors
    ///
    /// If the value is not a message; it is not added then.
    pub fn push(&mut self, message: C) -> Result<(), Error> {
        self.session.push(message.read()?);
        self.messages.push(message);
        Ok(())
    }

    /// Returns all messages that were added.
    pub fn messages(&self) -> &[C] {
        &self.messages
    }

    /// Decides what to send now, and returns the messages of the request. Call it before each call to the model.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Engine`](crate::ErrorKind::Engine) with [`CannotFit`](foldline::ErrorKind::CannotFit) if the
    /// conversation cannot be folded to the budget.
    pub fn request_messages(&mut self) -> Result<&[C], Error> {
        self.session.plan_request()?;
        let from = self.session.take_first_changed().min(self.rendered_messages);
        if from < self.rendered_messages {
            self.sent.truncate(self.session.rendered_position(from));
        }
        let rendered = self.session.rendered_with_edits(from).into_iter().zip(self.session.rendered_messages(from));
        // After an error everything is rendered again.
        self.rendered_messages = 0;
        let mut newest = Vec::new();
        for (source, message) in rendered {
            match source {
                RenderedMessage::Message { index, edits } if edits.is_empty() => {
                    newest.push(self.messages[index].clone());
                }
                RenderedMessage::Message { index, .. } => newest.push(self.messages[index].folded(&message)?),
                RenderedMessage::Note { .. } => newest.extend(C::write(&message, &CallNames::default())?),
            }
        }
        self.sent.append(&mut newest);
        self.rendered_messages = self.messages.len();
        Ok(&self.sent)
    }

    /// Returns the session that decides: its tokens, its originals, and the answers to calls of the unfold tool.
    pub fn session(&self) -> &FoldSession {
        &self.session
    }

    /// Sets the overhead of the requests from now on, see [`FoldSession::set_overhead_of`].
    pub fn set_overhead_of(&mut self, conversation: &Conversation<'_>) {
        self.session.set_overhead_of(conversation);
    }

    /// Writes the originals of all folds to a store, see [`FoldSession::store_originals`].
    ///
    /// # Errors
    ///
    /// The error of the store.
    pub fn store_originals(&self, store: &dyn OriginalStore) -> Result<(), StoreError> {
        self.session.store_originals(store)
    }
}
