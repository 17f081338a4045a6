//! The `foldline` binary: reads arguments, files and the environment, and prints.
//!
//! All decisions are made in the library crates. Settings are resolved here, once, into
//! plain structs.

mod client;
mod command;
mod environment;
mod input;
mod log;
mod output;
pub(crate) mod render;
mod runtime;
mod settings;
pub(crate) mod token_report;
pub(crate) mod units;

use std::process::ExitCode;

use clap::Parser;

use command::CliCommand;

/// Keeps an LLM agent's conversation inside its context window at the lowest cost. Old parts are folded
/// into markers; every original can be restored byte for byte.
///
/// Terms are explained in docs/glossary.md.
#[derive(Parser)]
#[command(name = "foldline", version)]
struct CliArgs {
    #[command(subcommand)]
    command: CliCommand,
}

fn main() -> ExitCode {
    match CliArgs::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            output::report(&format!("foldline: {error:#}"));
            output::exit_code_for(&error)
        }
    }
}
