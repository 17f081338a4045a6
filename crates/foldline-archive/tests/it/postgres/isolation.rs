//! Row-level security: with the conditions of the store removed it isolates tenants alone, in every call and table.

use std::collections::BTreeMap;
use std::time::Duration;

use foldline::{Handle, Original, OriginalStore};
use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::TestDatabase;
use foldline_archive::{
    Archive, ArchiveOptions, ErrorKind, JournalCheckpoint, JournalState, Namespace, ObjectStorage, RequestRecord,
    RetentionPolicy, TenantArchive,
};

use super::{original, tenant, unfolds};

/// Tables with data of tenants. A new table fails the test until it is protected, or an exception with a reason.
const TABLES: [&str; 12] = [
    "checkpoint",
    "document",
    "event",
    "hold",
    "index_size",
    "ledger",
    "namespace",
    "original",
    "pack",
    "request",
    "session",
    "unindexed",
];

/// Tables without data of tenants.
const COMMON_TABLES: [&str; 2] = ["migration", "setting"];

/// The only table that a statement without a condition reads across tenants: a policy on reading would keep the server from
/// using the index of its terms. It protects writing.
const READABLE: &str = "document";

const OLD: Duration = Duration::from_secs(1);

/// Stores something in every table except the queue of the index.
fn populate(tenant: &TenantArchive, text: &str) {
    let texts = [format!("secret {text}"), format!("recipe {text}"), "a text of both".to_owned()];
    let originals: Vec<Original<'_>> = texts.iter().map(|text| original(text.as_bytes())).collect();
    tenant.store(&originals).unwrap();
    tenant.record_fact("summary", b"fingerprint", text.as_bytes()).unwrap();
    let request = RequestRecord { model: text.to_owned(), raw_tokens: 10, ..RequestRecord::default() };
    tenant.append_request(&request).unwrap();
    tenant.append_event("creased", text.as_bytes()).unwrap();
    assert!(tenant.flush_journal(Duration::from_secs(20)).unwrap());
    assert_eq!(tenant.search(text, 0, 9).unwrap().total, 2);
    let position = tenant.events(0, 9).unwrap().last().unwrap().id;
    let deletions = tenant.journal_state().unwrap().deletions;
    let checkpoint = JournalCheckpoint { position, deletions, payload: text.as_bytes().to_vec() };
    assert!(tenant.write_journal_checkpoint(&checkpoint).unwrap());
}

/// Returns all rows of a tenant, by table.
fn rows_of(database: &TestDatabase, name: &str) -> BTreeMap<&'static str, Vec<Vec<String>>> {
    let rows = |table: &'static str| {
        let sql = format!(
            "SET foldline.tenant = '*'; SELECT t::text FROM foldline.{table} AS t
             WHERE t.tenant = (SELECT tenant FROM foldline.namespace WHERE name = '{name}') ORDER BY 1"
        );
        (table, database.query(&sql))
    };
    TABLES.into_iter().map(rows).collect()
}

/// Calls everything that reads, as a tenant without originals that the other has.
fn read_everything(archive: &Archive, theirs: &TenantArchive) {
    let secret = Handle::for_content(b"secret ours");
    for handle in [secret.as_str(), &secret.as_str()[..8]] {
        assert_eq!(theirs.unfold(handle).unwrap_err().kind(), &ErrorKind::NotFound, "{handle}");
    }
    assert!(unfolds(theirs, b"secret theirs") && unfolds(theirs, b"a text of both"));
    assert_eq!(theirs.search("ours", 0, 9).unwrap().total, 0);
    assert_eq!(theirs.search("secret recipe text", 0, 9).unwrap().total, 3);

    assert_eq!(theirs.fact("summary", b"fingerprint").unwrap().unwrap().payload, b"theirs");
    let ledger = theirs.session_ledger(Some("s")).unwrap();
    assert_eq!((ledger.facts.len(), &ledger.facts[0].payload[..]), (1, &b"theirs"[..]));
    assert_eq!(theirs.in_session("ours only").session_ledger(Some("of ours")).unwrap().facts, []);
    assert_eq!(theirs.facts().unwrap().len(), 1);

    let (sessions, requests, events) =
        (theirs.sessions(99).unwrap(), theirs.requests(0, 99).unwrap(), theirs.events(0, 99).unwrap());
    assert_eq!((sessions.len(), sessions[0].requests, sessions[0].raw_tokens), (1, 1, 10));
    assert_eq!((requests.len(), requests[0].model.as_str()), (1, "theirs"));
    assert_eq!((events.len(), &events[0].payload[..]), (1, &b"theirs"[..]));
    let state = theirs.journal_state().unwrap();
    assert_eq!(state, JournalState { deletions: 0, newest_event: events[0].id });
    assert_eq!(theirs.journal_checkpoint().unwrap().unwrap().payload, b"theirs");

    assert!(theirs.holds().unwrap().is_empty());
    let stats = theirs.stats().unwrap();
    assert_eq!((stats.available, stats.expired, stats.sessions), (3, 0, 1));
    assert_eq!((stats.tools.len(), stats.tools[0].originals), (1, 3));
    assert_eq!(theirs.used_bytes().unwrap(), stats.packed_bytes);
    let mut export = Vec::new();
    let exported = theirs.export(&mut export, |_| ()).unwrap();
    assert_eq!((exported.originals, exported.facts), (3, 1));
    let mut total_bytes = 0;
    let verified = archive.verify_namespace(theirs.namespace(), |at| total_bytes = at.total_bytes).unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), total_bytes), (3, 0, stats.bytes));
}

