//! Output of commands: standard output, standard error, files and exit codes.

use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Exit code for invalid input.
pub(crate) const EXIT_BAD_INPUT: u8 = 2;
/// Exit code for a request that cannot be brought under its budget.
pub(crate) const EXIT_CANNOT_FIT: u8 = 3;

/// Writes bytes to a file, or to standard output if no file is given.
pub(crate) fn write_output(to: Option<&Path>, bytes: &[u8]) -> Result<()> {
    match to {
        Some(path) => write_atomically(path, bytes),
        None => match stdout().write_all(bytes).and_then(|()| stdout().flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("could not write to standard output"))
            }
            _ => Ok(()),
        },
    }
}

/// Writes a file so that a reader sees either the old or the new contents: a new file in the same folder is renamed.
/// Links, devices and pipes are written in place.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || format!("could not write {}", path.display());
    let metadata = path.symlink_metadata().ok();
    if metadata.as_ref().is_some_and(|it| !it.is_file()) {
        return std::fs::write(path, bytes).with_context(failed);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = new_file_in(folder).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    if let Some(replaced) = metadata {
        file.as_file().set_permissions(replaced.permissions()).with_context(failed)?;
    }
    file.persist(path).map_err(|error| error.error).with_context(failed)?;
    Ok(())
}

/// Creates a temporary file with the permissions of a usual new file; temporary files are private by default.
fn new_file_in(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".foldline");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Writes to standard output. A closed pipe (`foldline show x | head`) is not an error.
pub(crate) fn print_stdout(text: &str) -> Result<()> {
    write_output(None, text.as_bytes())
}

/// Writes a line to standard error.
pub(crate) fn report(line: &str) {
    // If standard error is closed, there is no place left to report to.
    let _ = writeln!(stderr(), "{line}");
}

/// Returns the exit code for an error.
pub(crate) fn exit_code_for(error: &anyhow::Error) -> ExitCode {
    use foldline_archive::ErrorKind::{InvalidHandle, InvalidInput};
    let archive_error = error.downcast_ref::<foldline_archive::Error>();
    match archive_error.map(foldline_archive::Error::kind) {
        Some(InvalidInput | InvalidHandle) => ExitCode::from(EXIT_BAD_INPUT),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("body.json");
        write_output(Some(&path), b"old").unwrap();
        let other_name = folder.path().join("link");
        std::fs::hard_link(&path, &other_name).unwrap();
        write_output(Some(&path), b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read(&other_name).unwrap(), b"old", "a reader of the old file keeps it whole");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(write_output(Some(&folder.path().join("no/such/folder")), b"x").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_and_links_are_kept() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_output(Some(&path), b"new").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        write_output(Some(&link), b"linked").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"linked");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }
}
