//! The PostgreSQL store: the conformance suite, isolation of tenants, concurrent starts, holds. Needs a server: run it
//! with `cargo xtask postgres cargo nextest run -p foldline-archive --features postgres,testing`.

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::{TestDatabase, wait_for};
use foldline_archive::{Archive, ErrorKind, Namespace, RetentionPolicy, TenantArchive};

/// Returns the server for tests; ends the test if there is none.
macro_rules! database {
    () => {
        match std::env::var("TEST_POSTGRES_URL") {
            Ok(url) => TestDatabase::create(&url),
            Err(_) => {
                println!("skipped: needs a PostgreSQL server, see `cargo xtask postgres`");
                return;
            }
        }
    };
}

mod conformance {
    use super::TestDatabase;

    foldline_archive::store_conformance!(database!());
}

mod audit;
mod isolation;
#[cfg(feature = "objects")]
mod objects;

fn original(bytes: &[u8]) -> Original<'_> {
    let handle = Handle::for_content(bytes);
    Original { handle, bytes, tool: Some("read_file"), arguments: None, message: 3, tokens: bytes.len() as u64 / 4 }
}

fn tenant(archive: &Archive, name: &str) -> TenantArchive {
    archive.tenant(&Namespace::new(name).unwrap()).in_session("s")
}

fn unfolds(tenant: &TenantArchive, bytes: &[u8]) -> bool {
    tenant.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == bytes)
}

/// Eight replicas that start at once migrate the database once.
#[test]
fn concurrent_starts_migrate_once() {
    let database = database!();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(database.open().namespace_for_credential(b"key").is_ok()));
        }
    });
    assert_eq!(
        database.query("SELECT version FROM foldline.migration ORDER BY 1"),
        [["1"], ["2"], ["3"], ["4"], ["5"]]
    );
    assert_eq!(database.query("SELECT count(*) FROM foldline.setting"), [["3"]]);
}

/// A start that waited for the migration of another one did not see its tables, and created them again.
#[test]
fn waiting_start_sees_the_tables_of_another() {
    let database = database!();
    // The tables of a newer version, created while the other start waits for the lock of the migrations.
    let migration = "BEGIN; SELECT pg_advisory_xact_lock(x'666f6c646c696e65'::bigint);
         CREATE SCHEMA foldline;
         CREATE TABLE foldline.migration (version bigint PRIMARY KEY, applied_at bigint NOT NULL, what text NOT NULL);
         INSERT INTO foldline.migration VALUES (1000, 0, 'of another start');
         DO $$ BEGIN
             WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
             LOOP PERFORM pg_sleep(0.02); END LOOP;
         END $$; COMMIT";
    let is_locked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    std::thread::scope(|scope| {
        scope.spawn(|| database.query(migration));
        wait_for("the other start has the lock", || !database.query(is_locked).is_empty());
        let error = database.open_with(Default::default()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooNew { found: 1000, .. }), "{error}");
    });
}

/// A newer schema is refused, and so is a database without an archive that is opened for reading.
#[test]
fn foreign_schemas_are_refused() {
    let database = database!();
    let read_only =
        foldline_archive::ArchiveOptions { access: foldline_archive::AccessMode::ReadOnly, ..Default::default() };
    assert_eq!(database.open_with(read_only.clone()).unwrap_err().kind(), &ErrorKind::NotAnArchive);
    drop(database.open());
    assert!(database.open_with(read_only).is_ok());
    database.query("INSERT INTO foldline.migration VALUES (1000, 0, 'of the future')");
    let error = database.open_with(Default::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooNew { found: 1000, .. }), "{error}");
}

