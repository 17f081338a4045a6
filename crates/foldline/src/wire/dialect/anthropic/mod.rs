//! The Anthropic Messages dialect.

pub(crate) mod intercept;
pub(crate) mod request;
pub(crate) mod response;
