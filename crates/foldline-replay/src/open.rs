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
pub fn open(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
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
pub struct Unread {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and where in the file.
    pub why: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for Unread {}

/// The recordings in files and folders, in the order of the paths, read as they are asked for.
///
/// ```no_run
/// for recording in foldline_replay::Recordings::under(&["sessions".into()])? {
///     println!("{}", recording?.id);
/// }
/// # Ok::<(), foldline_replay::Unread>(())
/// ```
pub struct Recordings {
    /// What is left to read, the next one last.
    files: Vec<Named>,
    now: Option<(Named, TranscriptReader<Box<dyn BufRead + Send>>)>,
}

struct Named {
    path: PathBuf,
    /// Whether it was named itself, and not found in a folder.
    asked_for: bool,
}

impl Recordings {
    /// Looks for files. They are not opened yet.
    pub fn under(paths: &[PathBuf]) -> Result<Self, Unread> {
        let mut files = Vec::new();
        for path in paths {
            for entry in WalkDir::new(path).sort_by_file_name() {
                let entry = entry.map_err(|error| Unread {
                    path: error.path().unwrap_or(path).to_owned(),
                    why: error.io_error().map_or_else(|| error.to_string(), ToString::to_string),
                })?;
                let asked_for = entry.depth() == 0;
                if entry.file_type().is_file() && (asked_for || may_be_recording(entry.path())) {
                    files.push(Named { path: entry.into_path(), asked_for });
                }
            }
        }
        files.reverse();
        Ok(Self { files, now: None })
    }

    /// How many files are left to read.
    pub fn files_left(&self) -> usize {
        self.files.len()
    }

    /// Opens the next file; `None` when it is passed over.
    fn open_next(&mut self, file: Named) -> Option<Unread> {
        let unread = |why: String| Unread { path: file.path.clone(), why };
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let input = match open(&file.path) {
            Ok(input) => input,
            Err(error) => return Some(unread(error.to_string())),
        };
        match TranscriptReader::new(name, input) {
            Ok(reader) => {
                self.now = Some((file, reader));
                None
            }
            Err(fault) => file.asked_for.then(|| unread(fault.to_string())),
        }
    }
}

impl Iterator for Recordings {
    type Item = Result<RecordedSession, Unread>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((file, reader)) = &mut self.now {
                match reader.next() {
                    Some(Ok(recording)) => return Some(Ok(recording)),
                    Some(Err(fault)) => {
                        return Some(Err(Unread { path: file.path.clone(), why: fault.to_string() }));
                    }
                    None => self.now = None,
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

    const LOG: &str = "{\"id\":\"a\",\"source\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n";

    fn ids(path: &Path) -> Vec<String> {
        Recordings::under(&[path.to_owned()])
            .unwrap()
            .map(|recording| recording.map_or_else(|unread| unread.why, |recording| recording.id))
            .collect()
    }

    /// Compression is told by content: the names say nothing of it.
    #[test]
    fn files_are_read_however_they_are_packed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("1.jsonl"), LOG).unwrap();
        std::fs::write(folder.path().join("2.jsonl"), zstd::encode_all(LOG.as_bytes(), 3).unwrap()).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(LOG.as_bytes()).unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/3.jsonl"), gzip.finish().unwrap()).unwrap();
        assert_eq!(ids(folder.path()), ["a", "a", "a"]);
    }

    #[test]
    fn what_is_no_recording_is_passed_over_in_a_folder_and_a_fault_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let diary = folder.path().join("diary.json");
        std::fs::write(&diary, "Dear diary").unwrap();
        std::fs::write(folder.path().join("empty.jsonl"), "").unwrap();
        assert!(ids(folder.path()).is_empty());
        assert!(ids(&diary)[0].contains("looks like none of"), "{:?}", ids(&diary));
    }

    #[test]
    fn a_path_that_is_not_there_is_a_fault() {
        assert!(Recordings::under(&["/no/such/place".into()]).is_err());
    }
}
