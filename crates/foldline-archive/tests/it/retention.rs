//! Retention counts from the last request with the marker, and never removes a live original.

use std::time::{Duration, Instant};

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, RetentionPolicy, TenantArchive};
use rusqlite::Connection;

use crate::support::{TempArchive, original, random_bytes};

const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

/// Moves the times of an original back by this many days.
fn backdate(temp: &TempArchive, bytes: &[u8], days: i64) {
    let changed = Connection::open(temp.path())
        .unwrap()
        .execute(
            "UPDATE original SET carried_at = carried_at - ?2, kept_at = kept_at - ?2 WHERE handle = ?1",
            (Handle::for_content(bytes).as_str(), days * 24 * 3600 * 1000),
        )
        .unwrap();
    assert_eq!(changed, 1);
}

/// Returns the number of packs.
fn pack_count(temp: &TempArchive) -> i64 {
    let connection = Connection::open(temp.path()).unwrap();
    connection.query_row("SELECT count(*) FROM pack", (), |row| row.get(0)).unwrap()
}

fn unfolds_exactly(tenant: &TenantArchive, bytes: &[u8]) -> bool {
    tenant.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == bytes)
}

#[test]
fn unused_originals_expire_and_carried_ones_stay() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let tenant = archive.tenant(&foldline_archive::Namespace::local());
    tenant.store(&[original(b"old"), original(b"old but carried"), original(b"new")]).unwrap();
    backdate(&temp, b"old", 40);
    backdate(&temp, b"old but carried", 40);
    tenant.touch(&[Handle::for_content(b"old but carried")]).unwrap();
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!((pruned.originals, pruned.bytes), (1, 3));
    assert!(unfolds_exactly(&tenant, b"new") && unfolds_exactly(&tenant, b"old but carried"));
    assert!(
        matches!(tenant.unfold(Handle::for_content(b"old").as_str()).unwrap_err().kind(), ErrorKind::Expired { at } if *at > 0)
    );
    assert_eq!(tenant.search("old", 0, 9).unwrap().total, 1);

    // Folded again, it is available again.
    assert_eq!(tenant.store_durably(&[original(b"old")]).unwrap().added, 1);
    assert!(unfolds_exactly(&tenant, b"old"));
    assert_eq!(tenant.search("old", 0, 9).unwrap().total, 2);
}

/// Storing an original again counts as using it, as every request that folds it again does.
#[test]
fn storing_again_renews_retention() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let tenant = archive.tenant(&foldline_archive::Namespace::local());
    tenant.store(&[original(b"text")]).unwrap();
    backdate(&temp, b"text", 40);
    assert_eq!(tenant.store_durably(&[original(b"text")]).unwrap().existing, 1);
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(pruned.originals, 0);
    assert!(unfolds_exactly(&tenant, b"text"));
}

/// A limit that would require removing live originals is exceeded.
#[test]
fn live_originals_are_never_pruned() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let tenant = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..10).map(|at| random_bytes(at, 20_000)).collect();
    tenant.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    for (text, days) in texts.iter().zip([0, 0, 1, 3, 6, 8, 10, 20, 30, 400]) {
        backdate(&temp, text, days);
    }
    let greedy = RetentionPolicy { max_age: Some(Duration::ZERO), max_bytes: Some(0), ..RetentionPolicy::default() };
    let pruned = archive.prune(&greedy).unwrap();
    assert_eq!(pruned.originals, 5);
    assert!(texts[..5].iter().all(|text| unfolds_exactly(&tenant, text)));
    assert!(texts[5..].iter().all(|text| !unfolds_exactly(&tenant, text)));
    assert!(pruned.bytes_after > 0 && pruned.bytes_after < pruned.bytes_before);

    // The minimum is a day, whatever the policy.
    let pruned = archive.prune(&RetentionPolicy { min_idle: Duration::ZERO, ..greedy }).unwrap();
    assert_eq!(pruned.originals, 3);
    assert!(texts[..2].iter().all(|text| unfolds_exactly(&tenant, text)));
}

