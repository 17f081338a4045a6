//! What the proxy adds, on loopback: `foldline serve` beside a proxy that only copies bytes and is built on the
//! same stack, by turns, in the same run.
//!
//!     cargo bench -p foldline-cli --bench proxy [-- NAMES.. --seconds N]
//!
//! Names: ready, memory, growing, new, stream, load. Each states what it is to hold, and what it holds. Machines are
//! noisy: differences are taken between neighbours in time, and the load of the machine is printed with them.

#![expect(clippy::print_stdout, reason = "the numbers are the output")]

mod client;
mod load;
#[path = "../../../foldline/benches/made_up/mod.rs"]
mod made_up;
mod peers;
mod talk;

use std::time::{Duration, Instant};

use client::Connection;
use peers::Process;
use talk::{Format, Talk};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["upstream"] => runtime().block_on(peers::upstream()),
        ["copy", upstream] => runtime().block_on(peers::copy((*upstream).to_owned())),
        words => measure(words),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started")
}

fn measure(words: &[&str]) {
    let seconds = words.iter().position(|it| *it == "--seconds").and_then(|at| words.get(at + 1)?.parse().ok());
    let named: Vec<&&str> = words.iter().filter(|it| it.bytes().all(|it| it.is_ascii_lowercase())).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|it| **it == name);
    println!("load of the machine before: {}", load_average());
    if wanted("ready") {
        ready();
    }
    if wanted("memory") {
        memory();
    }
    if wanted("growing") {
        growing("chat, fits its window", Format::Chat, &[]);
        growing("anthropic, fits its window", Format::Anthropic, &[]);
        growing("chat, a window of 32,000", Format::Chat, &["--window", "32000"]);
        growing("anthropic, a window of 32,000", Format::Anthropic, &["--window", "32000"]);
    }
    if wanted("new") {
        new("chat, fits its window", Format::Chat, &[]);
        new("anthropic, fits its window", Format::Anthropic, &[]);
        new("chat, a window of 32,000", Format::Chat, &["--window", "32000"]);
    }
    if wanted("stream") {
        stream();
    }
    if wanted("load") {
        load::hold(Duration::from_secs(seconds.unwrap_or(60)));
    }
    println!("\nload of the machine after: {}", load_average());
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".to_owned(), |it| it.trim().to_owned())
}

/// The upstream, our proxy and the one that copies.
pub(crate) struct Stand {
    pub(crate) ours: Process,
    pub(crate) copy: Process,
    _upstream: Process,
    _folder: tempfile::TempDir,
}

impl Stand {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let upstream = Process::of_this_program(&["upstream"]);
        let ours = Process::foldline(&upstream.address, folder.path(), flags);
        let copy = Process::of_this_program(&["copy", &upstream.address]);
        Self { ours, copy, _upstream: upstream, _folder: folder }
    }
}

/// Times, in order.
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// In milliseconds.
    pub(crate) fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn of(times: &[Duration]) -> Self {
        Self::new(times.iter().map(|it| it.as_secs_f64() * 1e3).collect())
    }

    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(at).copied().unwrap_or(f64::NAN)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |share| self.quantile(share);
        write!(f, "p50 {:.2}  p90 {:.2}  p99 {:.2}  most {:.2} ms", at(0.5), at(0.9), at(0.99), at(1.0))
    }
}

pub(crate) fn verdict(what: &str, is: f64, bound: f64, unit: &str) {
    let held = if is <= bound { "holds" } else { "MISSES" };
    println!("    {held}: {what} {is:.2} {unit}, at most {bound} {unit}");
}

/// From the start of the process until it answers.
fn ready() {
    println!("\nready");
    let upstream = Process::of_this_program(&["upstream"]);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut times = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        let ours = Process::foldline(&upstream.address, folder.path(), &[]);
        Connection::open(&ours.address).expect("it listens");
        times.push(began.elapsed());
    }
    println!("  {} (the first with a new archive)", Times::of(&times));
    verdict("p50", Times::of(&times).quantile(0.5), 100.0, "ms");
}

