//! Namespaces do not see each other.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace};

use crate::support::{TempArchive, original};

#[test]
fn tenants_cannot_read_each_other() {
    let place = TempArchive::new();
    let archive = place.open();
    let (ours, theirs) = (archive.tenant(&Namespace::local()), archive.tenant(&Namespace::new("theirs").unwrap()));
    ours.store(&[original(b"the secret recipe")]).unwrap();
    let handle = Handle::for_content(b"the secret recipe");
    assert_eq!(theirs.unfold(handle.as_str()).unwrap_err().kind(), &ErrorKind::NotFound);
    assert_eq!(theirs.unfold(&handle.as_str()[..8]).unwrap_err().kind(), &ErrorKind::NotFound);
    assert_eq!(theirs.search("secret recipe", 0, 10).unwrap().total, 0);
    theirs.store(&[original(b"something else")]).unwrap();
    assert_eq!(theirs.unfold(handle.as_str()).unwrap_err().kind(), &ErrorKind::NotFound);
    assert_eq!(theirs.search("secret recipe", 0, 10).unwrap().total, 0);
    assert_eq!(ours.search("secret recipe", 0, 10).unwrap().total, 1);
}

/// The same text on two shelves is two entries: that one has it is not told by the other's keep.
#[test]
fn same_text_is_stored_per_tenant() {
    let place = TempArchive::new();
    let archive = place.open();
    for name in ["a", "b"] {
        let shelf = archive.tenant(&Namespace::new(name).unwrap());
        assert_eq!(shelf.store_durably(&[original(b"shared")]).unwrap().added, 1);
        assert_eq!(shelf.unfold(Handle::for_content(b"shared").as_str()).unwrap().bytes, b"shared");
    }
}

#[test]
fn invalid_namespaces_are_rejected() {
    for odd in ["", "a b", "é", "a'b", &"x".repeat(129)] {
        assert_eq!(Namespace::new(odd).unwrap_err().kind(), &ErrorKind::InvalidInput);
    }
}

/// A credential always has the same name in one archive, and in no other.
#[test]
fn credential_namespace_differs_between_archives() {
    let (place, other) = (TempArchive::new(), TempArchive::new());
    let name = place.open().namespace_for_credential(b"sk-secret").unwrap();
    assert_eq!(place.open().namespace_for_credential(b"sk-secret").unwrap(), name);
    assert_ne!(place.open().namespace_for_credential(b"sk-another").unwrap(), name);
    assert_ne!(other.open().namespace_for_credential(b"sk-secret").unwrap(), name);
    assert!(!name.as_str().contains("secret"));
}
