//! Routing: whether a model is asked about what a tool gave back.

use foldline::{CallArguments, ToolCall};
use foldline_rlm::{Author, Limits, Mode, Outcome, Output, Route, Summariser, Thresholds};

use crate::server::{Reply, Server};

const GOAL: &str = "compare the prices of the three shops";
const GOOD: &str = "Goal: compare the prices of three shops. The page lists shop_17 at 1299 and shop_18 at 1305.";

fn call(name: &'static str) -> ToolCall<'static> {
    ToolCall { id: "c".into(), name: name.into(), arguments: CallArguments::Json("{}".into()) }
}

fn page() -> String {
    (0..400).map(|at| format!("shop_{at} sells it for {}\n", 1_197 + at * 6)).collect()
}

async fn routed(server: &Server, mode: Mode, tool: &'static str, window: u64) -> (Route, Option<String>) {
    let limits = Limits { retries: 0, ..Limits::default() };
    let summariser = Summariser::new(server.chat(16_000)).with_limits(limits);
    let (call, text) = (call(tool), page());
    let output = Output { call: &call, text: &text, goal: GOAL, rest: 100, window };
    let (route, summary) = summariser.route(&output, mode, Thresholds::default(), &|_| ()).await;
    let summary = summary.inspect(|it| assert_eq!((&it.outcome, it.author), (&Outcome::Converged, Author::Model)));
    (route, summary.map(|summary| summary.text))
}

fn writer() -> impl Future<Output = Server> {
    // 1299 and 1305 stand in the page, with shop_17 and shop_18.
    Server::start(|_| Reply::hand_in(GOOD))
}

#[tokio::test]
async fn mode_off_calls_no_model() {
    let server = writer().await;
    assert_eq!(routed(&server, Mode::Off, "browse_page", 1_000).await, (Route::Off, None));
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn exact_content_reaches_the_agent_as_it_is_and_no_model() {
    let server = writer().await;
    for tool in ["read_file", "grep", "bash"] {
        for mode in [Mode::Auto, Mode::Always] {
            assert_eq!(routed(&server, mode, tool, 4_000).await, (Route::Exact, None), "{tool}");
        }
    }
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn large_output_is_summarised_and_small_output_is_not() {
    let server = writer().await;
    assert_eq!(routed(&server, Mode::Auto, "browse_page", 100_000).await, (Route::Small, None));
    assert_eq!(server.asked().len(), 0);
    assert_eq!(routed(&server, Mode::Auto, "browse_page", 8_000).await, (Route::Large, Some(GOOD.to_owned())));
    assert_eq!(routed(&server, Mode::Always, "browse_page", 100_000).await, (Route::Asked, Some(GOOD.to_owned())));
    assert_eq!(server.asked().len(), 2);
}
