//! The trait that a client's message type implements, and conversions of whole lists.

use std::borrow::Borrow;
use std::collections::HashMap;

use foldline::Message;
use foldline::conversation::OwnedMessage;

use crate::error::Error;

/// A message type of a client library.
pub trait ClientMessage: Clone + Sized {
    /// Returns the message in the neutral form.
    ///
    /// # Errors
    ///
    /// If the value is not a message.
    fn read(&self) -> Result<OwnedMessage, Error>;

    /// Returns a neutral message in this type: usually one, several where results are messages of their own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Inexpressible`](crate::ErrorKind::Inexpressible) if the type has no form for a part.
    fn write(message: &Message<'_>, names: &CallNames) -> Result<Vec<Self>, Error>;

    /// Returns this message with the parts of `folded`, which is this message with some parts folded. Fields that the
    /// neutral message does not have are kept.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Inexpressible`](crate::ErrorKind::Inexpressible) if the type has no form for a part.
    fn folded(&self, folded: &Message<'_>) -> Result<Self, Error>;
}

/// Names of tools by the ids of their calls, for types whose results have them.
#[derive(Clone, Debug, Default)]
pub struct CallNames(HashMap<String, String>);

impl CallNames {
    /// Adds the calls of a message.
    pub fn add(&mut self, message: &Message<'_>) {
        self.0.extend(message.calls().map(|call| (call.id.to_string(), call.name.to_string())));
    }

    /// Returns the name of the tool that was called with this id.
    pub fn get(&self, call_id: &str) -> Option<&str> {
        self.0.get(call_id).map(String::as_str)
    }
}

/// Returns messages of a client library in the neutral form.
///
/// # Errors
///
/// If a value is not a message.
pub fn read_messages<C: ClientMessage>(messages: &[C]) -> Result<Vec<OwnedMessage>, Error> {
    messages.iter().map(ClientMessage::read).collect()
}

/// Returns neutral messages in the type of a client library.
///
/// # Errors
///
/// [`ErrorKind::Inexpressible`](crate::ErrorKind::Inexpressible) if the type has no form for a part. Reasoning and opaque
/// blocks belong to the provider that wrote them: remove them before the messages go to another one.
pub fn write_messages<'m, C: ClientMessage>(
    messages: impl IntoIterator<Item: Borrow<Message<'m>>>,
) -> Result<Vec<C>, Error> {
    let mut names = CallNames::default();
    let mut written = Vec::new();
    for message in messages {
        let message = message.borrow();
        names.add(message);
        written.extend(C::write(message, &names)?);
    }
    Ok(written)
}
