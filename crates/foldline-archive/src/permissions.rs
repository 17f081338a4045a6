//! Where the archive lies: its file, its folder, and who may look into them.
//!
//! Conversations hold source code, customer data and sometimes secrets, so the file is for its owner
//! alone. A file that others can read is refused rather than quietly repaired: it may have been read.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::{Error, ErrorKind};

/// Makes sure that the file exists and is for its owner alone.
pub(crate) fn create_private(path: &Path) -> Result<(), Error> {
    if path.exists() {
        return check_private(path);
    }
    if let Some(folder) = parent_dir(path) {
        create_private_dir(&folder)?;
        create_private_file(path)?;
        // The new name must survive a crash as well as what is written under it.
        File::open(&folder).and_then(|it| it.sync_all()).map_err(|error| Error::io("sync", &folder, &error))?;
    } else {
        create_private_file(path)?;
    }
    Ok(())
}

/// Refuses a file that others may read or write.
pub(crate) fn check_private(path: &Path) -> Result<(), Error> {
    let about = fs::metadata(path).map_err(|error| Error::io("open", path, &error))?;
    if !about.is_file() {
        return Err(Error::new(ErrorKind::NotAnArchive, format!("{} is not a file", path.display())));
    }
    check_mode(path, &about)
}

/// The file that lies beside the archive under its name and another ending.
pub(crate) fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn parent_dir(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() })
}

fn create_private_dir(folder: &Path) -> Result<(), Error> {
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
        // Another process was first, which is as good.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => check_private(path),
        Err(error) => Err(Error::io("create the archive", path, &error)),
    }
}

#[cfg(unix)]
fn check_mode(path: &Path, about: &fs::Metadata) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        let path = path.display();
        return Err(Error::new(
            ErrorKind::InsecurePermissions,
            format!("{path} is open to other users (mode {mode:03o}) and was not opened; run: chmod 600 {path}"),
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &fs::Metadata) -> Result<(), Error> {
    Ok(())
}
