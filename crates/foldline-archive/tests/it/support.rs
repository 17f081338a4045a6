//! A temporary archive, and originals to store in it.

use std::path::PathBuf;

use foldline::{Handle, Original};
use foldline_archive::{AccessMode, Archive, ArchiveOptions, Error, Namespace, TenantArchive};

/// An archive in a temporary folder.
pub(crate) struct TempArchive {
    pub(crate) folder: tempfile::TempDir,
}

impl TempArchive {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("archive.db")
    }

    pub(crate) fn open(&self) -> Archive {
        Archive::open(self.path()).unwrap()
    }

    pub(crate) fn open_read_only(&self) -> Result<Archive, Error> {
        Archive::open_with(self.path(), ArchiveOptions { access: AccessMode::ReadOnly, ..ArchiveOptions::default() })
    }

    pub(crate) fn local_tenant(&self) -> TenantArchive {
        self.open().tenant(&Namespace::local())
    }
}

/// Returns the output of a tool as an original.
pub(crate) fn original(bytes: &[u8]) -> Original<'_> {
    Original {
        handle: Handle::for_content(bytes),
        bytes,
        tool: Some("read_file"),
        arguments: Some(r#"{"path":"src/main.rs"}"#),
        message: 3,
        tokens: bytes.len() as u64 / 4,
    }
}

/// Returns incompressible bytes, the same for the same seed.
pub(crate) fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
