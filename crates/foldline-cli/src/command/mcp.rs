//! `foldline mcp`: serves the archive to a model over the Model Context Protocol.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use foldline_archive::AccessMode;

use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};

/// Serve unfold, search and stats to a model over MCP on standard input and output
///
/// For clients that start their MCP servers as child processes. In Claude Code: `claude mcp add foldline -- foldline mcp`;
/// in others: the command `foldline` with the argument `mcp`. The archive is only read.
#[derive(Args)]
pub(crate) struct McpCommand {
    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl McpCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let open = move || Ok(settings.open(AccessMode::ReadOnly)?.tenant(&settings.namespace));
        foldline_server::mcp::serve_stdio(open).context("the connection to the MCP client failed")?;
        Ok(ExitCode::SUCCESS)
    }
}
