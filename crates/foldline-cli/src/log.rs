//! Logs of long-running commands: one line per event on standard error, never the
//! contents of a conversation.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;

use crate::environment;

/// Returns the level of the log.
fn level() -> LevelFilter {
    environment::log_level().unwrap_or(LevelFilter::INFO)
}

/// Logs to standard error: as text lines on a terminal, else as JSON.
pub(crate) fn init_stderr() {
    let log = fmt().with_max_level(level()).with_writer(std::io::stderr).with_target(false);
    // A second proxy in the same process finds the logger installed.
    let _ = match std::io::stderr().is_terminal() {
        true => log.try_init(),
        false => log.json().flatten_event(true).with_ansi(false).try_init(),
    };
}

/// Logs to a file, appending to its contents.
pub(crate) fn init_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("could not write a log to {}", path.display()))?;
    let log = fmt().with_max_level(level()).with_writer(Mutex::new(file)).with_target(false);
    let _ = log.json().flatten_event(true).with_ansi(false).try_init();
    Ok(())
}
