//! The commands, one a file: its arguments with their help, and `run`.

mod archive;
mod demo;
mod doctor;
mod fit;
mod mcp;
mod pipe;
mod replay;
mod run;
mod search;
mod serve;
mod show;
mod summarise;
mod unfold;

use std::fs;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;

/// What the binary can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Archive(archive::ArchiveCommand),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Fit(fit::Fit),
    Mcp(mcp::Mcp),
    Pipe(pipe::Pipe),
    Replay(replay::Replay),
    Run(run::Run),
    Search(search::Search),
    Serve(serve::Serve),
    Show(show::Show),
    Summarise(summarise::Summarise),
    Unfold(unfold::Unfold),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Command::Archive(it) => it.run(),
            Command::Demo(it) => it.run(),
            Command::Doctor(it) => it.run(),
            Command::Fit(it) => it.run(),
            Command::Mcp(it) => it.run(),
            Command::Pipe(it) => it.run(),
            Command::Replay(it) => it.run(),
            Command::Run(it) => it.run(),
            Command::Search(it) => it.run(),
            Command::Serve(it) => it.run(),
            Command::Show(it) => it.run(),
            Command::Summarise(it) => it.run(),
            Command::Unfold(it) => it.run(),
        }
    }
}

/// Exit code of input that is not what it should be.
const BAD_INPUT: u8 = 2;
/// Exit code of a request that can not be brought under its budget.
const CANNOT_FIT: u8 = 3;

/// Writes bytes to a file, or to standard output.
fn write(to: Option<&Path>, bytes: &[u8]) -> Result<()> {
    match to {
        Some(path) => fs::write(path, bytes).with_context(|| format!("{} could not be written", path.display())),
        None => match stdout().write_all(bytes).and_then(|()| stdout().flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("standard output could not be written"))
            }
            _ => Ok(()),
        },
    }
}

/// Writes to standard output. A reader that has seen enough (`foldline show x | head`) is no error.
fn print(text: &str) -> Result<()> {
    write(None, text.as_bytes())
}

/// Tells a person, beside the output, that something is amiss.
pub(crate) fn complain(line: &str) {
    // When standard error is gone there is nobody left to tell.
    let _ = writeln!(stderr(), "{line}");
}

/// The exit code that stands for an error.
pub(crate) fn code_of(error: &anyhow::Error) -> ExitCode {
    use foldline_archive::ErrorKind::{BadRequest, NotAHandle};
    let of_archive = error.downcast_ref::<foldline_archive::Error>();
    match of_archive.map(foldline_archive::Error::kind) {
        Some(BadRequest | NotAHandle) => ExitCode::from(BAD_INPUT),
        _ => ExitCode::FAILURE,
    }
}
