//! The OpenAI Chat Completions dialect.

pub(crate) mod call_tracker;
pub(crate) mod intercept;
pub(crate) mod request;
pub(crate) mod response;
