//! The files and crates of this repository.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The folder that holds the workspace. Cargo says at every run where that is: what was true when this was compiled is
/// another clone's, where two of them share a build folder.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// The cargo that runs this, at the root of the workspace.
pub(crate) fn cargo_command() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// A text file of the repository.
pub(crate) struct RepoFile {
    /// Its path from the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All text files that git tracks or would track, in the order of their paths.
pub(crate) fn tracked_files() -> Result<Vec<RepoFile>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let listing = git.output().context("git did not start: tidy asks it which files belong to the repository")?;
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
    // A file that is deleted but not yet committed is listed and absent; one that is no text is not
    // ours to read.
    Ok(paths
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(root().join(&path)).ok().map(|text| RepoFile { path, text }))
        .collect())
}

/// What cargo knows about the workspace and everything that it depends on.
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
