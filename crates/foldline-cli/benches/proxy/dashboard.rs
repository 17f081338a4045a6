//! The dashboard over an archive with 10,000 sessions and a million requests: how long a start and the API take, and
//! whether a hundred open pages slow requests.
//!
//! The archive is created in the folder `DASHBOARD_BENCH_DIR`, if set, and used again.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{Archive, Namespace, TenantArchive};
use serde_json::json;

use crate::client::BenchConnection;
use crate::conversation::{BenchConversation, BenchFormat};
use crate::processes::BenchProcess;
use crate::{LatencyStats, check_bound, send_through_both};

const SESSION_COUNT: usize = 10_000;
const REQUESTS_PER_SESSION: usize = 100;
/// Sessions that take turns.
const LIVE_SESSIONS: usize = 50;
/// Requests of a session between two folds.
const FOLD_INTERVAL: usize = 10;
const PAGE_COUNT: usize = 100;

/// What a page reads: at its start everything, after an event the first part, every ten seconds the rest.
const LIVE_QUERIES: [&str; 4] = ["overview", "sessions?limit=50", "cache?limit=120", "quality"];
const SLOW_QUERIES: [&str; 4] = ["inventory", "policies", "health", "table?by=session&since=7d"];

pub(crate) fn bench_dashboard() {
    println!("\ndashboard: {SESSION_COUNT} sessions with {REQUESTS_PER_SESSION} requests each");
    let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder can be created");
    let folder = std::env::var_os("DASHBOARD_BENCH_DIR").map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    if !folder.join("archive.db").exists() {
        fill_archive(&folder.join("archive.db"));
    }
    let upstream = BenchProcess::start_self(&["upstream"]);
    let baseline = BenchProcess::start_self(&["copy", &upstream.address]);

    let start = || BenchProcess::start_foldline(&upstream.address, &folder, &["--window", "32000"]);
    let ours = start();
    measure_start("first start (without a checkpoint, unless the archive is used again)", &ours);
    wait_for_checkpoint(&folder.join("archive.db"));
    drop(ours);
    let ours = start();
    let first_view = measure_start("second start (with a checkpoint)", &ours);
    check_bound("first view", first_view.as_secs_f64() * 1e3, 1_000.0, "ms");
    println!("  memory: {:.0} MB", ours.resident_bytes() as f64 / 1e6);
    measure_api(&ours);

    let empty = tempfile::tempdir().expect("a folder can be created");
    let small = BenchProcess::start_foldline(&upstream.address, empty.path(), &["--window", "32000"]);
    measure_overhead("an empty archive", &small, &baseline, 1);
    drop(small);
    for round in 1..=2 {
        measure_overhead("a million requests", &ours, &baseline, round * 2);
        let pages = open_pages(&ours.address);
        measure_overhead("a million requests and 100 open pages", &ours, &baseline, round * 2 + 1);
        drop(pages);
    }
}

fn now_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}

/// Fills an archive with records as the proxy writes them, of the last 30 days.
fn fill_archive(path: &std::path::Path) {
    let began = Instant::now();
    let archive = Archive::open(path).expect("the archive can be created");
    let tenant = archive.tenant(&Namespace::local());
    let total = SESSION_COUNT * REQUESTS_PER_SESSION;
    let first_at = now_millis() - 30 * 86_400_000;
    for number in 0..total {
        // A group of sessions takes turns until all of them have ended.
        let (group, within) =
            (number / (LIVE_SESSIONS * REQUESTS_PER_SESSION), number % (LIVE_SESSIONS * REQUESTS_PER_SESSION));
        let session = group * LIVE_SESSIONS + within % LIVE_SESSIONS;
        let at = first_at + (30.0 * 86_400_000.0 * number as f64 / total as f64) as i64;
        append_request(&tenant, session, within / LIVE_SESSIONS, at);
        if number % 500 == 499 {
            tenant.flush_journal(Duration::from_secs(60)).expect("the journal is written");
        }
    }
    println!("  archive: {:.0} s, {:.0} MB", began.elapsed().as_secs_f64(), file_megabytes(path));
}

