//! The commands, one per file: the arguments with their help, and `run`.

mod archive;
mod completions;
mod demo;
mod doctor;
mod fit;
mod install;
mod mcp;
mod models;
mod pipe;
pub(crate) mod replay;
mod run;
mod search;
mod serve;
mod sessions;
mod show;
mod status;
pub(crate) mod summarize;
mod top;
mod unfold;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use crate::output::print_stdout;
use crate::settings::reference;

/// Keeps an LLM agent's conversation inside its context window at the lowest cost. Old parts are folded
/// into markers; every original can be restored byte for byte.
///
/// Terms are explained in docs/glossary.md.
#[derive(Parser)]
#[command(name = "foldline", version = env!("BUILD_VERSION"))]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The commands of the binary.
#[derive(Subcommand)]
pub(crate) enum CliCommand {
    Archive(archive::ArchiveCommand),
    Completions(completions::CompletionsCommand),
    Demo(demo::DemoCommand),
    Doctor(doctor::DoctorCommand),
    Fit(fit::FitCommand),
    Install(install::InstallCommand),
    Man(completions::ManCommand),
    Mcp(mcp::McpCommand),
    Models(models::ModelsCommand),
    Pipe(pipe::PipeCommand),
    /// Print the reference page of the proxy, for the documentation
    #[command(hide = true)]
    Reference,
    Replay(replay::ReplayCommand),
    Run(run::RunCommand),
    Search(search::SearchCommand),
    Serve(serve::ServeCommand),
    Sessions(sessions::SessionsCommand),
    Show(show::ShowCommand),
    Status(status::StatusCommand),
    #[command(alias = "summarise")]
    Summarize(summarize::SummarizeCommand),
    Top(top::TopCommand),
    Unfold(unfold::UnfoldCommand),
    Uninstall(install::UninstallCommand),
    Verify(verify::VerifyCommand),
}

impl CliCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            CliCommand::Archive(it) => it.run(),
            CliCommand::Completions(it) => it.run(CliArgs::command()),
            CliCommand::Demo(it) => it.run(),
            CliCommand::Doctor(it) => it.run(),
            CliCommand::Fit(it) => it.run(),
            CliCommand::Install(it) => it.run(),
            CliCommand::Man(it) => it.run(CliArgs::command()),
            CliCommand::Mcp(it) => it.run(),
            CliCommand::Models(it) => it.run(),
            CliCommand::Pipe(it) => it.run(),
            CliCommand::Reference => {
                print_stdout(&reference::proxy_page())?;
                Ok(ExitCode::SUCCESS)
            }
            CliCommand::Replay(it) => it.run(),
            CliCommand::Run(it) => it.run(),
            CliCommand::Search(it) => it.run(),
            CliCommand::Serve(it) => it.run(),
            CliCommand::Sessions(it) => it.run(),
            CliCommand::Show(it) => it.run(),
            CliCommand::Status(it) => it.run(),
            CliCommand::Summarize(it) => it.run(),
            CliCommand::Top(it) => it.run(),
            CliCommand::Unfold(it) => it.run(),
            CliCommand::Uninstall(it) => it.run(),
            CliCommand::Verify(it) => it.run(),
        }
    }
}
