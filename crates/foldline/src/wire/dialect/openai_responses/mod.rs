//! The OpenAI Responses dialect.

pub(crate) mod intercept;
pub(crate) mod item_tracker;
pub(crate) mod request;
pub(crate) mod response;
