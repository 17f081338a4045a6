//! Conversions for types that serialize to a provider's JSON.
//!
//! Reading and writing go through the JSON of the dialect. A typed message drops fields that it does not know, so what
//! was written is compared with what the type kept.

use foldline::Message;
use foldline::conversation::OwnedMessage;
use foldline::wire::Format;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;

/// Returns a message in the neutral form: [`ClientMessage::read`](crate::ClientMessage::read) for such types.
///
/// # Errors
///
/// If the value does not serialize to a message of the dialect.
pub fn read<T: Serialize>(format: Format, message: &T) -> Result<OwnedMessage, Error> {
    let mut messages = format.read_messages(&[message])?;
    match (messages.pop(), messages.is_empty()) {
        (Some(message), true) => Ok(message),
        _ => Err(Error::inexpressible("a value that is not one message")),
    }
}

/// Returns a neutral message in a type: [`ClientMessage::write`](crate::ClientMessage::write) for such types.
///
/// # Errors
///
/// [`ErrorKind::Inexpressible`](crate::ErrorKind::Inexpressible) if the dialect or the type has no form for a part.
pub fn write<T: Serialize + DeserializeOwned>(format: Format, message: &Message<'_>) -> Result<Vec<T>, Error> {
    let written: Vec<Value> = format.write_messages([message])?;
    written.into_iter().map(typed).collect()
}

/// Returns a message with the parts of a folded one:
/// [`ClientMessage::folded`](crate::ClientMessage::folded) for such types.
///
/// # Errors
///
/// [`ErrorKind::Inexpressible`](crate::ErrorKind::Inexpressible) if the dialect or the type has no form for a part.
pub fn folded<T: Serialize + DeserializeOwned>(format: Format, message: &T, folded: &Message<'_>) -> Result<T, Error> {
    let mut written: Vec<Value> = format.write_messages([folded])?;
    let original = serde_json::to_value(message).map_err(Error::inexpressible)?;
    match (original, written.pop(), written.is_empty()) {
        // Fields of the folded parts replace those of the message; all others are kept.
        (Value::Object(mut fields), Some(Value::Object(folded)), true) => {
            fields.extend(folded);
            typed(Value::Object(fields))
        }
        _ => Err(Error::inexpressible("a folded message that is not one message")),
    }
}

/// Converts JSON to a type that must keep every field of it.
fn typed<T: Serialize + DeserializeOwned>(json: Value) -> Result<T, Error> {
    let typed: T = serde_json::from_value(json.clone()).map_err(Error::inexpressible)?;
    let kept = serde_json::to_value(&typed).map_err(Error::inexpressible)?;
    match lost_field(&json, &kept) {
        Some(field) => Err(Error::inexpressible(format_args!("the field `{field}`"))),
        None => Ok(typed),
    }
}

/// Returns the name of a field with a value that a type did not keep.
fn lost_field(written: &Value, kept: &Value) -> Option<String> {
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => written
            .iter()
            .filter(|(_, value)| !value.is_null())
            .find_map(|(key, value)| kept.get(key).map_or(Some(key.clone()), |kept| lost_field(value, kept))),
        (Value::Array(written), Value::Array(kept)) => {
            written.iter().zip(kept).find_map(|(written, kept)| lost_field(written, kept))
        }
        _ => None,
    }
}