/// Held data is neither expired nor deleted, until the hold is released.
#[test]
fn held_data_stays() {
    let database = database!();
    let archive = database.open();
    let held = tenant(&archive, "ours").in_session("held");
    let free = tenant(&archive, "ours").in_session("free");
    held.store(&[original(b"held text")]).unwrap();
    free.store(&[original(b"free text")]).unwrap();
    held.set_hold(Some("held"), "case 7").unwrap();
    assert_eq!(held.holds().unwrap().len(), 1);
    database.query("SET foldline.tenant = '*'; UPDATE foldline.original SET carried_at = 1");
    let policy = RetentionPolicy { max_age: Some(std::time::Duration::ZERO), ..RetentionPolicy::default() };
    assert_eq!(archive.prune(&policy).unwrap().originals, 1);
    assert!(unfolds(&held, b"held text") && !unfolds(&free, b"free text"));
    for refused in [
        held.delete_session("held").unwrap_err(),
        held.delete_original(Handle::for_content(b"held text")).unwrap_err(),
        held.delete_everything().unwrap_err(),
    ] {
        assert_eq!(refused.kind(), &ErrorKind::Held, "{refused}");
    }
    assert!(free.delete_session("free").is_ok());
    assert!(held.release_hold(Some("held")).unwrap() && !held.release_hold(Some("held")).unwrap());
    held.set_hold(None, "case 8").unwrap();
    assert_eq!(held.delete_session("held").unwrap_err().kind(), &ErrorKind::Held);
    assert!(held.release_hold(None).unwrap());
    assert_eq!(held.delete_session("held").unwrap().originals, 1);
}

/// A hold of a session covers the ledgers of its conversations, also if they belong to another session as well.
#[test]
fn held_conversations_stay() {
    let database = database!();
    let archive = database.open();
    let ours = tenant(&archive, "ours");
    let [first, later] = ["c-1", "c-2"].map(|name| ours.in_session(name));
    let write = |session: &TenantArchive| session.write_fact("folds", b"f", b"payload").unwrap();
    write(&first);
    write(&later);
    first.join_session("held").unwrap();
    first.join_session("free").unwrap();
    ours.set_hold(Some("held"), "case 7").unwrap();
    later.join_session("held").unwrap();
    let policy = RetentionPolicy { max_age: Some(std::time::Duration::ZERO), ..RetentionPolicy::default() };
    archive.prune(&policy).unwrap();
    assert_eq!(ours.delete_session("held").unwrap_err().kind(), &ErrorKind::Held);
    ours.delete_session("free").unwrap();
    assert_eq!([first.facts().unwrap().len(), later.facts().unwrap().len()], [1, 1]);
    assert!(ours.release_hold(Some("held")).unwrap());
    assert!(ours.holds().unwrap().is_empty());
    ours.delete_session("held").unwrap();
    assert_eq!([first.facts().unwrap().len(), later.facts().unwrap().len()], [0, 0]);
}

/// A deleted text is in no pack, also if it was packed with others.
#[test]
fn deleted_text_leaves_its_pack() {
    let database = database!();
    let ours = tenant(&database.open(), "ours");
    ours.store(&[original(b"kept text"), original(b"deleted text")]).unwrap();
    let packs = "SET foldline.tenant = '*'; SELECT id, length FROM foldline.pack";
    let before = database.query(packs);
    assert_eq!(ours.delete_original(Handle::for_content(b"deleted text")).unwrap().originals, 1);
    let after = database.query(packs);
    assert!(unfolds(&ours, b"kept text"));
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before[0][0], after[0][0], "the pack was not written again");
    assert!(after[0][1].parse::<u64>().unwrap() < before[0][1].parse::<u64>().unwrap());
}

/// An unfold read all packs and sessions of its tenant: row-level security made the server expect few of them.
#[test]
fn unfold_reads_one_pack_and_session() {
    let database = database!();
    let rows_read = |table: &str| -> u64 {
        let sql = format!(
            "SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0) FROM pg_stat_user_tables
             WHERE relname ~ '^{table}(_[0-9])?$'"
        );
        database.query(&sql)[0][0].parse().unwrap()
    };
    let texts: Vec<String> = (0..100).map(|at| format!("text {at}")).collect();
    for (at, text) in texts.iter().enumerate() {
        let ours = tenant(&database.open(), "ours").in_session(format!("s-{at}"));
        ours.store(&[original(text.as_bytes())]).unwrap();
    }
    // The server counts when a connection ends.
    let stored = ["original", "pack", "session"].map(&rows_read);
    let ours = tenant(&database.open(), "ours");
    assert!(texts.iter().all(|text| unfolds(&ours, text.as_bytes())));
    drop(ours);
    wait_for("the server counts", || rows_read("original") >= stored[0] + 100);
    for (table, stored) in ["original", "pack", "session"].into_iter().zip(stored) {
        let read = rows_read(table) - stored;
        // Connections of the first loop may be counted late.
        assert!(read < 400, "100 unfolds read {read} rows of {table}");
    }
}

