//! The audit log has a line for every read and deletion, and nothing of the contents. The checks here run on every store.

use std::path::Path;

use foldline::OriginalStore;
use foldline_archive::{Archive, ArchiveOptions, AuditLog, ErrorKind, Namespace, RetentionPolicy};

use crate::support::{TempArchive, original};

/// Returns the options of an archive that writes this log.
pub(crate) fn audited(log: &Path) -> ArchiveOptions {
    ArchiveOptions { audit: Some(AuditLog::open(log, "test").unwrap()), ..ArchiveOptions::default() }
}

fn open_audited(archive: &TempArchive, log: &Path) -> Archive {
    Archive::open_with(archive.path(), audited(log)).unwrap()
}

/// Returns the action, namespace, session, handle and reason of each line.
pub(crate) fn entries(log: &Path) -> Vec<[String; 5]> {
    let text = std::fs::read_to_string(log).unwrap();
    let entry = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["at"].is_i64() && line["source"] == "test" && line["process"].is_u64(), "{line}");
        ["action", "namespace", "session", "handle", "reason"]
            .map(|name| line[name].as_str().unwrap_or_default().to_owned())
    };
    text.lines().map(entry).collect()
}

#[test]
fn reads_and_deletions_are_recorded() {
    let temp = TempArchive::new();
    let log = temp.folder.path().join("audit.jsonl");
    check_reads_and_deletions(&open_audited(&temp, &log), &log);
}

/// Checks the lines of all reads and deletions of an empty archive.
pub(crate) fn check_reads_and_deletions(archive: &Archive, log: &Path) {
    let tenant = archive.tenant(&Namespace::local()).in_session("s-1");
    let (first, second) = (original(b"a confidential text"), original(b"another text"));
    tenant.store(&[first, second]).unwrap();
    assert!(entries(log).is_empty(), "storing is not recorded");

    tenant.unfold(&first.handle.as_str()[..9]).unwrap();
    assert_eq!(tenant.unfold("000000000000").unwrap_err().kind(), &ErrorKind::NotFound);
    tenant.search("confidential", 0, 5).unwrap();
    tenant.export(std::io::sink(), |_| {}).unwrap();
    tenant.delete_original(second.handle).unwrap();
    tenant.delete_session("s-0").unwrap();
    archive.prune(&RetentionPolicy::default()).unwrap();
    tenant.prune(&RetentionPolicy::default()).unwrap();
    archive.delete_everything().unwrap();

    let line = |action: &str, namespace: &str, session: &str, handle: &str| {
        [action, namespace, session, handle, ""].map(str::to_owned)
    };
    let expected = [
        line("unfold", "local", "s-1", first.handle.as_str()),
        line("search", "local", "s-1", ""),
        line("export", "local", "s-1", ""),
        line("delete", "local", "s-1", second.handle.as_str()),
        line("delete", "local", "s-0", ""),
        line("prune", "", "", ""),
        line("prune", "local", "s-1", ""),
        line("delete", "local", "", ""),
    ];
    assert_eq!(entries(log), expected);
    assert!(!std::fs::read_to_string(log).unwrap().contains("confidential"));
}

/// A full disk, as Linux imitates it.
#[cfg(target_os = "linux")]
#[test]
fn action_that_cannot_be_recorded_is_refused() {
    let temp = TempArchive::new();
    check_refused_actions(&temp.open(), &open_audited(&temp, Path::new("/dev/full")));
}

/// Checks that an archive whose log is full reads and deletes nothing. The other archive is the same without a log.
#[cfg(target_os = "linux")]
pub(crate) fn check_refused_actions(archive: &Archive, full: &Archive) {
    let secret = original(b"a text");
    let (unaudited, tenant) = (archive.tenant(&Namespace::local()), full.tenant(&Namespace::local()));
    unaudited.store(&[secret]).unwrap();
    for refused in [
        tenant.unfold(secret.handle.as_str()).unwrap_err(),
        tenant.search("text", 0, 5).unwrap_err(),
        tenant.export(std::io::sink(), |_| {}).unwrap_err(),
        tenant.delete_original(secret.handle).unwrap_err(),
        tenant.delete_session("s").unwrap_err(),
        tenant.delete_everything().unwrap_err(),
        tenant.prune(&RetentionPolicy::default()).unwrap_err(),
        tenant.set_hold(None, "case 7").unwrap_err(),
        tenant.release_hold(None).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), &ErrorKind::DiskFull, "{refused}");
    }
    assert!(unaudited.unfold(secret.handle.as_str()).is_ok(), "it was not deleted");
    assert!(unaudited.holds().unwrap().is_empty());
}

#[test]
fn processes_append_to_one_log() {
    let temp = TempArchive::new();
    let log = temp.folder.path().join("audit.jsonl");
    check_appending(|| open_audited(&temp, &log), &log);
    #[cfg(unix)]
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&log.metadata().unwrap().permissions()) & 0o777, 0o600);
}

/// Checks that lines of archives that write the same log at the same time do not mix.
pub(crate) fn check_appending(open: impl Fn() -> Archive + Sync, log: &Path) {
    let text = original(b"a text");
    open().tenant(&Namespace::local()).store(&[text]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tenant = open().tenant(&Namespace::local());
                (0..50).for_each(|_| drop(tenant.unfold(text.handle.as_str()).unwrap()));
            });
        }
    });
    assert_eq!(entries(log).len(), 200);
}
