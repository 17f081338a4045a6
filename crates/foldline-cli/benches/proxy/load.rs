//! Five hundred requests a second of 100 KB, held: turns of conversations that grow and give way to new ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::peers::Process;
use crate::talk::{Format, Talk};
use crate::{Stand, Times, verdict};

const RATE: u64 = 500;
/// Clients, each with a connection and a conversation of its own.
const CLIENTS: u64 = 32;
/// Turns of a conversation, the first of which has about 90 KB and the last 110 KB.
const TURNS: usize = 20;
const BEFORE: usize = 90;

pub(crate) fn hold(time: Duration) {
    println!("\nload: {RATE} requests a second of 100 KB for {} s", time.as_secs());
    let stand = Stand::start(&[]);
    under("copy", &stand.copy, time.min(Duration::from_secs(20)));
    let errors = under("ours", &stand.ours, time);
    verdict("errors", errors as f64, 0.0, "");
    println!("  ours has {:.0} MB after it", stand.ours.resident() as f64 / 1e6);
}

/// Holds the rate against a proxy; says how many requests failed.
fn under(name: &str, proxy: &Process, time: Duration) -> u64 {
    // Bodies are made before, so that making them is not measured.
    let talks: Arc<Vec<Talk>> =
        Arc::new((0..CLIENTS * 48).map(|seed| Talk::new(Format::Chat, seed + 500_000, BEFORE + TURNS, 800)).collect());
    let (cpu, began) = (proxy.cpu(), Instant::now());
    let (sent, errors, late) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (talks, sent, errors, late, times) =
                (talks.clone(), sent.clone(), errors.clone(), late.clone(), times.clone());
            let address = proxy.address.clone();
            thread::spawn(move || {
                let mut connection = Connection::open(&address).expect("it listens");
                let mut took = Vec::new();
                loop {
                    // Each request has its time, whether those before it were quick or not.
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let due = Duration::from_nanos(number * 1_000_000_000 / RATE);
                    if due > time {
                        break;
                    }
                    match due.checked_sub(began.elapsed()) {
                        Some(wait) => thread::sleep(wait),
                        None => drop(late.fetch_add(1, Ordering::Relaxed)),
                    }
                    let turn = took.len();
                    let talk = &talks[(client as usize + turn / TURNS * CLIENTS as usize) % talks.len()];
                    let body = talk.body(BEFORE + turn % TURNS, false);
                    match connection.turn(Format::Chat, &body) {
                        Ok(_) => took.push(began.elapsed().saturating_sub(due)),
                        Err(_) => {
                            errors.fetch_add(1, Ordering::Relaxed);
                            connection = Connection::open(&address).expect("it listens");
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
        (proxy.cpu() - cpu).as_secs_f64() / elapsed.as_secs_f64(),
        Times::of(&times)
    );
    errors
}
