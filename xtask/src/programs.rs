//! Programs that tasks run.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command and fails if it does.
pub(crate) fn run_to_end(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} did not start"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs a command and returns what it prints.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("{command:?} did not start"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    Ok(output.stdout)
}

/// Returns true if a program is installed.
pub(crate) fn has_program(program: &str) -> bool {
    let probe = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}
