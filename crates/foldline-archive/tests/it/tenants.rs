//! Tenants are isolated from each other.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace};

use crate::support::{TempArchive, original};

#[test]
fn tenants_cannot_read_each_other() {
    let temp = TempArchive::new();
    let archive = temp.open();
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

/// The same text of two tenants is two entries: a store call does not disclose that another tenant has it.
#[test]
fn same_text_is_stored_per_tenant() {
    let temp = TempArchive::new();
    let archive = temp.open();
    for name in ["a", "b"] {
        let tenant = archive.tenant(&Namespace::new(name).unwrap());
        assert_eq!(tenant.store_durably(&[original(b"shared")]).unwrap().added, 1);
        assert_eq!(tenant.unfold(Handle::for_content(b"shared").as_str()).unwrap().bytes, b"shared");
    }
}

#[test]
fn invalid_namespaces_are_rejected() {
    for invalid in ["", "a b", "é", "a'b", &"x".repeat(129)] {
        assert_eq!(Namespace::new(invalid).unwrap_err().kind(), &ErrorKind::InvalidInput);
    }
}

/// A credential always has the same name in one archive, and a different one in another.
#[test]
fn credential_namespace_differs_between_archives() {
    let (temp, other) = (TempArchive::new(), TempArchive::new());
    let name = temp.open().namespace_for_credential(b"sk-secret").unwrap();
    assert_eq!(temp.open().namespace_for_credential(b"sk-secret").unwrap(), name);
    assert_ne!(temp.open().namespace_for_credential(b"sk-another").unwrap(), name);
    assert_ne!(other.open().namespace_for_credential(b"sk-secret").unwrap(), name);
    assert!(!name.as_str().contains("secret"));
}
