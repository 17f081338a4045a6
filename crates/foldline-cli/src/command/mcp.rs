//! `foldline mcp`: the archive for a model, over the Model Context Protocol.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline_archive::Access;

use crate::settings::ArchiveFlags;

/// Serve unfold, search and stats to a model over MCP, on standard input and output
///
/// For clients that start their MCP servers themselves. In Claude Code: `claude mcp add foldline -- foldline mcp`;
/// in others: the command `foldline` with the argument `mcp`. It only reads the archive.
#[derive(Args)]
pub(crate) struct Mcp {
    #[command(flatten)]
    archive: ArchiveFlags,
}

impl Mcp {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.archive.resolve()?;
        let open = move || Ok(settings.open(Access::Read)?.shelf(&settings.namespace));
        foldline_server::mcp::serve_stdio(open).context("the connection to the MCP client broke")?;
        Ok(ExitCode::SUCCESS)
    }
}
