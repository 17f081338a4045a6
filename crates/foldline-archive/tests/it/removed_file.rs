//! The archive's file is removed, moved or replaced while it is open.

use foldline::{Handle, OriginalStore};
use foldline_archive::{Archive, ErrorKind, Namespace, TenantArchive};

use crate::support::{TempArchive, original, random_bytes};

fn unfold_kind(tenant: &TenantArchive, bytes: &[u8]) -> Option<ErrorKind> {
    tenant.unfold(Handle::for_content(bytes).as_str()).err().map(|error| error.kind().clone())
}

/// `rm archive.db` under a running proxy: handles were still issued, and all of them were lost at exit.
#[test]
fn removed_archive_fails_once_and_is_reopened() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"first")]).unwrap();
    let generation = tenant.generation();
    std::fs::remove_file(temp.path()).unwrap();
    let error = tenant.store_durably(&[original(b"second")]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Replaced, "{error}");
    assert!(tenant.generation() > generation);
    assert_eq!(unfold_kind(&tenant, b"first"), Some(ErrorKind::NotFound));

    tenant.store(&[original(b"second")]).unwrap();
    assert_eq!(tenant.search("second", 0, 9).unwrap().total, 1);
    drop(tenant);
    let tenant = temp.open_read_only().unwrap().tenant(&Namespace::local());
    assert_eq!(unfold_kind(&tenant, b"second"), None);
}

/// Between the write and the sync, which precedes the client's response.
#[test]
fn archive_removed_before_the_sync_fails_the_sync() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store_unsynced(&[original(b"text")]).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(temp.folder.path().join(format!("archive.db{suffix}"))).unwrap();
    }
    let error = tenant.request_sync().wait().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Replaced, "{error}");
    assert_eq!(tenant.store_durably(&[original(b"text")]).unwrap_err().kind(), &ErrorKind::Replaced);
    tenant.store(&[original(b"text")]).unwrap();
    assert_eq!(unfold_kind(&tenant, b"text"), None);
}

#[test]
fn missing_folder_fails_until_it_is_back() {
    let temp = TempArchive::new();
    let folder = temp.folder.path().join("data");
    let tenant = Archive::open(folder.join("archive.db")).unwrap().tenant(&Namespace::local());
    std::fs::remove_dir_all(&folder).unwrap();
    // A file in the place of the folder: it cannot be created again.
    std::fs::write(&folder, "").unwrap();
    for _ in 0..2 {
        assert!(tenant.store_durably(&[original(b"text")]).is_err());
        assert!(unfold_kind(&tenant, b"text").is_some());
    }
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(tenant.store_durably(&[original(b"text")]).unwrap_err().kind(), &ErrorKind::Replaced);
    tenant.store(&[original(b"text")]).unwrap();
    assert_eq!(unfold_kind(&tenant, b"text"), None);
}

/// A backup is restored over a running archive: the log of the old file must not be applied to the new one.
#[test]
fn replaced_archive_does_not_get_the_old_log() {
    let (temp, backup) = (TempArchive::new(), TempArchive::new());
    let texts: Vec<Vec<u8>> = (0..50).map(|at| random_bytes(at, 3_000)).collect();
    backup.local_tenant().store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    let archive = temp.open();
    let tenant = archive.tenant(&Namespace::local());
    for at in 100..130 {
        tenant.store(&[original(&random_bytes(at, 3_000))]).unwrap();
    }
    std::fs::rename(backup.path(), temp.path()).unwrap();
    assert_eq!(tenant.store_durably(&[original(b"new")]).unwrap_err().kind(), &ErrorKind::Replaced);
    tenant.store(&[original(b"new")]).unwrap();
    assert!(texts.iter().all(|text| unfold_kind(&tenant, text).is_none()));
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), verified.structure_errors.len()), (51, 0, 0));
}

#[test]
fn moved_archive_is_complete() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let texts: Vec<Vec<u8>> = (0..50).map(|at| random_bytes(at, 3_000)).collect();
    for text in &texts {
        tenant.store(&[original(text)]).unwrap();
    }
    let moved = temp.folder.path().join("moved.db");
    std::fs::rename(temp.path(), &moved).unwrap();
    assert!(tenant.store_durably(&[original(b"new")]).is_err());
    tenant.store(&[original(b"new")]).unwrap();
    let moved = Archive::open(moved).unwrap().tenant(&Namespace::local());
    assert!(texts.iter().all(|text| unfold_kind(&moved, text).is_none()));
    assert_eq!(unfold_kind(&tenant, &texts[0]), Some(ErrorKind::NotFound));
}

/// The log cannot be synced for a while: the next sync writes everything again.
#[test]
fn failed_sync_is_repeated_with_a_checkpoint() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store_unsynced(&[original(b"text")]).unwrap();
    let (log, away) = (temp.folder.path().join("archive.db-wal"), temp.folder.path().join("away"));
    std::fs::rename(&log, &away).unwrap();
    assert!(tenant.request_sync().wait().is_err());
    std::fs::rename(&away, &log).unwrap();
    tenant.request_sync().wait().unwrap();
    // The file alone has it now.
    let copy = TempArchive::new();
    std::fs::copy(temp.path(), copy.path()).unwrap();
    assert_eq!(unfold_kind(&copy.local_tenant(), b"text"), None);
}
