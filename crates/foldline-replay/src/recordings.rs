//! Recordings in files and folders, plain or compressed, read one at a time.
//!
//! Compression and agent of a file are detected by its content, never by its
//! name. In a folder, files that are not recordings are skipped; an explicitly named file that is not a recording
//! is an error.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use foldline::transcript::{RecordedSession, TranscriptReader};
use walkdir::WalkDir;

/// Opens a file for reading its text, decompressed (gzip, zstd).
///
/// # Errors
///
/// Fails if the file cannot be opened or its compression is damaged.
pub fn open_decompressed(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic)?;
    let head = io::Cursor::new(magic.clone());
    let whole = head.chain(file);
    Ok(match magic[..] {
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(BufReader::new(zstd::Decoder::new(whole)?)),
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(whole))),
        _ => Box::new(BufReader::new(whole)),
    })
}

/// An error of a file or an entry of it. Reading continues after it.
#[derive(Debug)]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// The error and its position in the file.
    pub message: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for ReadError {}

/// The recordings in files and folders, in the order of the paths, read on demand.
///
/// ```no_run
/// for recording in foldline_replay::RecordingFiles::from_paths(&["sessions".into()])? {
///     println!("{}", recording?.id);
/// }
/// # Ok::<(), foldline_replay::ReadError>(())
/// ```
pub struct RecordingFiles {
    /// The files left to read, the next one last.
    files: Vec<InputFile>,
    current: Option<(InputFile, TranscriptReader<Box<dyn BufRead + Send>>)>,
}

impl fmt::Debug for RecordingFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFiles").field("files_left", &self.files.len()).finish_non_exhaustive()
    }
}

struct InputFile {
    path: PathBuf,
    /// True if it was named explicitly, and not found in a folder.
    is_explicit: bool,
}

impl RecordingFiles {
    /// Lists the files. They are not opened yet.
    ///
    /// # Errors
    ///
    /// Fails if a path does not exist or a folder cannot be listed.
    pub fn from_paths(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let mut files = Vec::new();
        for path in paths {
            for entry in WalkDir::new(path).sort_by_file_name() {
                let entry = entry.map_err(|error| ReadError {
                    path: error.path().unwrap_or(path).to_owned(),
                    message: error.io_error().map_or_else(|| error.to_string(), ToString::to_string),
                })?;
                let is_explicit = entry.depth() == 0;
                if entry.file_type().is_file() && (is_explicit || may_be_recording(entry.path())) {
                    files.push(InputFile { path: entry.into_path(), is_explicit });
                }
            }
        }
        files.reverse();
        Ok(Self { files, current: None })
    }

    /// Returns the number of files left to read.
    pub fn files_left(&self) -> usize {
        self.files.len()
    }

    /// Opens the next file. Returns `None` if it was opened or skipped.
    fn open_next(&mut self, file: InputFile) -> Option<ReadError> {
        let read_error = |message: String| ReadError { path: file.path.clone(), message };
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let input = match open_decompressed(&file.path) {
            Ok(input) => input,
            Err(error) => return Some(read_error(error.to_string())),
        };
        match TranscriptReader::new(name, input) {
            Ok(reader) => {
                self.current = Some((file, reader));
                None
            }
            Err(error) => file.is_explicit.then(|| read_error(error.to_string())),
        }
    }
}

impl Iterator for RecordingFiles {
    type Item = Result<RecordedSession, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((file, reader)) = &mut self.current {
                match reader.next() {
                    Some(Ok(recording)) => return Some(Ok(recording)),
                    Some(Err(error)) => {
                        return Some(Err(ReadError { path: file.path.clone(), message: error.to_string() }));
                    }
                    None => self.current = None,
                }
            }
            let file = self.files.pop()?;
            if let Some(error) = self.open_next(file) {
                return Some(Err(error));
            }
        }
    }
}

/// Returns true if the file extension may belong to a recording; folders of agents contain many other files.
fn may_be_recording(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    matches!(extension.to_ascii_lowercase().as_str(), "json" | "jsonl" | "ndjson" | "traj" | "zst" | "gz")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const RECORDING_LINE: &str =
        "{\"id\":\"a\",\"source\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n";

    fn ids(path: &Path) -> Vec<String> {
        RecordingFiles::from_paths(&[path.to_owned()])
            .unwrap()
            .map(|recording| recording.map_or_else(|unread| unread.message, |recording| recording.id))
            .collect()
    }

    /// Compression is detected by content: the names do not show it.
    #[test]
    fn compression_is_detected_by_content() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("1.jsonl"), RECORDING_LINE).unwrap();
        std::fs::write(folder.path().join("2.jsonl"), zstd::encode_all(RECORDING_LINE.as_bytes(), 3).unwrap()).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(RECORDING_LINE.as_bytes()).unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/3.jsonl"), gzip.finish().unwrap()).unwrap();
        assert_eq!(ids(folder.path()), ["a", "a", "a"]);
    }

    #[test]
    fn unknown_files_are_skipped_only_in_folders() {
        let folder = tempfile::tempdir().unwrap();
        let diary = folder.path().join("diary.json");
        std::fs::write(&diary, "Dear diary").unwrap();
        std::fs::write(folder.path().join("empty.jsonl"), "").unwrap();
        assert!(ids(folder.path()).is_empty());
        assert!(ids(&diary)[0].contains("looks like none of"), "{:?}", ids(&diary));
    }

    #[test]
    fn missing_path_is_an_error() {
        assert!(RecordingFiles::from_paths(&["/no/such/place".into()]).is_err());
    }
}
