//! Cost of checking a request relative to parsing it: `cargo bench -p foldline --bench laws`.
//!
//! The machine may be noisy, so each number is the best of many runs and a ratio to the time of parsing the same
//! body. Bodies are generated; recorded ones are added from the folder `FOLDLINE_CORPUS`, if it is set.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldline::conversation::PartId;
use foldline::laws::{LawProfile, RewriteContext, check, compare, free_cuts, repair_edits};
use foldline::wire::{Format, Request, RequestEdit};

fn main() {
    print_line(&format!(
        "{:<44}{:>9}{:>10}{:>8}{:>9}{:>7}{:>8}",
        "body", "KB", "parse", "check", "compare", "cuts", "repair"
    ));
    for format in [Format::Anthropic, Format::OpenAiChat, Format::OpenAiResponses] {
        measure(&format!("{}, 200 rounds of 5 KB", format.name()), format, &body(format, 200, 5_000));
        measure(&format!("{}, 1,000 rounds of 40 bytes", format.name()), format, &body(format, 1_000, 40));
    }
    let Some(corpus) = corpus() else {
        print_line("no corpus (set FOLDLINE_CORPUS): recorded bodies are skipped");
        return;
    };
    let folders = [
        ("anthropic-messages", Format::Anthropic),
        ("openai-chat", Format::OpenAiChat),
        ("openai-responses", Format::OpenAiResponses),
    ];
    for (folder, format) in folders {
        if let Some((name, body)) = largest_file(&corpus.join("raw").join(folder)) {
            measure(&name, format, &body);
        }
    }
}

fn measure(name: &str, format: Format, body: &[u8]) {
    let request = Request::parse(format, body).expect("the generated body is a request");
    let profile = LawProfile::for_request(&request);
    let folded = request.splice(&first_fold(&request)).expect("the result can be folded");
    let rewritten = Request::parse(format, &folded).expect("the folded request is valid");
    let rewriting = RewriteContext::new(&profile);

    let parse = best_time(|| drop(black_box(Request::parse(format, black_box(body)))));
    let share = |time: Duration| format!("{:.2}", time.as_secs_f64() / parse.as_secs_f64());
    print_line(&format!(
        "{name:<44}{:>9}{:>10}{:>8}{:>9}{:>7}{:>8}",
        body.len() / 1024,
        format!("{} us", parse.as_micros()),
        share(best_time(|| drop(black_box(check(&request, &profile))))),
        share(best_time(|| drop(black_box(compare(&request, &rewritten, &rewriting))))),
        share(best_time(|| drop(black_box(free_cuts(request.conversation(), &profile))))),
        share(best_time(|| drop(black_box(repair_edits(&request))))),
    ));
}

/// Folds the first result to a marker.
fn first_fold(request: &Request<'_>) -> Vec<RequestEdit> {
    let messages = &request.conversation().messages;
    let at = messages.iter().position(|message| message.has_results());
    at.map(|at| RequestEdit::Text { at: PartId::new(at, 0), text: "[folded]".into() }).into_iter().collect()
}

fn best_time(mut run: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    let begin = Instant::now();
    for turn in 0.. {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        if turn >= 20 && begin.elapsed() > Duration::from_millis(300) {
            break;
        }
    }
    best
}

fn body(format: Format, rounds: usize, size: usize) -> Vec<u8> {
    let output = "  at src/main.rs:12\\n\\tlet x = \\\"é\\\";\\n".repeat(size / 40);
    let round = |at: usize| match format {
        Format::Anthropic => format!(
            r#",{{"role":"assistant","content":[{{"type":"text","text":"next {at}"}},{{"type":"tool_use","id":"toolu_{at}","name":"sh","input":{{"command":"ls {at}"}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_{at}","content":"{output}"}}]}}"#
        ),
        Format::OpenAiChat => format!(
            r#",{{"role":"assistant","content":"next {at}","tool_calls":[{{"id":"call_{at}","type":"function","function":{{"name":"sh","arguments":"{{\"command\":\"ls {at}\"}}"}}}}]}},{{"role":"tool","tool_call_id":"call_{at}","content":"{output}"}}"#
        ),
        Format::OpenAiResponses => format!(
            r#",{{"type":"reasoning","id":"rs_{at}","summary":[],"encrypted_content":"gAAA{at}"}},{{"type":"function_call","id":"fc_{at}","call_id":"call_{at}","name":"sh","arguments":"{{\"command\":\"ls {at}\"}}"}},{{"type":"function_call_output","call_id":"call_{at}","output":"{output}"}}"#
        ),
        other => panic!("no script for {other:?}"),
    };
    let rounds: String = (0..rounds).map(round).collect();
    let (model, fields, key) = match format {
        Format::Anthropic => (
            "claude-opus-4-8",
            r#""max_tokens":9,"system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"sh","input_schema":{}}],"#,
            "messages",
        ),
        Format::OpenAiChat => ("gpt-5.2", "", "messages"),
        Format::OpenAiResponses => ("gpt-5.5", r#""store":false,"#, "input"),
        other => panic!("no script for {other:?}"),
    };
    format!(r#"{{"model":"{model}",{fields}"{key}":[{{"role":"user","content":"go"}}{rounds}]}}"#).into_bytes()
}

fn corpus() -> Option<PathBuf> {
    std::env::var_os("FOLDLINE_CORPUS").map(PathBuf::from).filter(|folder| folder.is_dir())
}

fn largest_file(folder: &Path) -> Option<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let file = files.max_by_key(|file| file.metadata().map_or(0, |metadata| metadata.len()))?;
    let name = format!("recorded {}", file.file_name().to_string_lossy());
    Some((name, std::fs::read(file.path()).ok()?))
}

#[expect(clippy::print_stdout, reason = "a bench reports on the terminal")]
fn print_line(line: &str) {
    println!("{line}");
}
