//! An encrypted archive: only its key opens it, and no plaintext is on disk.
#![cfg(feature = "encryption")]

use foldline::{Handle, OriginalStore};
use foldline_archive::{AccessMode, Archive, ArchiveKey, ArchiveOptions, ErrorKind, Namespace};

use crate::support::{TempArchive, original};

fn encrypted_options(secret: u8) -> ArchiveOptions {
    ArchiveOptions { key: Some(ArchiveKey::new(&[secret; 32]).unwrap()), access: AccessMode::ReadWrite }
}

#[test]
fn encrypted_archive_leaves_no_plaintext_on_disk() {
    let temp = TempArchive::new();
    let text = "the xylophone recital begins at dusk";
    {
        let archive = Archive::open_with(temp.path(), encrypted_options(1)).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let mut secret = original(text.as_bytes());
        secret.tool = Some("zeppelin_tool");
        secret.arguments = Some(r#"{"path":"quokka.rs"}"#);
        tenant.store(&[secret]).unwrap();
        assert_eq!(tenant.unfold(Handle::for_content(text.as_bytes()).as_str()).unwrap().bytes, text.as_bytes());
        // The search works, from an index in memory.
        let found = tenant.search("xylophone", 0, 10).unwrap();
        assert_eq!(found.hits[0].info.tool.as_deref(), Some("zeppelin_tool"));
        assert_eq!(tenant.search("quokka", 0, 10).unwrap().total, 1);
    }
    for file in std::fs::read_dir(temp.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for word in ["xylophone", "zeppelin", "quokka"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
        }
    }
}

#[test]
fn only_the_right_key_opens_the_archive() {
    let temp = TempArchive::new();
    drop(Archive::open_with(temp.path(), encrypted_options(1)).unwrap());
    let denied = |opened: Result<Archive, foldline_archive::Error>| {
        assert_eq!(opened.unwrap_err().kind(), &ErrorKind::WrongKey);
    };
    denied(Archive::open_with(temp.path(), encrypted_options(2)));
    denied(Archive::open(temp.path()));
    denied(temp.open_read_only());
    Archive::open_with(temp.path(), encrypted_options(1)).unwrap();

    // A caller who passes a key expects encryption.
    let plaintext = TempArchive::new();
    drop(plaintext.open());
    denied(Archive::open_with(plaintext.path(), encrypted_options(1)));
}
