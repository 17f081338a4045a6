//! A share of the sessions is only observed: the upstream receives the client's bytes, the others are folded, and both are
//! counted.

use std::collections::BTreeMap;

use foldline::wire::Format;
use foldline_server::proxy::{ProxySettings, SessionShare};
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::temp_archive;
use crate::support::{ProxyHarness, UpstreamReply};
use crate::unfold_tool::small_window_settings;

const FORMAT: Format = Format::Anthropic;
const SESSIONS: usize = 24;

fn share_settings() -> ProxySettings {
    ProxySettings { observe_share: "40%".parse().unwrap(), ..small_window_settings() }
}

async fn start(archive: Option<foldline_archive::Archive>) -> ProxyHarness {
    ProxyHarness::start(share_settings(), archive, |received| match received.headers.get("x-fail").is_some() {
        true => UpstreamReply::Body(500, "application/json", "{}".into()),
        false => UpstreamReply::json(
            r#"{"type":"message","role":"assistant","content":[],"usage":{"input_tokens":90,"output_tokens":2}}"#,
        ),
    })
    .await
}

/// Returns the body of a session of its own with this many turns.
fn session_body(session: usize, turns: usize) -> String {
    let mut messages: Vec<Value> = agent_messages(FORMAT, turns);
    messages[0] = json!({ "role": "user", "content": format!("Task {session}: please make the parser faster.") });
    request_body(FORMAT, &messages)
}

/// Sends a request. Returns true if the upstream received the client's bytes.
async fn is_unchanged(harness: &ProxyHarness, headers: &[(&str, &str)], body: &str) -> bool {
    harness.send_with("POST", endpoint(FORMAT), headers, body.to_owned()).await;
    harness.received().pop().unwrap().body == body.as_bytes()
}

#[tokio::test]
async fn sessions_keep_their_group_on_every_replica() {
    let kept = temp_archive();
    let replicas = [start(Some(kept.archive.clone())).await, start(Some(kept.archive.clone())).await];
    let mut observed = 0;
    for session in 0..SESSIONS {
        let mut seen = Vec::new();
        for (turn, turns) in [30, 31, 32].into_iter().enumerate() {
            seen.push(is_unchanged(&replicas[(session + turn) % 2], &[], &session_body(session, turns)).await);
        }
        assert!(seen.iter().all(|unchanged| *unchanged == seen[0]), "session {session}: {seen:?}");
        observed += usize::from(seen[0]);
    }
    assert!((3..=17).contains(&observed), "{observed} of {SESSIONS} are observed");
    for name in ["a", "b", "c", "d", "e", "f"] {
        let share: SessionShare = "40%".parse().unwrap();
        for session in [1, 2] {
            let unchanged =
                is_unchanged(&replicas[0], &[("x-foldline-session", name)], &session_body(session, 30)).await;
            assert_eq!(unchanged, share.contains(name.as_bytes()), "a name of the client decides, and nothing else");
        }
    }
}

#[tokio::test]
async fn groups_are_counted_separately() {
    let kept = temp_archive();
    let harness = start(Some(kept.archive.clone())).await;
    let mut expected: BTreeMap<&str, [u64; 3]> = BTreeMap::from([("fold", [0; 3]), ("observe", [0; 3])]);
    for session in 0..SESSIONS {
        for turns in [30, 31] {
            let fails = session % 5 == 0 && turns == 31;
            let headers: &[(&str, &str)] = if fails { &[("x-fail", "1")] } else { &[] };
            let is_observed = is_unchanged(&harness, headers, &session_body(session, turns)).await;
            let row = expected.get_mut(if is_observed { "observe" } else { "fold" }).unwrap();
            row[0] += u64::from(turns == 30);
            row[1] += 1;
            row[2] += u64::from(fails);
        }
    }
    let answer = harness.get("/foldline/api/v1/groups?since=7d").await;
    let answer: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(answer["observe_share"], "40%");
    for group in answer["groups"].as_array().unwrap() {
        let row = [&group["sessions"], &group["totals"]["requests"], &group["upstream_errors"]];
        let row = row.map(|number| number.as_u64().unwrap());
        let name = group["group"].as_str().unwrap();
        assert_eq!(Some(&row), expected.get(name), "{name}");
        let tokens = |field: &str| group["totals"][field].as_u64().unwrap();
        match name {
            "observe" => {
                assert_eq!(tokens("sent_tokens"), tokens("received_tokens"));
                assert!(tokens("would_send_tokens") < tokens("received_tokens"));
            }
            _ => {
                assert!(tokens("sent_tokens") < tokens("received_tokens"));
                assert_eq!(tokens("would_send_tokens"), 0);
            }
        }
        assert!(group["totals"]["billed_usd"].as_f64().unwrap() > 0.0);
    }
}

/// Without the setting nothing is compared, and all sessions are folded.
#[tokio::test]
async fn no_share_means_no_groups() {
    let kept = temp_archive();
    let harness =
        ProxyHarness::start(small_window_settings(), Some(kept.archive.clone()), |_| UpstreamReply::json("{}")).await;
    for session in 0..6 {
        assert!(!is_unchanged(&harness, &[], &session_body(session, 30)).await);
    }
    let answer: Value = serde_json::from_str(harness.get("/foldline/api/v1/groups").await.text()).unwrap();
    assert_eq!((&answer["groups"][0]["sessions"], &answer["groups"][1]["sessions"]), (&json!(0), &json!(0)));
}