/// Calls everything that writes and deletes.
fn write_everything(theirs: &TenantArchive) {
    let fact = theirs.record_fact("summary", b"fingerprint of ours", b"of theirs").unwrap();
    assert_eq!(fact.payload, b"of theirs");
    theirs.touch(&[Handle::for_content(b"secret ours"), Handle::for_content(b"a text of both")]).unwrap();
    theirs.touch_session().unwrap();
    // The first is one of ours; they have the second too.
    let counts = theirs.store_durably(&[original(b"recipe ours"), original(b"a text of both")]).unwrap();
    assert_eq!((counts.added, counts.existing), (1, 1));
    assert!(theirs.flush_journal(Duration::from_secs(20)).unwrap());

    theirs.set_hold(Some("s"), "of theirs").unwrap();
    assert_eq!(theirs.holds().unwrap().len(), 1);
    assert_eq!(theirs.delete_session("s").unwrap_err().kind(), &ErrorKind::Held);
    assert!(theirs.release_hold(Some("s")).unwrap());
    assert!(!theirs.release_hold(Some("s")).unwrap() && !theirs.release_hold(None).unwrap(), "those of ours remain");

    assert_eq!(theirs.delete_original(Handle::for_content(b"secret ours")).unwrap().originals, 0);
    assert_eq!(theirs.delete_original(Handle::for_content(b"recipe ours")).unwrap().originals, 1);
    assert_eq!(theirs.delete_session("ours only").unwrap().originals, 0);
    let policy = RetentionPolicy { max_age: Some(OLD), max_bytes: Some(0), ..RetentionPolicy::default() };
    assert_eq!(theirs.prune(&policy).unwrap().originals, 2, "the third was touched");
    assert_eq!(theirs.delete_session("s").unwrap().originals, 3);
    theirs.delete_everything().unwrap();
    assert_eq!(theirs.journal_state().unwrap().newest_event, 0);
}

/// With the conditions of the store removed, row-level security alone lets nothing across.
fn check_isolation(database: &TestDatabase, objects: Option<&ObjectStorage>) {
    let options = ArchiveOptions { objects: objects.cloned(), ..ArchiveOptions::default() };
    let archive = database.open_with(options).unwrap();
    let ours = tenant(&archive, "ours");
    // A deletion makes the counters of the two different.
    ours.in_session("gone").append_event("creased", b"gone").unwrap();
    ours.delete_session("gone").unwrap();
    populate(&ours, "ours");
    ours.in_session("ours only").record_fact("summary", b"fingerprint of ours", b"of ours").unwrap();
    let unchecked = database.open_without_tenant_checks(objects);
    let theirs = tenant(&unchecked, "theirs");
    populate(&theirs, "theirs");
    for (name, limit) in [(None, "case 7"), (Some("s"), "case 8")] {
        ours.set_hold(name, limit).unwrap();
    }
    drop(archive);
    let age = "SET foldline.tenant = '*'; UPDATE foldline.original SET carried_at = 1;
         UPDATE foldline.event SET at = 1; UPDATE foldline.request SET at = 1; UPDATE foldline.ledger SET at = 1;
         INSERT INTO foldline.unindexed SELECT tenant, id FROM foldline.pack";
    database.query(age);
    let before = rows_of(database, "ours");
    let empty: Vec<_> = before.iter().filter(|(_, rows)| rows.is_empty()).collect();
    assert!(empty.is_empty(), "{empty:?}");

    read_everything(&unchecked, &theirs);
    assert!(unchecked.verify_namespace(&Namespace::new("unused").unwrap(), |_| ()).unwrap().intact == 0);
    write_everything(&theirs);
    drop(theirs);
    let after = rows_of(database, "ours");
    // Indexing takes packs of all tenants out of the queue.
    for (table, rows) in before.iter().filter(|(table, _)| **table != "unindexed") {
        assert_eq!(rows, &after[table], "{table}");
    }
    // The hook removes the conditions indeed: a condition on the role alone would pass this test too.
    assert!(unfolds(&tenant(&unchecked, "ours"), b"secret ours"));
}

