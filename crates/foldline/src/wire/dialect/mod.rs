//! Provider dialects: one folder per wire format, with the same files in each.

pub(crate) mod anthropic;
pub(crate) mod openai_chat;
pub(crate) mod openai_responses;
