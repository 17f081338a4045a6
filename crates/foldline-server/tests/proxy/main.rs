//! The proxy on a real port, between a real client and a scripted upstream: what did the upstream
//! receive, and what did the client?

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that can not go on fails, and says so")]

mod connections;
mod failures;
mod faults;
mod fold;
mod handles;
mod held;
mod hidden_rounds;
mod learned;
mod overflow;
mod pass;
mod room;
#[path = "../../../foldline-archive/tests/it/small_disk.rs"]
mod small_disk;
mod summaries;
mod support;
mod tenants;
mod unfold;
