//! Parsing a request and writing it back, against parsing it into a tree and serializing that.
//!
//! Everything is measured in one run and reported as a ratio, since machines differ and are noisy. The requirements
//! are in docs/decisions/0001: at most 0.6 of the time of the tree, at most 2.5 times the body in extra memory, and a
//! constant time per byte from 100 KB to 64 MB. Texts are decoded lazily, so decoding is measured separately.
//!
//!     cargo bench --bench wire [BODY.json ..]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use cpu_time::ThreadTime;
use foldline::Part;
use foldline::wire::{Format, Request};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Number of timed runs per case.
const RUNS_PER_CASE: usize = 60;

/// Number of batches; cases alternate, so that a disturbance affects all of them.
const INTERLEAVED_BATCHES: usize = 5;

#[expect(clippy::print_stdout, reason = "a bench reports on the terminal")]
fn main() {
    println!(
        "{:<26}{:>7}{:>9}{:>9}{:>7}{:>8}{:>17}{:>7}{:>8}",
        "body", "KB", "ours ms", "tree ms", "ratio", "memory", "all decoded ms", "ratio", "memory"
    );
    let given = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let bodies = given.map(|path| (path.rsplit('/').next().unwrap_or_default().to_owned(), std::fs::read(&path)));
    let generated = Format::all().map(|format| (format!("generated, {}", format.name()), Ok(body(format, 1_000_000))));
    for (name, bytes) in generated.chain(bodies) {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let Some(format) = Format::detect(&bytes) else {
            println!("{name} is not a request");
            continue;
        };
        let cases: [BenchCase<'_>; 3] = [
            Box::new(|| round_trip(format, &bytes)),
            Box::new(|| round_trip_decoded(format, &bytes)),
            Box::new(|| serde_tree(&bytes)),
        ];
        let [ours, decoded, tree] =
            fast_times(cases.each_ref().map(|case| (RUNS_PER_CASE, case))).map(|time| time.as_secs_f64() * 1e3);
        println!(
            "{name:<26}{:>7.0}{ours:>9.3}{tree:>9.3}{:>7.2}{:>7.2}x{decoded:>17.3}{:>7.2}{:>7.2}x",
            bytes.len() as f64 / 1e3,
            ours / tree,
            peak_memory_ratio(&bytes, &cases[0]),
            decoded / tree,
            peak_memory_ratio(&bytes, &cases[1]),
        );
    }

    println!("\n{:<26}{:>7}{:>12}{:>8}{:>16}{:>8}", "growth", "KB", "ns per KB", "", "all decoded", "");
    for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
        let bodies = [100_000, 1_000_000, 8_000_000, 64_000_000].map(|size| body(format, size));
        let ours: [BenchCase<'_>; 4] =
            bodies.each_ref().map(|bytes| Box::new(|| round_trip(format, bytes)) as BenchCase<'_>);
        let decoded: [BenchCase<'_>; 4] =
            bodies.each_ref().map(|bytes| Box::new(|| round_trip_decoded(format, bytes)) as BenchCase<'_>);
        let [ours, decoded] = [ours, decoded].map(|cases| {
            // About the same time for each size.
            let times: [Duration; 4] =
                fast_times(std::array::from_fn(|at| (1_500_000_000 / bodies[at].len(), &cases[at])));
            std::array::from_fn::<_, 4, _>(|at| times[at].as_secs_f64() * 1e12 / bodies[at].len() as f64)
        });
        for (at, bytes) in bodies.iter().enumerate() {
            println!(
                "{:<26}{:>7.0}{:>12.0}{:>8.2}{:>16.0}{:>8.2}",
                format.name(),
                bytes.len() as f64 / 1e3,
                ours[at],
                ours[at] / ours[0],
                decoded[at],
                decoded[at] / decoded[0],
            );
        }
    }
}

type BenchCase<'a> = Box<dyn Fn() -> usize + 'a>;

/// Parses and writes a request that is not folded.
fn round_trip(format: Format, body: &[u8]) -> usize {
    let request = Request::parse(format, body).expect("the body is a request");
    request.splice(&[]).expect("an empty edit list is valid").len()
}

/// Parses and writes a request that is not folded, and decodes every text.
fn round_trip_decoded(format: Format, body: &[u8]) -> usize {
    fn decoded_bytes(part: &Part<'_>) -> usize {
        match part {
            Part::Text { text } => text.len(),
            Part::Reasoning(reasoning) => reasoning.text.len(),
            Part::ToolCall(call) => call.arguments.as_str().len(),
            Part::ToolResult(result) => result.content.iter().map(decoded_bytes).sum(),
            _ => 0,
        }
    }
    let request = Request::parse(format, body).expect("the body is a request");
    let messages = &request.conversation().messages;
    let decoded: usize = messages.iter().flat_map(|message| &message.parts).map(decoded_bytes).sum();
    request.splice(&[]).expect("an empty edit list is valid").len() + decoded
}

fn serde_tree(body: &[u8]) -> usize {
    let value: serde_json::Value = serde_json::from_slice(body).expect("the body is JSON");
    serde_json::to_vec(&value).expect("a JSON value serializes").len()
}

/// Returns the CPU time of each case, run the given number of times. CPU time, so that a busy machine does not count
/// as slow code; the fastest runs are those least disturbed.
fn fast_times<const N: usize>(cases: [(usize, &BenchCase<'_>); N]) -> [Duration; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..INTERLEAVED_BATCHES {
        for ((runs, case), times) in cases.iter().zip(&mut times) {
            // Several in a row: pages that one case allocated are returned to the system, and paid for, when the next
            // one frees the memory after them.
            for _ in 0..runs.div_ceil(INTERLEAVED_BATCHES) {
                let start = ThreadTime::now();
                black_box(case());
                times.push(start.elapsed());
            }
        }
    }
    // Not the very fastest: the clock of a virtual machine sometimes jumps.
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 10]
    })
}

/// Returns the peak memory of a case beyond the body, in multiples of the body.
fn peak_memory_ratio(body: &[u8], case: &BenchCase<'_>) -> f64 {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    case();
    (ALLOCATOR.peak_usage() - before) as f64 / body.len() as f64
}

/// Returns a session of a coding agent: short turns, long results with many newlines and quotes.
fn body(format: Format, size: usize) -> Vec<u8> {
    let mut messages = String::new();
    let mut round = 0;
    while messages.len() < size {
        let separator = if round == 0 { "" } else { "," };
        let prose = json_string(&format!("Let me look at src/module_{round}.rs next; the failing test names it."));
        let result = json_string(&file_listing(round));
        let arguments = format!(r#"{{"path":"src/module_{round}.rs","offset":{round},"limit":200}}"#);
        let quoted = json_string(&arguments);
        let written = match format {
            Format::OpenAiChat => write!(
                messages,
                r#"{separator}{{"role":"assistant","content":{prose},"tool_calls":[{{"id":"call_{round}","type":"function","function":{{"name":"read_file","arguments":{quoted}}}}}]}},{{"role":"tool","tool_call_id":"call_{round}","content":{result}}}"#
            ),
            Format::OpenAiResponses => write!(
                messages,
                r#"{separator}{{"type":"reasoning","id":"rs_{round}","summary":[],"encrypted_content":"{}"}},{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":{prose},"annotations":[]}}]}},{{"type":"function_call","call_id":"call_{round}","name":"read_file","arguments":{quoted}}},{{"type":"function_call_output","call_id":"call_{round}","output":{result}}}"#,
                "gAAAAABo".repeat(100)
            ),
            Format::Anthropic => write!(
                messages,
                r#"{separator}{{"role":"assistant","content":[{{"type":"text","text":{prose}}},{{"type":"tool_use","id":"toolu_{round}","name":"Read","input":{arguments}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_{round}","content":[{{"type":"text","text":{result}}}]}}]}}"#
            ),
            Format::Ollama => write!(
                messages,
                r#"{separator}{{"role":"assistant","content":{prose},"tool_calls":[{{"function":{{"name":"read_file","arguments":{arguments}}}}}]}},{{"role":"tool","tool_name":"read_file","content":{result}}}"#
            ),
            Format::Converse => write!(
                messages,
                r#"{separator}{{"role":"assistant","content":[{{"text":{prose}}},{{"toolUse":{{"toolUseId":"tooluse_{round}","name":"read_file","input":{arguments}}}}}]}},{{"role":"user","content":[{{"toolResult":{{"toolUseId":"tooluse_{round}","content":[{{"text":{result}}}]}}}}]}}"#
            ),
            Format::Gemini => write!(
                messages,
                r#"{separator}{{"role":"model","parts":[{{"text":{prose}}},{{"functionCall":{{"id":"fc_{round}","name":"read_file","args":{arguments}}}}}]}},{{"role":"user","parts":[{{"functionResponse":{{"id":"fc_{round}","name":"read_file","response":{{"output":{result}}}}}}}]}}"#
            ),
        };
        written.expect("writing to a string cannot fail");
        round += 1;
    }
    let (key, more) = match format {
        Format::OpenAiResponses => ("input", r#""instructions":"Be careful.","#),
        Format::OpenAiChat => ("messages", ""),
        Format::Anthropic => ("messages", r#""system":"Be careful.","#),
        Format::Converse => ("messages", r#""system":[{"text":"Be careful."}],"#),
        Format::Ollama => ("messages", r#""keep_alive":"5m","#),
        Format::Gemini => ("contents", r#""systemInstruction":{"parts":[{"text":"Be careful."}]},"#),
    };
    format!(r#"{{"model":"some-model",{more}"{key}":[{messages}],"stream":true}}"#).into_bytes()
}

/// Returns a file as a tool shows it.
fn file_listing(round: usize) -> String {
    (0..60 + round * 37 % 90)
        .map(|line| match line % 5 {
            0 => format!("{line:>6}\tfn rule_{line}(tokens: &[Token]) -> Result<Node, Error> {{\n"),
            1 => format!("{line:>6}\t    let name = \"rule {round}\";\n"),
            2 => format!("{line:>6}\t    // Größe: {line} → {round}\n"),
            3 => format!("{line:>6}\t    parse(tokens, name, {line}).map_err(|error| error.at({line}))\n"),
            _ => format!("{line:>6}\t}}\n"),
        })
        .collect()
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("a string serializes to JSON")
}
