//! The command with its completions, manual pages and licenses, as a folder and as a tarball.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::build::{BuildProfile, DistBuild};
use crate::file_copy::copy_file;
use crate::programs::{output_of, run_to_end};
use crate::repository;

/// Shells and the file in which each looks for completions.
pub(super) const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "foldline.bash"), ("zsh", "_foldline"), ("fish", "foldline.fish")];

/// Returns the folder with the files of the command.
pub(super) fn folder(build: &DistBuild) -> PathBuf {
    build.staging.join(tarball_name(build))
}

fn tarball_name(build: &DistBuild) -> String {
    format!("foldline-{}-{}", build.version, build.platform)
}

/// Copies the command and lets it write its completions and manual pages.
pub(super) fn stage(build: &DistBuild) -> Result<()> {
    let (command, folder) = (build.command(), folder(build));
    copy_file(&command, &folder.join("bin").join(command.file_name().context("the command has no name")?))?;
    fs::create_dir_all(folder.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        let script = output_of(Command::new(&command).args(["completions", shell]))?;
        fs::write(folder.join("completions").join(file), script)?;
    }
    run_to_end(Command::new(&command).args(["man", "--dir"]).arg(folder.join("man")))?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"] {
        copy_file(&repository::root().join(file), &folder.join(file))?;
    }
    Ok(())
}

/// Packs the folder. Owners and times are fixed, so that the same files make the same tarball.
pub(super) fn write_tarball(build: &DistBuild) -> Result<()> {
    let path = build.output.join(format!("{}.tar.gz", tarball_name(build)));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let compression = match build.profile {
        BuildProfile::Release => Compression::best(),
        BuildProfile::Debug => Compression::fast(),
    };
    let mut tarball = tar::Builder::new(GzEncoder::new(file, compression));
    tarball.mode(tar::HeaderMode::Deterministic);
    let mut files: Vec<PathBuf> = walk(folder(build))?;
    files.sort();
    for file in files {
        let name = file.strip_prefix(&build.staging)?;
        tarball.append_path_with_name(&file, name)?;
    }
    tarball.into_inner()?.finish()?;
    Ok(())
}

/// Returns all files below a folder.
fn walk(folder: PathBuf) -> Result<Vec<PathBuf>> {
    let (mut files, mut open) = (Vec::new(), vec![folder]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => open.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    Ok(files)
}
