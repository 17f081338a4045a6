//! The audit log of an archive in PostgreSQL.

use std::path::Path;

use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::TestDatabase;
use foldline_archive::{ErrorKind, Namespace};

use crate::audit::{audited, check_appending, check_reads_and_deletions, entries};

fn open_audited(database: &TestDatabase, log: &Path) -> foldline_archive::Archive {
    database.open_with(audited(log)).unwrap()
}

#[test]
fn reads_and_deletions_are_recorded() {
    let database = database!();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    check_reads_and_deletions(&open_audited(&database, &log), &log);
}

/// A full disk, as Linux imitates it.
#[cfg(target_os = "linux")]
#[test]
fn action_that_cannot_be_recorded_is_refused() {
    let database = database!();
    crate::audit::check_refused_actions(&database.open(), &open_audited(&database, Path::new("/dev/full")));
}

#[test]
fn replicas_append_to_one_log() {
    let database = database!();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    check_appending(|| open_audited(&database, &log), &log);
}

#[test]
fn holds_and_releases_are_recorded() {
    let database = database!();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    let tenant = open_audited(&database, &log).tenant(&Namespace::new("ours").unwrap());
    tenant.set_hold(Some("s-1"), "case 7").unwrap();
    tenant.set_hold(None, "case 8").unwrap();
    assert_eq!(tenant.delete_everything().unwrap_err().kind(), &ErrorKind::Held);
    assert!(tenant.release_hold(Some("s-1")).unwrap());
    assert!(!tenant.release_hold(Some("s-1")).unwrap(), "an attempt is recorded too");
    assert!(tenant.release_hold(None).unwrap());
    let line = |action: &str, session: &str, reason: &str| [action, "ours", session, "", reason].map(str::to_owned);
    let expected = [
        line("hold", "s-1", "case 7"),
        line("hold", "", "case 8"),
        line("delete", "", ""),
        line("release", "s-1", ""),
        line("release", "s-1", ""),
        line("release", "", ""),
    ];
    assert_eq!(entries(&log), expected);
}

/// A migration of holds is a line for each in the log of the target.
#[test]
fn migrated_holds_are_recorded() {
    let (source, target) = (database!(), database!());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.jsonl");
    let from = source.open();
    from.tenant(&Namespace::local()).set_hold(Some("s-1"), "case 7").unwrap();
    from.migrate_to(&open_audited(&target, &log), |_| ()).unwrap();
    assert_eq!(entries(&log), [["hold", "local", "s-1", "", "case 7"].map(str::to_owned)]);
}