#[test]
fn size_limit_prunes_oldest_and_shrinks_the_file() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let tenant = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<_> = (0..1200).map(|at| random_bytes(at, 2000)).collect();
    for some in texts.chunks(50) {
        tenant.store(&some.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    let file = Connection::open(temp.path()).unwrap();
    // Later originals were used later: 9 to 50 days ago.
    file.execute("UPDATE original SET carried_at = carried_at - 24 * 3600 * 1000 * (9 + (1200 - id) / 30)", ())
        .unwrap();
    let pruned = archive.prune(&RetentionPolicy { max_bytes: Some(1_500_000), ..RetentionPolicy::default() }).unwrap();
    assert!(pruned.bytes_before > 2_400_000 && pruned.bytes_after <= 1_500_000, "{pruned:?}");
    let first_available = texts.iter().position(|text| unfolds_exactly(&tenant, text)).unwrap();
    assert!(first_available > 0 && texts[first_available..].iter().all(|text| unfolds_exactly(&tenant, text)));
    drop((tenant, archive, file));
    assert!(std::fs::metadata(temp.path()).unwrap().len() < 1_700_000);
}

/// Repacking mostly expired or small packs changes no byte.
#[test]
fn repacking_changes_no_bytes() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let tenant = archive.tenant(&foldline_archive::Namespace::local());
    let texts: Vec<String> = (0..400).map(|at| format!("line {at} of some output\n").repeat(1 + at % 60)).collect();
    for (at, text) in texts.iter().enumerate() {
        tenant.store(&[original(text.as_bytes())]).unwrap();
        if at % 3 == 0 {
            backdate(&temp, text.as_bytes(), 100);
        }
    }
    archive.prune(&RetentionPolicy::default()).unwrap();
    // Sixteen at a time, unless maintenance has merged them before.
    assert!(pack_count(&temp) <= 400 / 16, "{}", pack_count(&temp));
    assert!(texts.iter().all(|text| unfolds_exactly(&tenant, text.as_bytes())));
    let pruned = archive.prune(&RetentionPolicy { max_age: Some(50 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(pruned.originals, 134);
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(unfolds_exactly(&tenant, text.as_bytes()), at % 3 != 0, "{at}");
    }
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len()), (266, 0));
    // Nothing is left to do.
    let again = archive.prune(&RetentionPolicy { max_age: Some(50 * ONE_DAY), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(again.originals, 0);
}

/// Packs of single short originals are merged in the background during reads; no original is ever missing.
#[test]
fn small_packs_merge_during_reads() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let texts: Vec<Vec<u8>> = (0..300).map(|at| random_bytes(at, 1_500)).collect();
    let read = |text: &Vec<u8>| tenant.unfold(Handle::for_content(text).as_str()).unwrap().bytes == *text;
    for text in &texts {
        tenant.store(&[original(text)]).unwrap();
    }
    let started = Instant::now();
    while pack_count(&temp) > 200 {
        assert!(texts.iter().all(read));
        assert!(started.elapsed() < Duration::from_secs(60), "{} packs are left", pack_count(&temp));
    }
    assert!(texts.iter().all(read));
    drop(tenant);
    let verified = temp.open().verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len()), (300, 0));
}

/// `prune --namespace` pruned the originals of every tenant.
#[test]
fn tenant_is_pruned_and_verified_alone() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let other = foldline_archive::Namespace::new("other").unwrap();
    let (ours, theirs) = (archive.tenant(&foldline_archive::Namespace::local()), archive.tenant(&other));
    for (tenant, texts) in [(&ours, [&b"ours"[..], b"ours too"]), (&theirs, [b"theirs", b"theirs too"])] {
        tenant.store(&texts.map(original)).unwrap();
        texts.iter().for_each(|text| backdate(&temp, text, 100));
        tenant.record_fact("summary", b"f", b"fact").unwrap();
    }
    let policy = RetentionPolicy { max_age: Some(30 * ONE_DAY), max_bytes: Some(0), ..RetentionPolicy::default() };
    assert_eq!(ours.prune(&policy).unwrap().originals, 2);
    assert!(unfolds_exactly(&theirs, b"theirs") && unfolds_exactly(&theirs, b"theirs too"));
    assert_eq!(theirs.facts().unwrap().len(), 1);
    assert_eq!(archive.verify_namespace(&other, |_| ()).unwrap().intact, 2);
    assert_eq!(archive.verify_namespace(ours.namespace(), |_| ()).unwrap().intact, 0);
}

/// `prune --unused-for 0d` removed nothing and gave no reason.
#[test]
fn prune_reports_live_originals_above_the_age_limit() {
    let temp = TempArchive::new();
    let archive = temp.open();
    archive.tenant(&foldline_archive::Namespace::local()).store(&[original(b"a"), original(b"b")]).unwrap();
    backdate(&temp, b"a", 100);
    let policy = RetentionPolicy { max_age: Some(Duration::ZERO), ..RetentionPolicy::default() };
    let pruned = archive.prune(&policy).unwrap();
    assert_eq!((pruned.originals, pruned.live), (1, 1));
}
