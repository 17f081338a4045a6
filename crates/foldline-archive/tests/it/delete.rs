//! Deletion on request: one original, one session, everything of a namespace.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace, TenantArchive};

use crate::support::{TempArchive, original, random_bytes};

fn is_found(tenant: &TenantArchive, bytes: &[u8]) -> bool {
    match tenant.unfold(Handle::for_content(bytes).as_str()) {
        Ok(unfolded) => unfolded.bytes == bytes,
        // A deleted original leaves no tombstone.
        Err(error) => {
            assert_eq!(error.kind(), &ErrorKind::NotFound);
            false
        }
    }
}

#[test]
fn one_original_is_deleted() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"keep this"), original(b"delete this")]).unwrap();
    assert_eq!(tenant.search("delete", 0, 9).unwrap().total, 1);
    let deleted = tenant.delete_original(Handle::for_content(b"delete this")).unwrap();
    assert_eq!((deleted.originals, deleted.bytes), (1, 11));
    assert!(is_found(&tenant, b"keep this") && !is_found(&tenant, b"delete this"));
    assert_eq!(tenant.search("delete", 0, 9).unwrap().total, 0);
    assert_eq!(tenant.delete_original(Handle::for_content(b"delete this")).unwrap().originals, 0);
    // It can be stored again.
    tenant.store(&[original(b"delete this")]).unwrap();
    assert!(is_found(&tenant, b"delete this"));
}

#[test]
fn one_session_is_deleted() {
    let temp = TempArchive::new();
    let (first, second) = (temp.local_tenant().in_session("s-1"), temp.local_tenant().in_session("s-2"));
    for (tenant, text) in [(&first, b"of the first"), (&second, b"of a second")] as [(_, &[u8]); 2] {
        tenant.store(&[original(text)]).unwrap();
        tenant.record_fact("summary", b"f", text).unwrap();
        tenant.append_event("creased", text).unwrap();
    }
    assert_eq!(first.delete_session("s-1").unwrap().originals, 1);
    assert!(!is_found(&first, b"of the first") && is_found(&second, b"of a second"));
    assert!(first.facts().unwrap().is_empty() && second.facts().unwrap().len() == 1);
    assert_eq!(first.events(0, 9).unwrap().len(), 1);
    assert_eq!(first.sessions(9).unwrap().iter().map(|session| &session.name[..]).collect::<Vec<_>>(), ["s-2"]);
}

/// Only the namespace is emptied, and the bytes are gone from the files.
#[test]
fn everything_of_a_namespace_is_deleted() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let (ours, theirs) = (archive.tenant(&Namespace::local()), archive.tenant(&Namespace::new("theirs").unwrap()));
    let secret = random_bytes(7, 40_000);
    ours.in_session("s").store(&[original(&secret), original(b"more")]).unwrap();
    ours.in_session("s").record_fact("summary", b"f", b"payload").unwrap();
    theirs.store(&[original(b"their text")]).unwrap();
    let is_on_disk = || {
        ["archive.db", "archive.db-wal"].iter().any(|name| {
            let bytes = std::fs::read(temp.folder.path().join(name)).unwrap_or_default();
            bytes.windows(64).any(|window| window == &secret[30_000..30_064])
        })
    };
    assert!(is_on_disk(), "the text is not compressible");
    assert_eq!(ours.delete_everything().unwrap().originals, 2);
    assert!(!is_on_disk());
    assert!(!is_found(&ours, &secret) && is_found(&theirs, b"their text"));
    assert!(ours.in_session("s").facts().unwrap().is_empty() && ours.sessions(9).unwrap().is_empty());
    assert_eq!(archive.verify(|_| ()).unwrap().intact, 1);
}
