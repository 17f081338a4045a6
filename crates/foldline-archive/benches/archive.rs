//! The cost of the archive, as ratios and quantiles inside one run.
//!
//! `cargo bench -p foldline-archive -- store` compares a durable store call of a crease (20 originals, 200 KB) with one
//! bare SQLite commit of the same bytes on the same disk. `-- million` fills an archive with a million originals, then
//! unfolds and searches (in the folder `ARCHIVE_BENCH_DIR`, if set, which is reused). `-- size` stores the recorded
//! conversations of a corpus and prints their size on disk. Without an argument all three run.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing bench stops, and it prints")]

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldline::{Handle, Original};
use foldline_archive::{Archive, Namespace, TenantArchive};
use rusqlite::Connection;

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |name: &str| names.is_empty() || names.iter().any(|selected| selected == name);
    if runs("store") {
        bench_store();
    }
    if runs("size") {
        bench_size();
    }
    if runs("million") {
        bench_million();
    }
}

/// Creates a folder on the disk that the build uses, not in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn local_tenant(folder: &tempfile::TempDir) -> TenantArchive {
    Archive::open(folder.path().join("archive.db")).unwrap().tenant(&Namespace::local())
}

fn original(text: &[u8]) -> Original<'_> {
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
struct SeededRng(u64);

impl SeededRng {
    fn next_below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Elapsed time without the time in which this thread was ready to run but waited for a processor.
struct RunTimer {
    started: Instant,
    queued: Duration,
}

impl RunTimer {
    fn start() -> Self {
        Self { queued: Self::queued_time(), started: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        let passed = self.started.elapsed();
        passed.saturating_sub(Self::queued_time() - self.queued)
    }

    /// Returns the time this thread has waited for a processor; zero except on Linux.
    fn queued_time() -> Duration {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Duration::from_nanos(schedstat.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0))
    }
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * share) as usize]
}

