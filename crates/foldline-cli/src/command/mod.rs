//! The commands, one per file: the arguments with their help, and `run`.

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

/// The commands of the binary.
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
    #[command(alias = "summarise")]
    Summarize(summarize::SummarizeCommand),
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

/// Exit code for invalid input.
const EXIT_BAD_INPUT: u8 = 2;
/// Exit code for a request that cannot be brought under its budget.
const EXIT_CANNOT_FIT: u8 = 3;

/// Writes bytes to a file, or to standard output if no file is given.
fn write_output(to: Option<&Path>, bytes: &[u8]) -> Result<()> {
    match to {
        Some(path) => fs::write(path, bytes).with_context(|| format!("could not write {}", path.display())),
        None => match stdout().write_all(bytes).and_then(|()| stdout().flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("could not write to standard output"))
            }
            _ => Ok(()),
        },
    }
}

/// Writes to standard output. A closed pipe (`foldline show x | head`) is not an error.
fn print_stdout(text: &str) -> Result<()> {
    write_output(None, text.as_bytes())
}

/// Writes a line to standard error.
pub(crate) fn report(line: &str) {
    // If standard error is closed, there is no place left to report to.
    let _ = writeln!(stderr(), "{line}");
}

/// Returns the exit code for an error.
pub(crate) fn exit_code_for(error: &anyhow::Error) -> ExitCode {
    use foldline_archive::ErrorKind::{InvalidHandle, InvalidInput};
    let archive_error = error.downcast_ref::<foldline_archive::Error>();
    match archive_error.map(foldline_archive::Error::kind) {
        Some(InvalidInput | InvalidHandle) => ExitCode::from(EXIT_BAD_INPUT),
        _ => ExitCode::FAILURE,
    }
}
