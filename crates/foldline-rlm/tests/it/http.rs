//! A model behind HTTP: what it is sent, and what its answers and failures become.

use std::time::Duration;

use foldline::wire::Format;
use foldline::{Message, Role};
use foldline_rlm::{Endpoint, HttpModel, Model, ModelErrorKind, Question, Speech};
use serde_json::json;

use crate::server::{Reply, Server};

const FORMATS: [Format; 3] = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];

async fn ask(model: &dyn Model) -> Result<foldline_rlm::Answer, foldline_rlm::ModelError> {
    let messages = [Message::text(Role::User, "hello")];
    model.answer(&Question { system: "be brief", messages: &messages, tools: &[], max_output: 77 }).await
}

#[tokio::test]
async fn all_three_apis_are_spoken_with_their_keys() {
    let server = Server::start(|seen| match seen.number % 2 {
        0 => Reply::text("hi"),
        _ => Reply::call("grep", json!({"pattern": "x"})),
    })
    .await;
    for format in FORMATS {
        let model = server.model(format, 8_000, Speech::Calls);
        let said = ask(&*model).await.unwrap();
        assert_eq!((said.text.as_str(), said.usage.unwrap().input), ("hi", 100), "{format:?}");
        let called = ask(&*model).await.unwrap();
        assert_eq!((&*called.calls[0].name, called.calls[0].arguments.as_str()), ("grep", r#"{"pattern":"x"}"#));
        let seen = server.asked().last().unwrap().clone();
        assert_eq!((seen.format, seen.max_output, seen.system().as_str()), (format, 77, "be brief"));
        let key = match format {
            Format::Anthropic => &seen.headers["x-api-key"],
            _ => &seen.headers["authorization"],
        };
        assert!(key.to_str().unwrap().ends_with("sk-test"));
    }
}

#[tokio::test]
async fn failures_are_told_apart_by_what_can_be_done_about_them() {
    let replies = [
        (500, "it broke"),
        (429, r#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#),
        (401, r#"{"error":{"message":"wrong key"}}"#),
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.","code":"context_length_exceeded"}}"#,
        ),
        (200, "<html>not a model</html>"),
        (400, r#"{"error":{"message":"请求的上下文长度超过模型限制","code":"context_length_exceeded"}}"#),
    ];
    let server = Server::start(move |seen| match replies[seen.number] {
        (200, body) => Reply::Raw(body.into()),
        (status, body) => Reply::Status(status, body.into()),
    })
    .await;
    let model = server.chat(8_000);
    let mut kinds = Vec::new();
    for _ in 0..replies.len() {
        kinds.push(ask(&*model).await.unwrap_err().kind);
    }
    assert!(matches!(kinds[0], ModelErrorKind::Busy(None)), "{kinds:?}");
    assert!(matches!(kinds[1], ModelErrorKind::Busy(_)), "{kinds:?}");
    assert!(matches!(kinds[2], ModelErrorKind::Refused), "{kinds:?}");
    assert!(
        matches!(kinds[3], ModelErrorKind::Overflow(overflow) if overflow.limit_tokens == Some(4_096)),
        "{kinds:?}"
    );
    assert!(matches!(kinds[4], ModelErrorKind::Unreadable), "{kinds:?}");
    assert!(matches!(kinds[5], ModelErrorKind::Overflow(_)), "{kinds:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_and_a_wrong_address_is_told_at_once() {
    let endpoint = |base: &str| Endpoint {
        format: Format::OpenAiChat,
        base: base.into(),
        model: "m".into(),
        key: None,
        headers: Vec::new(),
    };
    // A port that was just free: nobody listens.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let model = HttpModel::new(endpoint(&format!("http://127.0.0.1:{port}/v1/"))).unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(20), ask(&model)).await.unwrap();
    assert_eq!(asked.unwrap_err().kind, ModelErrorKind::Unreachable);
    assert!(HttpModel::new(endpoint("not an address")).is_err());
}
