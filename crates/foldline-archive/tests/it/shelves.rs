//! Namespaces do not see each other.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace};

use crate::support::{Place, original};

#[test]
fn what_is_on_one_shelf_is_unknown_on_another() {
    let place = Place::new();
    let archive = place.open();
    let (ours, theirs) = (archive.shelf(&Namespace::local()), archive.shelf(&Namespace::new("theirs").unwrap()));
    ours.store(&[original(b"the secret recipe")]).unwrap();
    let handle = Handle::for_content(b"the secret recipe");
    assert_eq!(theirs.unfold(handle.as_str()).unwrap_err().kind(), &ErrorKind::Unknown);
    assert_eq!(theirs.unfold(&handle.as_str()[..8]).unwrap_err().kind(), &ErrorKind::Unknown);
    assert_eq!(theirs.search("secret recipe", 0, 10).unwrap().total, 0);
    theirs.store(&[original(b"something else")]).unwrap();
    assert_eq!(theirs.unfold(handle.as_str()).unwrap_err().kind(), &ErrorKind::Unknown);
    assert_eq!(theirs.search("secret recipe", 0, 10).unwrap().total, 0);
    assert_eq!(ours.search("secret recipe", 0, 10).unwrap().total, 1);
}

/// The same text on two shelves is two entries: that one has it is not told by the other's keep.
#[test]
fn the_same_text_is_added_on_each_shelf() {
    let place = Place::new();
    let archive = place.open();
    for name in ["a", "b"] {
        let shelf = archive.shelf(&Namespace::new(name).unwrap());
        assert_eq!(shelf.hold(&[original(b"shared")]).unwrap().added, 1);
        assert_eq!(shelf.unfold(Handle::for_content(b"shared").as_str()).unwrap().bytes, b"shared");
    }
}

#[test]
fn odd_namespaces_are_refused() {
    for odd in ["", "a b", "é", "a'b", &"x".repeat(129)] {
        assert_eq!(Namespace::new(odd).unwrap_err().kind(), &ErrorKind::BadRequest);
    }
}

/// A credential always has the same name in one archive, and in no other.
#[test]
fn a_credential_has_a_name_of_its_own_in_each_archive() {
    let (place, other) = (Place::new(), Place::new());
    let name = place.open().namespace_of(b"sk-secret").unwrap();
    assert_eq!(place.open().namespace_of(b"sk-secret").unwrap(), name);
    assert_ne!(place.open().namespace_of(b"sk-another").unwrap(), name);
    assert_ne!(other.open().namespace_of(b"sk-secret").unwrap(), name);
    assert!(!name.as_str().contains("secret"));
}
