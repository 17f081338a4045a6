//! A sealed archive: only the key opens it, and no word of it lies open on disk.
#![cfg(feature = "encryption")]

use foldline::{Handle, OriginalStore};
use foldline_archive::{AccessMode, Archive, ArchiveKey, ArchiveOptions, ErrorKind, Namespace};

use crate::support::{TempArchive, original};

fn encrypted_options(secret: u8) -> ArchiveOptions {
    ArchiveOptions { key: Some(ArchiveKey::new(&[secret; 32]).unwrap()), access: AccessMode::ReadWrite }
}

#[test]
fn encrypted_archive_leaves_no_plaintext_on_disk() {
    let place = TempArchive::new();
    let text = "the xylophone recital begins at dusk";
    {
        let archive = Archive::open_with(place.path(), encrypted_options(1)).unwrap();
        let shelf = archive.tenant(&Namespace::local());
        let mut it = original(text.as_bytes());
        it.tool = Some("zeppelin_tool");
        it.arguments = Some(r#"{"path":"quokka.rs"}"#);
        shelf.store(&[it]).unwrap();
        assert_eq!(shelf.unfold(Handle::for_content(text.as_bytes()).as_str()).unwrap().bytes, text.as_bytes());
        // Searching works, from memory.
        let found = shelf.search("xylophone", 0, 10).unwrap();
        assert_eq!(found.hits[0].info.tool.as_deref(), Some("zeppelin_tool"));
        assert_eq!(shelf.search("quokka", 0, 10).unwrap().total, 1);
    }
    for file in std::fs::read_dir(place.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for word in ["xylophone", "zeppelin", "quokka"] {
            assert!(!bytes.windows(word.len()).any(|it| it == word.as_bytes()), "{word}");
        }
    }
}

#[test]
fn only_the_right_key_opens_the_archive() {
    let place = TempArchive::new();
    drop(Archive::open_with(place.path(), encrypted_options(1)).unwrap());
    let denied = |opened: Result<Archive, foldline_archive::Error>| {
        assert_eq!(opened.unwrap_err().kind(), &ErrorKind::WrongKey);
    };
    denied(Archive::open_with(place.path(), encrypted_options(2)));
    denied(Archive::open(place.path()));
    denied(place.open_read_only());
    Archive::open_with(place.path(), encrypted_options(1)).unwrap();

    // Who gives a key believes that the archive is sealed.
    let open = TempArchive::new();
    drop(open.open());
    denied(Archive::open_with(open.path(), encrypted_options(1)));
}
