//! The latency that the proxy adds, on loopback: `foldline serve` against a proxy that only copies bytes and is built on
//! the same stack, alternating, in the same run.
//!
//!     cargo bench -p foldline-cli --bench proxy [-- NAMES.. --seconds N]
//!
//! Names: ready, first, memory, growing, new, large, stream, load, and dashboard, which runs only if it is named. Each prints its bounds and results. Machines are
//! noisy: differences are taken between requests that are adjacent in time, and the load of the machine is printed.

#![expect(clippy::print_stdout, reason = "the numbers are the output")]

mod client;
mod conversation;
mod dashboard;
mod load;
mod processes;
#[path = "../../../foldline/benches/synthetic/mod.rs"]
mod synthetic;

use std::time::{Duration, Instant};

use client::BenchConnection;
use conversation::{BenchConversation, BenchFormat};
use processes::BenchProcess;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["upstream"] => runtime().block_on(processes::serve_upstream()),
        ["copy", upstream] => runtime().block_on(processes::serve_copy_proxy((*upstream).to_owned())),
        ["pages", address] => dashboard::run_pages(address),
        words => run_benchmarks(words),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started")
}

fn run_benchmarks(words: &[&str]) {
    let seconds = words.iter().position(|it| *it == "--seconds").and_then(|at| words.get(at + 1)?.parse().ok());
    let named: Vec<&&str> = words.iter().filter(|it| it.bytes().all(|it| it.is_ascii_lowercase())).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|it| **it == name);
    println!("load of the machine before: {}", load_average());
    if wanted("ready") {
        bench_startup();
    }
    if wanted("first") {
        bench_first_requests("chat", BenchFormat::Chat);
        bench_first_requests("anthropic", BenchFormat::Anthropic);
    }
    if wanted("memory") {
        bench_memory();
    }
    if wanted("growing") {
        bench_growing_sessions("chat, fits its window", BenchFormat::Chat, &[]);
        bench_growing_sessions("anthropic, fits its window", BenchFormat::Anthropic, &[]);
        bench_growing_sessions("chat, a window of 32,000", BenchFormat::Chat, &["--window", "32000"]);
        bench_growing_sessions("anthropic, a window of 32,000", BenchFormat::Anthropic, &["--window", "32000"]);
    }
    if wanted("new") {
        // 29 results of these bytes: 400 KB and 556 KB.
        bench_new_conversations("chat, 400 KB, fits its window", BenchFormat::Chat, 13_600, &[]);
        bench_new_conversations("chat, 556 KB, fits its window", BenchFormat::Chat, 18_900, &[]);
        bench_new_conversations("anthropic, 400 KB, fits its window", BenchFormat::Anthropic, 13_600, &[]);
        bench_new_conversations("anthropic, 556 KB, fits its window", BenchFormat::Anthropic, 18_900, &[]);
        bench_new_conversations("chat, 400 KB, a window of 32,000", BenchFormat::Chat, 13_600, &["--window", "32000"]);
    }
    if wanted("large") {
        bench_large_conversations("chat", BenchFormat::Chat);
        bench_large_conversations("anthropic", BenchFormat::Anthropic);
    }
    if wanted("stream") {
        bench_streaming();
    }
    if wanted("load") {
        load::bench_load(Duration::from_secs(seconds.unwrap_or(60)));
    }
    if named.iter().any(|it| **it == "dashboard") {
        dashboard::bench_dashboard();
    }
    println!("\nload of the machine after: {}", load_average());
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".to_owned(), |it| it.trim().to_owned())
}

/// The upstream, the foldline proxy and the copying proxy.
pub(crate) struct BenchSetup {
    pub(crate) foldline: BenchProcess,
    pub(crate) baseline: BenchProcess,
    _upstream: BenchProcess,
    _folder: tempfile::TempDir,
}

impl BenchSetup {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let upstream = BenchProcess::start_self(&["upstream"]);
        let foldline = BenchProcess::start_foldline(&upstream.address, folder.path(), flags);
        let baseline = BenchProcess::start_self(&["copy", &upstream.address]);
        Self { foldline, baseline, _upstream: upstream, _folder: folder }
    }
}

/// Latencies in milliseconds, sorted.
pub(crate) struct LatencyStats(Vec<f64>);

impl LatencyStats {
    /// Sorts latencies in milliseconds.
    pub(crate) fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn from_durations(times: &[Duration]) -> Self {
        Self::new(times.iter().map(|it| it.as_secs_f64() * 1e3).collect())
    }

    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(at).copied().unwrap_or(f64::NAN)
    }
}

