//! Message types of async-openai: Chat Completions and Responses.

use async_openai::types::chat::ChatCompletionRequestMessage;
use async_openai::types::responses::InputItem;
use foldline::Message;
use foldline::conversation::OwnedMessage;
use foldline::wire::Format;

use crate::client_message::{CallNames, ClientMessage};
use crate::error::Error;
use crate::json_form;

impl ClientMessage for ChatCompletionRequestMessage {
    fn read(&self) -> Result<OwnedMessage, Error> {
        json_form::read(Format::OpenAiChat, self)
    }

    fn write(message: &Message<'_>, _: &CallNames) -> Result<Vec<Self>, Error> {
        json_form::write(Format::OpenAiChat, message)
    }

    fn folded(&self, folded: &Message<'_>) -> Result<Self, Error> {
        json_form::folded(Format::OpenAiChat, self, folded)
    }
}

impl ClientMessage for InputItem {
    fn read(&self) -> Result<OwnedMessage, Error> {
        json_form::read(Format::OpenAiResponses, self)
    }

    fn write(message: &Message<'_>, _: &CallNames) -> Result<Vec<Self>, Error> {
        json_form::write(Format::OpenAiResponses, message)
    }

    fn folded(&self, folded: &Message<'_>) -> Result<Self, Error> {
        json_form::folded(Format::OpenAiResponses, self, folded)
    }
}
