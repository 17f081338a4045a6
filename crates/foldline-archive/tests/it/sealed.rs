//! A sealed archive: only the key opens it, and no word of it lies open on disk.
#![cfg(feature = "seal")]

use foldline::{Handle, OriginalStore};
use foldline_archive::{Access, Archive, ErrorKind, Key, Namespace, Options};

use crate::support::{Place, original};

fn options(secret: u8) -> Options {
    Options { key: Some(Key::new(&[secret; 32]).unwrap()), access: Access::Write }
}

#[test]
fn no_word_of_it_lies_on_the_disk() {
    let place = Place::new();
    let text = "the xylophone recital begins at dusk";
    {
        let archive = Archive::open_with(place.path(), options(1)).unwrap();
        let shelf = archive.shelf(&Namespace::local());
        let mut it = original(text.as_bytes());
        it.tool = Some("zeppelin_tool");
        it.arguments = Some(r#"{"path":"quokka.rs"}"#);
        shelf.store(&[it]).unwrap();
        assert_eq!(shelf.unfold(Handle::for_content(text.as_bytes()).as_str()).unwrap().bytes, text.as_bytes());
        // Searching works, from memory.
        let found = shelf.search("xylophone", 0, 10).unwrap();
        assert_eq!(found.hits[0].entry.tool.as_deref(), Some("zeppelin_tool"));
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
fn only_its_key_opens_it() {
    let place = Place::new();
    drop(Archive::open_with(place.path(), options(1)).unwrap());
    let denied = |opened: Result<Archive, foldline_archive::Error>| {
        assert_eq!(opened.unwrap_err().kind(), &ErrorKind::Denied);
    };
    denied(Archive::open_with(place.path(), options(2)));
    denied(Archive::open(place.path()));
    denied(place.open_to_read());
    Archive::open_with(place.path(), options(1)).unwrap();

    // Who gives a key believes that the archive is sealed.
    let open = Place::new();
    drop(open.open());
    denied(Archive::open_with(open.path(), options(1)));
}
