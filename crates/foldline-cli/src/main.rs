//! The `foldline` binary: reads arguments, files and the environment, and prints.
//!
//! All decisions are made in the library crates. Settings are resolved here, once, into
//! plain structs.

mod clients;
mod command;
mod environment;
mod input;
mod log;
mod output;
mod policy_replay;
pub(crate) mod render;
mod runtime;
mod settings;
pub(crate) mod token_report;
pub(crate) mod units;

use std::process::ExitCode;

use clap::Parser;

use command::CliArgs;

fn main() -> ExitCode {
    match CliArgs::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            output::report(&format!("foldline: {}", render::plain_lines(&format!("{error:#}"))));
            output::exit_code_for(&error)
        }
    }
}
