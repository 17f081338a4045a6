//! How fast texts are counted, as ratios inside one run: against another implementation of the same
//! vocabulary, against the cost of a hash for what was counted before, and for runs without a break.
//!
//! Reads the recorded sessions under `FOLDLINE_CORPUS` (default `../shared/corpus` beside the workspace) and
//! makes do with generated text where there are none.

#![expect(clippy::print_stdout, reason = "a bench reports on the terminal")]

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use foldline::{Counter, Estimator, Message, Meter, ModelTable, Role, Vocabulary};

fn main() {
    let texts = corpus().unwrap_or_else(|| {
        println!("no corpus (set FOLDLINE_CORPUS): generated text instead");
        generated()
    });
    let bytes: usize = texts.iter().map(String::len).sum();
    println!("{} texts, {:.1} MB", texts.len(), bytes as f64 / 1e6);
    exact_counts(&texts, bytes);
    estimates(&texts, bytes);
    counted_again(&texts, bytes);
    long_runs();
}

/// Every text of every message: content, reasoning, arguments.
fn corpus() -> Option<Vec<String>> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus");
    let folder = std::env::var_os("FOLDLINE_CORPUS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let file = std::fs::File::open(folder.join("dev.jsonl.zst")).ok()?;
    let lines = BufReader::new(zstd::Decoder::new(file).ok()?).lines();
    let mut texts = Vec::new();
    for line in lines {
        let record: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
        collect(&record["messages"], &mut texts);
    }
    Some(texts)
}

/// The strings of a value that stand for text.
fn collect(value: &serde_json::Value, texts: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) => texts.push(text.clone()),
        serde_json::Value::Array(list) => list.iter().for_each(|value| collect(value, texts)),
        serde_json::Value::Object(map) => map.values().for_each(|value| collect(value, texts)),
        _ => {}
    }
}

fn generated() -> Vec<String> {
    let line = |at: usize| {
        format!("    let value_{at} = read(\"src/part_{}.rs\")?; // line {at}: 0x{:08x}\n", at % 97, at * 7_919)
    };
    (0..2_000).map(|text| (text..text + 100).map(line).collect()).collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}

fn speed(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e6
}

fn exact_counts(texts: &[String], bytes: usize) {
    let ours = Vocabulary::o200k();
    let oracle = tiktoken_rs::o200k_base().expect("the oracle's vocabulary is built in");
    // In turns, so that a busy machine slows both.
    let (mut our_time, mut oracle_time, mut different, mut tokens) = (Duration::ZERO, Duration::ZERO, 0, 0);
    for text in texts {
        let (time, count) = timed(|| ours.count(text));
        our_time += time;
        let (time, expected) = timed(|| oracle.encode_ordinary(text).len() as u64);
        oracle_time += time;
        different += usize::from(count != expected);
        tokens += count;
    }
    println!(
        "exact o200k: {:.1} MB/s, tiktoken-rs {:.1} MB/s, ratio {:.1}; {tokens} tokens, {different} texts counted differently",
        speed(bytes, our_time),
        speed(bytes, oracle_time),
        oracle_time.as_secs_f64() / our_time.as_secs_f64(),
    );
}

fn estimates(texts: &[String], bytes: usize) {
    let exact: u64 = texts.iter().map(|text| Vocabulary::o200k().count(text)).sum();
    let (time, guess) = timed(|| texts.iter().map(|text| Estimator.count(text)).sum::<u64>());
    println!("estimate: {:.0} MB/s, {:.3} of the exact count", speed(bytes, time), guess as f64 / exact as f64);
}

fn counted_again(texts: &[String], bytes: usize) {
    let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-5.5"));
    let messages: Vec<Message<'_>> =
        texts.iter().take(30_000).map(|text| Message::text(Role::User, text.as_str())).collect();
    let bytes = texts.iter().take(30_000).map(String::len).sum::<usize>().min(bytes);
    let count = || messages.iter().map(|message| meter.message(message)).sum::<u64>();
    let (first, once) = timed(count);
    let (again, twice) = timed(count);
    assert_eq!(once, twice, "a count from the cache is the count");
    let (hash, _) = timed(|| {
        texts.iter().take(30_000).for_each(|text| {
            black_box(xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        });
    });
    println!(
        "counted again: {:.0} MB/s, {:.0} times the first time's speed; {:.0} ns a message, of which the hash alone {:.0} ns",
        speed(bytes, again),
        first.as_secs_f64() / again.as_secs_f64(),
        again.as_nanos() as f64 / messages.len() as f64,
        hash.as_nanos() as f64 / messages.len() as f64,
    );
}

fn long_runs() {
    let noise =
        |length: u64| (0..length).map(|at| (b'a' + (at * at * 7_919 / 13 % 26) as u8) as char).collect::<String>();
    for (name, unit) in [("one letter", "a"), ("blanks", " "), ("newlines", "\n"), ("dashes", "-")] {
        report(name, &unit.repeat(1 << 18), &unit.repeat(1 << 20));
    }
    report("letters at random", &noise(1 << 18), &noise(1 << 20));
}

/// Four times the run should take about four times the time.
fn report(name: &str, quarter: &str, whole: &str) {
    let vocabulary = Vocabulary::o200k();
    let (short, _) = timed(|| vocabulary.count(quarter));
    let (long, _) = timed(|| vocabulary.count(whole));
    println!(
        "1 MB of {name}: {:.1} ms, {:.1} times a quarter of it",
        long.as_secs_f64() * 1e3,
        long.as_secs_f64() / short.as_secs_f64()
    );
}
