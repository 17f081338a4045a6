//! End-to-end tests of `foldline replay`.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Creates a folder of sessions as an agent writes them: a long one, one too short to be replayed, and a foreign file.
fn session_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("projects/-home-me-work");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(project.join("long.jsonl"), session_json("long", 60)).unwrap();
    std::fs::write(project.join("short.jsonl"), session_json("short", 3)).unwrap();
    std::fs::write(project.join("notes.json"), "{}").unwrap();
    folder
}

/// Returns a session whose rounds each read a file; much later a name from it is used.
fn session_json(id: &str, rounds: usize) -> String {
    let mut messages = vec![json!({ "role": "user", "content": "go through them all" })];
    for round in 0..rounds {
        let call = format!("c{round}");
        let command = if round >= 30 { format!("grep value_{}_x", round - 30) } else { format!("cat file_{round}.rs") };
        let arguments = json!({ "command": command }).to_string();
        let function = json!({ "name": "sh", "arguments": arguments });
        messages.push(json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": call, "type": "function", "function": function }] }));
        let noise = format!("words of file {round} that are not needed again\n").repeat(60);
        messages.push(json!({ "role": "tool", "tool_call_id": call,
            "content": format!("{noise}fn value_{round}_x() {{}}\n{noise}") }));
    }
    json!({ "id": id, "source": "test", "messages": messages }).to_string() + "\n"
}

fn run_foldline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foldline")).args(arguments).env("COLUMNS", "100").output().unwrap()
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Summarizes a folder of sessions on one screen, as JSON and as an HTML page.
#[test]
fn folder_of_sessions_is_summarized_in_one_screen() {
    let folder = session_folder();
    let (json, html) = (folder.path().join("r.json"), folder.path().join("r.html"));
    let projects = folder.path().join("projects");
    let arguments = ["replay", projects.to_str().unwrap(), "--json", json.to_str().unwrap(), "--html"];
    let output = run_foldline(&[&arguments[..], &[html.to_str().unwrap()]].concat());
    let screen = utf8(&output.stdout);
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    assert!(screen.starts_with("1 sessions, 60 calls; prices anthropic-5m (write 1.25, read 0.1).\n"), "{screen}");
    assert!(screen.lines().count() <= 40 && screen.contains("foldline balanced"), "{screen}");
    let report = read_json(&json);
    assert_eq!((report["calls"].as_u64(), report["conversations"].as_u64()), (Some(60), Some(1)));
    assert_eq!(report["sessions"][0]["received_tokens"].as_array().unwrap().len(), 60);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && !page.contains("src=\"http"));
}

/// The `pipe` protocol is complete: the engine in another process has the same numbers as in this one.
#[test]
fn piped_engine_scores_the_same() {
    let folder = session_folder();
    let json = folder.path().join("r.json");
    let projects = folder.path().join("projects");
    let engine = format!("ours=exec '{}' pipe --model gpt-4o", env!("CARGO_BIN_EXE_foldline"));
    let arguments = ["replay", projects.to_str().unwrap(), "--baselines", "none", "--engine", &engine, "--json"];
    let output = run_foldline(&[&arguments[..], &[json.to_str().unwrap(), "--budget", "16000"]].concat());
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    let report = read_json(&json);
    let (here, there) = (&report["rows"][1], &report["rows"][2]);
    assert_eq!(there["name"], "ours");
    assert!(here["score"]["creases"].as_u64().unwrap() > 0, "{here}");
    for key in [
        "calls",
        "creases",
        "needed_context_kept",
        "edits_that_apply",
        "instructions_kept",
        "laws_broken",
        "invented_bytes",
        "unfolded",
    ] {
        assert!(!here["score"][key].is_null(), "{key}");
        assert_eq!(here["score"][key], there["score"][key], "{key}");
    }
    assert_eq!(here["score"]["tokens"], there["score"]["tokens"]);
    assert!(here["score"]["unfolded"]["total"].as_u64().unwrap() > 0);
    assert_eq!(here["score"]["unfolded"]["total"], here["score"]["unfolded"]["hits"]);
}

