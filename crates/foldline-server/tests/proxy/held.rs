//! Answers that the provider holds, which the client goes on from by their ids: the hidden tool in a chain of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldline::wire::{Format, Request};
use foldline::{Message, Role};
use serde_json::{Value, json};

use crate::fold::{agent, body, path};
use crate::support::{Received, Reply, Stand};
use crate::unfold::{Call, archive, narrow, read, said, streamed, streaming, was_answered};

/// The provider holds the answer, and the client goes on from its id with the results of its own calls: the hidden call
/// is answered, too, or the provider would refuse.
#[tokio::test]
async fn a_call_in_an_answer_that_the_provider_holds_is_answered_where_the_client_goes_on() {
    let format = Format::OpenAiResponses;
    let kept = archive();
    let reply =
        move |received: &Received| match String::from_utf8_lossy(&received.body).contains("previous_response_id") {
            false => streamed(format, "Both. ", &[Call::unfold(received), Call::shell()]),
            true => streamed(format, "Done.", &[]),
        };
    let stand = Stand::start(narrow(), Some(kept.archive.clone()), reply).await;
    let first = streaming(format, &agent(format, 40)).replace(r#""store":false"#, r#""store":true"#);
    let got = stand.post(path(format), first).await;
    let calls: Vec<String> = read(format, &got.body).calls().map(|call| call.name.to_string()).collect();
    assert_eq!(calls, ["read_file"]);
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    let next = json!({ "model": "gpt-4o", "stream": true, "previous_response_id": "r", "input": [output] }).to_string();
    // Another proxy on the same archive knows it as well.
    let other = Stand::start(narrow(), Some(kept.archive.clone()), reply).await;
    for stand in [&stand, &other] {
        let got = stand.post(path(format), next.clone()).await;
        assert_eq!(read(format, &got.body).text(), "Done.");
        let sent = stand.received().last().unwrap().clone();
        let said = said(format, &sent);
        let results: Vec<_> = said.iter().flat_map(|message| message.results()).collect();
        let ids: Vec<&str> = results.iter().map(|result| result.call_id.as_ref()).collect();
        assert_eq!(ids, ["call_hidden", "call_shell"]);
        assert!(results[0].texts().any(|text| text.contains("let value_")));
    }
    let elsewhere = next.replace(r#""r""#, r#""another""#);
    stand.post(path(format), elsewhere.clone()).await;
    assert_eq!(stand.received().last().unwrap().body, elsewhere, "nothing is missing there");
}

/// A chain of answers that the provider holds: ours is among the tools of every request, at the same place in the same
/// bytes, and a call of it in the middle of the chain is answered there.
#[tokio::test]
async fn a_chain_of_held_answers_keeps_the_tool() {
    let format = Format::OpenAiResponses;
    let kept = archive();
    // What the model would remember of the first request: how to ask for what was folded in it.
    let (requests, question) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let stand = Stand::start(narrow(), Some(kept.archive.clone()), move |received| {
        let mut question = question.lock().unwrap();
        match requests.fetch_add(1, Ordering::SeqCst) {
            0 => *question = Call::unfold(received).arguments,
            1 => {
                let call = Call { id: "call_hidden", name: "unfold", arguments: question.clone() };
                return streamed(format, "Let me see. ", &[call]);
            }
            2 => {
                assert!(was_answered(format, received));
                return streamed(format, "It is 42.", &[]);
            }
            _ => {}
        }
        streamed(format, "Go on.", &[Call::shell()])
    })
    .await;
    let first = streaming(format, &agent(format, 40)).replace(r#""store":false"#, r#""store":true"#);
    stand.post(path(format), first.clone()).await;
    let tools = |body: &[u8]| Request::parse(format, body).unwrap().field("tools").unwrap().to_owned();
    let own = tools(first.as_bytes());
    let output = json!({ "type": "function_call_output", "call_id": "call_shell", "output": "ok" });
    for answer in ["Let me see. It is 42.", "Go on."] {
        let next = format!(
            r#"{{"model":"gpt-4o","stream":true,"tools":{own},"previous_response_id":"r","input":[{output}]}}"#
        );
        assert_eq!(read(format, &stand.post(path(format), next).await.body).text(), answer);
    }
    let sent: Vec<String> = stand.received().iter().map(|received| tools(&received.body)).collect();
    assert_eq!(sent.len(), 4);
    assert!(sent[0].contains(r#""unfold""#) && sent.iter().all(|it| *it == sent[0]), "{sent:?}");
}

/// The input may be a lone text: with a hidden call behind it, it becomes the list that it stands for.
#[tokio::test]
async fn a_call_behind_a_lone_text_is_answered() {
    let format = Format::OpenAiResponses;
    let kept = archive();
    let stand =
        Stand::start(narrow(), Some(kept.archive.clone()), move |received| match was_answered(format, received) {
            true => streamed(format, "It is 42.", &[]),
            false => {
                let arguments = json!({ "handle": "000000000000" }).to_string();
                streamed(format, "Let me see. ", &[Call { id: "call_hidden", name: "unfold", arguments }])
            }
        })
        .await;
    let mut request: Value = serde_json::from_str(&streaming(format, &[])).unwrap();
    request["input"] = "What is the answer?".into();
    let got = stand.post(path(format), request.to_string()).await;
    assert_eq!(read(format, &got.body).text(), "Let me see. It is 42.");
    let said = said(format, stand.received().last().unwrap());
    assert_eq!(said.first(), Some(&Message::text(Role::User, "What is the answer?")));
    assert!(said.last().unwrap().results().any(|result| result.call_id == "call_hidden"));
}

/// A client that will refer to a stored answer by its id must be given the one that has the whole of it.
#[tokio::test]
async fn a_stored_answer_is_known_by_the_id_of_its_last_round() {
    let format = Format::OpenAiResponses;
    for (store, expected) in [(true, "resp_2"), (false, "resp_1")] {
        let kept = archive();
        let stand = Stand::start(narrow(), Some(kept.archive.clone()), move |received| {
            let call = Call::unfold(received);
            let (id, output) = match was_answered(format, received) {
                false => ("resp_1", json!({ "type": "function_call", "id": "fc_1", "call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed" })),
                true => ("resp_2", json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{ "type": "output_text", "text": "42.", "annotations": [] }] })),
            };
            Reply::json(json!({ "id": id, "object": "response", "status": "completed", "output": [output] }).to_string())
        })
        .await;
        let request = body(format, &agent(format, 40)).replace(r#""store":false"#, &format!(r#""store":{store}"#));
        let got = stand.post(path(format), request).await;
        let got: Value = serde_json::from_str(got.text()).unwrap();
        assert_eq!((&got["id"], got["output"].as_array().unwrap().len()), (&json!(expected), 1));
    }
}
