//! Retention counts from the last request that carried the marker, and never takes a live one.

use std::time::{Duration, Instant};

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Retention, Shelf};
use rusqlite::Connection;

use crate::support::{Place, noise, original};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Pretends that these were last carried so many days ago.
fn age(place: &Place, bytes: &[u8], days: i64) {
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
fn packs(place: &Place) -> i64 {
    let connection = Connection::open(place.path()).unwrap();
    connection.query_row("SELECT count(*) FROM pack", (), |row| row.get(0)).unwrap()
}

fn is_held(shelf: &Shelf, bytes: &[u8]) -> bool {
    shelf.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == bytes)
}

#[test]
fn what_is_unused_expires_and_what_is_carried_stays() {
    let place = Place::new();
    let archive = place.open();
    let shelf = archive.shelf(&foldline_archive::Namespace::local());
    shelf.store(&[original(b"old"), original(b"old but carried"), original(b"new")]).unwrap();
    age(&place, b"old", 40);
    age(&place, b"old but carried", 40);
    shelf.touch(&[Handle::for_content(b"old but carried")]).unwrap();
    let pruned = archive.prune(&Retention { age: Some(30 * DAY), ..Retention::default() }).unwrap();
    assert_eq!((pruned.originals, pruned.bytes), (1, 3));
    assert!(is_held(&shelf, b"new") && is_held(&shelf, b"old but carried"));
    assert!(
        matches!(shelf.unfold(Handle::for_content(b"old").as_str()).unwrap_err().kind(), ErrorKind::Expired { at } if *at > 0)
    );
    assert_eq!(shelf.search("old", 0, 9).unwrap().total, 1);

    // Folded again, it is held again.
    assert_eq!(shelf.hold(&[original(b"old")]).unwrap().added, 1);
    assert!(is_held(&shelf, b"old"));
    assert_eq!(shelf.search("old", 0, 9).unwrap().total, 2);
}

/// Keeping what is held counts as carrying it, as every request that folds it again does.
#[test]
fn keeping_again_renews() {
    let place = Place::new();
    let archive = place.open();
    let shelf = archive.shelf(&foldline_archive::Namespace::local());
    shelf.store(&[original(b"text")]).unwrap();
    age(&place, b"text", 40);
    assert_eq!(shelf.hold(&[original(b"text")]).unwrap().held, 1);
    let pruned = archive.prune(&Retention { age: Some(30 * DAY), ..Retention::default() }).unwrap();
    assert_eq!(pruned.originals, 0);
    assert!(is_held(&shelf, b"text"));
}

/// A limit that can only be kept by taking what may be live is not kept.
#[test]
fn a_live_marker_is_never_taken() {
    let place = Place::new();
    let archive = place.open();
    let shelf = archive.shelf(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..10).map(|at| noise(at, 20_000)).collect();
    shelf.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    for (text, days) in texts.iter().zip([0, 0, 1, 3, 6, 8, 10, 20, 30, 400]) {
        age(&place, text, days);
    }
    let greedy = Retention { age: Some(Duration::ZERO), bytes: Some(0), ..Retention::default() };
    let pruned = archive.prune(&greedy).unwrap();
    assert_eq!(pruned.originals, 5);
    assert!(texts[..5].iter().all(|text| is_held(&shelf, text)));
    assert!(texts[5..].iter().all(|text| !is_held(&shelf, text)));
    assert!(pruned.after > 0 && pruned.after < pruned.before);

    // A day is the least, whatever is asked for.
    let pruned = archive.prune(&Retention { live: Duration::ZERO, ..greedy }).unwrap();
    assert_eq!(pruned.originals, 3);
    assert!(texts[..2].iter().all(|text| is_held(&shelf, text)));
}

#[test]
fn a_limit_takes_the_longest_unused_and_gives_room_back() {
    let place = Place::new();
    let archive = place.open();
    let shelf = archive.shelf(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..1200).map(|at| noise(at, 2000)).collect();
    for some in texts.chunks(50) {
        shelf.store(&some.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    let file = Connection::open(place.path()).unwrap();
    // The later they were kept, the later they were carried: 9 to 50 days ago.
    file.execute("UPDATE original SET carried_at = carried_at - 24 * 3600 * 1000 * (9 + (1200 - id) / 30)", ())
        .unwrap();
    let pruned = archive.prune(&Retention { bytes: Some(1_500_000), ..Retention::default() }).unwrap();
    assert!(pruned.before > 2_400_000 && pruned.after <= 1_500_000, "{pruned:?}");
    let first_held = texts.iter().position(|text| is_held(&shelf, text)).unwrap();
    assert!(first_held > 0 && texts[first_held..].iter().all(|text| is_held(&shelf, text)));
    drop((shelf, archive, file));
    assert!(std::fs::metadata(place.path()).unwrap().len() < 1_700_000);
}

/// Packing anew, because most of a pack is gone or because packs were small, changes no byte.
#[test]
fn packing_anew_changes_nothing() {
    let place = Place::new();
    let archive = place.open();
    let shelf = archive.shelf(&foldline_archive::Namespace::local());
    let texts: Vec<String> = (0..400).map(|at| format!("line {at} of some output\n").repeat(1 + at % 60)).collect();
    for (at, text) in texts.iter().enumerate() {
        shelf.store(&[original(text.as_bytes())]).unwrap();
        if at % 3 == 0 {
            age(&place, text.as_bytes(), 100);
        }
    }
    archive.prune(&Retention::default()).unwrap();
    // Sixteen at a time, where nobody has moved them together before.
    assert!(packs(&place) <= 400 / 16, "{}", packs(&place));
    assert!(texts.iter().all(|text| is_held(&shelf, text.as_bytes())));
    let pruned = archive.prune(&Retention { age: Some(50 * DAY), ..Retention::default() }).unwrap();
    assert_eq!(pruned.originals, 134);
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(is_held(&shelf, text.as_bytes()), at % 3 != 0, "{at}");
    }
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.sound, verified.damaged.len()), (266, 0));
    // There is nothing left to do.
    let again = archive.prune(&Retention { age: Some(50 * DAY), ..Retention::default() }).unwrap();
    assert_eq!(again.originals, 0);
}

/// Packs of single short originals move together by themselves, while others read; nobody finds one missing.
#[test]
fn small_packs_move_together_while_others_read() {
    let place = Place::new();
    let shelf = place.shelf();
    let texts: Vec<Vec<u8>> = (0..300).map(|at| noise(at, 1_500)).collect();
    let read = |text: &Vec<u8>| shelf.unfold(Handle::for_content(text).as_str()).unwrap().bytes == *text;
    for text in &texts {
        shelf.store(&[original(text)]).unwrap();
    }
    let begun = Instant::now();
    while packs(&place) > 200 {
        assert!(texts.iter().all(read));
        assert!(begun.elapsed() < Duration::from_secs(60), "{} packs are left", packs(&place));
    }
    assert!(texts.iter().all(read));
    drop(shelf);
    let verified = place.open().verify(|_| ()).unwrap();
    assert_eq!((verified.sound, verified.damaged.len()), (300, 0));
}
