//! Installs each file of a release in an empty environment, runs it, and compares sizes and times with their limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::build::{BuildProfile, DistBuild};
use super::{node, python, sums};
use crate::output::print_line;
use crate::programs::{output_of, run_to_end};
use crate::repository;

/// Maximum size of the command.
const MAX_COMMAND_BYTES: u64 = 30_000_000;
/// Maximum size of an installed wheel.
const MAX_WHEEL_BYTES: u64 = 40_000_000;
/// Maximum time to install a wheel into an empty environment.
const MAX_WHEEL_INSTALL: Duration = Duration::from_secs(10);
/// Maximum time until the command from npm has printed its version.
const MAX_NPM_START: Duration = Duration::from_secs(1);

/// A request that has to be folded.
const PYTHON_CHECK: &str = r#"
import foldline
session = foldline.FoldSession(model="gpt-4o", budget=2_000)
session.push({"role": "user", "content": "Read it."})
for at in range(20):
    call = {"id": f"c{at}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    session.push({"role": "assistant", "content": None, "tool_calls": [call]})
    session.push({"role": "tool", "tool_call_id": f"c{at}", "content": f"line {at}\n" * 100})
    rendering = session.request()
assert rendering.tokens <= 2_000 < rendering.received_tokens, rendering
"#;

/// The same for Node.
const NODE_CHECK: &str = r#"
import { FoldSession } from "@foldline/core";
import assert from "node:assert";
const session = new FoldSession({ model: "gpt-4o", budget: 2_000 });
session.push({ role: "user", content: "Read it." });
let rendering;
for (let at = 0; at < 20; at++) {
  const call = { id: `c${at}`, type: "function", function: { name: "read", arguments: "{}" } };
  session.push({ role: "assistant", content: null, tool_calls: [call] });
  session.push({ role: "tool", tool_call_id: `c${at}`, content: `line ${at}\n`.repeat(100) });
  rendering = session.request();
}
assert(rendering.tokens <= 2_000 && rendering.receivedTokens > 2_000);
"#;

/// Checks every file that was made.
pub(super) fn run(build: &DistBuild) -> Result<()> {
    let folder = build.staging.join("check");
    check_sums(build)?;
    for tarball in build.files_ending(&format!("{}.tar.gz", build.platform))? {
        check_tarball(build, &tarball, &folder.join("tarball"))?;
    }
    for package in build.files_ending(".deb")? {
        check_debian(&package, &folder.join("debian"))?;
    }
    for wheel in build.files_ending(".whl")? {
        check_wheel(build, &wheel, &folder.join("wheel"))?;
    }
    for source in build.files_ending(&format!("foldline-{}.tar.gz", build.version))? {
        check_source(build, &source, &folder.join("source"))?;
    }
    let tarballs = build.files_ending(".tgz")?;
    if !tarballs.is_empty() {
        check_npm(build, &tarballs, &folder.join("npm"))?;
    }
    print_line("every file was installed in an empty environment and works");
    Ok(())
}

/// Compares the files with their sums.
fn check_sums(build: &DistBuild) -> Result<()> {
    let listed = fs::read_to_string(build.output.join(sums::FILE))?;
    for line in listed.lines() {
        let (sum, name) = line.split_once("  ").context("a line of the sums has no name")?;
        if sums::sha256(&fs::read(build.output.join(name))?) != sum {
            bail!("{name} has another sum than the one listed");
        }
    }
    Ok(())
}

/// Extracts the tarball and runs its command.
fn check_tarball(build: &DistBuild, tarball: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(tarball)?)).unpack(folder)?;
    let inside = fs::read_dir(folder)?.next().context("the tarball is empty")??.path();
    for file in ["completions/foldline.bash", "completions/_foldline", "completions/foldline.fish", "man/foldline.1"] {
        if fs::metadata(inside.join(file)).map_or(0, |it| it.len()) == 0 {
            bail!("the tarball has no {file}");
        }
    }
    let command = inside.join("bin").join(format!("foldline{}", std::env::consts::EXE_SUFFIX));
    let size = fs::metadata(&command)?.len();
    if build.profile == BuildProfile::Release && size > MAX_COMMAND_BYTES {
        bail!("the command has {size} bytes, more than {MAX_COMMAND_BYTES}");
    }
    let version = run_command(&command, folder)?;
    print_line(&format!("tarball: {version}, command of {:.1} MB", size as f64 / 1e6));
    Ok(())
}