fn append_request(tenant: &TenantArchive, session: usize, turn: usize, at: i64) {
    let name = format!("{session:032x}");
    let tenant = tenant.in_session(name.clone());
    let text = |turn: usize| format!("original of {session} at {turn} ").repeat(20);
    let is_crease = turn % FOLD_INTERVAL == FOLD_INTERVAL - 1;
    let handle = Handle::for_content(text(turn).as_bytes());
    let marker = format!("[folded: 20 lines of src/module_{turn}.rs; unfold {}]", handle.as_str());
    let fold = json!({ "handle": handle.as_str(), "tool": "read_file", "target": format!("src/module_{turn}.rs"),
        "pass": "stale_result", "tokens_before": 200, "tokens_after": 30, "marker": marker });
    let folds = if is_crease { vec![fold] } else { Vec::new() };
    if turn == REQUESTS_PER_SESSION - 1 {
        // All at once: every call waits for the disk.
        let texts: Vec<String> =
            (0..=turn).filter(|turn| turn % FOLD_INTERVAL == FOLD_INTERVAL - 1).map(text).collect();
        let originals: Vec<Original<'_>> = texts.iter().map(|text| plain_original(text)).collect();
        tenant.store(&originals).expect("the originals are stored");
    }
    let client = ["claude-code", "codex", "opencode"][session % 3];
    let model = ["gpt-5.4", "claude-sonnet-4-5", "gpt-4o"][session % 3];
    let crease = if folds.is_empty() { 0 } else { 300_000 };
    let received = 8_000 + turn as u64 * 1_200;
    let mut record = json!({
        "writer": 1, "at": at, "session": name, "client": client,
        "model": model, "status": 200, "overhead_micros": 700,
        "received_tokens": received, "sent_tokens": received.min(28_000),
        "usage": { "input": received.min(28_000), "cache_read": received.min(28_000) - 1_200, "cache_write": 1_200, "output": 350 },
        "bill": { "billed": 9_000_000, "saved": turn as i64 * 40_000, "crease": crease,
            "unfold": 0, "summary": 0, "cold_avoided": 0 },
        "folds": folds, "calls": { "read_file": 1 },
        "window": { "window_tokens": 32_000, "budget_tokens": 28_000, "system_tokens": 900, "tools_tokens": 400,
            "user_tokens": 500, "folded_tokens": 300, "live_tokens": 20_000, "free_tokens": 5_900,
            "crease_in_tokens": 5_900, "crease_usd_at_most": 0.02 },
    });
    if turn == 0 {
        record["title"] = json!(format!("Repair module {session} and its tests"));
        record["tools"] = (0..20).map(|tool| json!({ "name": format!("tool_{tool}"), "tokens": 200 })).collect();
    }
    tenant.append_event("activity", record.to_string().as_bytes()).expect("the archive is writable");
}

fn plain_original(text: &str) -> Original<'_> {
    let bytes = text.as_bytes();
    Original {
        handle: Handle::for_content(bytes),
        bytes,
        tool: Some("read_file"),
        arguments: None,
        message: 0,
        tokens: 200,
    }
}

fn file_megabytes(path: &std::path::Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |file| file.len() as f64 / 1e6)
}

/// Measures the time from the start of a process until its totals are complete, and until a page has everything.
fn measure_start(name: &str, proxy: &BenchProcess) -> Duration {
    let began = Instant::now();
    let mut connection = BenchConnection::open(&proxy.address).expect("the proxy listens");
    let (mut polls, mut waiting) = (Vec::new(), 0);
    loop {
        let answer = connection.get("/foldline/api/v1/overview").expect("the API answers");
        polls.push(answer.time);
        if answer.status == 200 && answer.text.contains("\"is_complete\":true") {
            assert!(answer.text.contains("\"requests\":100"), "the totals are those of the archive: {}", answer.text);
            break;
        }
        waiting += 1;
        thread::sleep(Duration::from_millis(20));
    }
    let complete = began.elapsed();
    let page = ["/foldline/".to_owned()].into_iter().chain(api_paths(&LIVE_QUERIES)).chain(api_paths(&SLOW_QUERIES));
    for path in page {
        assert_eq!(connection.get(&path).expect("the API answers").status, 200, "{path}");
    }
    println!(
        "  {name}: totals complete after {:.2} s ({waiting} earlier answers, the slowest in {:.0} ms), a whole page after {:.2} s",
        complete.as_secs_f64(),
        LatencyStats::from_durations(&polls).quantile(1.0),
        began.elapsed().as_secs_f64()
    );
    began.elapsed()
}

fn api_paths(queries: &[&str]) -> Vec<String> {
    queries.iter().map(|query| format!("/foldline/api/v1/{query}")).collect()
}

