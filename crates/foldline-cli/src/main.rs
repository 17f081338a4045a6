//! The `foldline` binary.

fn main() {}
