//! Every fault has its kind, and none is an empty success.

use std::os::unix::fs::PermissionsExt;

use foldline::{Handle, OriginalStore};
use foldline_archive::{Archive, ErrorKind};
use rusqlite::Connection;

use crate::support::{Place, noise, original};

fn kind(shelf: &foldline_archive::Shelf, handle: &str) -> ErrorKind {
    shelf.unfold(handle).unwrap_err().kind().clone()
}

#[test]
fn odd_handles_are_told_apart_from_unknown_ones() {
    let place = Place::new();
    let shelf = place.shelf();
    shelf.store(&[original(b"x")]).unwrap();
    let long = "a".repeat(1_000_000);
    for odd in [
        "",
        "abc",
        "0000000",
        "0123456789abc",
        "'; DROP TABLE original; --",
        "ilou ilou",
        "%%%%",
        "____",
        "\0\0\0\0",
        "🦀🦀🦀",
        &long,
    ] {
        assert_eq!(kind(&shelf, odd), ErrorKind::NotAHandle, "{odd:.20}");
    }
    assert_eq!(kind(&shelf, "00000000"), ErrorKind::Unknown);
    let handle = Handle::for_content(b"x");
    assert_eq!(shelf.unfold(&format!(" {} \n", handle.as_str().to_uppercase())).unwrap().bytes, b"x");
}

#[test]
fn prefix_of_eight_characters_resolves_when_it_is_the_only_one() {
    let place = Place::new();
    let shelf = place.shelf();
    // Found by trial: among a million texts two have handles that begin with the same eight characters.
    let texts = ["text 189306", "text 279150", "text 1"];
    let originals = texts.map(|text| original(text.as_bytes()));
    shelf.store(&originals).unwrap();
    let [one, two, other] = originals.map(|it| it.handle);
    assert_eq!(shelf.unfold(&other.as_str()[..8]).unwrap().entry.handle, other);
    assert_eq!(shelf.unfold(&one.as_str()[..11]).unwrap().entry.handle, one);
    let error = shelf.unfold(&one.as_str()[..8]).unwrap_err();
    match error.kind() {
        ErrorKind::Ambiguous { candidates } => assert!([one, two].iter().all(|it| candidates.contains(it))),
        other => panic!("{other:?}"),
    }
    let message = error.to_string();
    assert!(!message.contains(one.as_str()) && !message.contains(two.as_str()), "a model may read it: {message}");
}

/// 54,000 guesses of four characters showed 47 of the texts of others.
#[test]
fn short_prefix_is_refused() {
    let place = Place::new();
    let shelf = place.shelf();
    shelf.store(&[original(b"x")]).unwrap();
    let handle = Handle::for_content(b"x");
    for length in 1..8 {
        assert_eq!(kind(&shelf, &handle.as_str()[..length]), ErrorKind::NotAHandle, "{length}");
    }
}

/// Bytes that changed on disk are never given out. The entry is set aside, the rest serves on, and
/// keeping the original again heals it.
#[test]
fn a_damaged_entry_is_set_aside_and_healed() {
    let place = Place::new();
    let (bad, good) = (noise(1, 100_000), noise(2, 100_000));
    place.shelf().store(&[original(&bad), original(&good)]).unwrap();
    Connection::open(place.path())
        .unwrap()
        .execute("UPDATE pack SET content = zeroblob(length(content)) WHERE id = 1", ())
        .unwrap();
    let handle = Handle::for_content(&bad);
    let shelf = place.shelf();
    assert_eq!(kind(&shelf, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(shelf.unfold(Handle::for_content(&good).as_str()).unwrap().bytes, good);
    // The note that it is damaged goes through the writer, as the keep does, in order.
    assert_eq!(shelf.hold(&[original(b"other")]).unwrap().added, 1);
    assert_eq!(kind(&shelf, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(shelf.hold(&[original(&bad)]).unwrap().added, 1);
    assert_eq!(shelf.unfold(handle.as_str()).unwrap().bytes, bad);
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let place = Place::new();
    drop(place.open());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path()), 0o600);
    for open in [0o604, 0o644, 0o602, 0o666] {
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(open)).unwrap();
        assert_eq!(Archive::open(place.path()).unwrap_err().kind(), &ErrorKind::Exposed);
        assert_eq!(place.open_to_read().unwrap_err().kind(), &ErrorKind::Exposed);
    }
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o600)).unwrap();
    place.open();
}

#[test]
fn a_new_folder_is_for_its_owner_alone() {
    let place = Place::new();
    let path = place.folder.path().join("a/b/archive.db");
    let archive = Archive::open(&path).unwrap();
    archive.shelf(&foldline_archive::Namespace::local()).store(&[original(b"x")]).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(path.parent().unwrap().parent().unwrap()), 0o700);
    assert_eq!(mode(&path.with_extension("db-wal")), 0o600);
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let place = Place::new();
    place.shelf().store(&[original(b"x")]).unwrap();
    Connection::open(place.path()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(place.path()).unwrap();
    for refused in [Archive::open(place.path()), place.open_to_read()] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooNew { found: 99, .. }), "{error:?}");
        assert!(error.to_string().contains("upgrade foldline"), "{error}");
    }
    assert!(std::fs::read(place.path()).unwrap() == before);
}

#[test]
fn what_is_no_archive_is_refused_and_left_alone() {
    let place = Place::new();
    std::fs::write(place.path(), "some notes of mine, not a database at all\n".repeat(100)).unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let before = std::fs::read(place.path()).unwrap();
    assert_eq!(Archive::open(place.path()).unwrap_err().kind(), &ErrorKind::NotAnArchive);
    assert!(std::fs::read(place.path()).unwrap() == before);

    std::fs::remove_file(place.path()).unwrap();
    let other = Connection::open(place.path()).unwrap();
    other.execute_batch("CREATE TABLE mine (x)").unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(Archive::open(place.path()).unwrap_err().kind(), &ErrorKind::NotAnArchive);
    assert_eq!(place.open_to_read().unwrap_err().kind(), &ErrorKind::NotAnArchive);

    assert!(Archive::open(place.folder.path()).is_err());
    let missing = Place::new();
    assert!(missing.open_to_read().unwrap_err().to_string().contains("no archive"));
    assert!(!missing.path().exists());
}

#[test]
fn a_reader_can_not_keep() {
    let place = Place::new();
    drop(place.open());
    let shelf = place.open_to_read().unwrap().shelf(&foldline_archive::Namespace::local());
    assert_eq!(shelf.hold(&[original(b"x")]).unwrap_err().kind(), &ErrorKind::ReadOnly);
}
