//! The audit log has a line for every read and deletion, and nothing of the contents.

use std::path::Path;

use foldline::OriginalStore;
use foldline_archive::{Archive, ArchiveOptions, AuditLog, ErrorKind, Namespace, RetentionPolicy};

use crate::support::{TempArchive, original};

fn open_audited(archive: &TempArchive, log: &Path) -> Archive {
    let audit = AuditLog::open(log, "test").unwrap();
    Archive::open_with(archive.path(), ArchiveOptions { audit: Some(audit), ..ArchiveOptions::default() }).unwrap()
}

/// Returns the action, namespace, session and handle of each line.
fn entries(log: &Path) -> Vec<[String; 4]> {
    let text = std::fs::read_to_string(log).unwrap();
    let entry = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["at"].is_i64() && line["source"] == "test" && line["process"].is_u64(), "{line}");
        ["action", "namespace", "session", "handle"].map(|name| line[name].as_str().unwrap_or_default().to_owned())
    };
    text.lines().map(entry).collect()
}

#[test]
fn reads_and_deletions_are_recorded() {
    let temp = TempArchive::new();
    let log = temp.folder.path().join("audit.jsonl");
    let archive = open_audited(&temp, &log);
    let tenant = archive.tenant(&Namespace::local()).in_session("s-1");
    let (first, second) = (original(b"a confidential text"), original(b"another text"));
    tenant.store(&[first, second]).unwrap();
    assert!(entries(&log).is_empty(), "storing is not recorded");

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
        [action, namespace, session, handle].map(str::to_owned)
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
    assert_eq!(entries(&log), expected);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("confidential"));
}

/// A full disk, as Linux imitates it.
#[cfg(target_os = "linux")]
#[test]
fn action_that_cannot_be_recorded_is_refused() {
    let temp = TempArchive::new();
    let secret = original(b"a text");
    temp.local_tenant().store(&[secret]).unwrap();
    let tenant = open_audited(&temp, Path::new("/dev/full")).tenant(&Namespace::local());
    assert_eq!(tenant.unfold(secret.handle.as_str()).unwrap_err().kind(), &ErrorKind::DiskFull);
    assert_eq!(tenant.delete_everything().unwrap_err().kind(), &ErrorKind::DiskFull);
    assert!(temp.local_tenant().unfold(secret.handle.as_str()).is_ok(), "it was not deleted");
}

#[test]
fn processes_append_to_one_log() {
    let temp = TempArchive::new();
    let log = temp.folder.path().join("audit.jsonl");
    let text = original(b"a text");
    temp.local_tenant().store(&[text]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tenant = open_audited(&temp, &log).tenant(&Namespace::local());
                (0..50).for_each(|_| drop(tenant.unfold(text.handle.as_str()).unwrap()));
            });
        }
    });
    assert_eq!(entries(&log).len(), 200);
    #[cfg(unix)]
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&log.metadata().unwrap().permissions()) & 0o777, 0o600);
}
