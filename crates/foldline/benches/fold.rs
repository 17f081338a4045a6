//! Costs of folding, as ratios inside one run: against counting the same tokens, a late turn against an early one,
//! many messages against few, and memory against the text. Times are CPU time of this thread.
//!
//! The text is generated to resemble recordings (`synthetic`). The cost of a cold fold is also reported for two more
//! kinds: text with three times as many names, whose few words are cheap to count; and recorded conversations under
//! `FOLDLINE_CORPUS`.

#![expect(clippy::print_stdout, reason = "a bench reports on the terminal")]

use std::fs::File;
use std::hint::black_box;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use cpu_time::ThreadTime;
use foldline::transcript::TranscriptReader;
use foldline::{
    Conversation, FoldOptions, FoldSession, Ledger, Message, Meter, ModelTable, Part, Policy, Prices, Role, fold,
};
use peak_alloc::PeakAlloc;

mod synthetic;

use synthetic::TextGenerator;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A model whose tokens are counted, and one whose tokens are estimated.
const COUNTED_MODEL: &str = "gpt-4o";
const ESTIMATED_MODEL: &str = "claude-opus-4-6";
const MODELS: [&str; 2] = [COUNTED_MODEL, ESTIMATED_MODEL];

fn main() {
    // `cargo bench -p foldline --bench fold -- cold` runs one of them. For instruction counts there are `cold-exact`
    // and `cold-estimated`: one fold each.
    let names: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_named = |name: &str| names.iter().any(|other| other == name);
    let run = |name: &str| names.is_empty() || is_named(name);
    run("cold").then(|| MODELS.map(|model| cold_fold(model, BenchText::Realistic, 7)));
    run("cold").then(|| MODELS.map(|model| cold_fold(model, BenchText::DenseNames, 7)));
    run("recorded").then(|| MODELS.map(recorded_folds));
    is_named("cold-exact").then(|| cold_fold(COUNTED_MODEL, BenchText::Realistic, 1));
    is_named("cold-estimated").then(|| cold_fold(ESTIMATED_MODEL, BenchText::Realistic, 1));
    run("turns").then(|| late_turns("estimated", ESTIMATED_MODEL));
    run("turns").then(|| late_turns("exact", COUNTED_MODEL));
    run("many").then(many_messages);
    run("memory").then(memory_use);
}

fn fold_options(model: &str, budget: u64) -> FoldOptions {
    let table = ModelTable::builtin();
    FoldOptions::new(Meter::for_model(table, Some(model)), Prices::for_model(table, Some(model)), budget)
}

/// The kind of text in a generated conversation.
#[derive(Clone, Copy, Debug)]
enum BenchText {
    Realistic,
    DenseNames,
}

/// Returns text that is almost only names, in lines that never repeat.
fn dense_text(seed: usize, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 80);
    let mut at = seed * 7_919;
    while text.len() < bytes {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (a, b) = (at >> 40 & 0xfff, at >> 20 & 0xfff);
        text.push_str(&format!("    let value_{a} = self.part_{b}.read(\"src/file_{}.rs\")?;\n", a ^ b));
    }
    text
}

