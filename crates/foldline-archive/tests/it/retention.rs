//! Retention counts from the last request that carried the marker, and never takes a live one.

use std::time::{Duration, Instant};

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, RetentionPolicy, TenantArchive};
use rusqlite::Connection;

use crate::support::{TempArchive, original, random_bytes};

const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

/// Pretends that these were last carried so many days ago.
fn backdate(place: &TempArchive, bytes: &[u8], days: i64) {
    let changed = Connection::open(place.path())
        .unwrap()
        .execute(
            "UPDATE original SET carried_at = carried_at - ?2, kept_at = kept_at - ?2 WHERE handle = ?1",
            (Handle::for_content(bytes).as_str(), days * 24 * 3600 * 1000),
        )
        .unwrap();
    assert_eq!(changed, 1);
}

/// How many packs there are.
fn pack_count(place: &TempArchive) -> i64 {
    let connection = Connection::open(place.path()).unwrap();
    connection.query_row("SELECT count(*) FROM pack", (), |row| row.get(0)).unwrap()
}

fn unfolds_exactly(shelf: &TenantArchive, bytes: &[u8]) -> bool {
    shelf.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == bytes)
}

#[test]
fn unused_originals_expire_and_carried_ones_stay() {
    let place = TempArchive::new();
    let archive = place.open();
    let shelf = archive.tenant(&foldline_archive::Namespace::local());
    shelf.store(&[original(b"old"), original(b"old but carried"), original(b"new")]).unwrap();
    backdate(&place, b"old", 40);
    backdate(&place, b"old but carried", 40);
    shelf.touch(&[Handle::for_content(b"old but carried")]).unwrap();
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!((pruned.originals, pruned.bytes), (1, 3));
    assert!(unfolds_exactly(&shelf, b"new") && unfolds_exactly(&shelf, b"old but carried"));
    assert!(
        matches!(shelf.unfold(Handle::for_content(b"old").as_str()).unwrap_err().kind(), ErrorKind::Expired { at } if *at > 0)
    );
    assert_eq!(shelf.search("old", 0, 9).unwrap().total, 1);

    // Folded again, it is held again.
    assert_eq!(shelf.store_durably(&[original(b"old")]).unwrap().added, 1);
    assert!(unfolds_exactly(&shelf, b"old"));
    assert_eq!(shelf.search("old", 0, 9).unwrap().total, 2);
}

/// Keeping what is held counts as carrying it, as every request that folds it again does.
#[test]
fn storing_again_renews_retention() {
    let place = TempArchive::new();
    let archive = place.open();
    let shelf = archive.tenant(&foldline_archive::Namespace::local());
    shelf.store(&[original(b"text")]).unwrap();
    backdate(&place, b"text", 40);
    assert_eq!(shelf.store_durably(&[original(b"text")]).unwrap().existing, 1);
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(pruned.originals, 0);
    assert!(unfolds_exactly(&shelf, b"text"));
}

/// A limit that can only be kept by taking what may be live is not kept.
#[test]
fn live_originals_are_never_pruned() {
    let place = TempArchive::new();
    let archive = place.open();
    let shelf = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..10).map(|at| random_bytes(at, 20_000)).collect();
    shelf.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    for (text, days) in texts.iter().zip([0, 0, 1, 3, 6, 8, 10, 20, 30, 400]) {
        backdate(&place, text, days);
    }
    let greedy = RetentionPolicy { max_age: Some(Duration::ZERO), max_bytes: Some(0), ..RetentionPolicy::default() };
    let pruned = archive.prune(&greedy).unwrap();
    assert_eq!(pruned.originals, 5);
    assert!(texts[..5].iter().all(|text| unfolds_exactly(&shelf, text)));
    assert!(texts[5..].iter().all(|text| !unfolds_exactly(&shelf, text)));
    assert!(pruned.bytes_after > 0 && pruned.bytes_after < pruned.bytes_before);

    // A day is the least, whatever is asked for.
    let pruned = archive.prune(&RetentionPolicy { min_idle: Duration::ZERO, ..greedy }).unwrap();
    assert_eq!(pruned.originals, 3);
    assert!(texts[..2].iter().all(|text| unfolds_exactly(&shelf, text)));
}

#[test]
fn size_limit_prunes_oldest_and_shrinks_the_file() {
    let place = TempArchive::new();
    let archive = place.open();
    let shelf = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..1200).map(|at| random_bytes(at, 2000)).collect();
    for some in texts.chunks(50) {
        shelf.store(&some.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    let file = Connection::open(place.path()).unwrap();
    // The later they were kept, the later they were carried: 9 to 50 days ago.
    file.execute("UPDATE original SET carried_at = carried_at - 24 * 3600 * 1000 * (9 + (1200 - id) / 30)", ())
        .unwrap();
    let pruned = archive.prune(&RetentionPolicy { max_bytes: Some(1_500_000), ..RetentionPolicy::default() }).unwrap();
    assert!(pruned.bytes_before > 2_400_000 && pruned.bytes_after <= 1_500_000, "{pruned:?}");
    let first_held = texts.iter().position(|text| unfolds_exactly(&shelf, text)).unwrap();
    assert!(first_held > 0 && texts[first_held..].iter().all(|text| unfolds_exactly(&shelf, text)));
    drop((shelf, archive, file));
    assert!(std::fs::metadata(place.path()).unwrap().len() < 1_700_000);
}

/// Packing anew, because most of a pack is gone or because packs were small, changes no byte.
#[test]
fn repacking_changes_no_bytes() {
    let place = TempArchive::new();
    let archive = place.open();
    let shelf = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<String> = (0..400).map(|at| format!("line {at} of some output\n").repeat(1 + at % 60)).collect();
    for (at, text) in texts.iter().enumerate() {
        shelf.store(&[original(text.as_bytes())]).unwrap();
        if at % 3 == 0 {
            backdate(&place, text.as_bytes(), 100);
        }
    }
    archive.prune(&RetentionPolicy::default()).unwrap();
    // Sixteen at a time, where nobody has moved them together before.
    assert!(pack_count(&place) <= 400 / 16, "{}", pack_count(&place));
    assert!(texts.iter().all(|text| unfolds_exactly(&shelf, text.as_bytes())));
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(50 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(pruned.originals, 134);
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(unfolds_exactly(&shelf, text.as_bytes()), at % 3 != 0, "{at}");
    }
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len()), (266, 0));
    // There is nothing left to do.
    let again = archive.prune(&RetentionPolicy { max_age: Some(50 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(again.originals, 0);
}

/// Packs of single short originals move together by themselves, while others read; nobody finds one missing.
#[test]
fn small_packs_merge_during_reads() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    let texts: Vec<Vec<u8>> = (0..300).map(|at| random_bytes(at, 1_500)).collect();
    let read = |text: &Vec<u8>| shelf.unfold(Handle::for_content(text).as_str()).unwrap().bytes == *text;
    for text in &texts {
        shelf.store(&[original(text)]).unwrap();
    }
    let begun = Instant::now();
    while pack_count(&place) > 200 {
        assert!(texts.iter().all(read));
        assert!(begun.elapsed() < Duration::from_secs(60), "{} packs are left", pack_count(&place));
    }
    assert!(texts.iter().all(read));
    drop(shelf);
    let verified = place.open().verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len()), (300, 0));
}