fn wait_for_checkpoint(path: &std::path::Path) {
    let archive = Archive::open(path).expect("the archive can be opened");
    let tenant = archive.tenant(&Namespace::local());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(checkpoint) = tenant.journal_checkpoint().expect("the checkpoint can be read") {
            println!("  checkpoint: {:.1} MB before compression", checkpoint.payload.len() as f64 / 1e6);
            return;
        }
        assert!(Instant::now() < deadline, "no checkpoint was stored");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Measures every answer that a page reads, one after the other.
fn measure_api(proxy: &BenchProcess) {
    let mut connection = BenchConnection::open(&proxy.address).expect("the proxy listens");
    let sessions = connection.get("/foldline/api/v1/sessions?limit=1").expect("the API answers").text;
    let id = sessions.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let session = format!("sessions/{id}");
    let queries: Vec<&str> = LIVE_QUERIES.iter().chain(&SLOW_QUERIES).copied().chain([session.as_str()]).collect();
    let mut all = Vec::new();
    for query in queries {
        let path = format!("/foldline/api/v1/{query}");
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..100 {
            let answer = connection.get(&path).expect("the API answers");
            assert_eq!(answer.status, 200, "{path}");
            bytes = answer.text.len();
            times.push(answer.time);
            // Slowly enough that every answer is a new one.
            thread::sleep(Duration::from_millis(60));
        }
        let name = query.split('/').next().unwrap_or(query);
        println!("  api {name}: {} ({} KB)", LatencyStats::from_durations(&times), bytes / 1_000);
        all.extend(times);
    }
    check_bound("API p99", LatencyStats::from_durations(&all).quantile(0.99), 100.0, "ms");
}

/// Measures the time that a request takes more than through a proxy that copies bytes.
fn measure_overhead(name: &str, proxy: &BenchProcess, baseline: &BenchProcess, seed: u64) {
    let mut ours = BenchConnection::open(&proxy.address).expect("the proxy listens");
    let mut copy = BenchConnection::open(&baseline.address).expect("the proxy listens");
    let (mut added, cpu, began) = (Vec::new(), proxy.cpu_time(), Instant::now());
    for session in 0..=30 {
        let conversation = BenchConversation::new(BenchFormat::Chat, seed * 10_000 + session, 29, 4_000);
        for request in 0..conversation.request_count() {
            let body = conversation.request_body(request, false);
            let (mine, theirs) = send_through_both(&mut ours, &mut copy, BenchFormat::Chat, &body, request % 2 == 0);
            if session > 0 {
                added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
            }
            // As agents do: a request now and then. 50 per second.
            thread::sleep(Duration::from_millis(20));
        }
    }
    let cores = (proxy.cpu_time() - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("  overhead with {name}: {} ({cores:.2} cores)", LatencyStats::new(added));
}

/// Starts the pages, which are in other machines' browsers, with the lowest priority.
fn open_pages(address: &str) -> BenchProcess {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(std::env::current_exe().expect("this program has a path")).args(["pages", address]);
    let pages = BenchProcess::start(command);
    thread::sleep(Duration::from_secs(3));
    pages
}

/// Runs pages as browsers do until the process ends: each listens to events and reads again after one, at most once
/// per second.
pub(crate) fn run_pages(address: &str) {
    println!("http://{address}");
    let pages: Vec<thread::JoinHandle<()>> = (0..PAGE_COUNT)
        .map(|page| {
            let address = address.to_owned();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(page as u64 * 10));
                run_page(&address).expect("a page gets its answers");
            })
        })
        .collect();
    pages.into_iter().for_each(|page| page.join().expect("a page goes on"));
}

fn run_page(address: &str) -> io::Result<()> {
    let mut events = BenchConnection::open(address)?.subscribe("/foldline/api/v1/events")?;
    events.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut connection = BenchConnection::open(address)?;
    let mut slow_at: Option<Instant> = None;
    let mut piece = vec![0; 64 << 10];
    loop {
        let began = Instant::now();
        if events.read(&mut piece).unwrap_or(0) == 0 {
            continue;
        }
        let mut paths = api_paths(&LIVE_QUERIES);
        if slow_at.is_none_or(|at| at.elapsed() > Duration::from_secs(10)) {
            slow_at = Some(began);
            paths.extend(api_paths(&SLOW_QUERIES));
        }
        for path in paths {
            connection.get(&path)?;
        }
        thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
    }
}
