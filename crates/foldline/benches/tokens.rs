//! Speed of counting, as ratios inside one run: against another implementation of the same vocabulary, against the
//! cost of a hash for texts counted before, and for runs without a break.
//!
//! Reads the recorded sessions in the folder `FOLDLINE_CORPUS`, and uses generated text if it is not set.

#![expect(clippy::print_stdout, reason = "a bench reports on the terminal")]

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use foldline::tokens::{TokenCounter, TokenEstimator, Vocabulary};
use foldline::{Message, Meter, ModelTable, Role};

fn main() {
    let texts = corpus().unwrap_or_else(|| {
        println!("no corpus (set FOLDLINE_CORPUS): using generated text");
        generated_texts()
    });
    let bytes: usize = texts.iter().map(String::len).sum();
    println!("{} texts, {:.1} MB", texts.len(), bytes as f64 / 1e6);
    exact_counts(&texts, bytes);
    estimates(&texts, bytes);
    recounts(&texts);
    long_runs();
}

/// Returns every text of every message: content, reasoning, arguments.
fn corpus() -> Option<Vec<String>> {
    let folder = std::env::var_os("FOLDLINE_CORPUS")?;
    let file = std::fs::File::open(Path::new(&folder).join("dev.jsonl.zst")).ok()?;
    let lines = BufReader::new(zstd::Decoder::new(file).ok()?).lines();
    let mut texts = Vec::new();
    for line in lines {
        let record: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
        collect_texts(&record["messages"], &mut texts);
    }
    Some(texts)
}

/// Collects the strings of a value that are text.
fn collect_texts(value: &serde_json::Value, texts: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) => texts.push(text.clone()),
        serde_json::Value::Array(list) => list.iter().for_each(|value| collect_texts(value, texts)),
        serde_json::Value::Object(map) => map.values().for_each(|value| collect_texts(value, texts)),
        _ => {}
    }
}

fn generated_texts() -> Vec<String> {
    let line = |at: usize| {
        format!("    let value_{at} = read(\"src/part_{}.rs\")?; // line {at}: 0x{:08x}\n", at % 97, at * 7_919)
    };
    (0..2_000).map(|text| (text..text + 100).map(line).collect()).collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = black_box(work());
    (start.elapsed(), result)
}

/// Returns the shortest of several runs, which was disturbed least.
fn best_time<T>(runs: usize, mut work: impl FnMut() -> T) -> Duration {
    (0..runs).map(|_| timed(&mut work).0).min().unwrap_or_default()
}

/// Returns the time of each function for all texts. The functions alternate batch by batch, so that a busy machine
/// slows all of them; the shortest of several passes over a batch counts, with other batches in between, so that
/// caches are cold.
fn interleaved_times(texts: &[String], passes: usize, functions: &[&dyn Fn(&str) -> u64]) -> Vec<Duration> {
    let mut times = vec![vec![Duration::MAX; texts.len().div_ceil(BATCH_TEXTS)]; functions.len()];
    for _ in 0..passes {
        for (at, batch) in texts.chunks(BATCH_TEXTS).enumerate() {
            for (function, times) in functions.iter().zip(&mut times) {
                let (time, _) = timed(|| batch.iter().map(|text| function(text)).fold(0, u64::wrapping_add));
                times[at] = time.min(times[at]);
            }
        }
    }
    times.iter().map(|times| times.iter().sum()).collect()
}

const BATCH_TEXTS: usize = 256;

fn speed(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e6
}

fn exact_counts(texts: &[String], bytes: usize) {
    let ours = Vocabulary::o200k();
    let reference = tiktoken_rs::o200k_base().expect("the reference vocabulary is built in");
    let expected = |text: &str| reference.encode_ordinary(text).len() as u64;
    let different = texts.iter().filter(|text| ours.count(text) != expected(text)).count();
    let tokens: u64 = texts.iter().map(|text| ours.count(text)).sum();
    let times = interleaved_times(texts, 3, &[&|text| ours.count(text), &expected]);
    println!(
        "exact o200k: {:.1} MB/s, tiktoken-rs {:.1} MB/s, ratio {:.1}; {tokens} tokens, {different} texts counted differently",
        speed(bytes, times[0]),
        speed(bytes, times[1]),
        times[1].as_secs_f64() / times[0].as_secs_f64(),
    );
}

fn estimates(texts: &[String], bytes: usize) {
    let sum = |counter: &dyn TokenCounter| texts.iter().map(|text| counter.count(text)).sum::<u64>() as f64;
    let times = interleaved_times(texts, 5, &[&|text| TokenEstimator.count(text)]);
    let share = sum(&TokenEstimator) / sum(&Vocabulary::o200k());
    println!("estimate: {:.0} MB/s, {share:.3} of the exact count", speed(bytes, times[0]));
}

fn recounts(texts: &[String]) {
    let texts: Vec<String> = texts.iter().filter(|text| text.len() >= 100).take(30_000).cloned().collect();
    let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-5.5"));
    let count = |text: &str| meter.message(&Message::text(Role::User, text));
    let first = interleaved_times(&texts, 1, &[&count])[0];
    let hash = |text: &str| xxhash_rust::xxh3::xxh3_128(text.as_bytes()) as u64;
    let times = interleaved_times(&texts, 5, &[&count, &hash]);
    let (again, hash) = (times[0], times[1]);
    let each = |time: Duration| time.as_nanos() as f64 / texts.len() as f64;
    println!(
        "{} messages counted again: {:.0} ns each, of which the hash alone {:.0} ns; the first time {:.0} ns, {:.0} times as long",
        texts.len(),
        each(again),
        each(hash),
        each(first),
        first.as_secs_f64() / again.as_secs_f64(),
    );
}

fn long_runs() {
    let noise =
        |length: u64| (0..length).map(|at| (b'a' + (at * at * 7_919 / 13 % 26) as u8) as char).collect::<String>();
    for (name, unit) in [("one letter", "a"), ("spaces", " "), ("newlines", "\n"), ("dashes", "-")] {
        report_run(name, &unit.repeat(1 << 18), &unit.repeat(1 << 20));
    }
    report_run("letters at random", &noise(1 << 18), &noise(1 << 20));
}

/// Reports the time of a long run: four times the run should take about four times the time.
fn report_run(name: &str, quarter: &str, whole: &str) {
    let vocabulary = Vocabulary::o200k();
    let short = best_time(9, || vocabulary.count(quarter));
    let long = best_time(9, || vocabulary.count(whole));
    println!(
        "1 MB of {name}: {:.1} ms, {:.1} times a quarter of it",
        long.as_secs_f64() * 1e3,
        long.as_secs_f64() / short.as_secs_f64()
    );
}