impl std::fmt::Display for LatencyStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |share| self.quantile(share);
        write!(f, "p50 {:.2}  p90 {:.2}  p99 {:.2}  max {:.2} ms", at(0.5), at(0.9), at(0.99), at(1.0))
    }
}

pub(crate) fn check_bound(name: &str, value: f64, bound: f64, unit: &str) {
    let verdict = if value <= bound { "holds" } else { "MISSES" };
    println!("    {verdict}: {name} {value:.2} {unit}, at most {bound} {unit}");
}

/// Measures the time from the start of the process until it accepts connections.
fn bench_startup() {
    println!("\nready");
    let upstream = BenchProcess::start_self(&["upstream"]);
    let folder = tempfile::tempdir().expect("a folder can be created");
    let mut times = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        let ours = BenchProcess::start_foldline(&upstream.address, folder.path(), &[]);
        BenchConnection::open(&ours.address).expect("the proxy listens");
        times.push(began.elapsed());
    }
    println!("  {} (the first with a new archive)", LatencyStats::from_durations(&times));
    check_bound("p50", LatencyStats::from_durations(&times).quantile(0.5), 100.0, "ms");
}

/// Measures memory when idle, and with a thousand conversations of 200 KB.
fn bench_memory() {
    println!("\nmemory");
    for (name, format) in [("chat", BenchFormat::Chat), ("anthropic", BenchFormat::Anthropic)] {
        let setup = BenchSetup::start(&[]);
        let idle = setup.foldline.resident_bytes() as f64 / 1e6;
        let mut connection = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
        for seed in 0..1_000 {
            let conversation = BenchConversation::new(format, seed, 20, 10_000);
            for request in [conversation.request_count() - 2, conversation.request_count() - 1] {
                connection.send_turn(format, &conversation.request_body(request, false)).expect("a turn is answered");
            }
        }
        let full = setup.foldline.resident_bytes() as f64 / 1e6;
        println!("  {name}: idle {idle:.0} MB, with 1,000 conversations of 200 KB {full:.0} MB");
        check_bound("idle", idle, 60.0, "MB");
        check_bound("full", full, 300.0, "MB");
    }
}

/// Measures sessions of thirty turns, up to 400 KB, each turn through both proxies.
fn bench_growing_sessions(name: &str, format: BenchFormat, flags: &[&str]) {
    const SESSION_COUNT: u64 = 20;
    println!("\ngrowing: {name}");
    let setup = BenchSetup::start(flags);
    let mut ours = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
    let mut copy = BenchConnection::open(&setup.baseline.address).expect("the proxy listens");
    let (mut added, mut of_ours, mut of_copy) = (Vec::new(), Vec::new(), Vec::new());
    // The first session warms both up and is not counted.
    for seed in 0..=SESSION_COUNT {
        let conversation = BenchConversation::new(format, 7_000 + seed, 29, 13_200);
        for request in 0..conversation.request_count() {
            let body = conversation.request_body(request, false);
            let (mine, theirs) = send_through_both(&mut ours, &mut copy, format, &body, request % 2 == 0);
            if seed > 0 {
                added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
                of_ours.push(mine);
                of_copy.push(theirs);
            }
        }
    }
    let added = LatencyStats::new(added);
    print_added(&of_ours, &of_copy, &added);
    check_bound("added p50", added.quantile(0.5), 2.0, "ms");
    check_bound("added p99", added.quantile(0.99), 10.0, "ms");
}

/// Sends one body through both proxies, in either order.
pub(crate) fn send_through_both(
    ours: &mut BenchConnection,
    copy: &mut BenchConnection,
    format: BenchFormat,
    body: &str,
    ours_first: bool,
) -> (Duration, Duration) {
    let turn = |connection: &mut BenchConnection| connection.send_turn(format, body).expect("a turn is answered");
    if ours_first {
        let mine = turn(ours);
        (mine, turn(copy))
    } else {
        let theirs = turn(copy);
        (turn(ours), theirs)
    }
}

/// Measures conversations of 29 results of `bytes` bytes that are new to the proxy.
fn bench_new_conversations(name: &str, format: BenchFormat, bytes: usize, flags: &[&str]) {
    println!("\nnew: {name}");
    let setup = BenchSetup::start(flags);
    let mut ours = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
    let mut copy = BenchConnection::open(&setup.baseline.address).expect("the proxy listens");
    let (mut added, mut of_ours, mut of_copy) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..=60 {
        let conversation = BenchConversation::new(format, 90_000 + seed, 29, bytes);
        let body = conversation.request_body(conversation.request_count() - 1, false);
        let (mine, theirs) = send_through_both(&mut ours, &mut copy, format, &body, seed % 2 == 0);
        if seed > 0 {
            added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
            of_ours.push(mine);
            of_copy.push(theirs);
        }
    }
    print_added(&of_ours, &of_copy, &LatencyStats::new(added));
    check_bound("p50", LatencyStats::from_durations(&of_ours).quantile(0.5), 25.0, "ms");
}