#[test]
fn row_level_security_isolates_tenants_alone() {
    check_isolation(&database!(), None);
}

#[cfg(feature = "objects")]
#[test]
fn row_level_security_isolates_objects() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let storage = ObjectStorage { min_bytes: 0, ..ObjectStorage::new(url) };
    check_isolation(&database!(), Some(&storage));
}

/// A connection that names no tenant sees no rows, also not in a partition that it names; one that names a tenant sees its
/// rows only.
#[test]
fn rows_are_hidden_without_their_tenant() {
    let database = database!();
    for name in ["ours", "theirs"] {
        let tenant = tenant(&database.open(), name);
        populate(&tenant, name);
        tenant.set_hold(None, "case 7").unwrap();
    }
    database.query("SET foldline.tenant = '*'; INSERT INTO foldline.unindexed SELECT tenant, id FROM foldline.pack");
    let all = "SELECT relname FROM pg_class WHERE relnamespace = 'foldline'::regnamespace AND relkind IN ('r', 'p')
         AND NOT relispartition ORDER BY relname";
    let known: Vec<String> = database.query(all).into_iter().map(|mut row| row.remove(0)).collect();
    let mut expected: Vec<&str> = TABLES.into_iter().chain(COMMON_TABLES).collect();
    expected.sort_unstable();
    assert_eq!(known, expected, "a new table needs row-level security");

    let names = "SET foldline.tenant = '*'; SELECT tenant FROM foldline.namespace ORDER BY name";
    let tenants: Vec<String> = database.query(names).into_iter().map(|mut row| row.remove(0)).collect();
    let foreign = "00000000-0000-0000-0000-000000000000".to_owned();
    let read = |scope: &str, table: &str| {
        database.query(&format!("SET foldline.tenant = '{scope}'; SELECT DISTINCT tenant FROM foldline.{table}"))
    };
    for table in TABLES {
        let everyone = read("*", table);
        assert_eq!(everyone.len(), 2, "{table}");
        if table == READABLE {
            continue;
        }
        assert_eq!(database.query(&format!("SELECT 1 FROM foldline.{table}")).len(), 0, "{table}");
        assert_eq!((read("", table).len(), read(&foreign, table).len()), (0, 0), "{table}");
        assert_eq!(read(&tenants[0], table), [[tenants[0].clone()]], "{table}");
    }
    for partition in (0..8).flat_map(|part| [format!("original_{part}"), format!("pack_{part}")]) {
        assert_eq!(read("*", &partition).len(), 0, "{partition}");
    }
}

/// No statement changes or adds rows of another tenant, in any table.
#[test]
fn rows_of_other_tenants_cannot_be_written() {
    let database = database!();
    for name in ["ours", "theirs"] {
        let tenant = tenant(&database.open(), name);
        populate(&tenant, name);
        tenant.set_hold(None, "case 7").unwrap();
    }
    database.query("SET foldline.tenant = '*'; INSERT INTO foldline.unindexed SELECT tenant, id FROM foldline.pack");
    let names = "SET foldline.tenant = '*'; SELECT tenant FROM foldline.namespace ORDER BY name";
    let tenants: Vec<String> = database.query(names).into_iter().map(|mut row| row.remove(0)).collect();
    let before = rows_of(&database, "ours");
    for table in TABLES {
        for statement in [
            format!("DELETE FROM foldline.{table} WHERE tenant = '{}' RETURNING 1", tenants[0]),
            format!(
                "UPDATE foldline.{table} SET tenant = '{}' WHERE tenant = '{}' RETURNING 1",
                tenants[1], tenants[0]
            ),
        ] {
            let changed = database.query(&format!("SET foldline.tenant = '{}'; {statement}", tenants[1]));
            assert!(changed.is_empty(), "{statement}");
        }
        // A row of theirs cannot become one of ours.
        let message = format!(
            "SET foldline.tenant = '{}';
             CREATE TEMPORARY TABLE outcome (message text);
             DO $$ BEGIN
                 UPDATE foldline.{table} SET tenant = '{}';
                 INSERT INTO outcome VALUES ('written');
             EXCEPTION WHEN insufficient_privilege THEN INSERT INTO outcome VALUES ('refused');
             END $$;
             SELECT message FROM outcome",
            tenants[1], tenants[0]
        );
        assert_eq!(database.query(&message), [["refused"]], "{table}");
    }
    let after = rows_of(&database, "ours");
    assert_eq!(before, after);
}
