//! Engines in other processes, driven by the protocol of `foldline pipe`.

use foldline::models::PriceTable;
use foldline::transcript::TranscriptReader;
use foldline::{Meter, ModelTable, Prices};
use foldline_replay::{CorpusStats, EngineError, ExternalEngine, ReplayCase, ReplayRun, baselines, replay};
use serde_json::json;

/// An engine in a few lines of Python: it renders everything, but cuts results of more than 100 characters that
/// are older than the last four messages, and announces it.
const CUTTING_ENGINE: &str = r#"
import json, sys
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "open":
        messages, sent = [], []
        print(json.dumps({"ok": True, "id": ask["id"]}))
    elif ask["op"] == "push":
        messages += ask["messages"]
        print(json.dumps({"ok": True, "id": ask["id"]}))
    elif ask["op"] == "request":
        now = []
        for at, message in enumerate(messages):
            old = at < len(messages) - 4
            if old and message["role"] == "tool" and len(message["content"]) > 100:
                message = dict(message, content="[cut]")
            now.append(message)
        set_ = [{"at": at, "message": it} for at, it in enumerate(now) if at >= len(sent) or sent[at] != it]
        creased = any(it["at"] < len(sent) for it in set_)
        sent = now
        print(json.dumps({"ok": True, "id": ask["id"], "tokens": 0, "creased": creased, "set": set_, "len": len(now)}))
    sys.stdout.flush()
"#;

/// An engine that changes nothing, and answers only what it must.
const ECHO_ENGINE: &str = r#"
import json, sys
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "open":
        messages, sent = [], 0
    elif ask["op"] == "push":
        messages += ask["messages"]
    elif ask["op"] == "request":
        set_ = [{"at": at, "message": messages[at]} for at in range(sent, len(messages))]
        sent = len(messages)
        print(json.dumps({"ok": True, "creased": False, "set": set_, "len": sent}, separators=(",", ":")))
    sys.stdout.flush()
"#;

fn prices() -> Prices {
    PriceTable::builtin().get("anthropic-5m").expect("built-in table")
}

fn sample_case() -> ReplayCase {
    let texts = ["go", "and look around"].map(|text| json!({ "type": "text", "text": text }));
    let mut messages = vec![json!({ "role": "user", "content": texts })];
    for round in 0..12 {
        let id = format!("c{round}");
        let function = json!({ "name": "sh", "arguments": json!({ "cmd": format!("show_{round}_x") }).to_string() });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": id, "type": "function", "function": function }] }));
        messages.push(
            json!({ "role": "tool", "tool_call_id": id, "content": format!("words of round_{round}_x\n").repeat(20) }),
        );
    }
    read_case(&json!({ "id": "one", "source": "test", "messages": messages }).to_string())
}

fn read_case(line: &str) -> ReplayCase {
    let mut reader = TranscriptReader::new("test", line.as_bytes()).expect("a valid recording");
    let recording = reader.next().expect("one recording").expect("readable");
    ReplayCase::new(recording, &CorpusStats::default(), &Meter::for_model(ModelTable::builtin(), Some("gpt-4o")))
}

fn run_engine(case: &ReplayCase, engine: &ExternalEngine) -> Result<ReplayRun, EngineError> {
    replay(case, engine, 100_000, prices())
}

fn python_engine(program: &str) -> Option<ExternalEngine> {
    let is_installed = std::process::Command::new("python3").arg("--version").output().is_ok();
    is_installed.then(|| ExternalEngine::new(format!("exec python3 -u -c '{program}'")))
}

#[test]
fn external_engine_is_scored_like_an_internal_one() {
    let Some(engine) = python_engine(CUTTING_ENGINE) else { return };
    let case = sample_case();
    let full = replay(&case, &baselines::BASELINES[0], 100_000, prices()).unwrap().score;
    let cut = run_engine(&case, &engine).unwrap().score;
    assert_eq!((cut.calls, cut.unannounced), (12, 0));
    assert!(cut.tokens < full.tokens / 2 && cut.creases == 9, "{cut:?}");
    assert_eq!(cut.instructions_kept.ratio(), 1.0, "a message of two texts is sent as one");
    // The same process serves the next conversation, from its beginning.
    assert_eq!(run_engine(&case, &engine).unwrap().score.tokens, cut.tokens);
}

