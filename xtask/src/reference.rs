//! `cargo xtask reference`: writes the pages of docs/reference that are generated from code.
//!
//! `tidy` renders the same pages and fails if a committed page differs.

use anyhow::{Context, Result, bail};

use crate::output::print_line;
use crate::repository;

/// A generated page.
pub(crate) struct ReferencePage {
    /// Path from the root.
    pub(crate) path: &'static str,
    pub(crate) render: fn() -> Result<String>,
}

pub(crate) const REFERENCE_PAGES: &[ReferencePage] = &[
    ReferencePage { path: "docs/reference/cli.md", render: render_cli_reference },
    ReferencePage { path: "docs/reference/proxy.md", render: || foldline_output(&["reference"]) },
    ReferencePage { path: "docs/reference/laws.md", render: || Ok(foldline::laws::reference_page()) },
];

/// Writes all generated pages.
pub(crate) fn run(_: &[String]) -> Result<()> {
    for page in REFERENCE_PAGES {
        let path = repository::root().join(page.path);
        std::fs::create_dir_all(path.parent().expect("the path of a page has a folder"))?;
        std::fs::write(&path, (page.render)()?).with_context(|| format!("cannot write {}", page.path))?;
        print_line(page.path);
    }
    Ok(())
}

/// Renders the help texts of the binary, of each command and of their subcommands.
fn render_cli_reference() -> Result<String> {
    let overview = command_help(&[])?;
    let mut page =
        format!("# Command line\n\nWritten by `cargo xtask reference`.\n\n```text\n{}\n```\n", overview.trim_end());
    for command in subcommands(&overview) {
        let help = command_help(&[command])?;
        page += &help_section("##", command, &help);
        for subcommand in subcommands(&help) {
            let help = command_help(&[command, subcommand])?;
            page += &help_section("###", &format!("{command} {subcommand}"), &help);
        }
    }
    Ok(page)
}

fn help_section(heading: &str, command: &str, help: &str) -> String {
    format!("\n{heading} foldline {command}\n\n```text\n{}\n```\n", help.trim_end())
}

/// Returns the names of the commands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        // Continued descriptions have a deeper indentation than names.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

fn command_help(command: &[&str]) -> Result<String> {
    foldline_output(&[command, &["--help"]].concat())
}

/// Returns the standard output of the binary.
fn foldline_output(arguments: &[&str]) -> Result<String> {
    let output = repository::cargo_command()
        .args(["run", "--quiet", "--package", "foldline-cli", "--"])
        .args(arguments)
        .env("COLUMNS", "100")
        .output()
        .context("cargo did not start")?;
    if !output.status.success() {
        bail!("`foldline {}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    // Some lines of the help end in spaces.
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(|line| line.trim_end().to_owned() + "\n").collect())
}
