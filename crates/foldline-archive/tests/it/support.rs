//! An archive in a folder of its own, and originals to put into it.

use std::path::PathBuf;

use foldline::{Handle, Original};
use foldline_archive::{Access, Archive, Error, Namespace, Options, Shelf};

/// An archive in a folder that vanishes with it.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("archive.db")
    }

    pub(crate) fn open(&self) -> Archive {
        Archive::open(self.path()).unwrap()
    }

    pub(crate) fn open_to_read(&self) -> Result<Archive, Error> {
        Archive::open_with(self.path(), Options { access: Access::Read, ..Options::default() })
    }

    pub(crate) fn shelf(&self) -> Shelf {
        self.open().shelf(&Namespace::local())
    }
}

/// The output of a tool.
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

/// Bytes that do not compress and are the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
