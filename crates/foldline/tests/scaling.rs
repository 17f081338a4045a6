//! Work grows at most like n log n in every dimension of the input, also if the input is hostile.
//!
//! Each test doubles one dimension four times and compares the CPU time of this thread for the last two doublings:
//! linear work takes 4 times as long, quadratic work 16 times. Times are only compared with each other in the same run.

use std::time::Duration;

use cpu_time::ThreadTime;
use foldline::engine::StoreError;
use foldline::wire::{Format, Request};
use foldline::{
    Conversation, ErrorKind, FoldOptions, FoldSession, Ledger, Message, Meter, ModelTable, Original, OriginalStore,
    Part, Prices, Role, apply,
};
use serde_json::{Value, json};

/// Largest accepted ratio of the times of two doublings. That of n log n is below 5, that of n² is 16.
const MAX_RATIO: f64 = 8.0;
/// Attempts per dimension, for a machine that is busy with something else.
const ATTEMPTS: usize = 3;

/// A store that accepts everything, so that markers carry handles.
struct AcceptingStore;

impl OriginalStore for AcceptingStore {
    fn store(&self, _: &[Original<'_>]) -> Result<(), StoreError> {
        Ok(())
    }
}

fn options(budget: u64) -> FoldOptions {
    let table = ModelTable::builtin();
    let meter = Meter::for_byte_estimate();
    FoldOptions::new(meter, Prices::for_model(table, Some("claude-opus-4-6")), budget)
}

/// Returns the CPU time of a function.
fn time(run: impl FnOnce()) -> Duration {
    let start = ThreadTime::now();
    run();
    start.elapsed()
}

/// Asserts that the time of `run` grows about in proportion to its argument, from `size` to 16 times as much.
fn assert_scales(name: &str, size: usize, mut run: impl FnMut(usize)) {
    let mut ratios = Vec::new();
    for _ in 0..ATTEMPTS {
        let times: Vec<Duration> = (0..5).map(|doubled| time(|| run(size << doubled))).collect();
        let ratio = times[4].as_secs_f64() / times[2].as_secs_f64().max(1e-4);
        if ratio < MAX_RATIO {
            return;
        }
        ratios.push((ratio, times));
    }
    panic!("{name}: the time grows too fast: {ratios:?}");
}

/// Folds a request body to a budget; a request that cannot fit must be refused in linear time too.
fn apply_body(format: Format, body: &Value, budget: u64) {
    let body = body.to_string();
    let request = Request::parse(format, body.as_bytes()).expect("a request");
    let applied = apply(&request, &options(budget), &Ledger::default(), Some(&AcceptingStore), &|_| ());
    if let Err(error) = applied {
        assert!(matches!(error.kind(), ErrorKind::CannotFit { .. }), "{error}");
    }
}

/// Sends the messages of a conversation one after the other through a session.
fn run_session(conversation: Conversation<'static>, budget: u64) {
    let mut options = options(budget);
    options.handles = true;
    let mut session = FoldSession::new(options);
    for (at, message) in conversation.messages.into_iter().enumerate() {
        if at > 0 && message.is_assistant() {
            drop(session.plan_request());
        }
        session.push(message);
    }
    drop(session.plan_request());
}

/// Runs a dimension through a body of each dialect, and through a session.
fn check_dimension(name: &str, size: usize, budget: u64, messages: impl Fn(usize) -> Vec<Message<'static>>) {
    assert_scales(&format!("{name} in a session"), size, |size| {
        let messages = messages(size);
        run_session(Conversation { messages, ..Conversation::default() }, budget);
    });
    for format in [Format::Anthropic, Format::OpenAiChat] {
        assert_scales(&format!("{name} in a body of {format:?}"), size, |size| {
            apply_body(format, &body(format, &messages(size)), budget);
        });
    }
}

/// Writes messages as a request body.
fn body(format: Format, messages: &[Message<'_>]) -> Value {
    let messages: Vec<Value> = messages.iter().flat_map(|message| message_json(format, message)).collect();
    json!({ "model": "m", "max_tokens": 100, "messages": messages })
}

fn message_json(format: Format, message: &Message<'_>) -> Vec<Value> {
    let texts = message.parts.iter().filter_map(Part::as_text).map(|text| json!({ "type": "text", "text": text }));
    let mut content: Vec<Value> = texts.collect();
    if format == Format::Anthropic {
        content.extend(message.results().map(
            |result| json!({ "type": "tool_result", "tool_use_id": result.call_id, "content": result.only_text() }),
        ));
        content.extend(message.calls().map(|call| {
            let input: Value = serde_json::from_str(call.arguments.as_str()).expect("JSON");
            json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
        }));
        let role = if message.is_assistant() { "assistant" } else { "user" };
        return vec![json!({ "role": role, "content": content })];
    }
    let results = message
        .results()
        .map(|result| json!({ "role": "tool", "tool_call_id": result.call_id, "content": result.only_text() }));
    let mut messages: Vec<Value> = results.collect();
    let calls: Vec<Value> = message
        .calls()
        .map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments.as_str() });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    if message.is_assistant() {
        messages.push(json!({ "role": "assistant", "content": content, "tool_calls": calls }));
    } else if !content.is_empty() {
        messages.push(json!({ "role": "user", "content": content }));
    }
    messages
}

