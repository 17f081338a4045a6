//! Messages in the JSON of their own dialect, for engines in other processes.

use std::borrow::Cow;

use foldline::wire::{Format, MessageWriter, Request};
use foldline::{Message, Part, Role};
use serde_json::value::RawValue;

use crate::text::part_text;

/// First character of the ids of calls that a dialect leaves without one.
const SYNTHETIC_ID_MARK: char = '#';
/// Prefix under which engines see such ids, so that messages can be read one by one.
const ESCAPED_ID_PREFIX: &str = "~#";

/// Writes messages for an engine.
pub(crate) struct EngineMessages {
    format: Format,
    writer: MessageWriter,
}

impl EngineMessages {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, writer: MessageWriter::new(format) }
    }

    /// Returns a message as JSON. Parts that the dialect has no form for are written as texts.
    pub(crate) fn write(&mut self, message: &Message<'_>) -> Result<Vec<Box<RawValue>>, foldline::Error> {
        let message = with_ids(message, &|id| match id.strip_prefix(SYNTHETIC_ID_MARK) {
            Some(rest) => format!("{ESCAPED_ID_PREFIX}{rest}").into(),
            None => id.to_owned().into(),
        });
        self.writer.write(&message).or_else(|_| self.writer.write(&simplified(message)))
    }

    /// Reads messages that an engine returned.
    pub(crate) fn read(&self, messages: &[&RawValue]) -> Result<Vec<Message<'static>>, foldline::Error> {
        let texts: Vec<&str> = messages.iter().map(|message| message.get()).collect();
        let body = format!("[{}]", texts.join(","));
        let request = Request::parse(self.format, body.as_bytes())?;
        let unescaped = |id: &str| match id.strip_prefix(ESCAPED_ID_PREFIX) {
            Some(rest) => format!("{SYNTHETIC_ID_MARK}{rest}").into(),
            None => id.to_owned().into(),
        };
        Ok(request.conversation().messages.iter().map(|message| with_ids(message, &unescaped)).collect())
    }
}

/// Returns a message with the ids of its calls and results mapped.
fn with_ids(message: &Message<'_>, map: &dyn Fn(&str) -> Cow<'static, str>) -> Message<'static> {
    let mut message = message.clone().into_owned();
    for part in &mut message.parts {
        match part {
            Part::ToolCall(call) => call.id = map(&call.id),
            Part::ToolResult(result) => result.call_id = map(&result.call_id),
            _ => {}
        }
    }
    message
}

/// Returns a message that every dialect can express: media are named, and reasoning has no seal.
fn simplified(mut message: Message<'static>) -> Message<'static> {
    if message.role == Role::Other {
        message.role = Role::User;
    }
    for part in &mut message.parts {
        match part {
            Part::Reasoning(reasoning) => reasoning.seal = None,
            Part::ToolResult(result) => result.content.iter_mut().for_each(name_media),
            part => name_media(part),
        }
    }
    message
}

fn name_media(part: &mut Part<'static>) {
    if matches!(part, Part::Image(_) | Part::File(_)) {
        *part = Part::text(part_text(part).unwrap_or_default().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::conversation::{ImagePart, ReasoningPart};

    fn round_trip(format: Format, messages: &[Message<'static>]) -> Vec<Message<'static>> {
        let mut engine_messages = EngineMessages::new(format);
        let written: Vec<_> =
            messages.iter().flat_map(|message| engine_messages.write(message).expect("writable")).collect();
        let written: Vec<&RawValue> = written.iter().map(|json| &**json).collect();
        engine_messages.read(&written).expect("readable")
    }

    /// Messages come back the same, so that an engine which changes nothing is recognized.
    #[test]
    fn messages_round_trip_in_their_own_dialect() {
        let messages = |results: Role| {
            let sealed = ReasoningPart { text: "hm".into(), seal: Some("s".into()), redacted: false };
            let thought = if results == Role::User { Part::Reasoning(sealed) } else { Part::reasoning("hm") };
            [
                Message::text(Role::User, "u"),
                Message::new(Role::Assistant, vec![thought, Part::text("a"), Part::call("#sh.0", "sh", "{\"x\":1}")]),
                Message::new(results, vec![Part::result("#sh.0", "out\nput")]),
            ]
        };
        for (format, role) in
            [(Format::OpenAiChat, Role::Tool), (Format::Anthropic, Role::User), (Format::Gemini, Role::User)]
        {
            assert_eq!(round_trip(format, &messages(role)), messages(role), "{format:?}");
        }
    }

    #[test]
    fn inexpressible_parts_become_texts() {
        let message = Message::new(Role::User, vec![Part::Image(ImagePart::default()), Part::text("see")]);
        let again = round_trip(Format::Anthropic, &[message]);
        assert_eq!(again, [Message::new(Role::User, vec![Part::text("[image]"), Part::text("see")])]);
    }
}
