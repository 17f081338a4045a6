//! After a kill at any moment, the archive has every original whose store call had returned.
//!
//! The test runs itself as a child process that stores originals as fast as it can and reports them, kills it at a
//! random moment, and checks. `KILLS=200` runs it two hundred times instead of ten.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{Archive, Namespace};

use crate::support::{TempArchive, original, random_bytes};

/// Variables that pass the archive's path and the first batch number to the child.
const CHILD_ARCHIVE_VAR: &str = "ARCHIVE_OF_THE_CHILD";
const CHILD_SEED_VAR: &str = "SEED_OF_THE_CHILD";

/// Returns the originals of a batch, which depend only on its number.
fn batch_originals(number: u64) -> Vec<Vec<u8>> {
    (0..number % 7 + 1).map(|at| random_bytes(number * 10 + at, 100 + (number as usize * 977) % 3_000)).collect()
}

/// The child process that is killed; not a test.
#[test]
#[ignore = "run by the tests of this file, as a child process"]
fn child() {
    let Ok(path) = std::env::var(CHILD_ARCHIVE_VAR) else { return };
    let seed: u64 = std::env::var(CHILD_SEED_VAR).unwrap().parse().unwrap();
    let tenant = Archive::open(path).unwrap().tenant(&Namespace::local());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tenant = tenant.clone();
            scope.spawn(move || {
                for number in (seed + thread..).step_by(4) {
                    let texts = batch_originals(number);
                    tenant.store(&texts.iter().map(|text| original(text)).collect::<Vec<Original<'_>>>()).unwrap();
                    // One write, so that a line is complete or missing.
                    std::io::stdout().lock().write_all(format!("stored {number}\n").as_bytes()).unwrap();
                }
            });
        }
    });
}

fn spawn(path: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_ARCHIVE_VAR, path)
        .env(CHILD_SEED_VAR, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the batches that the child has reported.
fn reported_batches(child: &mut Child) -> Vec<u64> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| line.rsplit_once("stored ")?.1.parse().ok()).collect()
}

fn assert_stored(tenant: &foldline_archive::TenantArchive, number: u64) {
    for text in batch_originals(number) {
        assert!(tenant.unfold(Handle::for_content(&text).as_str()).unwrap().bytes == text, "batch {number}");
    }
}

#[test]
fn killed_process_loses_no_acknowledged_original() {
    let kills = std::env::var("KILLS").map_or(10, |kills| kills.parse().unwrap());
    let temp = TempArchive::new();
    let mut stored: Vec<u64> = Vec::new();
    for kill in 0..kills {
        let mut child = spawn(&temp.path(), 1_000_000 * (kill + 1));
        let delay = u64::from(random_bytes(kill, 1)[0]);
        let killer = std::thread::spawn({
            let pid = child.id();
            move || {
                std::thread::sleep(Duration::from_millis(20 + delay * 2));
                Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap()
            }
        });
        let reported = reported_batches(&mut child);
        killer.join().unwrap();
        assert!(!child.wait().unwrap().success(), "the child should have been killed");
        // The archive opens without delay, nothing is locked, and everything reported is stored.
        let started = Instant::now();
        let tenant = temp.local_tenant();
        tenant.store(&[original(&random_bytes(kill, 500))]).unwrap();
        assert!(started.elapsed() < Duration::from_secs(4), "a lock remained");
        reported.iter().for_each(|&number| assert_stored(&tenant, number));
        stored.extend(reported);
    }
    assert!(!stored.is_empty(), "no child lived long enough to store anything");
    let tenant = temp.local_tenant();
    stored.iter().for_each(|&number| assert_stored(&tenant, number));
    let verified = temp.open().verify(|_| ()).unwrap();
    assert!(verified.damaged.is_empty() && verified.structure_errors.is_empty(), "{verified:?}");
    let distinct: HashSet<_> = stored.iter().collect();
    println!("{kills} kills, {} batches survived, {} originals intact", distinct.len(), verified.intact);
}

/// A proxy and a command line, for example: both write, neither is blocked, and each sees the other's originals.
#[test]
fn two_processes_share_an_archive() {
    let temp = TempArchive::new();
    let mut child = spawn(&temp.path(), 5_000_000);
    let tenant = temp.local_tenant();
    for number in 0..40 {
        let texts = batch_originals(number);
        tenant.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    // A busy machine may start the child late.
    let first = Handle::for_content(&batch_originals(5_000_000)[0]).to_string();
    let deadline = Instant::now() + Duration::from_secs(30);
    while tenant.unfold(&first).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    let reported = reported_batches(&mut child);
    child.wait().unwrap();
    assert!(!reported.is_empty());
    (0..40).chain(reported).for_each(|number| assert_stored(&tenant, number));
}
