//! A build of a release: its folders, how it is compiled, and its files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::programs::run_to_end;
use crate::repository;

/// Features of the released command.
pub(super) const COMMAND_FEATURES: &str = "foldline-cli/otlp,foldline-cli/objects";

/// Where a release is made, and for what.
pub(super) struct DistBuild {
    /// Receives the files to publish.
    pub(super) output: PathBuf,
    /// Files that are only needed to make them.
    pub(super) staging: PathBuf,
    /// Cargo's build folder.
    pub(super) target: PathBuf,
    pub(super) profile: BuildProfile,
    pub(super) version: String,
    /// Operating system and processor, as in the names of the files: `linux-x86_64`.
    pub(super) platform: String,
}

/// How the code of a release is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BuildProfile {
    /// Optimized and stripped, as it is published.
    Release,
    /// Compiled quickly; sizes and times are not those of a release.
    Debug,
}

impl DistBuild {
    /// Creates empty folders for a release.
    pub(super) fn new(profile: BuildProfile) -> Result<Self> {
        let metadata = repository::cargo_metadata()?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
        let cli = packages.iter().find(|package| package["name"] == "foldline-cli").context("no foldline-cli")?;
        let target = PathBuf::from(text(&metadata["target_directory"]).context("no build folder")?);
        let build = Self {
            output: target.join("dist"),
            staging: target.join("dist-staging"),
            version: text(&cli["version"]).context("foldline-cli has no version")?,
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            target,
            profile,
        };
        for folder in [&build.output, &build.staging] {
            if folder.exists() {
                fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
            }
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(build)
    }

    /// Returns the path of the released command.
    pub(super) fn command(&self) -> PathBuf {
        self.compiled().join(format!("foldline{}", std::env::consts::EXE_SUFFIX))
    }

    /// Returns the folder with what cargo compiled.
    pub(super) fn compiled(&self) -> PathBuf {
        self.target.join(match self.profile {
            BuildProfile::Release => "published",
            BuildProfile::Debug => "debug",
        })
    }

    /// Returns cargo's flag for the profile.
    pub(super) fn profile_flag(&self) -> &'static str {
        match self.profile {
            BuildProfile::Release => "--profile=published",
            BuildProfile::Debug => "--profile=dev",
        }
    }

    /// Compiles the command and the native module for Node, together so that both use the same dependencies.
    pub(super) fn compile(&self) -> Result<()> {
        let mut cargo = repository::cargo_command();
        cargo.args([
            "build",
            "--locked",
            self.profile_flag(),
            "--package",
            "foldline-cli",
            "--package",
            "foldline-node",
        ]);
        run_to_end(cargo.args(["--features", COMMAND_FEATURES]))
    }

    /// Returns the names and sizes of the files to publish, sorted.
    pub(super) fn files(&self) -> Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.output)? {
            let entry = entry?;
            files.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()));
        }
        files.sort();
        Ok(files)
    }

    /// Returns the files to publish whose names end like this.
    pub(super) fn files_ending(&self, ending: &str) -> Result<Vec<PathBuf>> {
        let files = self.files()?.into_iter().filter(|(name, _)| name.ends_with(ending));
        Ok(files.map(|(name, _)| self.output.join(name)).collect())
    }
}
