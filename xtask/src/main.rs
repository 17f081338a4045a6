//! Tasks of the repository: `cargo xtask ci`.

fn main() {}
