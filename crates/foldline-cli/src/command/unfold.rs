//! `foldline unfold`: an original from the archive.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::write;
use crate::settings::ArchiveFlags;

/// Print an original that was folded, byte for byte.
#[derive(Args)]
pub(crate) struct Unfold {
    /// The handle in the marker, or the beginning of it.
    handle: String,
    #[command(flatten)]
    archive: ArchiveFlags,
}

impl Unfold {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let unfolded = self.archive.resolve()?.shelf()?.unfold(&self.handle)?;
        write(None, &unfolded.bytes)?;
        Ok(ExitCode::SUCCESS)
    }
}
