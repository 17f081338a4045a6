//! The archive from outside: what it promises, and what happens when the disk, another process or
//! its user does not behave.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that can not go on has failed, and says so")]

mod crash;
mod disk;
mod encryption;
mod engine;
mod errors;
mod ledger;
mod retention;
mod round_trip;
mod search;
mod small_disk;
mod support;
mod tenants;
mod transfer;
mod verify;
