//! What the benches of the archive share: texts, random numbers, timers, quantiles.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use foldline::{Handle, Original};

/// Returns an original with this text.
pub(crate) fn original(text: &[u8]) -> Original<'_> {
    Original {
        handle: Handle::for_content(text),
        bytes: text,
        tool: Some("bash"),
        arguments: None,
        message: 0,
        tokens: 0,
    }
}

/// A generator of reproducible numbers.
pub(crate) struct SeededRng(pub(crate) u64);

impl SeededRng {
    pub(crate) fn next_below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Elapsed time without the time in which this thread was ready to run but waited for a processor.
pub(crate) struct RunTimer {
    started: Instant,
    queued: Duration,
}

impl RunTimer {
    pub(crate) fn start() -> Self {
        Self { queued: Self::queued_time(), started: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        let passed = self.started.elapsed();
        passed.saturating_sub(Self::queued_time() - self.queued)
    }

    /// Returns the time this thread has waited for a processor; zero except on Linux.
    fn queued_time() -> Duration {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Duration::from_nanos(schedstat.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0))
    }
}

/// Returns the time that this share of the times does not exceed.
pub(crate) fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// Returns a text of about this length, made of randomly chosen lines.
pub(crate) fn random_text(lines: &[String], rng: &mut SeededRng, length: usize) -> String {
    let mut text = String::with_capacity(length + 200);
    while text.len() < length {
        text.push_str(&lines[rng.next_below(lines.len())]);
        text.push('\n');
    }
    text.truncate(text.floor_char_boundary(length));
    text
}

/// Returns lines of recorded tool outputs, or generated ones if there is no corpus.
pub(crate) fn sample_lines() -> Vec<String> {
    if let Some(conversations) = corpus_texts() {
        let lines = conversations.iter().flatten().flat_map(|text| text.lines()).filter(|line| line.len() > 8);
        return lines.step_by(7).map(str::to_owned).collect();
    }
    let mut rng = SeededRng(3);
    let syllables = ["ka", "to", "mi", "ren", "sol", "vex", "dar", "lu", "pho", "qui", "zan", "bre", "sti", "nor"];
    let mut word =
        || (0..1 + rng.next_below(4)).map(|at| syllables[(at * 7 + rng.next_below(14)) % 14]).collect::<String>();
    (0..200_000).map(|_| (0..8).map(|_| word()).collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the foldable texts of an agent's conversations: tool outputs, prose and arguments of the model.
pub(crate) fn corpus_texts() -> Option<Vec<Vec<String>>> {
    let Some(folder) = std::env::var_os("FOLDLINE_CORPUS") else {
        println!("        no recorded conversations (set FOLDLINE_CORPUS): skipped, or run with generated text");
        return None;
    };
    let file = std::fs::File::open(Path::new(&folder).join("dev.jsonl.zst")).unwrap();
    let records = BufReader::new(zstd::stream::read::Decoder::new(file).unwrap());
    let mut conversations = Vec::new();
    for line in records.lines() {
        let record: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let mut texts = Vec::new();
        for message in record["messages"].as_array().unwrap() {
            if !matches!(message["role"].as_str(), Some("assistant" | "tool")) {
                continue;
            }
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            texts.extend(calls.filter_map(|call| call["function"]["arguments"].as_str()).map(str::to_owned));
            texts.extend(
                [&message["content"], &message["reasoning_content"]]
                    .iter()
                    .filter_map(|field| Some(field.as_str()?.to_owned())),
            );
        }
        // Shorter texts are not worth a marker.
        texts.retain(|text| text.len() >= 256);
        conversations.push(texts);
    }
    Some(conversations)
}
