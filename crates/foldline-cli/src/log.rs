//! Where long-running commands say what happens: one line an event on standard error, never the
//! contents of a conversation.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;

/// Sends what is logged to standard error: as lines for a person at a terminal, else as JSON.
pub(crate) fn init_stderr() {
    let log = fmt().with_max_level(LevelFilter::INFO).with_writer(std::io::stderr).with_target(false);
    // A second proxy in one process finds the log in place.
    let _ = match std::io::stderr().is_terminal() {
        true => log.try_init(),
        false => log.json().flatten_event(true).with_ansi(false).try_init(),
    };
}

/// Sends what is logged to a file, behind what stands in it.
pub(crate) fn init_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("could not write a log to {}", path.display()))?;
    let log = fmt().with_max_level(LevelFilter::INFO).with_writer(Mutex::new(file)).with_target(false);
    let _ = log.json().flatten_event(true).with_ansi(false).try_init();
    Ok(())
}
