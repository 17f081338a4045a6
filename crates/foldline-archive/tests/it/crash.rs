//! Killed at any moment, an archive has every original whose keep had returned.
//!
//! The test runs itself as a child process that keeps as fast as it can and says what it has kept,
//! kills it at a random moment, and looks. `KILLS=200` runs it two hundred times instead of ten.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::{Archive, Namespace};

use crate::support::{TempArchive, original, random_bytes};

/// Tells the child where its archive is, and where its numbers begin.
const CHILD_ARCHIVE_VAR: &str = "ARCHIVE_OF_THE_CHILD";
const CHILD_SEED_VAR: &str = "SEED_OF_THE_CHILD";

/// What the originals of one keep are, from its number alone.
fn originals_of_keep(number: u64) -> Vec<Vec<u8>> {
    (0..number % 7 + 1).map(|at| random_bytes(number * 10 + at, 100 + (number as usize * 977) % 3_000)).collect()
}

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "run by the tests of this file, as a child process"]
fn child() {
    let Ok(path) = std::env::var(CHILD_ARCHIVE_VAR) else { return };
    let seed: u64 = std::env::var(CHILD_SEED_VAR).unwrap().parse().unwrap();
    let shelf = Archive::open(path).unwrap().tenant(&Namespace::local());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let shelf = shelf.clone();
            scope.spawn(move || {
                for number in (seed + thread..).step_by(4) {
                    let texts = originals_of_keep(number);
                    shelf.store(&texts.iter().map(|text| original(text)).collect::<Vec<Original<'_>>>()).unwrap();
                    // One write, so that a line is whole or not there.
                    std::io::stdout().lock().write_all(format!("kept {number}\n").as_bytes()).unwrap();
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

/// What the child says it has kept.
fn reported_keeps(child: &mut Child) -> Vec<u64> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| line.rsplit_once("kept ")?.1.parse().ok()).collect()
}

fn assert_stored(shelf: &foldline_archive::TenantArchive, number: u64) {
    for text in originals_of_keep(number) {
        assert!(shelf.unfold(Handle::for_content(&text).as_str()).unwrap().bytes == text, "keep {number}");
    }
}

#[test]
fn killed_process_loses_no_acknowledged_original() {
    let kills = std::env::var("KILLS").map_or(10, |kills| kills.parse().unwrap());
    let place = TempArchive::new();
    let mut kept: Vec<u64> = Vec::new();
    for kill in 0..kills {
        let mut child = spawn(&place.path(), 1_000_000 * (kill + 1));
        let chance = u64::from(random_bytes(kill, 1)[0]);
        let killer = std::thread::spawn({
            let pid = child.id();
            move || {
                std::thread::sleep(Duration::from_millis(20 + chance * 2));
                Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap()
            }
        });
        let said = reported_keeps(&mut child);
        killer.join().unwrap();
        assert!(!child.wait().unwrap().success(), "the child was to be killed");
        // It opens at once, nothing is locked, and the last words of the child are true.
        let begun = Instant::now();
        let shelf = place.local_tenant();
        shelf.store(&[original(&random_bytes(kill, 500))]).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(4), "a lock was left behind");
        said.iter().for_each(|&number| assert_stored(&shelf, number));
        kept.extend(said);
    }
    assert!(!kept.is_empty(), "no child lived long enough to keep anything");
    let shelf = place.local_tenant();
    kept.iter().for_each(|&number| assert_stored(&shelf, number));
    let verified = place.open().verify(|_| ()).unwrap();
    assert!(verified.damaged.is_empty() && verified.structure_errors.is_empty(), "{verified:?}");
    let distinct: HashSet<_> = kept.iter().collect();
    println!("{kills} kills, {} keeps survived, {} originals held", distinct.len(), verified.intact);
}

/// A proxy and a command line, say: both write, neither waits in vain, and each sees the other's.
#[test]
fn two_processes_share_an_archive() {
    let place = TempArchive::new();
    let mut child = spawn(&place.path(), 5_000_000);
    let shelf = place.local_tenant();
    for number in 0..40 {
        let texts = originals_of_keep(number);
        shelf.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    let said = reported_keeps(&mut child);
    child.wait().unwrap();
    assert!(!said.is_empty());
    (0..40).chain(said).for_each(|number| assert_stored(&shelf, number));
}