/// Returns a call and its result.
fn round(at: usize, path: &str, result: String) -> [Message<'static>; 2] {
    let tool = if at.is_multiple_of(3) { "bash" } else { "read_file" };
    let call = Part::call(format!("c{at}"), tool, format!(r#"{{"path":"{path}"}}"#));
    [
        Message::new(Role::Assistant, vec![Part::text("Looking."), call]),
        Message::new(Role::Tool, vec![Part::result(format!("c{at}"), result)]),
    ]
}

fn session(kind: BenchText, rounds: usize, bytes: usize) -> Vec<Message<'static>> {
    generated_session(&mut TextGenerator::new(7), kind, rounds, bytes)
}

fn generated_session(
    generator: &mut TextGenerator,
    kind: BenchText,
    rounds: usize,
    bytes: usize,
) -> Vec<Message<'static>> {
    let next = |at| match kind {
        BenchText::Realistic => round(at, &generator.path(), generator.text(bytes)),
        BenchText::DenseNames => round(at, &format!("src/file_{at}.rs"), dense_text(at, bytes)),
    };
    let task = Message::text(Role::User, "Make it faster.");
    std::iter::once(task).chain((0..rounds).flat_map(next)).collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = ThreadTime::now();
    let result = work();
    (start.elapsed(), result)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the time to count the tokens of a conversation that was never seen before.
fn counting_time(model: &str, conversation: &Conversation<'_>) -> Duration {
    let fresh = fold_options(model, 128_000);
    timed(|| black_box(fresh.meter.conversation(conversation))).0
}

/// Formats the cost of a fold relative to counting tokens by a vocabulary, or to estimating them where the model has
/// none.
fn ratio_text(folded: Duration, count: Duration, model: &str, own: Duration) -> String {
    let to = |alone: Duration| folded.as_secs_f64() / alone.as_secs_f64();
    let estimate = match model {
        COUNTED_MODEL => String::new(),
        _ => format!(", {:.2} times an estimate ({own:?})", to(own)),
    };
    format!("{:.2} times counting alone ({count:?}){estimate}", to(count))
}

/// Measures a conversation of one megabyte that was never seen before.
fn cold_fold(model: &str, kind: BenchText, times: usize) {
    let conversation = Conversation { messages: session(kind, 256, 4_000), ..Conversation::default() };
    let (mut counts, mut sizes, mut folds) = (Vec::new(), Vec::new(), Vec::new());
    let mut creases = 0;
    for _ in 0..times {
        counts.push(counting_time(COUNTED_MODEL, &conversation));
        sizes.push(counting_time(model, &conversation));
        let fresh = fold_options(model, 128_000);
        let (time, folded) =
            timed(|| fold(&conversation, &fresh, &Ledger::default()).expect("the conversation fits the budget"));
        folds.push(time);
        creases = folded.creases.len();
    }
    let folded = median(folds);
    let ratios = ratio_text(folded, median(counts), model, median(sizes));
    println!("cold fold of 1 MB, {kind:?}, {model}: {folded:?}, {ratios}, {creases} creases");
}

/// Measures recorded conversations of half a megabyte to two, none seen before: all together, and the one with the
/// worst ratio.
fn recorded_folds(model: &str) {
    let path = std::env::var_os("FOLDLINE_CORPUS").map(|folder| Path::new(&folder).join("dev.jsonl.zst"));
    let open = |path| File::open(path).and_then(zstd::Decoder::new).map(BufReader::new).ok();
    let Some(recordings) = path.and_then(open).and_then(|file| TranscriptReader::new("dev", file).ok()) else {
        println!("no recorded conversations (set FOLDLINE_CORPUS)");
        return;
    };
    let (mut number, mut bytes, mut worst) = (0, 0, 0.0_f64);
    let (mut counts, mut sizes, mut folds) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for conversation in recordings.filter_map(Result::ok).map(|recording| recording.conversation) {
        let size = serde_json::to_string(&conversation).map_or(0, |json| json.len());
        if !(500_000..2_000_000).contains(&size) {
            continue;
        }
        let best = |work: &dyn Fn() -> Duration| (0..3).map(|_| work()).min().expect("at least one run");
        let (count, own) =
            (best(&|| counting_time(COUNTED_MODEL, &conversation)), best(&|| counting_time(model, &conversation)));
        let folded = best(&|| {
            let fresh = fold_options(model, 128_000);
            timed(|| black_box(fold(&conversation, &fresh, &Ledger::default()))).0
        });
        (number, bytes) = (number + 1, bytes + size);
        (counts, sizes, folds) = (counts + count, sizes + own, folds + folded);
        worst = worst.max(folded.as_secs_f64() / count.as_secs_f64());
    }
    let ratios = ratio_text(folds, counts, model, sizes);
    println!(
        "cold folds of {number} recorded conversations, {:.1} MB, {model}: {folds:?}, {ratios}, the worst {worst:.2} times \
         counting",
        bytes as f64 / 1e6
    );
}

/// Measures a turn with four kilobytes of new text, without a crease.
fn late_turns(name: &str, model: &str) {
    let mut options = fold_options(model, 100_000_000);
    options.policy = Policy::lossless();
    let mut fold_session = FoldSession::new(options);
    // The variety of generated text grows up to this amount.
    let mut generator = TextGenerator::new(7);
    generated_session(&mut generator, BenchText::Realistic, 256, 4_000)
        .into_iter()
        .for_each(|message| fold_session.push(message));
    let rounds = generated_session(&mut generator, BenchText::Realistic, 2_000, 4_000);
    let mut rounds = rounds.into_iter().skip(1);
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for at in 0..2_000 {
        let messages: Vec<Message<'_>> = rounds.by_ref().take(2).collect();
        let (time, ()) = timed(|| {
            messages.into_iter().for_each(|message| fold_session.push(message));
            black_box(fold_session.plan_request().expect("the request fits the budget"));
        });
        match at {
            10..110 => early.push(time),
            1_900.. => late.push(time),
            _ => {}
        }
    }
    let (early, late) = (median(early), median(late));
    let ratio = late.as_secs_f64() / early.as_secs_f64();
    println!("a turn of 4 kB on 1 MB, {name}: {early:?} at turn 10, {late:?} at turn 2,000, ratio {ratio:.2}");
}

/// Measures the time per message: ten times the messages should cost ten times the time.
fn many_messages() {
    let per_message = |rounds: usize| {
        let conversation =
            Conversation { messages: session(BenchText::Realistic, rounds, 400), ..Conversation::default() };
        // The window is full at a tenth of either size.
        let options = fold_options(ESTIMATED_MODEL, 16_000);
        let times = (0..5).map(|_| {
            timed(|| fold(&conversation, &options, &Ledger::default()).expect("the conversation fits the budget")).0
        });
        median(times.collect()).as_secs_f64() / conversation.messages.len() as f64
    };
    let (few, more) = (per_message(500), per_message(5_000));
    let us = |seconds: f64| seconds * 1e6;
    println!("per message: {:.1} µs of 1,000, {:.1} µs of 10,000, ratio {:.2}", us(few), us(more), more / few);
}

/// Measures the memory of a session in addition to its input text.
fn memory_use() {
    let before = ALLOCATOR.current_usage();
    let messages = session(BenchText::Realistic, 1_000, 4_000);
    let text = ALLOCATOR.current_usage() - before;
    ALLOCATOR.reset_peak_usage();
    let mut fold_session = FoldSession::new(fold_options("claude-opus-4-6", 128_000));
    for message in messages {
        if message.is_assistant() {
            black_box(fold_session.plan_request().expect("the request fits the budget"));
        }
        fold_session.push(message);
    }
    let used = ALLOCATOR.current_usage() - before;
    let peak = ALLOCATOR.peak_usage() - before;
    let ratio = |bytes: usize| bytes as f64 / text as f64;
    println!(
        "memory: {:.1} MB of messages, {:.2} times that in use, {:.2} at the peak",
        text as f64 / 1e6,
        ratio(used),
        ratio(peak)
    );
}
