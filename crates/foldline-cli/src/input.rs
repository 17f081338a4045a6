//! Input of commands: files, folders and standard input, in any supported
//! format.

use std::io::{self, BufRead, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foldline::transcript;
use foldline::transcript::{DETECTION_HEAD_BYTES, RecordedSession, TranscriptReader};
use foldline::wire;
use foldline::wire::Request;
use foldline_replay::RecordingFiles;

/// The argument for standard input.
const STDIN_ARGUMENT: &str = "-";
/// Size up to which a request body is also parsed as a request, so that all its laws can be checked.
const MAX_BODY_BYTES: u64 = 64 << 20;

/// Joins paths for a message.
pub(crate) fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Reads a whole file, or standard input if there is none.
pub(crate) fn read_bytes(path: Option<&Path>) -> Result<Vec<u8>> {
    match path.filter(|path| *path != Path::new(STDIN_ARGUMENT)) {
        Some(path) => std::fs::read(path).with_context(|| format!("could not read {}", path.display())),
        None => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).context("could not read standard input")?;
            Ok(bytes)
        }
    }
}

/// Calls `each` with every recording, and with the request if the input is one; calls `on_error` for entries that
/// could not be read. One recording is in memory at a time.
pub(crate) fn for_each_recording(
    paths: &[PathBuf],
    mut each: impl FnMut(RecordedSession, Option<&Request<'_>>),
    mut on_error: impl FnMut(String),
) -> Result<()> {
    for path in paths {
        if path == Path::new(STDIN_ARGUMENT) {
            read_input("standard input", io::stdin().lock(), &mut each, &mut on_error)?;
        } else if path.is_file() {
            let name = path.display().to_string();
            let input = foldline_replay::open_decompressed(path).with_context(|| format!("could not open {name}"))?;
            read_input(&name, input, &mut each, &mut on_error)?;
        } else {
            RecordingFiles::from_paths(std::slice::from_ref(path))?.for_each(|event| match event {
                Ok(recording) => each(recording, None),
                Err(error) => on_error(error.to_string()),
            });
        }
    }
    Ok(())
}

fn read_input(
    name: &str,
    mut input: impl BufRead,
    each: &mut impl FnMut(RecordedSession, Option<&Request<'_>>),
    on_error: &mut impl FnMut(String),
) -> Result<()> {
    let mut head = Vec::new();
    input
        .by_ref()
        .take(DETECTION_HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .with_context(|| format!("could not read {name}"))?;
    let format = match transcript::detect(&head) {
        Some(transcript::LogFormat::Bodies(format)) => Some(format),
        _ => None,
    };
    if format.is_some() {
        input.by_ref().take(MAX_BODY_BYTES).read_to_end(&mut head).with_context(|| format!("could not read {name}"))?;
    }
    // The format may be recognizable only far into the body, so it is detected again on the whole.
    let request = format.and_then(|format| {
        let format = wire::Format::detect(&head).unwrap_or(format);
        Request::parse(format, &head).ok()
    });
    let whole = Cursor::new(&head).chain(input);
    let reader = TranscriptReader::new(name, whole).with_context(|| format!("could not parse {name}"))?;
    reader.for_each(|event| match event {
        Ok(recording) => each(recording, request.as_ref()),
        Err(error) => on_error(format!("{name}: {error}")),
    });
    Ok(())
}