fn bench_store() {
    const CREASE_COUNT: usize = 200;
    let lines = sample_lines();
    let mut rng = SeededRng(1);
    let folder = folder();
    let tenant = local_tenant(&folder);
    let bare = Connection::open(folder.path().join("bare.db")).unwrap();
    bare.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(())).unwrap();
    bare.execute_batch("PRAGMA synchronous = FULL; CREATE TABLE blob (id INTEGER PRIMARY KEY, content BLOB)").unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..CREASE_COUNT {
        let texts: Vec<String> = (0..20).map(|_| random_text(&lines, &mut rng, 10_000)).collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        let started = Instant::now();
        tenant.store_durably(&originals).unwrap();
        ours.push(started.elapsed());
        let started = Instant::now();
        bare.execute_batch("BEGIN IMMEDIATE").unwrap();
        {
            let mut insert = bare.prepare_cached("INSERT INTO blob (content) VALUES (?1)").unwrap();
            for text in &texts {
                insert.execute([text.as_bytes()]).unwrap();
            }
        }
        bare.execute_batch("COMMIT").unwrap();
        theirs.push(started.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    for share in [0.5, 0.9, 0.99] {
        let (ours, theirs) = (quantile(&mut ours, share), quantile(&mut theirs, share));
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!(
            "store   p{:<3} archive {ours:>10.2?}   bare commit {theirs:>10.2?}   ratio {ratio:.2}",
            share * 100.0
        );
    }
}

fn bench_million() {
    const ORIGINAL_COUNT: usize = 1_000_000;
    let lines = sample_lines();
    let mut rng = SeededRng(2);
    let (temporary, reused) = (folder(), std::env::var_os("ARCHIVE_BENCH_DIR").map(PathBuf::from));
    let path = reused.as_deref().unwrap_or(temporary.path()).join("archive.db");
    let tenant = Archive::open(path).unwrap().tenant(&Namespace::local());
    let is_filled = tenant.stats().unwrap().available == ORIGINAL_COUNT as u64;
    let mut handles = Vec::with_capacity(ORIGINAL_COUNT);
    let mut queries = Vec::new();
    let (started, mut bytes) = (Instant::now(), 0);
    while handles.len() < ORIGINAL_COUNT {
        // The number makes each text different.
        let texts: Vec<String> = (0..1000)
            .map(|at| {
                let length = 100 + rng.next_below(500);
                format!("{}\n{}", handles.len() + at, random_text(&lines, &mut rng, length))
            })
            .collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        if !is_filled {
            tenant.store_durably(&originals).unwrap();
        }
        handles.extend(originals.iter().map(|original| original.handle));
        bytes += texts.iter().map(String::len).sum::<usize>();
        let words: Vec<&str> = texts[0].split_whitespace().collect();
        queries
            .push((0..1 + rng.next_below(3)).map(|_| words[rng.next_below(words.len())]).collect::<Vec<_>>().join(" "));
    }
    println!("million {} MB stored in {:.0?}", bytes / 1_000_000, started.elapsed());
    let started = Instant::now();
    tenant.search("anything", 0, 1).unwrap();
    println!("index   {:.0?} to catch up", started.elapsed());
    for round in ["cold", "warm", "warm"] {
        let mut times = Vec::new();
        for _ in 0..10_000 {
            let handle = handles[rng.next_below(handles.len())];
            let timer = RunTimer::start();
            let unfolded = tenant.unfold(handle.as_str()).unwrap();
            times.push(timer.elapsed());
            assert_eq!(unfolded.info.handle, handle);
        }
        let (half, most) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
        println!("unfold  {round} p50 {half:.1?}   p99 {most:.1?}");
    }
    for round in ["cold", "warm"] {
        let mut times = Vec::new();
        let mut slowest = (Duration::ZERO, "");
        let mut none = 0;
        for query in &queries {
            let timer = RunTimer::start();
            match tenant.search(query, 0, 10) {
                Ok(found) => none += usize::from(found.hits.is_empty()),
                // Punctuation and single letters are not words.
                Err(_) => continue,
            }
            let time = timer.elapsed();
            times.push(time);
            slowest = slowest.max((time, query));
        }
        let (half, most) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
        println!("search  {round} p50 {half:.1?}   p99 {most:.1?}   {} queries, {none} without a hit", times.len());
        println!("        slowest {:.1?}: {}", slowest.0, slowest.1);
    }
    let stats = tenant.stats().unwrap();
    println!("        {} MB of archive, {} MB of index", stats.file_bytes / 1_000_000, stats.index_bytes / 1_000_000);
}

fn bench_size() {
    let Some(conversations) = corpus_texts() else { return };
    for per_call in [2, 10] {
        let folder = folder();
        let tenant = local_tenant(&folder);
        let mut seen = HashSet::new();
        let (mut bytes, mut count) = (0, 0);
        for texts in &conversations {
            for crease in texts.chunks(per_call) {
                let originals: Vec<_> = crease.iter().map(|text| original(text.as_bytes())).collect();
                tenant.store_durably(&originals).unwrap();
                for original in originals.iter().filter(|original| seen.insert(original.handle)) {
                    bytes += original.bytes.len();
                    count += 1;
                }
            }
        }
        tenant.search("anything", 0, 1).unwrap();
        drop(tenant);
        let report = |what: &str| {
            let size = |name| std::fs::metadata(folder.path().join(name)).unwrap().len() as f64 / bytes as f64;
            let (archive, index) = (size("archive.db"), size("archive.db.index"));
            println!(
                "size    {count} originals, {} MB, {per_call:>2} per call, {what}: {archive:.3} + index {index:.3} = {:.3}",
                bytes / 1_000_000,
                archive + index
            );
        };
        report("as stored");
        Archive::open(folder.path().join("archive.db")).unwrap().prune(&Default::default()).unwrap();
        report("pruned");
    }
}

/// Returns a text of about this length, made of randomly chosen lines.
fn random_text(lines: &[String], rng: &mut SeededRng, length: usize) -> String {
    let mut text = String::with_capacity(length + 200);
    while text.len() < length {
        text.push_str(&lines[rng.next_below(lines.len())]);
        text.push('\n');
    }
    text.truncate(text.floor_char_boundary(length));
    text
}

/// Returns lines of recorded tool outputs, or generated ones if there is no corpus.
fn sample_lines() -> Vec<String> {
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
fn corpus_texts() -> Option<Vec<Vec<String>>> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let corpus = std::env::var_os("FOLDLINE_CORPUS").map_or(default, PathBuf::from).join("dev.jsonl.zst");
    let Ok(file) = std::fs::File::open(&corpus) else {
        println!("        no corpus at {}: skipped, or run with generated text", corpus.display());
        return None;
    };
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
