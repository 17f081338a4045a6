//! Opening recordings: files and folders, plain or compressed, read one recording at a time.
//!
//! What a file was compressed with and which agent wrote it is told by its content, never by its
//! name. In a folder, files that are no recordings are passed over; a file that was named and is none
//! is a fault.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use foldline::transcript::{RecordedSession, TranscriptReader};
use walkdir::WalkDir;

/// A reader of a file's text, decompressed (gzip, zstd).
pub fn open_decompressed(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic)?;
    let beginning = io::Cursor::new(magic.clone());
    let whole = beginning.chain(file);
    Ok(match magic[..] {
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(BufReader::new(zstd::Decoder::new(whole)?)),
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(whole))),
        _ => Box::new(BufReader::new(whole)),
    })
}

/// Something that could not be read. Reading goes on behind it.
#[derive(Debug)]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and where in the file.
    pub message: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for ReadError {}

/// The recordings in files and folders, in the order of the paths, read as they are asked for.
///
/// ```no_run
/// for recording in foldline_replay::Recordings::under(&["sessions".into()])? {
///     println!("{}", recording?.id);
/// }
/// # Ok::<(), foldline_replay::Unread>(())
/// ```
pub struct RecordingFiles {
    /// What is left to read, the next one last.
    files: Vec<InputFile>,
    current: Option<(InputFile, TranscriptReader<Box<dyn BufRead + Send>>)>,
}

struct InputFile {
    path: PathBuf,
    /// Whether it was named itself, and not found in a folder.
    is_explicit: bool,
}

impl RecordingFiles {
    /// Looks for files. They are not opened yet.
    pub fn from_paths(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let mut files = Vec::new();
        for path in paths {
            for entry in WalkDir::new(path).sort_by_file_name() {
                let entry = entry.map_err(|error| ReadError {
                    path: error.path().unwrap_or(path).to_owned(),
                    message: error.io_error().map_or_else(|| error.to_string(), ToString::to_string),
                })?;
                let asked_for = entry.depth() == 0;
                if entry.file_type().is_file() && (asked_for || may_be_recording(entry.path())) {
                    files.push(InputFile { path: entry.into_path(), is_explicit: asked_for });
                }
            }
        }
        files.reverse();
        Ok(Self { files, current: None })
    }

    /// How many files are left to read.
    pub fn files_left(&self) -> usize {
        self.files.len()
    }

    /// Opens the next file; `None` when it is passed over.
    fn open_next(&mut self, file: InputFile) -> Option<ReadError> {
        let unread = |why: String| ReadError { path: file.path.clone(), message: why };
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let input = match open_decompressed(&file.path) {
            Ok(input) => input,
            Err(error) => return Some(unread(error.to_string())),
        };
        match TranscriptReader::new(name, input) {
            Ok(reader) => {
                self.current = Some((file, reader));
                None
            }
            Err(fault) => file.is_explicit.then(|| unread(fault.to_string())),
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
                    Some(Err(fault)) => {
                        return Some(Err(ReadError { path: file.path.clone(), message: fault.to_string() }));
                    }
                    None => self.current = None,
                }
            }
            let file = self.files.pop()?;
            if let Some(unread) = self.open_next(file) {
                return Some(Err(unread));
            }
        }
    }
}

/// Folders of agents hold much that is not worth opening: databases, pictures, scripts.
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

    /// Compression is told by content: the names say nothing of it.
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
