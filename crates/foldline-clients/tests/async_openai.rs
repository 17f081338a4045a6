//! Messages of async-openai: round trips, and a conversation that is folded.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use async_openai::types::chat::ChatCompletionRequestMessage;
use async_openai::types::responses::InputItem;
use foldline::engine::marker;
use foldline::{Message, Part, Role};
use foldline_clients::{ClientMessage, ClientSession, ErrorKind, read_messages, write_messages};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn typed<C: DeserializeOwned>(json: Value) -> C {
    serde_json::from_value(json.clone()).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn to_json<C: Serialize>(message: &C) -> Value {
    serde_json::to_value(message).unwrap()
}

/// Texts, images, parallel calls, results of texts and of blocks.
fn chat_messages() -> Vec<ChatCompletionRequestMessage> {
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "read", "arguments": r#"{ "path": "a.rs" }"# } });
    let image =
        json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low" } });
    [
        json!({ "role": "system", "content": "be brief" }),
        json!({ "role": "developer", "content": "and exact" }),
        json!({ "role": "user", "content": [{ "type": "text", "text": "what is this?" }, image] }),
        json!({ "role": "assistant", "content": "I look.", "tool_calls": [call("c1"), call("c2")] }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": "fn a() {}" }),
        json!({ "role": "tool", "tool_call_id": "c2", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] }),
        json!({ "role": "assistant", "content": "It is a function." }),
    ]
    .map(typed)
    .to_vec()
}

fn response_items() -> Vec<InputItem> {
    [
        json!({ "type": "message", "role": "user", "content": [
            { "type": "input_text", "text": "what is this?" },
            { "type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low" },
        ] }),
        json!({ "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": "hm" }], "encrypted_content": "sealed" }),
        json!({ "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}", "status": "completed" }),
        json!({ "type": "function_call_output", "call_id": "c1", "output": "fn a() {}" }),
        json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
            { "type": "output_text", "text": "It is a function.", "annotations": [] },
        ] }),
    ]
    .map(typed)
    .to_vec()
}

#[test]
fn chat_messages_round_trip_with_calls_and_images() {
    let client = chat_messages();
    let messages = read_messages(&client).unwrap();
    assert_eq!(messages[3].calls().count(), 2);
    assert!(matches!(messages[2].parts[1], Part::Image(_)));
    assert_eq!(messages[5].results().next().unwrap().texts().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(write_messages::<ChatCompletionRequestMessage>(&messages).unwrap(), client);
}

#[test]
fn response_items_are_read_with_reasoning_and_images() {
    let messages = read_messages(&response_items()).unwrap();
    assert!(matches!(messages[0].parts[1], Part::Image(_)));
    assert!(matches!(&messages[1].parts[0], Part::Reasoning(part) if part.seal.as_deref() == Some("sealed")));
    assert_eq!(messages[2].calls().next().unwrap().id, "c1");
    let written: Vec<InputItem> = write_messages(&messages).unwrap();
    assert_eq!(read_messages(&written).unwrap(), messages);
}

#[test]
fn reasoning_without_a_field_is_an_error() {
    let message = Message::new(Role::Assistant, vec![Part::reasoning("hm"), Part::text("yes")]);
    let error = write_messages::<ChatCompletionRequestMessage>([&message]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Inexpressible);
    assert!(error.to_string().contains("reasoning"), "{error}");
}

/// Sends a request after every round, and returns the messages of all requests.
fn folded_conversation<C: ClientMessage + Serialize + std::fmt::Debug + PartialEq>(
    task: C,
    round: impl Fn(usize) -> Vec<C>,
) -> Vec<C> {
    let mut session = ClientSession::for_model("gpt-4o", 4_000);
    session.push(task.clone()).unwrap();
    let (mut handles, mut all) = (Vec::new(), Vec::new());
    for at in 0..40 {
        round(at).into_iter().for_each(|message| session.push(message).unwrap());
        let sent = session.request_messages().unwrap().to_vec();
        assert_eq!(sent[0], task);
        assert_eq!(sent.last(), session.messages().last(), "the newest result is whole");
        assert!(session.session().tokens() <= 4_000);
        handles.extend(marker::handles(&to_json(&sent).to_string()));
        // What is sent step by step is what a new session sends at once.
        if at == 39 {
            let mut whole = ClientSession::for_model("gpt-4o", 4_000);
            session.messages().iter().for_each(|message| whole.push(message.clone()).unwrap());
            assert_eq!(whole.request_messages().unwrap(), sent);
        }
        all.extend(sent);
    }
    assert!(handles.len() > 10);
    for handle in handles {
        assert!(session.session().unfold(handle).is_some(), "{handle}");
    }
    all
}

fn source_text(at: usize) -> String {
    (0..30).map(|line| format!("let value_{at}_{line} = parse({line});\n")).collect()
}

#[test]
fn chat_conversation_is_folded_in_the_types_of_the_client() {
    let sent = folded_conversation::<ChatCompletionRequestMessage>(
        typed(json!({ "role": "user", "name": "ada", "content": "read them all" })),
        |at| {
            let function = json!({ "name": "read", "arguments": format!(r#"{{"path":"{at}.rs"}}"#) });
            let call = json!({ "id": format!("c{at}"), "type": "function", "function": function });
            let text = source_text(at);
            vec![
                typed(json!({ "role": "assistant", "name": "bot", "content": "Next.", "tool_calls": [call] })),
                typed(json!({ "role": "tool", "tool_call_id": format!("c{at}"), "content": text })),
            ]
        },
    );
    // Fields that the neutral message does not have are kept, also in messages with folds.
    for message in sent.iter().map(to_json).filter(|message| message["role"] == "assistant") {
        assert_eq!(message["name"], "bot", "{message}");
    }
    assert!(sent.iter().map(to_json).any(|message| {
        message["role"] == "tool" && message["content"].as_str().is_some_and(|text| text.contains("[folded: "))
    }));
}

#[test]
fn responses_conversation_is_folded_in_the_types_of_the_client() {
    let sent = folded_conversation::<InputItem>(typed(json!({ "role": "user", "content": "read them all" })), |at| {
        let arguments = format!(r#"{{"path":"{at}.rs"}}"#);
        let text = source_text(at);
        vec![
            typed(
                json!({ "type": "function_call", "id": format!("fc_{at}"), "call_id": format!("c{at}"), "name": "read", "arguments": arguments }),
            ),
            typed(json!({ "type": "function_call_output", "call_id": format!("c{at}"), "output": text })),
        ]
    });
    let calls = sent.iter().map(to_json).filter(|item| item["type"] == "function_call");
    assert!(calls.clone().count() > 0 && calls.into_iter().all(|call| call["id"].is_string()));
}

#[test]
fn conversation_that_cannot_fit_is_an_error_and_can_go_on() {
    let user = |text: &str| typed::<ChatCompletionRequestMessage>(json!({ "role": "user", "content": text }));
    let mut session = ClientSession::for_model("gpt-4o", 500);
    session.push(user(&"far too long ".repeat(900))).unwrap();
    let error = session.request_messages().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Engine(foldline::ErrorKind::CannotFit { .. })), "{error}");
}
