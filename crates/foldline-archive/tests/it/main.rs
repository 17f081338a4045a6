//! The archive from outside: what it promises, and what happens when the disk, another process or
//! its user does not behave.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that can not go on has failed, and says so")]

mod crash;
mod disk;
mod exact;
mod faults;
mod folded;
mod ledger;
mod retention;
mod sealed;
mod search;
mod shelves;
mod small_disk;
mod support;
mod transfer;
mod verify;