fn task() -> Message<'static> {
    Message::text(Role::User, "Please make the parser faster.")
}

/// Returns a round of one call of a tool, with its result.
fn round(at: usize, tool: String, arguments: String, result: String) -> [Message<'static>; 2] {
    [
        Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), tool, arguments)]),
        Message::new(Role::Tool, vec![Part::result(format!("c{at}"), result)]),
    ]
}

fn read(at: usize, result: String) -> [Message<'static>; 2] {
    round(at, "read_file".into(), format!(r#"{{"path":"src/file_{at}.rs"}}"#), result)
}

fn source(seed: usize, lines: usize) -> String {
    (0..lines).map(|at| format!("let value_{seed}_{at} = compute_{at}(input_{seed});\n")).collect()
}

#[test]
fn parts_of_one_message() {
    check_dimension("texts of a user message", 150, 4_000, |size| {
        let texts = (0..size).map(|at| Part::text(format!("Point {at}: keep the interface as it is."))).collect();
        vec![task(), Message::text(Role::Assistant, "Yes?"), Message::new(Role::User, texts)]
    });
    check_dimension("parallel calls of one message", 60, 4_000, |size| {
        let call = |at: usize| Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"f{at}.rs"}}"#));
        let results = (0..size).map(|at| Part::result(format!("c{at}"), source(at, 4))).collect();
        let mut messages = vec![task(), Message::new(Role::Assistant, (0..size).map(call).collect())];
        messages.push(Message::new(Role::User, results));
        messages.extend((0..3).flat_map(|at| read(size + at, source(size + at, 3))));
        messages
    });
}

#[test]
fn messages() {
    check_dimension("user messages", 40, 1_200, |size| {
        let turn = |at: usize| {
            let user = Message::text(Role::User, format!("Point {at}: {}", "keep the interface as it is. ".repeat(4)));
            [user, Message::text(Role::Assistant, format!("I will keep {at}."))]
        };
        std::iter::once(task()).chain((0..size).flat_map(turn)).collect()
    });
}

#[test]
fn tool_pairs() {
    check_dimension("tool pairs", 100, 4_000, |size| {
        std::iter::once(task()).chain((0..size).flat_map(|at| read(at, source(at, 3)))).collect()
    });
}

/// Most rounds were dropped long ago. A plan depends on what is left, not on how much there was.
#[test]
fn tool_pairs_far_beyond_the_budget() {
    assert_scales("dropped rounds in a session", 300, |size| {
        let messages = std::iter::once(task()).chain((0..size).flat_map(|at| read(at, format!("line {at}")))).collect();
        run_session(Conversation { messages, ..Conversation::default() }, 1_000);
    });
}