/// Memory when idle, and with a thousand conversations of 200 KB.
fn memory() {
    println!("\nmemory");
    for (name, format) in [("chat", Format::Chat), ("anthropic", Format::Anthropic)] {
        let stand = Stand::start(&[]);
        let idle = stand.ours.resident() as f64 / 1e6;
        let mut connection = Connection::open(&stand.ours.address).expect("it listens");
        for seed in 0..1_000 {
            let talk = Talk::new(format, seed, 20, 10_000);
            for request in [talk.requests() - 2, talk.requests() - 1] {
                connection.turn(format, &talk.body(request, false)).expect("a turn is answered");
            }
        }
        let full = stand.ours.resident() as f64 / 1e6;
        println!("  {name}: idle {idle:.0} MB, with 1,000 conversations of 200 KB {full:.0} MB");
        verdict("idle", idle, 60.0, "MB");
        verdict("full", full, 300.0, "MB");
    }
}

/// Sessions of thirty turns, up to 400 KB, each turn through both.
fn growing(name: &str, format: Format, flags: &[&str]) {
    const SESSIONS: u64 = 20;
    println!("\ngrowing: {name}");
    let stand = Stand::start(flags);
    let mut ours = Connection::open(&stand.ours.address).expect("it listens");
    let mut copy = Connection::open(&stand.copy.address).expect("it listens");
    let (mut added, mut of_ours, mut of_copy) = (Vec::new(), Vec::new(), Vec::new());
    // The first session warms both up and is not counted.
    for seed in 0..=SESSIONS {
        let talk = Talk::new(format, 7_000 + seed, 29, 13_200);
        for request in 0..talk.requests() {
            let body = talk.body(request, false);
            let (mine, theirs) = both(&mut ours, &mut copy, format, &body, request % 2 == 0);
            if seed > 0 {
                added.push((mine.as_secs_f64() - theirs.as_secs_f64()) * 1e3);
                of_ours.push(mine);
                of_copy.push(theirs);
            }
        }
    }
    let added = Times::new(added);
    println!("  ours   {}\n  copy   {}\n  added  {added}", Times::of(&of_ours), Times::of(&of_copy));
    verdict("added p50", added.quantile(0.5), 2.0, "ms");
    verdict("added p99", added.quantile(0.99), 10.0, "ms");
}

/// One body through both, whichever is first.
fn both(
    ours: &mut Connection,
    copy: &mut Connection,
    format: Format,
    body: &str,
    ours_first: bool,
) -> (Duration, Duration) {
    let turn = |connection: &mut Connection| connection.turn(format, body).expect("a turn is answered");
    if ours_first {
        let mine = turn(ours);
        (mine, turn(copy))
    } else {
        let theirs = turn(copy);
        (turn(ours), theirs)
    }
}

/// Conversations of 400 KB that were never seen before.
fn new(name: &str, format: Format, flags: &[&str]) {
    println!("\nnew: {name}");
    let stand = Stand::start(flags);
    let mut ours = Connection::open(&stand.ours.address).expect("it listens");
    let mut copy = Connection::open(&stand.copy.address).expect("it listens");
    let (mut of_ours, mut of_copy) = (Vec::new(), Vec::new());
    for seed in 0..=60 {
        let talk = Talk::new(format, 90_000 + seed, 29, 13_600);
        let body = talk.body(talk.requests() - 1, false);
        let (mine, theirs) = both(&mut ours, &mut copy, format, &body, seed % 2 == 0);
        if seed > 0 {
            of_ours.push(mine);
            of_copy.push(theirs);
        }
    }
    println!("  ours   {}\n  copy   {}", Times::of(&of_ours), Times::of(&of_copy));
    verdict("p50", Times::of(&of_ours).quantile(0.5), 25.0, "ms");
}

/// How long the first words of an answer are on their way.
fn stream() {
    println!("\nstream: the first words on their way");
    let stand = Stand::start(&[]);
    let mut ours = Connection::open(&stand.ours.address).expect("it listens");
    let mut copy = Connection::open(&stand.copy.address).expect("it listens");
    let (mut of_ours, mut of_copy) = (Vec::new(), Vec::new());
    for seed in 0..10 {
        let talk = Talk::new(Format::Chat, 40_000 + seed, 29, 3_400);
        for request in 0..talk.requests() {
            let body = talk.body(request, true);
            let words = |connection: &mut Connection| connection.first_words(Format::Chat, &body).expect("words come");
            of_ours.push(words(&mut ours));
            of_copy.push(words(&mut copy));
        }
    }
    let later: Vec<f64> =
        of_ours.iter().zip(&of_copy).map(|(a, b)| (a.as_secs_f64() - b.as_secs_f64()) * 1e3).collect();
    let later = Times::new(later);
    println!("  ours   {}\n  copy   {}\n  later  {later}", Times::of(&of_ours), Times::of(&of_copy));
    verdict("later p50", later.quantile(0.5), 1.0, "ms");
}
