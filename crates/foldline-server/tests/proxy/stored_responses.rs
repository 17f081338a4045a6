//! Responses stored by the provider, from which clients continue by id: the hidden tool in a chain of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldline::wire::{Format, Request};
use foldline::{Message, Role};
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply};
use crate::unfold_tool::{
    ReplyCall, parse_stream, sent_messages, small_window_settings, streamed_reply, streaming_body, was_answered,
};

/// The provider stores the response, and the client continues from its id with the results of its own calls: the hidden
/// call is answered, too, or the provider would refuse.
#[tokio::test]
async fn hidden_call_in_stored_response_is_answered_on_continuation() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let reply = move |received: &ReceivedRequest| match String::from_utf8_lossy(&received.body)
        .contains("previous_response_id")
    {
        false => streamed_reply(format, "Both. ", &[ReplyCall::unfold(received), ReplyCall::client_tool()]),
        true => streamed_reply(format, "Done.", &[]),
    };
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    let first = streaming_body(format, &agent_messages(format, 40)).replace(r#""store":false"#, r#""store":true"#);
    let got = harness.post(endpoint(format), first).await;
    let calls: Vec<String> = parse_stream(format, &got.body).calls().map(|call| call.name.to_string()).collect();
    assert_eq!(calls, ["read_file"]);
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    let next = json!({ "model": "gpt-4o", "stream": true, "previous_response_id": "r", "input": [output] }).to_string();
    // Another proxy on the same archive has the same facts.
    let other = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    for harness in [&harness, &other] {
        let got = harness.post(endpoint(format), next.clone()).await;
        assert_eq!(parse_stream(format, &got.body).text(), "Done.");
        let sent = harness.received().last().unwrap().clone();
        let messages = sent_messages(format, &sent);
        let results: Vec<_> = messages.iter().flat_map(|message| message.results()).collect();
        let ids: Vec<&str> = results.iter().map(|result| result.call_id.as_ref()).collect();
        assert_eq!(ids, ["call_hidden", "call_shell"]);
        assert!(results[0].texts().any(|text| text.contains("let value_")));
    }
    let unrelated = next.replace(r#""r""#, r#""another""#);
    harness.post(endpoint(format), unrelated.clone()).await;
    assert_eq!(harness.received().last().unwrap().body, unrelated, "nothing is missing there");
}

/// A chain of stored responses: the hidden tool is offered in every request at the same position with the same bytes, and
/// a call in the middle of the chain is answered.
#[tokio::test]
async fn chain_of_stored_responses_keeps_the_tool() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    // The arguments that the model remembers from the first request.
    let (requests, arguments) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        let mut arguments = arguments.lock().unwrap();
        match requests.fetch_add(1, Ordering::SeqCst) {
            0 => *arguments = ReplyCall::unfold(received).arguments,
            1 => {
                let call = ReplyCall { id: "call_hidden", name: "unfold", arguments: arguments.clone() };
                return streamed_reply(format, "Let me see. ", &[call]);
            }
            2 => {
                assert!(was_answered(format, received));
                return streamed_reply(format, "It is 42.", &[]);
            }
            _ => {}
        }
        streamed_reply(format, "Go on.", &[ReplyCall::client_tool()])
    })
    .await;
    let first = streaming_body(format, &agent_messages(format, 40)).replace(r#""store":false"#, r#""store":true"#);
    harness.post(endpoint(format), first.clone()).await;
    let tools = |body: &[u8]| Request::parse(format, body).unwrap().field("tools").unwrap().to_owned();
    let own = tools(first.as_bytes());
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    for text in ["Let me see. It is 42.", "Go on."] {
        let next = format!(
            r#"{{"model":"gpt-4o","stream":true,"tools":{own},"previous_response_id":"r","input":[{output}]}}"#
        );
        assert_eq!(parse_stream(format, &harness.post(endpoint(format), next).await.body).text(), text);
    }
    let sent: Vec<String> = harness.received().iter().map(|received| tools(&received.body)).collect();
    assert_eq!(sent.len(), 4);
    assert!(sent[0].contains(r#""unfold""#) && sent.iter().all(|tools| *tools == sent[0]), "{sent:?}");
}

/// The input may be a string: with a hidden call after it, it becomes a list.
#[tokio::test]
async fn call_after_string_input_is_answered() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        match was_answered(format, received) {
            true => streamed_reply(format, "It is 42.", &[]),
            false => {
                let arguments = json!({ "handle": "000000000000" }).to_string();
                streamed_reply(format, "Let me see. ", &[ReplyCall { id: "call_hidden", name: "unfold", arguments }])
            }
        }
    })
    .await;
    let mut request: Value = serde_json::from_str(&streaming_body(format, &[])).unwrap();
    request["input"] = "What is the answer?".into();
    let got = harness.post(endpoint(format), request.to_string()).await;
    assert_eq!(parse_stream(format, &got.body).text(), "Let me see. It is 42.");
    let messages = sent_messages(format, harness.received().last().unwrap());
    assert_eq!(messages.first(), Some(&Message::text(Role::User, "What is the answer?")));
    assert!(messages.last().unwrap().results().any(|result| result.call_id == "call_hidden"));
}

/// A client that refers to a stored response by id must get the id of the complete one.
#[tokio::test]
async fn stored_response_has_the_id_of_its_last_round() {
    let format = Format::OpenAiResponses;
    for (store, expected) in [(true, "resp_2"), (false, "resp_1")] {
        let kept = temp_archive();
        let harness = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
            let call = ReplyCall::unfold(received);
            let (id, output) = match was_answered(format, received) {
                false => ("resp_1", json!({ "type": "function_call", "id": "fc_1", "call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed" })),
                true => ("resp_2", json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{ "type": "output_text", "text": "42.", "annotations": [] }] })),
            };
            UpstreamReply::json(json!({ "id": id, "object": "response", "status": "completed", "output": [output] }).to_string())
        })
        .await;
        let request = request_body(format, &agent_messages(format, 40))
            .replace(r#""store":false"#, &format!(r#""store":{store}"#));
        let got = harness.post(endpoint(format), request).await;
        let got: Value = serde_json::from_str(got.text()).unwrap();
        assert_eq!((&got["id"], got["output"].as_array().unwrap().len()), (&json!(expected), 1));
    }
}
