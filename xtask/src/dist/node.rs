//! The packages for npm: `@foldline/core`, its adapters and `@foldline/cli`, and for this platform the packages with the
//! native module and with the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::build::DistBuild;
use crate::file_copy::{copy_file, copy_folder};
use crate::output::print_line;
use crate::programs::{has_program, run_to_end};
use crate::repository;

/// The program npm; Windows runs scripts only by their full name.
pub(crate) const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };

/// Makes the packages, if npm is installed.
pub(super) fn write_packages(build: &DistBuild) -> Result<()> {
    if !has_program(NPM) {
        print_line("no packages for npm: npm is not installed");
        return Ok(());
    }
    let staging = build.staging.join("npm");
    for package in ["core", "ai-sdk", "openai-agents", "pi", "cli"] {
        let folder = staging.join(package);
        copy_folder(&packages_folder().join(package), &folder)?;
        pack(build, &folder)?;
    }
    let module = staging.join("core-platform");
    copy_file(&built_module(&build.compiled()), &module.join("foldline.node"))?;
    write_platform_package(build, &module, "core", "foldline.node", "The native module of @foldline/core")?;
    let cli = staging.join("cli-platform");
    let command = build.command();
    let name = command.file_name().and_then(|name| name.to_str()).context("the command has no name")?;
    copy_file(&command, &cli.join(name))?;
    write_platform_package(build, &cli, "cli", name, "The command foldline")
}

/// Returns the folder with the sources of the packages.
pub(crate) fn packages_folder() -> PathBuf {
    repository::root().join("crates/foldline-node/packages")
}

/// Returns the path of the native module in a folder of cargo's build folder.
pub(crate) fn built_module(folder: &Path) -> PathBuf {
    folder.join(format!("{}foldline_node{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX))
}

/// Returns the operating system and the processor by the names that Node gives them.
pub(crate) fn node_platform() -> Result<(&'static str, &'static str)> {
    let system = match std::env::consts::OS {
        "linux" => "linux",
        "macos" => "darwin",
        "windows" => "win32",
        other => bail!("packages for {other} are not built"),
    };
    let processor = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("packages for {other} are not built"),
    };
    Ok((system, processor))
}

/// Writes and packs a package with one file, which npm installs only on this platform.
fn write_platform_package(build: &DistBuild, folder: &Path, of: &str, file: &str, about: &str) -> Result<()> {
    let (system, processor) = node_platform()?;
    let mut manifest = json!({
        "name": format!("@foldline/{of}-{system}-{processor}"),
        "version": build.version,
        "description": format!("{about}, for {system} on {processor}"),
        "license": "MIT OR Apache-2.0",
        "os": [system],
        "cpu": [processor],
        "files": [file, "LICENSE-*"],
    });
    if system == "linux" {
        manifest["libc"] = json!(["glibc"]);
    }
    fs::write(folder.join("package.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    pack(build, folder)
}

/// Packs a folder with the licenses as npm does, after a check that it has the version of this release.
fn pack(build: &DistBuild, folder: &Path) -> Result<()> {
    let manifest: serde_json::Value = serde_json::from_str(&fs::read_to_string(folder.join("package.json"))?)?;
    if manifest["version"] != build.version.as_str() {
        bail!("{} has version {}, not {}", manifest["name"], manifest["version"], build.version);
    }
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy_file(&repository::root().join(license), &folder.join(license))?;
    }
    let mut npm = Command::new(NPM);
    npm.args(["pack", "--silent", "--pack-destination"]).arg(&build.output).current_dir(folder);
    run_to_end(&mut npm)
}
