//! Permissions of files with secrets: tokens, settings with tokens, and TLS keys.
//!
//! A file that other users can read is rejected rather than repaired: it may already have been read.

use std::io;
use std::path::Path;

/// Checks that only its owner can access a file. Its group may read a file of the root user, which is how certificate
/// tools and container platforms give a key to a service. Anything but a file, such as a pipe, is accepted.
///
/// # Errors
///
/// The file cannot be inspected, or other users can access it.
#[cfg(unix)]
pub fn check_secret_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    let allowed = if owner == 0 { 0o740 } else { 0o700 };
    if !metadata.is_file() || mode & !allowed == 0 {
        return Ok(());
    }
    let path = path.display();
    let message =
        format!("{path} contains a secret and is accessible to other users (mode {mode:03o}); run: chmod 600 {path}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Accepts every file: modes are not checked on this system.
///
/// # Errors
///
/// Never.
#[cfg(not(unix))]
pub fn check_secret_file(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn file_that_others_can_access_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "alice=t1").unwrap();
        let is_root = std::fs::metadata(&path).unwrap().uid() == 0;
        for (mode, is_accepted) in [
            (0o600, true),
            (0o400, true),
            (0o640, is_root),
            (0o440, is_root),
            (0o660, false),
            (0o644, false),
            (0o604, false),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let checked = check_secret_file(&path);
            assert_eq!(checked.is_ok(), is_accepted, "{mode:o}");
            assert!(is_accepted || checked.unwrap_err().to_string().contains("chmod 600"));
        }
        assert!(check_secret_file(&folder.path().join("missing")).is_err());
        assert!(check_secret_file(Path::new("/dev/null")).is_ok(), "not a file");
    }
}
