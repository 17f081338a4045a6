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

use std::process::ExitCode;

use anyhow::Result;
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
