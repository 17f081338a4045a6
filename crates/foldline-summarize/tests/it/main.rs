//! The summarizer and the cascade, against a scripted model server on loopback in the three API formats.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

mod abort;
mod cascade;
mod http;
mod large_text;
mod prepared;
mod properties;
mod routing;
mod server;
mod summarizer;
