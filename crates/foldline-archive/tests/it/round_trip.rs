//! Originals are restored byte for byte, immediately and after a restart.

use foldline::{Handle, OriginalStore};
use foldline_archive::StoreCounts;
use proptest::prelude::*;

use crate::support::{TempArchive, original, random_bytes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Any bytes, in any combination, before and after the file was closed.
    #[test]
    fn every_original_round_trips(originals in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..40)) {
        let temp = TempArchive::new();
        let originals: Vec<_> = originals.iter().map(|bytes| original(bytes)).collect();
        {
            let tenant = temp.local_tenant();
            tenant.store(&originals).unwrap();
            for original in &originals {
                prop_assert_eq!(&tenant.unfold(original.handle.as_str()).unwrap().bytes, original.bytes);
            }
        }
        let tenant = temp.open_read_only().unwrap().tenant(&foldline_archive::Namespace::local());
        for original in &originals {
            prop_assert_eq!(&tenant.unfold(original.handle.as_str()).unwrap().bytes, original.bytes);
        }
    }
}

#[test]
fn metadata_round_trips() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant().in_session("s-1");
    tenant.store(&[original(b"text")]).unwrap();
    let info = tenant.unfold(Handle::for_content(b"text").as_str()).unwrap().info;
    assert_eq!(info.tool.as_deref(), Some("read_file"));
    assert_eq!(info.arguments.as_deref(), Some(r#"{"path":"src/main.rs"}"#));
    assert_eq!(info.session.as_deref(), Some("s-1"));
    assert_eq!((info.message, info.tokens, info.length), (3, 1, 4));
    assert!(info.kept_at > 1_700_000_000_000 && info.carried_at == info.kept_at);
}

/// A request folds what the previous request folded, and may contain the same text twice.
#[test]
fn storing_twice_adds_nothing() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let counts = tenant.store_durably(&[original(b"a"), original(b"b"), original(b"a")]).unwrap();
    assert_eq!((counts.added, counts.existing), (2, 1));
    let counts = tenant.store_durably(&[original(b"a"), original(b"c")]).unwrap();
    assert_eq!((counts.added, counts.existing), (1, 1));
    assert_eq!(tenant.store_durably(&[]).unwrap(), StoreCounts::default());
}

#[test]
fn large_and_empty_originals_are_stored() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let large = random_bytes(1, 50_000_000);
    let text = "line of text\n".repeat(4_000_000);
    tenant.store(&[original(b"small"), original(&large), original(b""), original(text.as_bytes())]).unwrap();
    for bytes in [large.as_slice(), b"", b"small", text.as_bytes()] {
        assert!(tenant.unfold(Handle::for_content(bytes).as_str()).unwrap().bytes == bytes);
    }
}

/// Concurrent threads share commits, and none loses anything.
#[test]
fn concurrent_threads_lose_nothing() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let tenant = tenant.clone();
            scope.spawn(move || {
                for at in 0..20 {
                    let bytes = random_bytes(thread * 1000 + at, 3000);
                    tenant.store(&[original(&bytes), original(b"the same for all")]).unwrap();
                    assert_eq!(tenant.unfold(Handle::for_content(&bytes).as_str()).unwrap().bytes, bytes);
                }
            });
        }
    });
}

/// A handle that does not match the bytes is rejected, and nothing of the call is stored.
#[test]
fn wrong_handle_is_rejected() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let mut forged = original(b"these bytes");
    forged.handle = Handle::for_content(b"other bytes");
    assert!(tenant.store(&[original(b"fine"), forged]).is_err());
    assert!(tenant.unfold(Handle::for_content(b"fine").as_str()).is_err());
}
