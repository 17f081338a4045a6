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
pub(crate) mod summarize;
mod unfold;

use std::fs;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;

/// What the binary can do.
#[derive(Subcommand)]
pub(crate) enum CliCommand {
    Archive(archive::ArchiveCommand),
    Demo(demo::DemoCommand),
    Doctor(doctor::DoctorCommand),
    Fit(fit::FitCommand),
    Mcp(mcp::McpCommand),
    Pipe(pipe::PipeCommand),
    Replay(replay::ReplayCommand),
    Run(run::RunCommand),
    Search(search::SearchCommand),
    Serve(serve::ServeCommand),
    Show(show::ShowCommand),
    Summarize(crate::command::summarize::SummarizeCommand),
    Unfold(unfold::UnfoldCommand),
}

impl CliCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            CliCommand::Archive(it) => it.run(),
            CliCommand::Demo(it) => it.run(),
            CliCommand::Doctor(it) => it.run(),
            CliCommand::Fit(it) => it.run(),
            CliCommand::Mcp(it) => it.run(),
            CliCommand::Pipe(it) => it.run(),
            CliCommand::Replay(it) => it.run(),
            CliCommand::Run(it) => it.run(),
            CliCommand::Search(it) => it.run(),
            CliCommand::Serve(it) => it.run(),
            CliCommand::Show(it) => it.run(),
            CliCommand::Summarize(it) => it.run(),
            CliCommand::Unfold(it) => it.run(),
        }
    }
}

/// Exit code of input that is not what it should be.
const EXIT_BAD_INPUT: u8 = 2;
/// Exit code of a request that can not be brought under its budget.
const EXIT_CANNOT_FIT: u8 = 3;

/// Writes bytes to a file, or to standard output.
fn write_output(to: Option<&Path>, bytes: &[u8]) -> Result<()> {
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
fn print_stdout(text: &str) -> Result<()> {
    write_output(None, text.as_bytes())
}

/// Tells a person, beside the output, that something is amiss.
pub(crate) fn report(line: &str) {
    // When standard error is gone there is nobody left to tell.
    let _ = writeln!(stderr(), "{line}");
}

/// The exit code that stands for an error.
pub(crate) fn exit_code_for(error: &anyhow::Error) -> ExitCode {
    use foldline_archive::ErrorKind::{InvalidHandle, InvalidInput};
    let of_archive = error.downcast_ref::<foldline_archive::Error>();
    match of_archive.map(foldline_archive::Error::kind) {
        Some(InvalidInput | InvalidHandle) => ExitCode::from(EXIT_BAD_INPUT),
        _ => ExitCode::FAILURE,
    }
}
