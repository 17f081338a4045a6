//! What the user names on the command line: files, folders and standard input, of any format that is
//! read.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foldline::transcript::{Reader, Recording};
use foldline_replay::Recordings;

/// The name that stands for standard input.
const STDIN: &str = "-";

/// Calls `each` with every recording, and `fault` with what could not be read. One recording is held at
/// a time.
pub(crate) fn recordings(
    paths: &[PathBuf],
    mut each: impl FnMut(Recording),
    mut fault: impl FnMut(String),
) -> Result<()> {
    for path in paths {
        if path == Path::new(STDIN) {
            let reader =
                Reader::new("standard input", io::stdin().lock()).context("standard input was not understood")?;
            reader.for_each(|event| match event {
                Ok(recording) => each(recording),
                Err(error) => fault(format!("standard input: {error}")),
            });
        } else {
            Recordings::under(std::slice::from_ref(path))?.for_each(|event| match event {
                Ok(recording) => each(recording),
                Err(error) => fault(error.to_string()),
            });
        }
    }
    Ok(())
}
