//! What goes in comes out, byte for byte, at once and after a restart.

use foldline::{Handle, OriginalStore};
use foldline_archive::StoreCounts;
use proptest::prelude::*;

use crate::support::{TempArchive, original, random_bytes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Any bytes, in any company, before and after the file was closed.
    #[test]
    fn every_original_round_trips(originals in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..40)) {
        let place = TempArchive::new();
        let originals: Vec<_> = originals.iter().map(|bytes| original(bytes)).collect();
        {
            let shelf = place.local_tenant();
            shelf.store(&originals).unwrap();
            for original in &originals {
                prop_assert_eq!(&shelf.unfold(original.handle.as_str()).unwrap().bytes, original.bytes);
            }
        }
        let shelf = place.open_read_only().unwrap().tenant(&foldline_archive::Namespace::local());
        for original in &originals {
            prop_assert_eq!(&shelf.unfold(original.handle.as_str()).unwrap().bytes, original.bytes);
        }
    }
}

#[test]
fn metadata_round_trips() {
    let place = TempArchive::new();
    let shelf = place.local_tenant().in_session("s-1");
    shelf.store(&[original(b"text")]).unwrap();
    let entry = shelf.unfold(Handle::for_content(b"text").as_str()).unwrap().info;
    assert_eq!(entry.tool.as_deref(), Some("read_file"));
    assert_eq!(entry.arguments.as_deref(), Some(r#"{"path":"src/main.rs"}"#));
    assert_eq!(entry.session.as_deref(), Some("s-1"));
    assert_eq!((entry.message, entry.tokens, entry.length), (3, 1, 4));
    assert!(entry.kept_at > 1_700_000_000_000 && entry.carried_at == entry.kept_at);
}

/// A request folds what the request before it folded, and one text may stand in it twice.
#[test]
fn storing_twice_adds_nothing() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    let kept = shelf.store_durably(&[original(b"a"), original(b"b"), original(b"a")]).unwrap();
    assert_eq!((kept.added, kept.existing), (2, 1));
    let kept = shelf.store_durably(&[original(b"a"), original(b"c")]).unwrap();
    assert_eq!((kept.added, kept.existing), (1, 1));
    assert_eq!(shelf.store_durably(&[]).unwrap(), StoreCounts::default());
}

#[test]
fn large_and_empty_originals_are_stored() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    let large = random_bytes(1, 50_000_000);
    let text = "line of text\n".repeat(4_000_000);
    shelf.store(&[original(b"small"), original(&large), original(b""), original(text.as_bytes())]).unwrap();
    for bytes in [large.as_slice(), b"", b"small", text.as_bytes()] {
        assert!(shelf.unfold(Handle::for_content(bytes).as_str()).unwrap().bytes == bytes);
    }
}

/// Many threads keep at once; they share commits and none loses anything.
#[test]
fn concurrent_threads_lose_nothing() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let shelf = shelf.clone();
            scope.spawn(move || {
                for at in 0..20 {
                    let bytes = random_bytes(thread * 1000 + at, 3000);
                    shelf.store(&[original(&bytes), original(b"the same for all")]).unwrap();
                    assert_eq!(shelf.unfold(Handle::for_content(&bytes).as_str()).unwrap().bytes, bytes);
                }
            });
        }
    });
}

/// A handle that is not that of the bytes is refused, and nothing of the call is kept.
#[test]
fn wrong_handle_is_rejected() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    let mut forged = original(b"these bytes");
    forged.handle = Handle::for_content(b"other bytes");
    assert!(shelf.store(&[original(b"fine"), forged]).is_err());
    assert!(shelf.unfold(Handle::for_content(b"fine").as_str()).is_err());
}
