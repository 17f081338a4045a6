//! The archive's file and folder, and their permissions.
//!
//! Conversations contain source code, customer data and sometimes secrets, so the file is private to its owner.
//! A file that its group or others can read is rejected rather than silently repaired: it may already have been read.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::encryption::ArchiveKey;
use crate::error::{Error, ErrorKind};

/// Ensures that the file exists and is private to its owner.
pub(crate) fn create_private(path: &Path) -> Result<(), Error> {
    if path.exists() {
        return check_private(path);
    }
    if let Some(folder) = parent_dir(path) {
        create_private_dir(&folder)?;
        create_private_file(path)?;
        // The directory entry must survive a crash as well as the content.
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::io("sync", &folder, &error))?;
    } else {
        create_private_file(path)?;
    }
    Ok(())
}

/// Rejects a file that other users may read or write.
pub(crate) fn check_private(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|error| Error::io("open", path, &error))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::NotAnArchive, format!("{} is not a file", path.display())));
    }
    check_mode(path, &metadata)
}

impl ArchiveKey {
    /// Reads a key from a file that only its owner can access. White space around it is ignored, because a file that
    /// was written by an editor ends in a line break.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is accessible to other users, or has no key.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let metadata = fs::metadata(path).map_err(|error| Error::io("read the archive key", path, &error))?;
        // A pipe has no other readers.
        if metadata.is_file() {
            check_mode(path, &metadata)?;
        }
        let material = fs::read(path).map_err(|error| Error::io("read the archive key", path, &error))?;
        ArchiveKey::new(material.trim_ascii())
    }
}

/// Returns the path next to the archive with this suffix appended to its name.
pub(crate) fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn parent_dir(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() })
}

/// Creates a folder that only its owner can access, unless it exists.
pub(crate) fn create_private_dir(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| Error::io("create the folder", folder, &error))
}

fn create_private_file(path: &Path) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        // Another process created it first.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => check_private(path),
        Err(error) => Err(Error::io("create the archive", path, &error)),
    }
}

#[cfg(unix)]
fn check_mode(path: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(Error::new(
            ErrorKind::InsecurePermissions,
            format!("{path} is accessible to other users (mode {mode:03o}) and was not opened; run: chmod 600 {path}"),
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &fs::Metadata) -> Result<(), Error> {
    Ok(())
}
