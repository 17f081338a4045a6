//! Every fault has its kind, and none is an empty success.

use std::os::unix::fs::PermissionsExt;

use foldline::{Handle, OriginalStore};
use foldline_archive::{Archive, ErrorKind};
use rusqlite::Connection;

use crate::support::{TempArchive, original, random_bytes};

fn unfold_error_kind(shelf: &foldline_archive::TenantArchive, handle: &str) -> ErrorKind {
    shelf.unfold(handle).unwrap_err().kind().clone()
}

#[test]
fn invalid_handle_differs_from_not_found() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
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
        assert_eq!(unfold_error_kind(&shelf, odd), ErrorKind::InvalidHandle, "{odd:.20}");
    }
    assert_eq!(unfold_error_kind(&shelf, "00000000"), ErrorKind::NotFound);
    let handle = Handle::for_content(b"x");
    assert_eq!(shelf.unfold(&format!(" {} \n", handle.as_str().to_uppercase())).unwrap().bytes, b"x");
}

#[test]
fn prefix_of_eight_characters_resolves_when_it_is_the_only_one() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    // Found by trial: among a million texts two have handles that begin with the same eight characters.
    let texts = ["text 189306", "text 279150", "text 1"];
    let originals = texts.map(|text| original(text.as_bytes()));
    shelf.store(&originals).unwrap();
    let [one, two, other] = originals.map(|it| it.handle);
    assert_eq!(shelf.unfold(&other.as_str()[..8]).unwrap().info.handle, other);
    assert_eq!(shelf.unfold(&one.as_str()[..11]).unwrap().info.handle, one);
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
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    shelf.store(&[original(b"x")]).unwrap();
    let handle = Handle::for_content(b"x");
    for length in 1..8 {
        assert_eq!(unfold_error_kind(&shelf, &handle.as_str()[..length]), ErrorKind::InvalidHandle, "{length}");
    }
}

/// Bytes that changed on disk are never given out. The entry is set aside, the rest serves on, and
/// keeping the original again heals it.
#[test]
fn damaged_original_is_quarantined_and_replaced() {
    let place = TempArchive::new();
    let (bad, good) = (random_bytes(1, 100_000), random_bytes(2, 100_000));
    place.local_tenant().store(&[original(&bad), original(&good)]).unwrap();
    Connection::open(place.path())
        .unwrap()
        .execute("UPDATE pack SET content = zeroblob(length(content)) WHERE id = 1", ())
        .unwrap();
    let handle = Handle::for_content(&bad);
    let shelf = place.local_tenant();
    assert_eq!(unfold_error_kind(&shelf, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(shelf.unfold(Handle::for_content(&good).as_str()).unwrap().bytes, good);
    // The note that it is damaged goes through the writer, as the keep does, in order.
    assert_eq!(shelf.store_durably(&[original(b"other")]).unwrap().added, 1);
    assert_eq!(unfold_error_kind(&shelf, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(shelf.store_durably(&[original(&bad)]).unwrap().added, 1);
    assert_eq!(shelf.unfold(handle.as_str()).unwrap().bytes, bad);
}

#[test]
fn world_readable_file_is_rejected() {
    let place = TempArchive::new();
    drop(place.open());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path()), 0o600);
    for open in [0o604, 0o644, 0o602, 0o666] {
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(open)).unwrap();
        assert_eq!(Archive::open(place.path()).unwrap_err().kind(), &ErrorKind::InsecurePermissions);
        assert_eq!(place.open_read_only().unwrap_err().kind(), &ErrorKind::InsecurePermissions);
    }
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o600)).unwrap();
    place.open();
}

#[test]
fn new_folder_is_private() {
    let place = TempArchive::new();
    let path = place.folder.path().join("a/b/archive.db");
    let archive = Archive::open(&path).unwrap();
    archive.tenant(&foldline_archive::Namespace::local()).store(&[original(b"x")]).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(path.parent().unwrap().parent().unwrap()), 0o700);
    assert_eq!(mode(&path.with_extension("db-wal")), 0o600);
}

#[test]
fn newer_schema_is_rejected_unchanged() {
    let place = TempArchive::new();
    place.local_tenant().store(&[original(b"x")]).unwrap();
    Connection::open(place.path()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(place.path()).unwrap();
    for refused in [Archive::open(place.path()), place.open_read_only()] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooNew { found: 99, .. }), "{error:?}");
        assert!(error.to_string().contains("upgrade foldline"), "{error}");
    }
    assert!(std::fs::read(place.path()).unwrap() == before);
}

#[test]
fn foreign_file_is_rejected_unchanged() {
    let place = TempArchive::new();
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
    assert_eq!(place.open_read_only().unwrap_err().kind(), &ErrorKind::NotAnArchive);

    assert!(Archive::open(place.folder.path()).is_err());
    let missing = TempArchive::new();
    assert!(missing.open_read_only().unwrap_err().to_string().contains("no archive"));
    assert!(!missing.path().exists());
}

#[test]
fn read_only_archive_rejects_writes() {
    let place = TempArchive::new();
    drop(place.open());
    let shelf = place.open_read_only().unwrap().tenant(&foldline_archive::Namespace::local());
    assert_eq!(shelf.store_durably(&[original(b"x")]).unwrap_err().kind(), &ErrorKind::ReadOnly);
}
