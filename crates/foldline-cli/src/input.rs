//! What the user names on the command line: files, folders and standard input, of any format that is
//! read.

use std::io::{self, BufRead, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use foldline::transcript;
use foldline::transcript::{DETECTION_HEAD_BYTES, RecordedSession, TranscriptReader};
use foldline::wire;
use foldline::wire::Request;
use foldline_replay::RecordingFiles;

/// The name that stands for standard input.
const STDIN_ARGUMENT: &str = "-";
/// A request body up to this size is also read as such, so that all its laws can be checked.
const MAX_BODY_BYTES: u64 = 64 << 20;

/// What was named, in one line.
pub(crate) fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// All of a file, or of standard input when none is named.
pub(crate) fn read_bytes(path: Option<&Path>) -> Result<Vec<u8>> {
    match path.filter(|path| *path != Path::new(STDIN_ARGUMENT)) {
        Some(path) => std::fs::read(path).with_context(|| format!("{} could not be read", path.display())),
        None => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).context("standard input could not be read")?;
            Ok(bytes)
        }
    }
}

/// Calls `each` with every recording, and with the request where the input is one; calls `fault` with what
/// could not be read. One recording is held at a time.
pub(crate) fn for_each_recording(
    paths: &[PathBuf],
    mut each: impl FnMut(RecordedSession, Option<&Request<'_>>),
    mut fault: impl FnMut(String),
) -> Result<()> {
    for path in paths {
        if path == Path::new(STDIN_ARGUMENT) {
            read_input("standard input", io::stdin().lock(), &mut each, &mut fault)?;
        } else if path.is_file() {
            let name = path.display().to_string();
            let input =
                foldline_replay::open_decompressed(path).with_context(|| format!("{name} could not be opened"))?;
            read_input(&name, input, &mut each, &mut fault)?;
        } else {
            RecordingFiles::from_paths(std::slice::from_ref(path))?.for_each(|event| match event {
                Ok(recording) => each(recording, None),
                Err(error) => fault(error.to_string()),
            });
        }
    }
    Ok(())
}

fn read_input(
    name: &str,
    mut input: impl BufRead,
    each: &mut impl FnMut(RecordedSession, Option<&Request<'_>>),
    fault: &mut impl FnMut(String),
) -> Result<()> {
    let mut beginning = Vec::new();
    input
        .by_ref()
        .take(DETECTION_HEAD_BYTES as u64)
        .read_to_end(&mut beginning)
        .with_context(|| format!("{name} was not read"))?;
    let format = match transcript::detect(&beginning) {
        Some(transcript::LogFormat::OpenAiChat) => Some(wire::Format::OpenAiChat),
        Some(transcript::LogFormat::OpenAiResponses) => Some(wire::Format::OpenAiResponses),
        Some(transcript::LogFormat::Anthropic) => Some(wire::Format::Anthropic),
        _ => None,
    };
    if format.is_some() {
        input
            .by_ref()
            .take(MAX_BODY_BYTES)
            .read_to_end(&mut beginning)
            .with_context(|| format!("{name} was not read"))?;
    }
    // The format may show only far behind the beginning; the body as a whole tells.
    let request = format.and_then(|format| {
        let format = wire::Format::detect(&beginning).unwrap_or(format);
        Request::parse(format, &beginning).ok()
    });
    let whole = Cursor::new(&beginning).chain(input);
    let reader = TranscriptReader::new(name, whole).with_context(|| format!("{name} was not understood"))?;
    reader.for_each(|event| match event {
        Ok(recording) => each(recording, request.as_ref()),
        Err(error) => fault(format!("{name}: {error}")),
    });
    Ok(())
}
