//! Answers that the provider holds, which the client goes on from by their ids: the hidden tool in a chain of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldline::wire::{Format, Request};
use foldline::{Message, Role};
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply};
use crate::unfold_tool::{
    ReplyCall, parse_stream, sent_messages, small_window_settings, streamed_reply, streaming_body, temp_archive,
    was_answered,
};

/// The provider holds the answer, and the client goes on from its id with the results of its own calls: the hidden call
/// is answered, too, or the provider would refuse.
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
    let stand = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    let first = streaming_body(format, &agent_messages(format, 40)).replace(r#""store":false"#, r#""store":true"#);
    let got = stand.post(endpoint(format), first).await;
    let calls: Vec<String> = parse_stream(format, &got.body).calls().map(|call| call.name.to_string()).collect();
    assert_eq!(calls, ["read_file"]);
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    let next = json!({ "model": "gpt-4o", "stream": true, "previous_response_id": "r", "input": [output] }).to_string();
    // Another proxy on the same archive knows it as well.
    let other = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), reply).await;
    for stand in [&stand, &other] {
        let got = stand.post(endpoint(format), next.clone()).await;
        assert_eq!(parse_stream(format, &got.body).text(), "Done.");
        let sent = stand.received().last().unwrap().clone();
        let said = sent_messages(format, &sent);
        let results: Vec<_> = said.iter().flat_map(|message| message.results()).collect();
        let ids: Vec<&str> = results.iter().map(|result| result.call_id.as_ref()).collect();
        assert_eq!(ids, ["call_hidden", "call_shell"]);
        assert!(results[0].texts().any(|text| text.contains("let value_")));
    }
    let elsewhere = next.replace(r#""r""#, r#""another""#);
    stand.post(endpoint(format), elsewhere.clone()).await;
    assert_eq!(stand.received().last().unwrap().body, elsewhere, "nothing is missing there");
}

/// A chain of answers that the provider holds: ours is among the tools of every request, at the same place in the same
/// bytes, and a call of it in the middle of the chain is answered there.
#[tokio::test]
async fn chain_of_stored_responses_keeps_the_tool() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    // What the model would remember of the first request: how to ask for what was folded in it.
    let (requests, question) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let stand = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
        let mut question = question.lock().unwrap();
        match requests.fetch_add(1, Ordering::SeqCst) {
            0 => *question = ReplyCall::unfold(received).arguments,
            1 => {
                let call = ReplyCall { id: "call_hidden", name: "unfold", arguments: question.clone() };
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
    stand.post(endpoint(format), first.clone()).await;
    let tools = |body: &[u8]| Request::parse(format, body).unwrap().field("tools").unwrap().to_owned();
    let own = tools(first.as_bytes());
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    for answer in ["Let me see. It is 42.", "Go on."] {
        let next = format!(
            r#"{{"model":"gpt-4o","stream":true,"tools":{own},"previous_response_id":"r","input":[{output}]}}"#
        );
        assert_eq!(parse_stream(format, &stand.post(endpoint(format), next).await.body).text(), answer);
    }
    let sent: Vec<String> = stand.received().iter().map(|received| tools(&received.body)).collect();
    assert_eq!(sent.len(), 4);
    assert!(sent[0].contains(r#""unfold""#) && sent.iter().all(|it| *it == sent[0]), "{sent:?}");
}

/// The input may be a lone text: with a hidden call behind it, it becomes the list that it stands for.
#[tokio::test]
async fn call_after_string_input_is_answered() {
    let format = Format::OpenAiResponses;
    let kept = temp_archive();
    let stand = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
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
    let got = stand.post(endpoint(format), request.to_string()).await;
    assert_eq!(parse_stream(format, &got.body).text(), "Let me see. It is 42.");
    let said = sent_messages(format, stand.received().last().unwrap());
    assert_eq!(said.first(), Some(&Message::text(Role::User, "What is the answer?")));
    assert!(said.last().unwrap().results().any(|result| result.call_id == "call_hidden"));
}

/// A client that will refer to a stored answer by its id must be given the one that has the whole of it.
#[tokio::test]
async fn stored_response_has_the_id_of_its_last_round() {
    let format = Format::OpenAiResponses;
    for (store, expected) in [(true, "resp_2"), (false, "resp_1")] {
        let kept = temp_archive();
        let stand = ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), move |received| {
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
        let got = stand.post(endpoint(format), request).await;
        let got: Value = serde_json::from_str(got.text()).unwrap();
        assert_eq!((&got["id"], got["output"].as_array().unwrap().len()), (&json!(expected), 1));
    }
}
