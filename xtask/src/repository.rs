//! The files and crates of this repository.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns the root folder of the workspace. Cargo sets it at every run; the path at compile time can be that of another
/// clone that shares the build folder.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Features of release builds that the default build does not have, and what their tests need.
pub(crate) const RELEASE_FEATURES: &str = "foldline-cli/otlp,foldline-cli/objects,foldline-server/otlp,\
    foldline-server/objects,foldline-archive/objects,foldline-archive/testing,foldline-clients/async-openai";

/// Returns a command for the running cargo, at the root of the workspace.
pub(crate) fn cargo_command() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    remove_package_variables(&mut cargo);
    cargo.current_dir(root());
    cargo
}

/// Removes the variables that cargo sets for the package that it runs. Build scripts (ring's) run again when they
/// change, so a build started here and one started from a shell would rebuild each other's dependencies.
pub(crate) fn remove_package_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
}

/// A text file of the repository.
pub(crate) struct RepoFile {
    /// Path from the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Reads all text files that git tracks or would track, sorted by path.
pub(crate) fn tracked_files() -> Result<Vec<RepoFile>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let listing = git.output().context("cannot start git, which lists the files of the repository")?;
    if !listing.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr).trim());
    }
    let mut paths: Vec<String> = String::from_utf8(listing.stdout)
        .context("a path that is not UTF-8")?
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    paths.sort();
    paths.dedup();
    // Deleted files that are not committed yet are listed and absent; files that are not UTF-8 are skipped.
    Ok(paths
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(root().join(&path)).ok().map(|text| RepoFile { path, text }))
        .collect())
}

/// Returns cargo's metadata of the workspace and its dependencies.
pub(crate) fn cargo_metadata() -> Result<Value> {
    let output = cargo_command()
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .output()
        .context("cargo metadata did not start")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
