//! Disks that are full, read-only, or lose data.

use std::path::Path;

use foldline::{Handle, OriginalStore};
use foldline_archive::{AccessMode, Archive, ArchiveOptions, ErrorKind, Namespace, TenantArchive};

use crate::small_disk::SmallDisk;
use crate::support::{TempArchive, original, random_bytes};

fn open_read_only(path: &Path) -> TenantArchive {
    let options = ArchiveOptions { access: AccessMode::ReadOnly, ..ArchiveOptions::default() };
    Archive::open_with(path, options).unwrap().tenant(&Namespace::local())
}

/// A store call that does not fit is an error; earlier originals remain, and later calls succeed once there is space.
#[test]
fn full_disk_loses_no_stored_original() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let path = disk.path().join("archive.db");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 500_000]).unwrap();
    let tenant = Archive::open(&path).unwrap().tenant(&Namespace::local());
    let mut stored = Vec::new();
    let error = loop {
        let bytes = random_bytes(stored.len() as u64, 50_000);
        match tenant.store_durably(&[original(&bytes)]) {
            Ok(_) => stored.push(bytes),
            Err(error) => break error,
        }
        assert!(stored.len() < 1000, "the disk never filled");
    };
    assert!(stored.len() > 10, "{} were held", stored.len());
    assert_eq!(error.kind(), &ErrorKind::DiskFull, "{error}");
    let all_available = |tenant: &TenantArchive| {
        stored.iter().all(|bytes| {
            tenant.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == *bytes)
        })
    };
    assert!(all_available(&tenant));
    assert!(tenant.store_durably(&[original(&random_bytes(5000, 50_000))]).is_err());
    std::fs::remove_file(&ballast).unwrap();
    tenant.store(&[original(&random_bytes(5001, 50_000))]).unwrap();
    assert!(all_available(&tenant));
    drop(tenant);
    assert!(all_available(&open_read_only(&path)));
}

#[test]
fn read_only_disk_can_be_read() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let path = disk.path().join("archive.db");
    Archive::open(&path).unwrap().tenant(&Namespace::local()).store(&[original(b"a needle in hay")]).unwrap();
    disk.make_read_only();
    let error = Archive::open(&path).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::ReadOnly, "{error}");
    let tenant = open_read_only(&path);
    assert_eq!(tenant.unfold(Handle::for_content(b"a needle in hay").as_str()).unwrap().bytes, b"a needle in hay");
    assert_eq!(tenant.search("needle", 0, 10).unwrap().total, 1);
    assert_eq!(tenant.store_durably(&[original(b"x")]).unwrap_err().kind(), &ErrorKind::ReadOnly);
}

/// Wherever the file was cut off, originals are either exact or an error.
#[test]
fn truncated_file_yields_no_wrong_bytes() {
    let temp = TempArchive::new();
    let texts: Vec<Vec<u8>> = (0..60).map(|at| random_bytes(at, 3000)).collect();
    {
        let tenant = temp.local_tenant();
        for text in &texts {
            tenant.store(&[original(text)]).unwrap();
        }
    }
    let whole = std::fs::read(temp.path()).unwrap();
    let mut exact = 0;
    for cut in (0..20).map(|at| whole.len() * at / 20 + at) {
        std::fs::write(temp.path(), &whole[..cut]).unwrap();
        let _ = std::fs::remove_file(temp.path().with_extension("db-wal"));
        // A store call into the truncated file either fails or is readable.
        if let Ok(archive) = Archive::open(temp.path()) {
            let tenant = archive.tenant(&Namespace::local());
            let bytes = random_bytes(1000, 3000);
            if tenant.store(&[original(&bytes)]).is_ok() {
                assert!(tenant.unfold(Handle::for_content(&bytes).as_str()).unwrap().bytes == bytes);
            }
        }
        std::fs::write(temp.path(), &whole[..cut]).unwrap();
        let _ = std::fs::remove_file(temp.path().with_extension("db-wal"));
        let Ok(archive) = temp.open_read_only() else { continue };
        let tenant = archive.tenant(&Namespace::local());
        for text in &texts {
            match tenant.unfold(Handle::for_content(text).as_str()) {
                Ok(unfolded) => {
                    assert!(unfolded.bytes == *text);
                    exact += 1;
                }
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::NotAnArchive),
                    "{error:?}"
                ),
            }
        }
        assert!(archive.verify(|_| ()).is_err() || !archive.verify(|_| ()).unwrap().structure_errors.is_empty());
    }
    println!("{exact} originals were read from truncated files");
}

#[test]
fn copied_archive_is_independent() {
    let (temp, copy) = (TempArchive::new(), TempArchive::new());
    temp.local_tenant().store(&[original(b"before the copy")]).unwrap();
    assert_eq!(temp.local_tenant().search("copy", 0, 9).unwrap().total, 1);
    for suffix in ["", ".index"] {
        let name = format!("archive.db{suffix}");
        std::fs::copy(temp.folder.path().join(&name), copy.folder.path().join(&name)).unwrap();
    }
    temp.local_tenant().store(&[original(b"later, in the first")]).unwrap();
    assert_eq!(temp.local_tenant().search("later", 0, 9).unwrap().total, 1);
    copy.local_tenant().store(&[original(b"later, in the copy")]).unwrap();
    assert_eq!(copy.local_tenant().search("later", 0, 9).unwrap().total, 1);

    // The copy replaces the original, whose index has seen another text under the same id.
    std::fs::copy(copy.path(), temp.path()).unwrap();
    let found = temp.local_tenant().search("later", 0, 9).unwrap();
    assert_eq!(found.hits.iter().map(|hit| hit.snippet.as_str()).collect::<Vec<_>>(), ["later, in the copy"]);
}

/// A copy of an archive whose process was killed: its log is not empty, and nothing can be created next to it.
#[test]
fn read_only_archive_with_a_log_can_be_unfolded() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"a needle in hay")]).unwrap();
    let path = disk.path().join("archive.db");
    for suffix in ["", "-wal"] {
        let name = format!("archive.db{suffix}");
        std::fs::copy(temp.folder.path().join(&name), disk.path().join(&name)).unwrap();
    }
    assert!(std::fs::metadata(disk.path().join("archive.db-wal")).unwrap().len() > 0);
    disk.make_read_only();
    let tenant = open_read_only(&path);
    assert_eq!(tenant.unfold(Handle::for_content(b"a needle in hay").as_str()).unwrap().bytes, b"a needle in hay");
    assert_eq!(tenant.search("needle", 0, 10).unwrap().total, 1);
}
