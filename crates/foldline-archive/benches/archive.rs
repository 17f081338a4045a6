//! The cost of the archive, as ratios and quantiles inside one run.
//!
//! `cargo bench -p foldline-archive -- store` compares a durable store call of a crease (20 originals, 200 KB) with one
//! bare SQLite commit of the same bytes on the same disk. `-- million` fills an archive with a million originals, then
//! unfolds and searches (in the folder `ARCHIVE_BENCH_DIR`, if set, which is reused). `-- size` stores the recorded
//! conversations of a corpus and prints their size on disk. Without an argument all three run.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing bench stops, and it prints")]

mod support;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use foldline_archive::{Archive, Namespace, TenantArchive};
use rusqlite::Connection;

use support::{RunTimer, SeededRng, corpus_texts, original, quantile, random_text, sample_lines};

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
