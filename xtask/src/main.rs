//! Tasks of the repository, run as `cargo xtask TASK`.
//!
//! A task is a file with a `run`, and a line in `TASKS`.

mod ci;
mod corpus;
mod eval;
mod reference;
mod renderings;
mod repository;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Something that `cargo xtask` does.
struct RepoTask {
    name: &'static str,
    about: &'static str,
    /// Gets the arguments behind the name.
    run: fn(&[String]) -> Result<()>,
}

const TASKS: &[RepoTask] = &[
    RepoTask { name: "ci", about: "everything that must hold before a change lands", run: ci::run },
    RepoTask {
        name: "corpus",
        about: "reads every recording of a corpus: cargo xtask corpus [FOLDER]",
        run: corpus::run,
    },
    RepoTask {
        name: "eval",
        about: "replays a corpus and writes docs/results.md: cargo xtask eval [FOLDER]",
        run: eval::run,
    },
    RepoTask { name: "reference", about: "writes docs/reference anew", run: reference::run },
    RepoTask {
        name: "renderings",
        about: "prints a digest of every rendering of a corpus: cargo xtask renderings [FOLDER]",
        run: renderings::run,
    },
    RepoTask { name: "tidy", about: "the rules of the repository that no compiler checks", run: tidy::run },
];

fn main() -> ExitCode {
    match dispatch(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<()> {
    let (name, rest) = match arguments {
        [name, rest @ ..] if name != "--help" && name != "help" => (name, rest),
        _ => {
            print_line("usage: cargo xtask TASK\n");
            TASKS.iter().for_each(|task| print_line(&format!("  {:<11}{}", task.name, task.about)));
            return Ok(());
        }
    };
    match TASKS.iter().find(|task| task.name == name) {
        Some(task) => (task.run)(rest),
        None => bail!("there is no task {name:?}; `cargo xtask help` lists them"),
    }
}

/// What a person reads.
#[expect(clippy::print_stdout, reason = "tasks talk to a person")]
fn print_line(line: &str) {
    println!("{line}");
}
