//! The proxy on a real port, between a real client and a scripted upstream: what did the upstream
//! receive, and what did the client?

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that can not go on fails, and says so")]

mod body_budget;
mod connections;
mod fold;
mod handles;
mod hidden_rounds;
mod known_failures;
mod learned;
mod overflow;
mod passthrough;
#[path = "../../../foldline-archive/tests/it/small_disk.rs"]
mod small_disk;
mod stored_responses;
mod summaries;
mod support;
mod tenants;
mod unfold_tool;
mod upstream_errors;