/// A session in each dialect, with everything that is special in it.
fn session_in_its_dialect(format: &str) -> String {
    let image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let (list, messages, model) = match format {
        "anthropic" => {
            let source = json!({ "type": "base64", "media_type": "image/png", "data": image });
            let mut messages = vec![json!({ "role": "user", "content": [
                { "type": "text", "text": "go" }, { "type": "image", "source": source },
            ] })];
            for round in 0..12 {
                let id = format!("toolu_{round}");
                messages.push(json!({ "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "sig" },
                    { "type": "tool_use", "id": id, "name": "sh", "input": { "z": round, "a": "b" } },
                ] }));
                messages.push(json!({ "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": id, "content": [{ "type": "text", "text": "out" }] },
                ] }));
            }
            ("messages", messages, "claude-opus-4-6")
        }
        _ => {
            let mut items = vec![json!({ "type": "message", "role": "user", "content": "go" })];
            for round in 0..12 {
                let id = format!("call_{round}");
                items.push(json!({ "type": "reasoning", "summary": [], "encrypted_content": "gAAA" }));
                items.push(
                    json!({ "type": "custom_tool_call", "call_id": id, "name": "apply_patch", "input": "*** x" }),
                );
                items.push(json!({ "type": "custom_tool_call_output", "call_id": id, "output": "Success" }));
            }
            ("input", items, "gpt-5.2")
        }
    };
    json!({ "model": model, list: messages }).to_string()
}

/// An engine receives the dialect of the session, so one that changes nothing breaks no law and sends the same tokens.
#[test]
fn echo_engine_breaks_no_law_in_any_dialect() {
    let Some(engine) = python_engine(ECHO_ENGINE) else { return };
    for format in ["anthropic", "openai-responses"] {
        let case = read_case(&session_in_its_dialect(format));
        let full = replay(&case, &baselines::BASELINES[0], 100_000, prices()).unwrap().score;
        let echo = run_engine(&case, &engine).unwrap().score;
        assert_eq!((echo.calls, echo.tokens), (full.calls, full.tokens), "{format}");
        assert_eq!((echo.laws_broken, echo.unannounced, echo.invented_bytes), (0, 0, 0), "{format}");
        assert!(echo.calls >= 12, "{format}");
    }
}

/// The broken law is named.
#[test]
fn law_that_an_engine_breaks_is_named() {
    let dropping = ECHO_ENGINE.replace(
        "messages += ask[\"messages\"]",
        "messages += [m for m in ask[\"messages\"] if m.get(\"role\") != \"tool\"]",
    );
    let Some(engine) = python_engine(&dropping) else { return };
    let score = run_engine(&sample_case(), &engine).unwrap().score;
    assert!(score.laws_broken > 0);
    assert_eq!(score.violations_by_law.keys().collect::<Vec<_>>(), [&"call-answered"]);
}

#[test]
fn failing_engine_is_reported_with_its_error() {
    let case = sample_case();
    let failure = |command: &str| run_engine(&case, &ExternalEngine::new(command)).unwrap_err().to_string();
    // Timing decides whether writing to it or reading from it fails first.
    let exited = failure("exit 3");
    assert!(exited.contains("before it answered") || exited.contains("stopped reading"), "{exited}");
    let invalid = failure("while read line; do echo hello; done");
    assert!(invalid.contains("not a valid answer") && invalid.contains("hello"), "{invalid}");
    let failed = failure(r#"while read line; do echo '{"ok":false,"error":{"kind":"odd","message":"no idea"}}'; done"#);
    assert!(failed.contains("odd") && failed.contains("no idea"), "{failed}");
    let no_message = failure(r#"while read line; do echo '{"ok":true,"len":1,"set":[{"at":0,"message":5}]}'; done"#);
    assert!(no_message.contains("messages"), "{no_message}");
}

#[test]
fn engine_that_cannot_fit_is_counted() {
    let refuses = r#"while read line; do case $line in *request*) echo '{"ok":false,"error":{"kind":"cannot_fit","floor":9,"budget":8,"message":"x"}}';; esac; done"#;
    let run = run_engine(&sample_case(), &ExternalEngine::new(refuses)).unwrap();
    assert_eq!((run.score.refused, run.score.calls), (12, 12));
    // A refusal is not a saving.
    let full = replay(&sample_case(), &baselines::BASELINES[0], 100_000, prices()).unwrap().score;
    assert!(run.score.cost(&prices()) > full.cost(&prices()));
    assert_eq!(run.score.missing_context_ratio(), 1.0);
}
