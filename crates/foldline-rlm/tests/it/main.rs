//! The summariser and the cascade, against a scripted model server on loopback that speaks the three APIs.

#![expect(clippy::unwrap_used, reason = "they are tests")]

mod abort;
mod cascade;
mod far_beyond;
mod http;
mod prepared;
mod properties;
mod routing;
mod server;
mod summariser;
