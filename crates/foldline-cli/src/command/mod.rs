//! The commands, one a file: its arguments with their help, and `run`.

mod demo;
mod show;

use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// What the binary can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Demo(demo::Demo),
    Show(show::Show),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Command::Demo(it) => it.run(),
            Command::Show(it) => it.run(),
        }
    }
}

/// Writes to standard output. A reader that has seen enough (`foldline show x | head`) is no error.
fn print(text: &str) -> Result<()> {
    match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Tells a person, beside the output, that something is amiss.
pub(crate) fn complain(line: &str) {
    // When standard error is gone there is nobody left to tell.
    let _ = writeln!(stderr(), "{line}");
}
