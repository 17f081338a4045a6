//! What the archive costs, as ratios and quantiles inside one run.
//!
//! `cargo bench -p foldline-archive -- put` compares a durable keep of a crease (20 originals, 200 KB)
//! with one bare SQLite commit of the same bytes on the same disk. `-- million` fills an archive with a
//! million originals, then unfolds and searches (with `MILLION`, in a folder that is used again). `-- size` keeps the recorded conversations of a corpus
//! and says what they take on disk. Without an argument all three run.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench that can not go on stops, and it prints")]

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldline::{Handle, Original};
use foldline_archive::{Archive, Namespace, TenantArchive};
use rusqlite::Connection;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    if runs("put") {
        bench_store();
    }
    if runs("size") {
        bench_size();
    }
    if runs("million") {
        bench_million();
    }
}

/// A folder on the disk that the build uses, not in memory.
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

/// Numbers that are the same in every run.
struct SeededRng(u64);

impl SeededRng {
    fn next_below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Time that passes, less that in which this thread was ready to run and the machine did other work.
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

    /// How long this thread has waited for a processor; Linux tells, others do not.
    fn queued_time() -> Duration {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Duration::from_nanos(told.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0))
    }
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * share) as usize]
}

fn bench_store() {
    const CREASE_COUNT: usize = 200;
    let lines = sample_lines();
    let mut chance = SeededRng(1);
    let folder = folder();
    let shelf = local_tenant(&folder);
    let bare = Connection::open(folder.path().join("bare.db")).unwrap();
    bare.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(())).unwrap();
    bare.execute_batch("PRAGMA synchronous = FULL; CREATE TABLE blob (id INTEGER PRIMARY KEY, content BLOB)").unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..CREASE_COUNT {
        let texts: Vec<String> = (0..20).map(|_| random_text(&lines, &mut chance, 10_000)).collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        let begun = Instant::now();
        shelf.store_durably(&originals).unwrap();
        ours.push(begun.elapsed());
        let begun = Instant::now();
        bare.execute_batch("BEGIN IMMEDIATE").unwrap();
        {
            let mut insert = bare.prepare_cached("INSERT INTO blob (content) VALUES (?1)").unwrap();
            for text in &texts {
                insert.execute([text.as_bytes()]).unwrap();
            }
        }
        bare.execute_batch("COMMIT").unwrap();
        theirs.push(begun.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    for share in [0.5, 0.9, 0.99] {
        let (ours, theirs) = (quantile(&mut ours, share), quantile(&mut theirs, share));
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!("put     p{:<3} keep {ours:>10.2?}   bare commit {theirs:>10.2?}   ratio {ratio:.2}", share * 100.0);
    }
}

fn bench_million() {
    const ORIGINAL_COUNT: usize = 1_000_000;
    let lines = sample_lines();
    let mut chance = SeededRng(2);
    let (temporary, kept) = (folder(), std::env::var_os("MILLION").map(PathBuf::from));
    let path = kept.as_deref().unwrap_or(temporary.path()).join("archive.db");
    let shelf = Archive::open(path).unwrap().tenant(&Namespace::local());
    let is_filled = shelf.stats().unwrap().available == ORIGINAL_COUNT as u64;
    let mut handles = Vec::with_capacity(ORIGINAL_COUNT);
    let mut queries = Vec::new();
    let (begun, mut bytes) = (Instant::now(), 0);
    while handles.len() < ORIGINAL_COUNT {
        // A number makes each different.
        let texts: Vec<String> = (0..1000)
            .map(|at| {
                let length = 100 + chance.next_below(500);
                format!("{}\n{}", handles.len() + at, random_text(&lines, &mut chance, length))
            })
            .collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        if !is_filled {
            shelf.store_durably(&originals).unwrap();
        }
        handles.extend(originals.iter().map(|it| it.handle));
        bytes += texts.iter().map(String::len).sum::<usize>();
        let words: Vec<&str> = texts[0].split_whitespace().collect();
        queries.push(
            (0..1 + chance.next_below(3)).map(|_| words[chance.next_below(words.len())]).collect::<Vec<_>>().join(" "),
        );
    }
    println!("million {} MB kept in {:.0?}", bytes / 1_000_000, begun.elapsed());
    let begun = Instant::now();
    shelf.search("anything", 0, 1).unwrap();
    println!("index   {:.0?} to catch up", begun.elapsed());
    for round in ["cold", "warm", "warm"] {
        let mut times = Vec::new();
        for _ in 0..10_000 {
            let handle = handles[chance.next_below(handles.len())];
            let watch = RunTimer::start();
            let unfolded = shelf.unfold(handle.as_str()).unwrap();
            times.push(watch.elapsed());
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
            let watch = RunTimer::start();
            match shelf.search(query, 0, 10) {
                Ok(found) => none += usize::from(found.hits.is_empty()),
                // Signs and single letters are no words.
                Err(_) => continue,
            }
            let time = watch.elapsed();
            times.push(time);
            slowest = slowest.max((time, query));
        }
        let (half, most) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
        println!("search  {round} p50 {half:.1?}   p99 {most:.1?}   {} queries, {none} without a hit", times.len());
        println!("        slowest {:.1?}: {}", slowest.0, slowest.1);
    }
    let stats = shelf.stats().unwrap();
    println!("        {} MB of archive, {} MB of index", stats.file_bytes / 1_000_000, stats.index_bytes / 1_000_000);
}

fn bench_size() {
    let Some(conversations) = corpus_texts() else { return };
    for creases_of in [2, 10] {
        let folder = folder();
        let shelf = local_tenant(&folder);
        let mut seen = HashSet::new();
        let (mut bytes, mut count) = (0, 0);
        for texts in &conversations {
            for crease in texts.chunks(creases_of) {
                let originals: Vec<_> = crease.iter().map(|text| original(text.as_bytes())).collect();
                shelf.store_durably(&originals).unwrap();
                for it in originals.iter().filter(|it| seen.insert(it.handle)) {
                    bytes += it.bytes.len();
                    count += 1;
                }
            }
        }
        shelf.search("anything", 0, 1).unwrap();
        drop(shelf);
        let report = |what: &str| {
            let size = |name| std::fs::metadata(folder.path().join(name)).unwrap().len() as f64 / bytes as f64;
            let (archive, index) = (size("archive.db"), size("archive.db.index"));
            println!(
                "size    {count} originals, {} MB, {creases_of:>2} a keep, {what}: {archive:.3} + index {index:.3} = {:.3}",
                bytes / 1_000_000,
                archive + index
            );
        };
        report("as kept");
        Archive::open(folder.path().join("archive.db")).unwrap().prune(&Default::default()).unwrap();
        report("pruned");
    }
}

/// A text of about this length, of lines that were drawn.
fn random_text(lines: &[String], chance: &mut SeededRng, length: usize) -> String {
    let mut text = String::with_capacity(length + 200);
    while text.len() < length {
        text.push_str(&lines[chance.next_below(lines.len())]);
        text.push('\n');
    }
    text.truncate(text.floor_char_boundary(length));
    text
}

/// Lines of recorded tool outputs, or made-up ones where there is no corpus.
fn sample_lines() -> Vec<String> {
    if let Some(conversations) = corpus_texts() {
        let lines = conversations.iter().flatten().flat_map(|text| text.lines()).filter(|line| line.len() > 8);
        return lines.step_by(7).map(str::to_owned).collect();
    }
    let mut chance = SeededRng(3);
    let syllables = ["ka", "to", "mi", "ren", "sol", "vex", "dar", "lu", "pho", "qui", "zan", "bre", "sti", "nor"];
    let mut word =
        || (0..1 + chance.next_below(4)).map(|at| syllables[(at * 7 + chance.next_below(14)) % 14]).collect::<String>();
    (0..200_000).map(|_| (0..8).map(|_| word()).collect::<Vec<_>>().join(" ")).collect()
}

/// What an agent's conversations could fold: outputs of tools, prose and arguments of the model.
fn corpus_texts() -> Option<Vec<Vec<String>>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let corpus = std::env::var_os("FOLDLINE_CORPUS").map_or(beside, PathBuf::from).join("dev.jsonl.zst");
    let Ok(file) = std::fs::File::open(&corpus) else {
        println!("        no corpus at {}: skipped, or with made-up text", corpus.display());
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
                    .filter_map(|it| Some(it.as_str()?.to_owned())),
            );
        }
        // Shorter ones are not worth a marker.
        texts.retain(|text| text.len() >= 256);
        conversations.push(texts);
    }
    Some(conversations)
}
