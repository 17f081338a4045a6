//! The Debian package: the command, completions, manual pages and systemd units.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::build::{BuildProfile, DistBuild};
use super::command_files::{self, COMPLETIONS};
use crate::file_copy::{copy_file, copy_folder};
use crate::output::print_line;
use crate::programs::{has_program, output_of, run_to_end};
use crate::repository;

/// Folders in which Debian's shells look for completions, in the order of `COMPLETIONS`, with the name of the file.
const COMPLETION_PATHS: [&str; 3] = [
    "usr/share/bash-completion/completions/foldline",
    "usr/share/zsh/vendor-completions/_foldline",
    "usr/share/fish/vendor_completions.d/foldline.fish",
];

/// Makes the package, if dpkg-deb is installed.
pub(super) fn write_package(build: &DistBuild) -> Result<()> {
    if !has_program("dpkg-deb") {
        print_line("no Debian package: dpkg-deb is not installed");
        return Ok(());
    }
    let (files, root, repository) = (command_files::folder(build), build.staging.join("debian"), repository::root());
    copy_file(&build.command(), &root.join("usr/bin/foldline"))?;
    copy_folder(&files.join("man"), &root.join("usr/share/man/man1"))?;
    for ((_, file), path) in COMPLETIONS.iter().zip(COMPLETION_PATHS) {
        copy_file(&files.join("completions").join(file), &root.join(path))?;
    }
    copy_file(
        &repository.join("packaging/systemd/foldline.service"),
        &root.join("usr/lib/systemd/system/foldline.service"),
    )?;
    copy_file(
        &repository.join("packaging/systemd/user/foldline.service"),
        &root.join("usr/lib/systemd/user/foldline.service"),
    )?;
    copy_file(&repository.join("LICENSE-MIT"), &root.join("usr/share/doc/foldline/copyright"))?;
    copy_file(&repository.join("LICENSE-APACHE"), &root.join("usr/share/doc/foldline/LICENSE-APACHE"))?;

    let architecture = String::from_utf8(output_of(Command::new("dpkg").arg("--print-architecture"))?)?;
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::write(root.join("DEBIAN/control"), control_file(&build.version, architecture.trim()))?;
    let file = build.output.join(format!("foldline_{}_{}.deb", build.version, architecture.trim()));
    let mut command = Command::new("dpkg-deb");
    if build.profile == BuildProfile::Debug {
        command.args(["-Zgzip", "-z1"]);
    }
    run_to_end(command.args(["--root-owner-group", "--build"]).arg(&root).arg(&file))
}

/// Returns the description of the package. The command links only the C library.
fn control_file(version: &str, architecture: &str) -> String {
    format!(
        "Package: foldline\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The foldline authors\n\
         Section: devel\n\
         Priority: optional\n\
         Depends: libc6 (>= 2.34), libgcc-s1\n\
         Recommends: ca-certificates\n\
         Description: Keeps an LLM agent's conversation inside its model's window\n \
         A proxy, a filter and an MCP server that replace old parts of requests by\n \
         short markers; every original can be restored byte for byte.\n"
    )
}
