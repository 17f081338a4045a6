//! Costs of folding a request in each dialect, as ratios to Chat Completions inside one run: parse, fold and write the
//! same generated conversation of one megabyte, never seen before. Times are CPU time of this thread.
//!
//!     cargo bench -p foldline --bench dialects
//!     cargo bench -p foldline --bench dialects -- once converse gpt-4o      one fold, for instruction counts

use std::hint::black_box;
use std::time::Duration;

use cpu_time::ThreadTime;
use foldline::laws::LawProfile;
use foldline::wire::{Format, OutgoingRequest, Request, ToolSpec};
use foldline::{FoldOptions, Ledger, Message, Meter, ModelTable, Part, Prices, Role, apply};

mod synthetic;

use synthetic::TextGenerator;

/// A model whose tokens are counted, and one whose tokens are estimated.
const MODELS: [&str; 2] = ["gpt-4o", "claude-opus-4-6"];
/// Number of timed folds per dialect. Dialects alternate, so that a disturbance affects all of them.
const RUNS: usize = 9;

#[expect(clippy::print_stdout, reason = "a bench reports on the terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let [once, name, model] = arguments.as_slice()
        && once == "once"
    {
        let format = Format::all().find(|format| format.name() == name).expect("the name of a dialect");
        println!("{name}, {model}: {} bytes", fold_body(format, model, &body(format, model)));
        return;
    }
    println!(
        "{:<20}{:>18}{:>8}{:>8}{:>10}{:>10}{:>8}",
        "dialect", "model", "KB", "KB out", "parse ms", "all ms", "ratio"
    );
    for model in MODELS {
        let bodies: Vec<(Format, Vec<u8>)> = Format::all().map(|format| (format, body(format, model))).collect();
        let mut times = vec![(Vec::new(), Vec::new()); bodies.len()];
        let mut sizes = vec![0; bodies.len()];
        for _ in 0..RUNS {
            for (at, (format, body)) in bodies.iter().enumerate() {
                times[at].0.push(timed(|| Request::parse(*format, body).map(drop)).0);
                let (time, size) = timed(|| fold_body(*format, model, body));
                times[at].1.push(time);
                sizes[at] = size;
            }
        }
        let chat = least(&times[0].1);
        for (at, (format, body)) in bodies.iter().enumerate() {
            let (parse, all) = (least(&times[at].0), least(&times[at].1));
            println!(
                "{:<20}{model:>18}{:>8}{:>8}{:>10.2}{:>10.2}{:>8.2}",
                format.name(),
                body.len() / 1_000,
                sizes[at] / 1_000,
                parse.as_secs_f64() * 1e3,
                all.as_secs_f64() * 1e3,
                all.as_secs_f64() / chat.as_secs_f64()
            );
        }
    }
}

fn least(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = ThreadTime::now();
    let result = black_box(work());
    (start.elapsed(), result)
}

/// Returns the request of an agent with 256 rounds, in a dialect.
fn body(format: Format, model: &str) -> Vec<u8> {
    let mut generator = TextGenerator::new(7);
    let mut messages = vec![Message::text(Role::User, "Make it faster.")];
    for at in 0..256 {
        let tool = if at % 3 == 0 { "bash" } else { "read_file" };
        let call = Part::call(format!("c{at}"), tool, format!(r#"{{"path":"{}"}}"#, generator.path()));
        messages.push(Message::new(Role::Assistant, vec![Part::text("Looking."), call]));
        messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), generator.text(4_000))]));
    }
    let parameters = r#"{"type":"object","properties":{"path":{"type":"string"}}}"#;
    let tools = ["bash", "read_file"].map(|name| ToolSpec { name, description: "Reads.", parameters });
    let system = "You are a careful engineer.";
    let request = OutgoingRequest { model, system, messages: &messages, tools: &tools, max_output_tokens: 8_000 };
    request.to_body(format).expect("every dialect has texts, calls and results")
}

/// Parses, folds and writes a request. Returns the size of the result.
fn fold_body(format: Format, model: &str, body: &[u8]) -> usize {
    let table = ModelTable::builtin();
    let meter = Meter::for_model(table, Some(model));
    let request = Request::parse(format, body).expect("the body is a request");
    let options = FoldOptions::new(meter, Prices::for_model(table, Some(model)), 128_000)
        .with_rules(&LawProfile::for_request(&request));
    let folded = apply(&request, &options, &Ledger::default(), None, &|_| ()).expect("the request fits the budget");
    assert!(folded.folded.is_some(), "the request is folded");
    folded.body.len()
}
