//! Tasks of the repository, run as `cargo xtask TASK`.
//!
//! A task is a file with a `run`, and a line in `TASKS`.

mod ci;
mod corpus;
mod dependency_policy;
mod dist;
mod eval;
mod file_copy;
mod names;
mod output;
mod packages;
#[cfg(unix)]
mod postgres;
mod programs;
mod reference;
mod renderings;
mod repository;
mod request_path;
mod source_tree;
mod strategies;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::output::print_line;

/// A task of `cargo xtask`.
struct RepoTask {
    name: &'static str,
    about: &'static str,
    /// Receives the arguments after the name.
    run: fn(&[String]) -> Result<()>,
}

const TASKS: &[RepoTask] = &[
    RepoTask { name: "ci", about: "runs every check that a change must pass", run: ci::run },
    RepoTask {
        name: "corpus",
        about: "reads every recording of a corpus: cargo xtask corpus [FOLDER]",
        run: corpus::run,
    },
    RepoTask {
        name: "dist",
        about: "makes the files of a release and installs each: cargo xtask dist [--debug] [--check]",
        run: dist::run,
    },
    RepoTask {
        name: "eval",
        about: "replays a corpus and writes docs/results.md: cargo xtask eval [FOLDER]",
        run: eval::run,
    },
    RepoTask {
        name: "names",
        about: "prints statistics of names, prose and structure: cargo xtask names [path]",
        run: names::run,
    },
    RepoTask {
        name: "packages",
        about: "tests the Python package and the Node packages with a debug build",
        run: packages::check,
    },
    #[cfg(unix)]
    RepoTask {
        name: "postgres",
        about: "runs a command with a private PostgreSQL server: cargo xtask postgres [--durable] COMMAND",
        run: postgres::run,
    },
    RepoTask { name: "reference", about: "writes the generated pages of docs/reference", run: reference::run },
    RepoTask {
        name: "renderings",
        about: "prints a digest of every rendering of a corpus: cargo xtask renderings [FOLDER]",
        run: renderings::run,
    },
    RepoTask {
        name: "strategies",
        about: "checks the classic strategies on recorded sessions: cargo xtask strategies [FOLDER]",
        run: strategies::run,
    },
    RepoTask { name: "tidy", about: "checks the rules of the repository that no compiler checks", run: tidy::run },
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
        None => bail!("unknown task {name:?}; `cargo xtask help` lists the tasks"),
    }
}
