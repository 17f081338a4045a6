//! `cargo xtask dist [--debug] [--check]`: everything that a release publishes for this platform, in `dist` of the build
//! folder.
//!
//! Makes a tarball with the stripped command, its completions and manual pages, a Debian package, a wheel and a source
//! distribution for Python, tarballs for npm, an SBOM and SHA-256 sums. With `--check`, each is installed and run in an
//! empty environment. With `--debug`, the build is not optimized, to try the task itself. What needs a program that is
//! not installed is skipped, and reported.
//!
//! `cargo xtask dist --formula FOLDER ADDRESS` writes the formula of Homebrew for the tarballs of all platforms in a folder.

mod build;
mod check;
mod command_files;
mod debian;
mod formula;
pub(crate) mod node;
pub(crate) mod python;
mod sbom;
mod sums;

use std::path::Path;

use anyhow::{Result, bail};

use self::build::{BuildProfile, DistBuild};
use crate::output::print_line;

/// Makes the files of a release, then checks them if that is requested.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let [flag, folder, address] = arguments
        && flag == "--formula"
    {
        return formula::write(Path::new(folder), address);
    }
    let (mut profile, mut is_checked) = (BuildProfile::Release, false);
    for argument in arguments {
        match argument.as_str() {
            "--check" => is_checked = true,
            "--debug" => profile = BuildProfile::Debug,
            _ => bail!("usage: cargo xtask dist [--debug] [--check], or --formula FOLDER ADDRESS"),
        }
    }
    let build = DistBuild::new(profile)?;
    build.compile()?;
    command_files::stage(&build)?;
    command_files::write_tarball(&build)?;
    debian::write_package(&build)?;
    python::write_packages(&build)?;
    node::write_packages(&build)?;
    sbom::write(&build)?;
    sums::write(&build)?;
    for (name, size) in build.files()? {
        print_line(&format!("{:>7.2} MB  {name}", size as f64 / 1e6));
    }
    if is_checked {
        check::run(&build)?;
    }
    Ok(())
}
