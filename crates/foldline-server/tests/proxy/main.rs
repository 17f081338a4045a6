//! The proxy on a real port, between a real client and a scripted upstream. Tests assert on what the upstream and the
//! client received.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot continue must fail")]

mod bedrock;
mod bedrock_signing;
mod body_budget;
mod cache_diagnostics;
mod connections;
mod dashboard;
#[cfg(feature = "postgres")]
mod database_outages;
mod fold;
mod fold_api;
mod gateway_certificates;
mod gemini;
mod handles;
mod hidden_rounds;
mod known_failures;
mod learned;
mod named_upstreams;
mod observe_share;
mod ollama;
mod outbound;
mod overflow;
mod passthrough;
mod real_clients;
mod replicas;
mod resending;
mod slow_clients;
#[path = "../../../foldline-archive/tests/it/small_disk.rs"]
mod small_disk;
mod stored_responses;
mod stores;
mod summaries;
mod support;
mod tenants;
mod tool_limits;
#[cfg(feature = "otlp")]
mod traces;
mod unfold_tool;
mod upstream_errors;
mod web_pages;
