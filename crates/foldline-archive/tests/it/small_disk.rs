//! A small disk, for tests with a full disk. The proxy's tests include this file too.

use std::path::Path;
use std::process::Command;

/// A small tmpfs, mounted until it is dropped.
pub(crate) struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Returns `None` if mounting is not permitted; the test is then skipped.
    pub(crate) fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        println!("skipped: this user may not mount a disk");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    #[allow(dead_code, reason = "not every test binary needs a read-only disk")]
    pub(crate) fn make_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(self.folder.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}
