//! `foldline verify` on what `foldline fit` writes, and on requests with faults.

#![expect(clippy::unwrap_used, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::path::Path;

use serde_json::{Value, json};

use support::{foldline, utf8};

fn request(rounds: usize) -> Value {
    let mut messages = vec![json!({ "role": "user", "content": "read them" })];
    for round in 0..rounds {
        let call = format!("c{round}");
        messages.push(json!({ "role": "assistant", "tool_calls": [{ "id": call, "type": "function",
            "function": { "name": "read", "arguments": format!("{{\"path\":\"f{round}\"}}") } }] }));
        messages.push(
            json!({ "role": "tool", "tool_call_id": call, "content": format!("line of file {round}\n").repeat(300) }),
        );
    }
    json!({ "model": "gpt-4o", "messages": messages })
}

/// Returns the exit code and the checks that hold, by name.
fn verify(home: &Path, arguments: &[&str]) -> (i32, Value) {
    let arguments = [&["verify", "--json", "--archive", "a.db"][..], arguments].concat();
    let output = foldline(home).args(&arguments).current_dir(home).output().unwrap();
    let checks = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", utf8(&output.stderr)));
    (output.status.code().unwrap(), checks)
}

#[test]
fn folded_request_keeps_the_guarantees() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, body: &Value| std::fs::write(home.path().join(name), body.to_string()).unwrap();
    write("before.json", &request(8));
    let fit = ["fit", "before.json", "--budget", "4k", "--archive", "a.db", "-o", "after.json"];
    assert!(foldline(home.path()).args(fit).current_dir(home.path()).status().unwrap().success());
    let (code, checks) = verify(home.path(), &["before.json", "after.json", "--budget", "4k"]);
    assert_eq!(code, 0, "{checks}");
    for name in ["fits", "valid", "recoverable"] {
        assert_eq!(checks[name]["holds"], true, "{checks}");
    }
    assert_eq!(checks["stable"]["holds"], Value::Null);

    let (code, checks) = verify(home.path(), &["before.json", "after.json", "--budget", "100"]);
    assert_eq!((code, &checks["fits"]["holds"]), (1, &json!(false)), "{checks}");
    let elsewhere = ["before.json", "after.json", "--namespace", "other"];
    assert_eq!(verify(home.path(), &elsewhere).1["recoverable"]["holds"], false);
}

#[test]
fn broken_laws_and_moved_prefixes_are_found() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, body: &Value| std::fs::write(home.path().join(name), body.to_string()).unwrap();
    let (before, mut orphaned) = (request(3), request(3));
    orphaned["messages"].as_array_mut().unwrap().remove(1);
    write("before.json", &before);
    write("orphaned.json", &orphaned);
    write("previous.json", &request(2));
    let (code, checks) = verify(home.path(), &["before.json", "orphaned.json", "--previous", "previous.json"]);
    assert_eq!(code, 1);
    assert_eq!((&checks["valid"]["holds"], &checks["stable"]["holds"]), (&json!(false), &json!(false)), "{checks}");
    let (code, checks) = verify(home.path(), &["before.json", "before.json", "--previous", "previous.json"]);
    assert_eq!((code, &checks["stable"]["holds"]), (0, &json!(true)), "{checks}");
    // A provider's cache begins with the tools: other tools are another prefix.
    let mut with_tools = before.clone();
    with_tools["tools"] = json!([{ "type": "function", "function": { "name": "read", "parameters": {} } }]);
    write("tools.json", &with_tools);
    let (code, checks) = verify(home.path(), &["tools.json", "tools.json", "--previous", "previous.json"]);
    assert_eq!((code, &checks["stable"]["holds"]), (1, &json!(false)), "{checks}");
}
