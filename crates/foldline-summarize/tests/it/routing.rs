//! Routing: decides whether a model is called for a tool output.

use foldline::conversation::ToolCall;
use foldline_summarize::{
    OutputRoute, RouteMode, RouteThresholds, Summarizer, SummaryAuthor, SummaryLimits, SummaryOutcome, ToolOutput,
};

use crate::server::{ModelServer, ScriptedReply};

const GOAL: &str = "compare the prices of the three shops";
const GOOD_SUMMARY: &str =
    "Goal: compare the prices of three shops. The page lists shop_17 at 1299 and shop_18 at 1305.";

fn tool_call(name: &'static str) -> ToolCall<'static> {
    ToolCall::new("c", name, "{}")
}

fn shop_page() -> String {
    (0..400).map(|at| format!("shop_{at} sells it for {}\n", 1_197 + at * 6)).collect()
}

async fn route_page(
    server: &ModelServer,
    mode: RouteMode,
    tool: &'static str,
    window: u64,
) -> (OutputRoute, Option<String>) {
    let limits = SummaryLimits { retries: 0, ..SummaryLimits::default() };
    let summarizer = Summarizer::new(server.chat_model(16_000)).with_limits(limits);
    let (call, text) = (tool_call(tool), shop_page());
    let output = ToolOutput { call: &call, text: &text, goal: GOAL, rest_tokens: 100, window_tokens: window };
    let (route, summary) = summarizer.route_output(&output, mode, RouteThresholds::default(), &|_| ()).await;
    let summary = summary.inspect(|result| {
        assert_eq!((&result.outcome, result.author), (&SummaryOutcome::Converged, SummaryAuthor::Model))
    });
    (route, summary.map(|summary| summary.text))
}

fn start_writing_server() -> impl Future<Output = ModelServer> {
    // The page contains 1299 and 1305, with shop_17 and shop_18.
    ModelServer::start(|_| ScriptedReply::final_call(GOOD_SUMMARY))
}

#[tokio::test]
async fn mode_off_calls_no_model() {
    let server = start_writing_server().await;
    assert_eq!(route_page(&server, RouteMode::Off, "browse_page", 1_000).await, (OutputRoute::Off, None));
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn exact_output_is_not_sent_to_a_model() {
    let server = start_writing_server().await;
    for tool in ["read_file", "grep", "bash"] {
        for mode in [RouteMode::Auto, RouteMode::Always] {
            assert_eq!(route_page(&server, mode, tool, 4_000).await, (OutputRoute::Exact, None), "{tool}");
        }
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn only_large_output_is_summarized() {
    let server = start_writing_server().await;
    assert_eq!(route_page(&server, RouteMode::Auto, "browse_page", 100_000).await, (OutputRoute::Small, None));
    assert_eq!(server.requests().len(), 0);
    assert_eq!(
        route_page(&server, RouteMode::Auto, "browse_page", 8_000).await,
        (OutputRoute::Large, Some(GOOD_SUMMARY.to_owned()))
    );
    assert_eq!(
        route_page(&server, RouteMode::Always, "browse_page", 100_000).await,
        (OutputRoute::Always, Some(GOOD_SUMMARY.to_owned()))
    );
    assert_eq!(server.requests().len(), 2);
}
