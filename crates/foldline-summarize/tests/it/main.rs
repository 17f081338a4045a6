//! The summariser and the cascade, against a scripted model server on loopback that speaks the three APIs.

#![expect(clippy::unwrap_used, reason = "they are tests")]

mod abort;
mod cascade;
mod http;
mod large_text;
mod prepared;
mod properties;
mod routing;
mod server;
mod summarizer;