/// No request fits, because the newest call alone is too large, so nothing is ever folded. Each request states its floor
/// and therefore looks at all messages; but a body is one request, whatever the number of its request points.
#[test]
fn rounds_that_cannot_fit() {
    for format in [Format::Anthropic, Format::OpenAiChat] {
        assert_scales(&format!("rounds with a large call in a body of {format:?}"), 6, |size| {
            let call = |at: usize| {
                let content = source(at, 120).replace('\n', " ");
                let arguments = format!(r#"{{"path":"f{at}.rs","content":"{content}"}}"#);
                round(at, "write_file".into(), arguments, "ok".into())
            };
            let messages: Vec<Message<'_>> = std::iter::once(task()).chain((0..size).flat_map(call)).collect();
            apply_body(format, &body(format, &messages), 1_000);
        });
    }
}

#[test]
fn equal_texts() {
    check_dimension("equal results", 30, 2_000, |size| {
        std::iter::once(task()).chain((0..size).flat_map(|at| read(at, source(0, 12)))).collect()
    });
}

#[test]
fn near_equal_texts() {
    check_dimension("near-equal results", 20, 10_000, |size| {
        let text = |at: usize| format!("{}// version {at}\n{}", source(0, 30), source(1, 30));
        std::iter::once(task()).chain((0..size).flat_map(|at| read(at, text(at)))).collect()
    });
}

#[test]
fn tools() {
    check_dimension("tool names", 40, 4_000, |size| {
        let call = |at: usize| round(at, format!("tool_{at}"), format!(r#"{{"query":"{at}"}}"#), source(at, 3));
        std::iter::once(task()).chain((0..size).flat_map(call)).collect()
    });
    for format in [Format::Anthropic, Format::OpenAiChat] {
        assert_scales(&format!("declared tools of {format:?}"), 80, |size| {
            let tool = |at: usize| {
                let schema = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
                match format {
                    Format::Anthropic => json!({ "name": format!("tool_{at}"), "input_schema": schema }),
                    _ => {
                        json!({ "type": "function", "function": { "name": format!("tool_{at}"), "parameters": schema } })
                    }
                }
            };
            let messages: Vec<Message<'_>> =
                std::iter::once(task()).chain((0..40).flat_map(|at| read(at, source(at, 10)))).collect();
            let mut body = body(format, &messages);
            body["tools"] = (0..size).map(tool).collect();
            apply_body(format, &body, 30 * size as u64 + 4_000);
        });
    }
}

#[test]
fn identifiers() {
    check_dimension("identifiers of a result", 150, 4_000, |size| {
        let names: String = (0..size).map(|at| format!("src/module_{at}/file_{at}.rs value_{at}.field ")).collect();
        let mut messages = vec![task()];
        messages.extend(read(0, names));
        messages.extend((1..12).flat_map(|at| read(at, source(at, 3))));
        messages
    });
    check_dimension("words of one identifier", 500, 4_000, |size| {
        let mut messages = vec![task()];
        messages.extend(read(0, "a_b/c.d-".repeat(size)));
        messages.extend((1..12).flat_map(|at| read(at, source(at, 3))));
        messages
    });
}

#[test]
fn json_depth() {
    check_dimension("JSON depth", 7, 1_000, |size| {
        let nested = format!("{}\"{}\"{}", "[".repeat(size), source(0, 8).replace('\n', " "), "]".repeat(size));
        let round = |at: usize| round(at, "query".into(), format!(r#"{{"filter":{nested}}}"#), nested.clone());
        std::iter::once(task()).chain((0..12).flat_map(round)).collect()
    });
}

#[test]
fn lines() {
    check_dimension("lines of a result", 200, 4_000, |size| {
        let mut messages = vec![task()];
        messages.extend(read(0, source(0, size)));
        messages.extend((1..12).flat_map(|at| read(at, source(at, 3))));
        messages
    });
    check_dimension("equal lines of a result", 200, 4_000, |size| {
        let mut messages = vec![task()];
        messages.extend(read(0, "the same line of output again and again\n".repeat(size)));
        messages.extend((1..12).flat_map(|at| read(at, source(at, 3))));
        messages
    });
}