/// Names with a NUL character, which PostgreSQL cannot store, are stored without it.
#[test]
fn nul_characters_are_no_error() {
    let database = database!();
    let ours = tenant(&database.open(), "ours").in_session("a\0b");
    ours.store(&[Original { tool: Some("t\0"), ..original(b"text\0") }]).unwrap();
    ours.record_fact("cold", b"\0", b"\0").unwrap();
    assert!(unfolds(&ours, b"text\0"));
    assert_eq!(ours.facts().unwrap().len(), 1);
}

/// A store whose database does not exist fails at once, one whose server is absent opens and fails in a bounded time.
#[test]
fn absent_database_fails_in_time() {
    let database = database!();
    let missing = database.url().replace("/t", "/missing_");
    assert_eq!(Archive::open(missing).unwrap_err().kind(), &ErrorKind::InvalidInput);
    let archive = Archive::open("postgres://unknown@127.0.0.1:1/none").unwrap();
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        let error = tenant(&archive, "ours").store_durably(&[original(b"text")]).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(archive.health().outage.is_some());
}

/// A file is copied with its identity, and a second run copies only what is new.
#[test]
fn file_migrates_and_continues() {
    let database = database!();
    let folder = tempfile::tempdir().unwrap();
    let file = Archive::open(folder.path().join("archive.db")).unwrap();
    let by_key = file.namespace_for_credential(b"sk-secret").unwrap();
    let texts: Vec<Vec<u8>> = (0..60_u32).map(|at| at.to_le_bytes().repeat(700)).collect();
    for namespace in [Namespace::local(), by_key.clone()] {
        let from = file.tenant(&namespace).in_session("s-1");
        from.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
        from.record_fact("cold", &[0, 255], b"payload").unwrap();
    }
    let target = database.open();
    let mut done = 0;
    let report = file.migrate_to(&target, |progress| done = progress.done_bytes).unwrap();
    assert_eq!((report.added, report.existing, report.facts), (120, 0, 2));
    assert_eq!((report.damaged, report.failed.len(), done), (0, 0, 2 * 60 * 2_800));
    assert_eq!(target.namespace_for_credential(b"sk-secret").unwrap(), by_key);
    for namespace in [Namespace::local(), by_key] {
        let (from, to) = (file.tenant(&namespace), target.tenant(&namespace));
        for text in &texts {
            let handle = Handle::for_content(text);
            assert_eq!(from.unfold(handle.as_str()).unwrap(), to.unfold(handle.as_str()).unwrap());
        }
        assert_eq!(to.in_session("s-1").facts().unwrap(), from.in_session("s-1").facts().unwrap());
    }
    file.tenant(&Namespace::local()).store(&[original(b"stored later")]).unwrap();
    let again = file.migrate_to(&database.open(), |_| ()).unwrap();
    assert_eq!((again.added, again.existing, again.facts), (1, 120, 0));
    // Another file would change the namespaces of credentials.
    let other = Archive::open(folder.path().join("other.db")).unwrap();
    assert_eq!(other.migrate_to(&target, |_| ()).unwrap_err().kind(), &ErrorKind::InvalidInput);
    assert_eq!(target.migrate_to(&other, |_| ()).unwrap_err().kind(), &ErrorKind::InvalidInput);
}

/// Held data could be deleted after a migration.
#[test]
fn holds_are_migrated() {
    let (source, target) = (database!(), database!());
    let (from, to) = (source.open(), target.open());
    let (ours, theirs) = (tenant(&from, "ours"), tenant(&from, "theirs"));
    ours.store(&[original(b"held text")]).unwrap();
    theirs.store(&[original(b"their text")]).unwrap();
    ours.set_hold(Some("s"), "case 7").unwrap();
    theirs.set_hold(None, "case 8").unwrap();
    // A hold may come before the data.
    tenant(&from, "later").set_hold(None, "case 9").unwrap();
    assert_eq!(from.migrate_to(&to, |_| ()).unwrap().holds, 3);
    for name in ["ours", "theirs", "later"] {
        assert_eq!(tenant(&to, name).holds().unwrap(), tenant(&from, name).holds().unwrap());
        assert_eq!(tenant(&to, name).delete_everything().unwrap_err().kind(), &ErrorKind::Held);
    }
    assert_eq!(tenant(&to, "ours").delete_session("s").unwrap_err().kind(), &ErrorKind::Held);
    assert_eq!(from.migrate_to(&to, |_| ()).unwrap().holds, 0, "a second run copies what is new");
}
