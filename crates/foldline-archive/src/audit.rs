//! The audit log: a line of JSON for every original that is read, and for everything that is deleted or held.
//!
//! Every door reads and deletes through an archive, so the archive writes the log. The log has names, handles and numbers,
//! never contents. What cannot be recorded does not happen: a read or a deletion fails if its line cannot be written.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::clock;
use crate::error::Error;
use crate::namespace::Namespace;

/// A file to which all processes that use an archive append.
///
/// A line is written by one call, so lines of several processes do not mix. It survives the end of the process, and a
/// power loss only once the system has written it to disk.
///
/// ```
/// use foldline_archive::{Archive, ArchiveOptions, AuditLog, Namespace};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("audit.jsonl");
/// let options = ArchiveOptions { audit: Some(AuditLog::open(&path, "my-service")?), ..ArchiveOptions::default() };
/// let archive = Archive::open_with(folder.path().join("archive.db"), options)?;
/// archive.tenant(&Namespace::local()).delete_everything()?;
///
/// let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
/// assert_eq!(line["action"], "delete");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AuditLog {
    file: Arc<File>,
    path: PathBuf,
    /// The program or command that acts.
    source: String,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuditAction {
    /// An original is returned.
    Unfold,
    /// Passages of originals are returned.
    Search,
    /// All originals of a scope are returned.
    Export,
    /// Data is deleted on request.
    Delete,
    /// Originals expire by age or size.
    Prune,
    /// A legal hold is set.
    Hold,
    /// A legal hold is released.
    Release,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditEntry<'e> {
    pub(crate) action: AuditAction,
    /// The namespace; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<&'e str>,
    /// The session that acts, or on which the action is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<&'e str>,
    /// The reason of a hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'e str>,
}

impl<'e> AuditEntry<'e> {
    pub(crate) fn new(action: AuditAction, namespace: Option<&'e Namespace>) -> Self {
        Self { action, namespace: namespace.map(Namespace::as_str), session: None, handle: None, reason: None }
    }
}

impl AuditLog {
    /// Opens a log, and creates it if it does not exist, readable for this user only. `source` names the program or
    /// command in each line.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for appending.
    pub fn open(path: impl AsRef<Path>, source: impl Into<String>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(|error| Error::io("open the audit log", &path, &error))?;
        Ok(Self { file: file.into(), path, source: source.into() })
    }

    /// Appends a line.
    pub(crate) fn append(&self, entry: &AuditEntry<'_>) -> Result<(), Error> {
        #[derive(Serialize)]
        struct AuditLine<'l> {
            /// Milliseconds since 1970.
            at: i64,
            source: &'l str,
            process: u32,
            #[serde(flatten)]
            entry: &'l AuditEntry<'l>,
        }
        let line = AuditLine { at: clock::now_millis(), source: &self.source, process: std::process::id(), entry };
        let failed = |error: std::io::Error| Error::io("write the audit log", &self.path, &error);
        let mut line = serde_json::to_vec(&line).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        (&*self.file).write_all(&line).map_err(failed)
    }
}

/// Appends a line if there is a log.
pub(crate) fn append_audit(log: Option<&AuditLog>, entry: &AuditEntry<'_>) -> Result<(), Error> {
    log.map_or(Ok(()), |log| log.append(entry))
}
