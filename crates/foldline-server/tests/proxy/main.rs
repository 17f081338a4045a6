//! The proxy on a real port, between a real client and a scripted upstream: what did the upstream
//! receive, and what did the client?

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod connections;
mod failures;
mod faults;
mod fold;
mod overflow;
mod pass;
mod summaries;
mod support;
mod unfold;
