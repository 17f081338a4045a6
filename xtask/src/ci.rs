//! `cargo xtask ci`: the checks that developers and the build server both run.
//!
//! The steps are ordered so that later ones reuse build artifacts: lints, fuzz targets and docs share one set; tests,
//! doc tests, tidy and the demo share another.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::output::print_line;
#[cfg(unix)]
use crate::postgres;
use crate::repository::RELEASE_FEATURES;
use crate::{dependency_policy, packages, repository, tidy};

enum CiStep {
    Cargo(&'static [&'static str]),
    /// Cargo, with rustdoc warnings as errors.
    Rustdoc(&'static [&'static str]),
    Function(fn(&[String]) -> Result<()>),
}

/// Runs all steps and stops at the first that fails.
pub(crate) fn run(_: &[String]) -> Result<()> {
    let steps = [
        ("format", CiStep::Cargo(&["fmt", "--all", "--check"])),
        ("lints", CiStep::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("features", CiStep::Cargo(FEATURE_LINTS)),
        ("fuzz", CiStep::Function(check_fuzz_targets)),
        ("docs", CiStep::Rustdoc(&["doc", "--workspace", "--no-deps"])),
        ("tests", CiStep::Function(run_tests)),
        ("examples", CiStep::Function(run_examples)),
        ("doc tests", CiStep::Cargo(&["test", "--workspace", "--doc", "--features", RELEASE_FEATURES])),
        ("tidy", CiStep::Function(tidy::run)),
        ("dashboard", CiStep::Function(check_dashboard)),
        ("packages", CiStep::Function(packages::check)),
        ("deny", CiStep::Function(check_dependency_policy)),
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
    print_line(&format!("  {:<10}{:>8}", "total", format_seconds(times.iter().map(|(_, time)| *time).sum())));
    Ok(())
}

fn run_step(step: &CiStep) -> Result<()> {
    let (arguments, rustdoc_flags) = match step {
        CiStep::Cargo(arguments) => (arguments, None),
        CiStep::Rustdoc(arguments) => (arguments, Some("-D warnings")),
        CiStep::Function(task) => return task(&[]),
    };
    let mut cargo = repository::cargo_command();
    cargo.args(*arguments);
    if let Some(flags) = rustdoc_flags {
        cargo.env("RUSTDOCFLAGS", flags);
    }
    let status = cargo.status().context("cargo did not start")?;
    if !status.success() {
        bail!("`cargo {}` ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// Lints the code of features that are off by default.
const FEATURE_LINTS: &[&str] = &[
    "clippy",
    "--package",
    "foldline-archive",
    "--package",
    "foldline-clients",
    "--package",
    "foldline-server",
    "--all-targets",
    "--features",
    "foldline-archive/objects,foldline-archive/testing,foldline-clients/async-openai,foldline-server/otlp",
    "--",
    "-D",
    "warnings",
];

/// Runs all tests, with a private PostgreSQL server if there can be one.
fn run_tests(_: &[String]) -> Result<()> {
    let mut cargo = repository::cargo_command();
    match has_cargo_command("nextest") {
        true => cargo.args(["nextest", "run", "--workspace", "--no-tests=pass"]),
        false => cargo.args(["test", "--workspace", "--lib", "--bins", "--tests"]),
    };
    // Fixed seed: every run has the same property-test cases. Run the tests without it to search for new ones.
    cargo.args(["--features", RELEASE_FEATURES]).env("PROPTEST_RNG_SEED", "20261115");
    #[cfg(unix)]
    let _server = {
        let server = postgres::PrivateServer::start(postgres::Durability::Memory)
            .context("the PostgreSQL server did not start")?;
        match &server {
            Some(server) => drop(cargo.env(postgres::SERVER_VARIABLE, server.url())),
            None => print_line("PostgreSQL is not installed and cannot be installed here: its tests are skipped"),
        }
        server
    };
    if !cargo.status().context("cargo did not start")?.success() {
        bail!("a test failed");
    }
    Ok(())
}

/// Examples of the library that run without arguments, by their crate. Each asserts what it shows.
const EXAMPLES: [(&str, &str); 7] = [
    ("foldline", "quickstart"),
    ("foldline", "agent_loop"),
    ("foldline", "classic_strategies"),
    ("foldline", "custom_counter"),
    ("foldline", "custom_store"),
    ("foldline-summarize", "cascade"),
    ("foldline-summarize", "tiny_agent"),
];

/// Runs the examples of the library.
fn run_examples(_: &[String]) -> Result<()> {
    for (package, example) in EXAMPLES {
        let arguments = ["run", "--quiet", "--package", package, "--example", example];
        let status = repository::cargo_command().args(arguments).status().context("cargo did not start")?;
        if !status.success() {
            bail!("example {example} of {package} ended with {status}");
        }
    }
    Ok(())
}

/// Compiles the fuzz targets, which are a separate workspace. Only running them needs nightly and the C++ fuzzer, so a
/// placeholder path for it is enough here.
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

/// Checks, tests and builds the dashboard, and compares the build with the committed one. Installs its npm packages; if
/// that is not possible, the committed build is only compared with the digest of its sources, by tidy.
fn check_dashboard(_: &[String]) -> Result<()> {
    let folder = repository::root().join("crates/foldline-server/dashboard");
    if !folder.join("node_modules").exists() {
        let installed = Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder).status();
        if !installed.is_ok_and(|status| status.success()) {
            print_line("skipped: `npm ci` failed in crates/foldline-server/dashboard (needs Node and its registry)");
            return Ok(());
        }
    }
    for script in ["check", "build"] {
        let status = Command::new("npm").args(["run", script]).current_dir(&folder).status();
        if !status.context("npm did not start")?.success() {
            bail!("`npm run {script}` failed in crates/foldline-server/dashboard");
        }
    }
    let changed =
        Command::new("git").args(["diff", "--exit-code", "--stat", "--", "dist"]).current_dir(&folder).status();
    if !changed.context("git did not start")?.success() {
        bail!("the committed build of the dashboard differs from its sources: commit the new one");
    }
    Ok(())
}

/// Checks licenses, banned crates and sources of dependencies by deny.toml; with cargo-deny also advisories, as far as
/// their database can be fetched.
fn check_dependency_policy(_: &[String]) -> Result<()> {
    if !has_cargo_command("deny") {
        return dependency_policy::check();
    }
    run_step(&CiStep::Cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    let is_reachable = repository::cargo_command().args(["deny", "fetch", "db"]).status().is_ok_and(|it| it.success());
    match is_reachable {
        true => run_step(&CiStep::Cargo(&["deny", "check", "--disable-fetch", "advisories"])),
        false => {
            print_line("advisories were not checked: their database cannot be fetched");
            Ok(())
        }
    }
}

/// Returns true if cargo has this subcommand.
fn has_cargo_command(name: &str) -> bool {
    let probe =
        repository::cargo_command().args([name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

fn format_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
