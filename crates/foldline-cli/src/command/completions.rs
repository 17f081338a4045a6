//! `foldline completions` and `foldline man`: files for shells and for `man`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::write_output;

/// Print a completion script for a shell
///
/// Install it where the shell looks for completions, for example:
///     foldline completions bash > ~/.local/share/bash-completion/completions/foldline
///     foldline completions zsh > "${fpath[1]}/_foldline"
///     foldline completions fish > ~/.config/fish/completions/foldline.fish
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionsCommand {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsCommand {
    pub(crate) fn run(self, mut cli: Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli, "foldline", &mut script);
        write_output(None, &script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the manual page
///
/// Without a folder, the page of foldline itself is printed; with one, a page for each command is written there.
#[derive(Args)]
pub(crate) struct ManCommand {
    /// Write a page for each command into this folder.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl ManCommand {
    pub(crate) fn run(self, cli: Command) -> Result<ExitCode> {
        match self.dir {
            Some(folder) => {
                std::fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
                clap_mangen::generate_to(cli, &folder)
                    .with_context(|| format!("could not write to {}", folder.display()))?;
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(cli).render(&mut page)?;
                write_output(None, &page)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
