//! `cargo xtask ci`: what a laptop and the build server both run before a change lands.
//!
//! The steps are ordered so that later ones reuse what earlier ones built: clippy, the fuzz targets and the docs share
//! one set of artefacts, tests, doc tests, tidy and the demo another.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{print_line, repository, tidy};

enum CiStep {
    Cargo(&'static [&'static str]),
    /// Cargo, with warnings of rustdoc as errors.
    Rustdoc(&'static [&'static str]),
    Function(fn(&[String]) -> Result<()>),
}

pub(crate) fn run(_: &[String]) -> Result<()> {
    let tests: &[&str] = match has_nextest() {
        true => &["nextest", "run", "--workspace", "--no-tests=pass"],
        false => &["test", "--workspace", "--lib", "--bins", "--tests"],
    };
    let steps = [
        ("format", CiStep::Cargo(&["fmt", "--all", "--check"])),
        ("lints", CiStep::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("fuzz", CiStep::Function(check_fuzz_targets)),
        ("docs", CiStep::Rustdoc(&["doc", "--workspace", "--no-deps"])),
        ("tests", CiStep::Cargo(tests)),
        ("doc tests", CiStep::Cargo(&["test", "--workspace", "--doc"])),
        ("tidy", CiStep::Function(tidy::run)),
        ("demo", CiStep::Cargo(&["run", "--quiet", "--package", "foldline-cli", "--", "demo"])),
    ];
    let mut times = Vec::new();
    for (name, step) in &steps {
        print_line(&format!("== {name}"));
        let begin = Instant::now();
        run_step(step).with_context(|| format!("{name} failed"))?;
        times.push((name, begin.elapsed()));
        print_line(&format!("== {name}: {}", format_seconds(begin.elapsed())));
    }
    print_line("\nall steps passed");
    times.iter().for_each(|(name, time)| print_line(&format!("  {name:<10}{:>8}", format_seconds(*time))));
    print_line(&format!("  {:<10}{:>8}", "together", format_seconds(times.iter().map(|(_, time)| *time).sum())));
    Ok(())
}

fn run_step(step: &CiStep) -> Result<()> {
    let (arguments, rustdoc_flags) = match step {
        CiStep::Cargo(arguments) => (arguments, None),
        CiStep::Rustdoc(arguments) => (arguments, Some("-D warnings")),
        CiStep::Function(task) => return task(&[]),
    };
    let mut cargo = repository::cargo_command();
    // The same cases at every run: a change is judged by what it changes. New cases are looked for by running the
    // tests without this.
    cargo.args(*arguments).env("PROPTEST_RNG_SEED", "20261115");
    if let Some(flags) = rustdoc_flags {
        cargo.env("RUSTDOCFLAGS", flags);
    }
    let status = cargo.status().context("cargo did not start")?;
    if !status.success() {
        bail!("`cargo {}` ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// Compiles the fuzz targets, which are a workspace of their own: they need nightly only to run. The fuzzer itself is
/// C++ and would be linked only then, so that a path of it is enough.
fn check_fuzz_targets(_: &[String]) -> Result<()> {
    let root = repository::root();
    let mut cargo = repository::cargo_command();
    cargo.args(["check", "--manifest-path", "fuzz/Cargo.toml"]);
    cargo.env("CUSTOM_LIBFUZZER_PATH", root.join("fuzz/libfuzzer.a"));
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        cargo.env("CARGO_TARGET_DIR", root.join("target"));
    }
    let status = cargo.status().context("cargo did not start")?;
    if !status.success() {
        bail!("a fuzz target does not compile");
    }
    Ok(())
}

/// nextest runs every test in its own process; without it cargo's own runner serves.
fn has_nextest() -> bool {
    let probe =
        repository::cargo_command().args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

fn format_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
