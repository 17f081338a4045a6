//! The wheel, which also carries the command, and the source distribution, which has the library only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::build::DistBuild;
use crate::file_copy::copy_file;
use crate::output::print_line;
use crate::programs::{has_program, run_to_end};
use crate::repository;

/// The version of the tool that builds wheels, as in pyproject.toml.
const MATURIN: &str = "maturin>=1.7,<2";

/// The folder next to the manifest whose files maturin puts into the wheel: its `scripts` become commands. Its name is
/// that of the native module.
const DATA_FOLDER: &str = "foldline._native.data";

/// Makes the packages, if Python is installed.
pub(super) fn write_packages(build: &DistBuild) -> Result<()> {
    if !has_program("python3") {
        print_line("no Python packages: python3 is not installed");
        return Ok(());
    }
    let tools = build.target.join("dist-tools");
    if !tools.exists() {
        create_environment(&tools)?;
        run_to_end(Command::new(program(&tools, "python")).args(["-m", "pip", "install", "--quiet", MATURIN]))?;
    }
    let package = repository::root().join("crates/foldline-python");
    let licenses = ["LICENSE-APACHE", "LICENSE-MIT"];
    for license in licenses {
        copy_file(&repository::root().join(license), &package.join(license))?;
    }
    let data = package.join(DATA_FOLDER);
    let built = run_maturin(build, &tools, &package, &data);
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
    }
    for license in licenses {
        fs::remove_file(package.join(license)).with_context(|| format!("cannot remove {license}"))?;
    }
    built
}

/// Writes the source distribution, then the wheel with the command.
fn run_maturin(build: &DistBuild, tools: &Path, package: &Path, data: &Path) -> Result<()> {
    let maturin = |arguments: &[&str]| {
        let mut command = Command::new(program(tools, "maturin"));
        repository::remove_package_variables(&mut command);
        command.current_dir(package).args(arguments).arg("--out").arg(&build.output);
        run_to_end(command.env("CARGO_TARGET_DIR", &build.target))
    };
    maturin(&["sdist"])?;
    let name = build.command().file_name().context("the command has no name")?.to_owned();
    copy_file(&build.command(), &data.join("scripts").join(name))?;
    maturin(&["build", build.profile_flag(), "--locked"])
}

/// Creates an empty environment.
pub(crate) fn create_environment(folder: &Path) -> Result<()> {
    run_to_end(Command::new("python3").args(["-m", "venv"]).arg(folder))
}

/// Returns the path of a program of an environment.
pub(crate) fn program(environment: &Path, name: &str) -> PathBuf {
    match cfg!(windows) {
        true => environment.join("Scripts").join(format!("{name}.exe")),
        false => environment.join("bin").join(name),
    }
}
