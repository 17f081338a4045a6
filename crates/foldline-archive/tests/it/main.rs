//! Integration tests of the archive: its guarantees, and its behavior when the disk, another process or a user
//! misbehaves.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one prints why")]

mod audit;
mod crash;
mod delete;
mod disk;
mod encryption;
mod engine;
mod errors;
mod ledger;
#[cfg(all(feature = "postgres", feature = "testing"))]
mod postgres;
mod removed_file;
mod retention;
mod round_trip;
mod search;
mod small_disk;
mod support;
mod tenants;
mod transfer;
mod verify;
