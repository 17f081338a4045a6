//! A model over HTTP: its requests, and the mapping of responses and failures.

use std::time::Duration;

use foldline::wire::Format;
use foldline::{Message, Role};
use foldline_summarize::{HttpModel, LanguageModel, ModelEndpoint, ModelErrorKind, ModelRequest, ToolStyle};
use serde_json::json;

use crate::server::{ModelServer, ScriptedReply};

const FORMATS: [Format; 3] = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];

async fn send_request(
    model: &dyn LanguageModel,
) -> Result<foldline_summarize::ModelResponse, foldline_summarize::ModelError> {
    let messages = [Message::text(Role::User, "hello")];
    model.complete(&ModelRequest { system: "be brief", messages: &messages, tools: &[], max_output: 77 }).await
}

#[tokio::test]
async fn requests_follow_all_three_apis() {
    let server = ModelServer::start(|seen| match seen.index % 2 {
        0 => ScriptedReply::text("hi"),
        _ => ScriptedReply::call("grep", json!({"pattern": "x"})),
    })
    .await;
    for format in FORMATS {
        let model = server.model(format, 8_000, ToolStyle::Calls);
        let answer = send_request(&*model).await.unwrap();
        assert_eq!((answer.text.as_str(), answer.usage.unwrap().input), ("hi", 100), "{format:?}");
        let called = send_request(&*model).await.unwrap();
        assert_eq!((&*called.calls[0].name, called.calls[0].arguments.as_str()), ("grep", r#"{"pattern":"x"}"#));
        let seen = server.requests().last().unwrap().clone();
        assert_eq!((seen.format, seen.max_output, seen.system().as_str()), (format, 77, "be brief"));
        let key = match format {
            Format::Anthropic => &seen.headers["x-api-key"],
            _ => &seen.headers["authorization"],
        };
        assert!(key.to_str().unwrap().ends_with("sk-test"));
    }
}

#[tokio::test]
async fn failures_are_classified_by_remedy() {
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
    let server = ModelServer::start(move |seen| match replies[seen.index] {
        (200, body) => ScriptedReply::Raw(body.into()),
        (status, body) => ScriptedReply::Status(status, body.into()),
    })
    .await;
    let model = server.chat_model(8_000);
    let mut kinds = Vec::new();
    for _ in 0..replies.len() {
        kinds.push(send_request(&*model).await.unwrap_err().kind);
    }
    assert!(matches!(kinds[0], ModelErrorKind::Busy(None)), "{kinds:?}");
    assert!(matches!(kinds[1], ModelErrorKind::Busy(_)), "{kinds:?}");
    assert!(matches!(kinds[2], ModelErrorKind::Refused), "{kinds:?}");
    assert!(
        matches!(kinds[3], ModelErrorKind::Overflow(overflow) if overflow.limit_tokens == Some(4_096)),
        "{kinds:?}"
    );
    assert!(matches!(kinds[4], ModelErrorKind::InvalidResponse), "{kinds:?}");
    assert!(matches!(kinds[5], ModelErrorKind::Overflow(_)), "{kinds:?}");
}

#[tokio::test]
async fn unreachable_server_and_invalid_address_are_errors() {
    let endpoint = |base: &str| ModelEndpoint {
        format: Format::OpenAiChat,
        base_url: base.into(),
        model: "m".into(),
        api_key: None,
        headers: Vec::new(),
    };
    // A port that was just free, so no server listens on it.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let model = HttpModel::new(endpoint(&format!("http://127.0.0.1:{port}/v1/"))).unwrap();
    let response = tokio::time::timeout(Duration::from_secs(20), send_request(&model)).await.unwrap();
    assert_eq!(response.unwrap_err().kind, ModelErrorKind::Unreachable);
    assert!(HttpModel::new(endpoint("not an address")).is_err());
}