#[test]
fn replay_errors_are_reported() {
    let folder = session_folder();
    let refused = |arguments: &[&str]| {
        let output = run_foldline(arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        utf8(&output.stderr)
    };
    let projects = folder.path().join("projects");
    let projects = projects.to_str().unwrap();
    assert!(refused(&["replay", projects, "--min-calls", "100"]).contains("100 calls or more"));
    assert!(refused(&["replay", projects, "--prices", "free"]).contains("anthropic-5m"));
    assert!(refused(&["replay", "/no/such/place"]).contains("/no/such/place"));
    let broken = refused(&["replay", projects, "--baselines", "none", "--engine", "theirs=exit 3"]);
    assert!(broken.contains("theirs in long"), "{broken}");
}

/// A session is billed at the prices of its own model; a model without a price has no dollars.
#[test]
fn sessions_are_priced_by_their_model() {
    let folder = tempfile::tempdir().unwrap();
    let session =
        |model: &str| session_json("s", 20).replacen("\"messages\"", &format!("\"model\":\"{model}\",\"messages\""), 1);
    let screen = |model: &str| {
        let path = folder.path().join("s.jsonl");
        std::fs::write(&path, session(model)).unwrap();
        let output = run_foldline(&["replay", path.to_str().unwrap(), "--baselines", "none"]);
        assert!(output.status.success(), "{}", utf8(&output.stderr));
        utf8(&output.stdout)
    };
    let openai = screen("gpt-5");
    assert!(
        openai.contains("prices of the sessions' model (write 1, read 0.1)") && openai.contains(" at list prices"),
        "{openai}"
    );
    let unknown = screen("my-own-model");
    assert!(!unknown.contains('$') && unknown.contains("have no price"), "{unknown}");
}

#[test]
fn json_goes_to_standard_output_and_short_sessions_are_named() {
    let folder = session_folder();
    let projects = folder.path().join("projects");
    let output = run_foldline(&["replay", projects.to_str().unwrap(), "--baselines", "none", "--json", "-"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["conversations"], 1);
    let stderr = utf8(&output.stderr);
    assert!(stderr.contains("1 session left out with fewer than 10 calls (--min-calls): short (3)"), "{stderr}");
    let none = run_foldline(&["replay", projects.to_str().unwrap(), "--sample", "0"]);
    assert!(!none.status.success() && utf8(&none.stderr).contains("use 1 or more"), "{}", utf8(&none.stderr));
}

/// Creates a folder of nine sessions of three models, and one that is too short.
fn mixed_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for at in 0..10 {
        let model = ["claude-opus-4-6", "gpt-5", "my-own-model"][at % 3];
        let rounds = if at == 4 { 3 } else { 31 + 2 * at };
        let session = session_json(&format!("s{at}"), rounds);
        let session = session.replacen("\"messages\"", &format!("\"model\":\"{model}\",\"messages\""), 1);
        std::fs::write(folder.path().join(format!("{at}.jsonl")), session).unwrap();
    }
    folder
}

/// Returns a report without the line of its date: a test may run at midnight.
fn without_date(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("  \"date\": ")).collect::<Vec<_>>().join("\n")
}

/// Shards that are replayed separately merge into the report of one replay, byte for byte.
#[test]
fn merged_shards_equal_one_replay() {
    let (folder, results) = (mixed_folder(), tempfile::tempdir().unwrap());
    let sessions = folder.path().to_str().unwrap();
    let path = |name: &str| results.path().join(name).to_str().unwrap().to_owned();
    let succeed = |arguments: &[&str]| {
        let output = run_foldline(arguments);
        assert!(output.status.success(), "{}", utf8(&output.stderr));
        output
    };
    let settings = ["replay", sessions, "--budget", "16k"];
    let whole = succeed(&[&settings[..], &["--json", &path("whole.json"), "--html", &path("whole.html")]].concat());
    let shards = ["3/3", "1/3", "2/3"].map(|shard| {
        let file = path(&format!("{}.json", &shard[..1]));
        let output = succeed(&[&settings[..], &["--shard", shard, "--json", &file]].concat());
        assert!(output.stdout.is_empty() && utf8(&output.stderr).contains(&format!("shard {shard}: ")));
        file
    });
    let [a, b, c] = &shards;
    let merged = succeed(&["replay", "--merge", a, b, c, "--json", &path("m.json"), "--html", &path("m.html")]);
    let text = |name: &str| without_date(&std::fs::read_to_string(path(name)).unwrap());
    assert_eq!(text("m.json"), text("whole.json"));
    assert_eq!(utf8(&merged.stdout), utf8(&whole.stdout));
    assert_eq!(utf8(&merged.stderr), utf8(&whole.stderr));
    let report = read_json(Path::new(&path("m.json")));
    let page = std::fs::read_to_string(path("m.html")).unwrap();
    assert_eq!((report["conversations"].as_u64(), page.contains("\"conversations\":9")), (Some(9), true));
    assert!(report["rows"][1]["score"]["creases"].as_u64().unwrap() > 0);

    let refused = |arguments: &[&str]| {
        let output = run_foldline(arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        utf8(&output.stderr)
    };
    assert!(refused(&["replay", "--merge", a, b]).contains("shards are missing: 2/3"));
    assert!(refused(&["replay", "--merge", a, b, c, c]).contains("name each shard once"));
    assert!(refused(&["replay", "--merge", &path("whole.json")]).contains("is not the result of a shard"));
    assert!(refused(&["replay", "--merge", a, "--budget", "8k"]).contains("cannot be used with"));
    assert!(refused(&["replay", sessions, "--shard", "1/3"]).contains("--json"));
    assert!(refused(&["replay", sessions, "--shard", "5/4", "--json", "-"]).contains("the last of 4 shards is 4"));
    let other = path("other.json");
    succeed(&[&settings[..], &["--policy", "tight", "--shard", "2/3", "--json", &other]].concat());
    let differs = refused(&["replay", "--merge", a, b, &other]);
    assert!(differs.contains("--policy is balanced in") && differs.contains("and tight in"), "{differs}");
    std::fs::write(folder.path().join("new.jsonl"), session_json("new", 12)).unwrap();
    succeed(&[&settings[..], &["--shard", "2/3", "--json", &other]].concat());
    assert!(refused(&["replay", "--merge", a, b, &other]).contains("give every shard the same files"));
}