/// Installs the package below a folder and runs its command.
fn check_debian(package: &Path, root: &Path) -> Result<()> {
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    let mut dpkg = Command::new("dpkg");
    // The folder has no other packages, not even a C library.
    dpkg.arg("--root").arg(root).args(["--force-not-root", "--force-depends", "--install"]).arg(package);
    run_to_end(dpkg.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let version = run_command(&root.join("usr/bin/foldline"), root)?;
    print_line(&format!("Debian package: {version}"));
    Ok(())
}

/// Installs the wheel without a registry, and uses the library and the command.
fn check_wheel(build: &DistBuild, wheel: &Path, environment: &Path) -> Result<()> {
    python::create_environment(environment)?;
    let before = folder_size(environment)?;
    let begin = Instant::now();
    let mut pip = Command::new(python::program(environment, "python"));
    run_to_end(pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir"]).arg(wheel))?;
    let (time, size) = (begin.elapsed(), folder_size(environment)? - before);
    run_to_end(Command::new(python::program(environment, "python")).args(["-c", PYTHON_CHECK]))?;
    let version = run_command(&python::program(environment, "foldline"), environment)?;
    let megabytes = size as f64 / 1e6;
    print_line(&format!("wheel: {version}, installed in {:.1} s, {megabytes:.1} MB", time.as_secs_f64()));
    if build.profile == BuildProfile::Release && (size > MAX_WHEEL_BYTES || time > MAX_WHEEL_INSTALL) {
        bail!("an installed wheel may have {MAX_WHEEL_BYTES} bytes and take {MAX_WHEEL_INSTALL:?}");
    }
    Ok(())
}

/// Builds and installs the source distribution. Compiled dependencies are those of this build folder.
fn check_source(build: &DistBuild, source: &Path, environment: &Path) -> Result<()> {
    python::create_environment(environment)?;
    let mut pip = Command::new(python::program(environment, "python"));
    repository::remove_package_variables(&mut pip);
    pip.args(["-m", "pip", "install", "--quiet"]).arg(source).env("CARGO_TARGET_DIR", &build.target);
    pip.env("MATURIN_PEP517_ARGS", build.profile_flag());
    run_to_end(&mut pip)?;
    run_to_end(Command::new(python::program(environment, "python")).args(["-c", PYTHON_CHECK]))?;
    print_line("source distribution: built, installed and used");
    Ok(())
}

/// Installs all tarballs with npm into an empty folder, and uses the library and the command.
fn check_npm(build: &DistBuild, tarballs: &[PathBuf], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
    let mut npm = Command::new(node::NPM);
    // Without peers: the adapter's own tests use the real framework.
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--omit=peer", "--legacy-peer-deps"]);
    run_to_end(npm.args(tarballs).current_dir(folder))?;
    fs::write(folder.join("check.mjs"), NODE_CHECK)?;
    run_to_end(Command::new("node").arg("check.mjs").current_dir(folder))?;
    let installed = if cfg!(windows) { "foldline.cmd" } else { "foldline" };
    let command = folder.join("node_modules/.bin").join(installed);
    let version = run_command(&command, folder)?;
    let mut time = Duration::MAX;
    // The shortest of three, because other programs may run too.
    for _ in 0..3 {
        let begin = Instant::now();
        run_command(&command, folder)?;
        time = time.min(begin.elapsed());
    }
    print_line(&format!("npm: {version}, started in {:.2} s", time.as_secs_f64()));
    if build.profile == BuildProfile::Release && time > MAX_NPM_START {
        bail!("the command from npm may take {MAX_NPM_START:?} to start");
    }
    Ok(())
}

/// Runs an installed command with an empty environment, and returns its version.
fn run_command(command: &Path, home: &Path) -> Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut version = Command::new(command);
    version.arg("--version").env_clear().env("HOME", home).env("PATH", path).current_dir(home);
    let printed = String::from_utf8(output_of(&mut version)?)?;
    if !printed.starts_with("foldline ") {
        bail!("{} prints {printed:?} as its version", command.display());
    }
    Ok(printed.trim().to_owned())
}

/// Returns the bytes of all files below a folder.
fn folder_size(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = fs::symlink_metadata(entry.path())?;
        size += if metadata.is_dir() { folder_size(&entry.path())? } else { metadata.len() };
    }
    Ok(size)
}
