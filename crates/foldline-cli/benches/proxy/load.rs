//! A sustained load of 500 requests per second of 100 KB: turns of conversations that grow and are replaced by new ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::BenchConnection;
use crate::conversation::{BenchConversation, BenchFormat};
use crate::processes::BenchProcess;
use crate::{BenchSetup, LatencyStats, check_bound};

const REQUESTS_PER_SEC: u64 = 500;
/// Clients, each with its own connection and conversation.
const CLIENT_COUNT: u64 = 32;
/// Turns of a conversation, the first of which has about 90 KB and the last 110 KB.
const TURNS_PER_CONVERSATION: usize = 20;
const INITIAL_TURNS: usize = 90;

pub(crate) fn bench_load(time: Duration) {
    println!("\nload: {REQUESTS_PER_SEC} requests per second of 100 KB for {} s", time.as_secs());
    let setup = BenchSetup::start(&[]);
    run_load("copy", &setup.baseline, time.min(Duration::from_secs(20)));
    let errors = run_load("ours", &setup.foldline, time);
    check_bound("errors", errors as f64, 0.0, "");
    println!("  ours uses {:.0} MB after the load", setup.foldline.resident_bytes() as f64 / 1e6);
}

/// Sends the load to a proxy and returns the number of failed requests.
fn run_load(name: &str, proxy: &BenchProcess, time: Duration) -> u64 {
    // Bodies are generated before, so that this is not measured.
    let conversations: Arc<Vec<BenchConversation>> = Arc::new(
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
            let (conversations, sent, errors, late, times) =
                (conversations.clone(), sent.clone(), errors.clone(), late.clone(), times.clone());
            let address = proxy.address.clone();
            thread::spawn(move || {
                let mut connection = BenchConnection::open(&address).expect("the proxy listens");
                let mut took = Vec::new();
                loop {
                    // Each request is due at a fixed time, however long the earlier ones took.
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
                    let conversation = &conversations[(client as usize
                        + turn / TURNS_PER_CONVERSATION * CLIENT_COUNT as usize)
                        % conversations.len()];
                    let body = conversation.request_body(INITIAL_TURNS + turn % TURNS_PER_CONVERSATION, false);
                    match connection.send_turn(BenchFormat::Chat, &body) {
                        Ok(_) => took.push(began.elapsed().saturating_sub(due)),
                        Err(_) => {
                            errors.fetch_add(1, Ordering::Relaxed);
                            connection = BenchConnection::open(&address).expect("the proxy listens");
                        }
                    }
                }
                times.lock().expect("no client panics").extend(took);
            })
        })
        .collect();
    clients.into_iter().for_each(|it| it.join().expect("a client finishes"));
    let (elapsed, errors) = (began.elapsed(), errors.load(Ordering::Relaxed));
    let times = times.lock().expect("no client panics");
    println!(
        "  {name}: {:.0} per second, {errors} errors, {:.2} cores; latency from the due time: {}",
        times.len() as f64 / elapsed.as_secs_f64(),
        (proxy.cpu_time() - cpu).as_secs_f64() / elapsed.as_secs_f64(),
        LatencyStats::from_durations(&times)
    );
    errors
}
