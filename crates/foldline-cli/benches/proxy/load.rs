//! Five hundred requests a second of 100 KB, held: turns of conversations that grow and give way to new ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::BenchConnection;
use crate::conversation::{BenchConversation, BenchFormat};
use crate::processes::BenchProcess;
use crate::{BenchSetup, LatencyStats, check_bound};

const REQUESTS_PER_SEC: u64 = 500;
/// Clients, each with a connection and a conversation of its own.
const CLIENT_COUNT: u64 = 32;
/// Turns of a conversation, the first of which has about 90 KB and the last 110 KB.
const TURNS_PER_CONVERSATION: usize = 20;
const INITIAL_TURNS: usize = 90;

pub(crate) fn bench_load(time: Duration) {
    println!("\nload: {REQUESTS_PER_SEC} requests a second of 100 KB for {} s", time.as_secs());
    let stand = BenchSetup::start(&[]);
    run_load("copy", &stand.baseline, time.min(Duration::from_secs(20)));
    let errors = run_load("ours", &stand.foldline, time);
    check_bound("errors", errors as f64, 0.0, "");
    println!("  ours has {:.0} MB after it", stand.foldline.resident_bytes() as f64 / 1e6);
}

/// Holds the rate against a proxy; says how many requests failed.
fn run_load(name: &str, proxy: &BenchProcess, time: Duration) -> u64 {
    // Bodies are made before, so that making them is not measured.
    let talks: Arc<Vec<BenchConversation>> = Arc::new(
        (0..CLIENT_COUNT * 48)
            .map(|seed| {
                BenchConversation::new(BenchFormat::Chat, seed + 500_000, INITIAL_TURNS + TURNS_PER_CONVERSATION, 800)
            })
            .collect(),
    );
    let (cpu, began) = (proxy.cpu_time(), Instant::now());
    let (sent, errors, late) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let clients: Vec<_> = (0..CLIENT_COUNT)
        .map(|client| {
            let (talks, sent, errors, late, times) =
                (talks.clone(), sent.clone(), errors.clone(), late.clone(), times.clone());
            let address = proxy.address.clone();
            thread::spawn(move || {
                let mut connection = BenchConnection::open(&address).expect("it listens");
                let mut took = Vec::new();
                loop {
                    // Each request has its time, whether those before it were quick or not.
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let due = Duration::from_nanos(number * 1_000_000_000 / REQUESTS_PER_SEC);
                    if due > time {
                        break;
                    }
                    match due.checked_sub(began.elapsed()) {
                        Some(wait) => thread::sleep(wait),
                        None => drop(late.fetch_add(1, Ordering::Relaxed)),
                    }
                    let turn = took.len();
                    let talk =
                        &talks[(client as usize + turn / TURNS_PER_CONVERSATION * CLIENT_COUNT as usize) % talks.len()];
                    let body = talk.request_body(INITIAL_TURNS + turn % TURNS_PER_CONVERSATION, false);
                    match connection.send_turn(BenchFormat::Chat, &body) {
                        Ok(_) => took.push(began.elapsed().saturating_sub(due)),
                        Err(_) => {
                            errors.fetch_add(1, Ordering::Relaxed);
                            connection = BenchConnection::open(&address).expect("it listens");
                        }
                    }
                }
                times.lock().expect("nobody panics").extend(took);
            })
        })
        .collect();
    clients.into_iter().for_each(|it| it.join().expect("a client comes to its end"));
    let (elapsed, errors) = (began.elapsed(), errors.load(Ordering::Relaxed));
    let times = times.lock().expect("nobody panics");
    println!(
        "  {name}: {:.0} a second, {errors} errors, {:.2} cores; from when it was due: {}",
        times.len() as f64 / elapsed.as_secs_f64(),
        (proxy.cpu_time() - cpu).as_secs_f64() / elapsed.as_secs_f64(),
        LatencyStats::from_durations(&times)
    );
    errors
}
