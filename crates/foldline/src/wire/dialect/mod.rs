//! The dialects: one folder for each provider format, with the same files.

pub(crate) mod anthropic;
pub(crate) mod openai_chat;
pub(crate) mod openai_responses;
