//! Every failure has its error kind, and none is an empty success.

use std::os::unix::fs::PermissionsExt;

use foldline::{Handle, OriginalStore};
use foldline_archive::{Archive, ErrorKind};
use rusqlite::Connection;

use crate::support::{TempArchive, original, random_bytes};

fn unfold_error_kind(tenant: &foldline_archive::TenantArchive, handle: &str) -> ErrorKind {
    tenant.unfold(handle).unwrap_err().kind().clone()
}

#[test]
fn invalid_handle_differs_from_not_found() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"x")]).unwrap();
    let long = "a".repeat(1_000_000);
    for invalid in [
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
        assert_eq!(unfold_error_kind(&tenant, invalid), ErrorKind::InvalidHandle, "{invalid:.20}");
    }
    assert_eq!(unfold_error_kind(&tenant, "00000000"), ErrorKind::NotFound);
    let handle = Handle::for_content(b"x");
    assert_eq!(tenant.unfold(&format!(" {} \n", handle.as_str().to_uppercase())).unwrap().bytes, b"x");
}

#[test]
fn unique_prefix_of_eight_characters_resolves() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    // Found by trial: among a million texts, these two have handles with the same first eight characters.
    let texts = ["text 189306", "text 279150", "text 1"];
    let originals = texts.map(|text| original(text.as_bytes()));
    tenant.store(&originals).unwrap();
    let [one, two, other] = originals.map(|original| original.handle);
    assert_eq!(tenant.unfold(&other.as_str()[..8]).unwrap().info.handle, other);
    assert_eq!(tenant.unfold(&one.as_str()[..11]).unwrap().info.handle, one);
    let error = tenant.unfold(&one.as_str()[..8]).unwrap_err();
    match error.kind() {
        ErrorKind::Ambiguous { candidates } => assert!([one, two].iter().all(|handle| candidates.contains(handle))),
        other => panic!("{other:?}"),
    }
    let message = error.to_string();
    assert!(!message.contains(one.as_str()) && !message.contains(two.as_str()), "a model may read it: {message}");
}

/// With four characters, 54,000 guesses returned 47 texts of other users.
#[test]
fn short_prefix_is_rejected() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"x")]).unwrap();
    let handle = Handle::for_content(b"x");
    for length in 1..8 {
        assert_eq!(unfold_error_kind(&tenant, &handle.as_str()[..length]), ErrorKind::InvalidHandle, "{length}");
    }
}

/// Bytes that changed on disk are never returned. The entry is marked, the rest remains available, and storing the
/// original again replaces it.
#[test]
fn damaged_original_is_quarantined_and_replaced() {
    let temp = TempArchive::new();
    let (bad, good) = (random_bytes(1, 100_000), random_bytes(2, 100_000));
    temp.local_tenant().store(&[original(&bad), original(&good)]).unwrap();
    Connection::open(temp.path())
        .unwrap()
        .execute("UPDATE pack SET content = zeroblob(length(content)) WHERE id = 1", ())
        .unwrap();
    let handle = Handle::for_content(&bad);
    let tenant = temp.local_tenant();
    assert_eq!(unfold_error_kind(&tenant, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(tenant.unfold(Handle::for_content(&good).as_str()).unwrap().bytes, good);
    // The mark goes through the writer, like the store call, in order.
    assert_eq!(tenant.store_durably(&[original(b"other")]).unwrap().added, 1);
    assert_eq!(unfold_error_kind(&tenant, handle.as_str()), ErrorKind::Damaged);
    assert_eq!(tenant.store_durably(&[original(&bad)]).unwrap().added, 1);
    assert_eq!(tenant.unfold(handle.as_str()).unwrap().bytes, bad);
}

#[test]
fn world_readable_file_is_rejected() {
    let temp = TempArchive::new();
    drop(temp.open());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&temp.path()), 0o600);
    for open in [0o604, 0o644, 0o602, 0o666, 0o640, 0o660, 0o620, 0o610] {
        std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(open)).unwrap();
        assert_eq!(Archive::open(temp.path()).unwrap_err().kind(), &ErrorKind::InsecurePermissions);
        assert_eq!(temp.open_read_only().unwrap_err().kind(), &ErrorKind::InsecurePermissions);
    }
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o600)).unwrap();
    temp.open();
}

#[test]
fn new_folder_is_private() {
    let temp = TempArchive::new();
    let path = temp.folder.path().join("a/b/archive.db");
    let archive = Archive::open(&path).unwrap();
    archive.tenant(&foldline_archive::Namespace::local()).store(&[original(b"x")]).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(path.parent().unwrap().parent().unwrap()), 0o700);
    assert_eq!(mode(&path.with_extension("db-wal")), 0o600);
}

#[test]
fn newer_schema_is_rejected_unchanged() {
    let temp = TempArchive::new();
    temp.local_tenant().store(&[original(b"x")]).unwrap();
    Connection::open(temp.path()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(temp.path()).unwrap();
    for rejected in [Archive::open(temp.path()), temp.open_read_only()] {
        let error = rejected.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooNew { found: 99, .. }), "{error:?}");
        assert!(error.to_string().contains("upgrade foldline"), "{error}");
    }
    assert!(std::fs::read(temp.path()).unwrap() == before);
}

#[test]
fn foreign_file_is_rejected_unchanged() {
    let temp = TempArchive::new();
    std::fs::write(temp.path(), "some notes, not a database at all\n".repeat(100)).unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let before = std::fs::read(temp.path()).unwrap();
    assert_eq!(Archive::open(temp.path()).unwrap_err().kind(), &ErrorKind::NotAnArchive);
    assert!(std::fs::read(temp.path()).unwrap() == before);

    std::fs::remove_file(temp.path()).unwrap();
    let other = Connection::open(temp.path()).unwrap();
    other.execute_batch("CREATE TABLE mine (x)").unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(Archive::open(temp.path()).unwrap_err().kind(), &ErrorKind::NotAnArchive);
    assert_eq!(temp.open_read_only().unwrap_err().kind(), &ErrorKind::NotAnArchive);

    assert!(Archive::open(temp.folder.path()).is_err());
    let missing = TempArchive::new();
    assert!(missing.open_read_only().unwrap_err().to_string().contains("no archive"));
    assert!(!missing.path().exists());
}

#[test]
fn read_only_archive_rejects_writes() {
    let temp = TempArchive::new();
    drop(temp.open());
    let tenant = temp.open_read_only().unwrap().tenant(&foldline_archive::Namespace::local());
    assert_eq!(tenant.store_durably(&[original(b"x")]).unwrap_err().kind(), &ErrorKind::ReadOnly);
}

/// `--archive postgres://..` created a folder named `postgres:` in the working directory.
#[test]
fn url_is_not_a_path() {
    let unknown = ["s3://bucket/key", "redis://user@localhost"];
    let without_feature = (!cfg!(feature = "postgres")).then_some("postgres://user@host/db");
    for url in unknown.into_iter().chain(without_feature) {
        let error = Archive::open(url).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidInput, "{url}");
        assert!(!error.to_string().contains("user"), "{error}");
    }
    assert!(!std::path::Path::new("postgres:").exists());
}