fn print_added(ours: &[Duration], copy: &[Duration], added: &LatencyStats) {
    let [ours, copy] = [ours, copy].map(LatencyStats::from_durations);
    println!("  ours   {ours}\n  copy   {copy}\n  added  {added}");
}

/// Measures the first request after a start: half a second after the proxy is ready, since an agent that was
/// started together with it has not read its task before, and immediately.
fn bench_first_requests(name: &str, format: BenchFormat) {
    const RESULT_BYTES: usize = 13_200;
    println!("\nfirst: {name}, the first request after a start");
    for (wait, what) in [(500, "half a second after the start"), (0, "immediately")] {
        let (mut added, mut of_ours, mut of_copy) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 0..15 {
            let setup = BenchSetup::start(&[]);
            let body = BenchConversation::new(format, 20_000 + seed, 2, RESULT_BYTES).request_body(2, false);
            std::thread::sleep(Duration::from_millis(wait));
            let mut ours = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
            let mut copy = BenchConnection::open(&setup.baseline.address).expect("the proxy listens");
            let (mine, theirs) = send_through_both(&mut ours, &mut copy, format, &body, seed % 2 == 0);
            added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
            of_ours.push(mine);
            of_copy.push(theirs);
        }
        println!("  {what}:");
        let added = LatencyStats::new(added);
        print_added(&of_ours, &of_copy, &added);
        if wait > 0 {
            check_bound("added p50", added.quantile(0.5), 10.0, "ms");
        }
    }
}

/// Measures turns of conversations of 10 MB, which are far longer than their window.
fn bench_large_conversations(name: &str, format: BenchFormat) {
    const TURN_COUNT: usize = 320;
    const MEASURED_TURNS: usize = 20;
    println!("\nlarge: {name}, turns of a conversation of 10 MB");
    let setup = BenchSetup::start(&[]);
    let mut ours = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
    let mut copy = BenchConnection::open(&setup.baseline.address).expect("the proxy listens");
    let (mut added, mut of_ours, mut of_copy) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..2 {
        let conversation = BenchConversation::new(format, 60_000 + seed, TURN_COUNT, 32_000);
        let last = conversation.request_count() - 1;
        for request in last - MEASURED_TURNS..=last {
            let body = conversation.request_body(request, false);
            let (mine, theirs) = send_through_both(&mut ours, &mut copy, format, &body, request % 2 == 0);
            if request == last - MEASURED_TURNS {
                println!("  new, {:.1} MB: {mine:.1?}, copy {theirs:.1?}", body.len() as f64 / 1e6);
                continue;
            }
            added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
            of_ours.push(mine);
            of_copy.push(theirs);
        }
    }
    let added = LatencyStats::new(added);
    print_added(&of_ours, &of_copy, &added);
    check_bound("added p50", added.quantile(0.5), 20.0, "ms");
}

/// Measures the latency of the first chunk of a streamed response.
fn bench_streaming() {
    println!("\nstream: latency of the first chunk");
    let setup = BenchSetup::start(&[]);
    let mut ours = BenchConnection::open(&setup.foldline.address).expect("the proxy listens");
    let mut copy = BenchConnection::open(&setup.baseline.address).expect("the proxy listens");
    let (mut of_ours, mut of_copy) = (Vec::new(), Vec::new());
    for seed in 0..10 {
        let conversation = BenchConversation::new(BenchFormat::Chat, 40_000 + seed, 29, 3_400);
        for request in 0..conversation.request_count() {
            let body = conversation.request_body(request, true);
            let latency = |connection: &mut BenchConnection| {
                connection.first_chunk_latency(BenchFormat::Chat, &body).expect("a chunk arrives")
            };
            of_ours.push(latency(&mut ours));
            of_copy.push(latency(&mut copy));
        }
    }
    let added: Vec<f64> =
        of_ours.iter().zip(&of_copy).map(|(a, b)| (a.as_secs_f64() - b.as_secs_f64()) * 1e3).collect();
    let added = LatencyStats::new(added);
    print_added(&of_ours, &of_copy, &added);
    check_bound("added p50", added.quantile(0.5), 1.0, "ms");
}
