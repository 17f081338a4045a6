//! Disks that are full, read-only, or gave back less than they were given.

use std::path::Path;

use foldline::{Handle, OriginalStore};
use foldline_archive::{AccessMode, Archive, ArchiveOptions, ErrorKind, Namespace, TenantArchive};

use crate::small_disk::SmallDisk;
use crate::support::{TempArchive, original, random_bytes};

fn open_read_only(path: &Path) -> TenantArchive {
    let options = ArchiveOptions { access: AccessMode::ReadOnly, ..ArchiveOptions::default() };
    Archive::open_with(path, options).unwrap().tenant(&Namespace::local())
}

/// A keep that does not fit is an error, all before it stay, and once there is room keeping goes on.
#[test]
fn full_disk_loses_no_stored_original() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let path = disk.path().join("archive.db");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 500_000]).unwrap();
    let shelf = Archive::open(&path).unwrap().tenant(&Namespace::local());
    let mut held = Vec::new();
    let error = loop {
        let bytes = random_bytes(held.len() as u64, 50_000);
        match shelf.store_durably(&[original(&bytes)]) {
            Ok(_) => held.push(bytes),
            Err(error) => break error,
        }
        assert!(held.len() < 1000, "the disk never filled");
    };
    assert!(held.len() > 10, "{} were held", held.len());
    assert_eq!(error.kind(), &ErrorKind::DiskFull, "{error}");
    let all_there = |shelf: &TenantArchive| {
        held.iter().all(|bytes| shelf.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|it| it.bytes == *bytes))
    };
    assert!(all_there(&shelf));
    assert!(shelf.store_durably(&[original(&random_bytes(5000, 50_000))]).is_err());
    std::fs::remove_file(&ballast).unwrap();
    shelf.store(&[original(&random_bytes(5001, 50_000))]).unwrap();
    assert!(all_there(&shelf));
    drop(shelf);
    assert!(all_there(&open_read_only(&path)));
}

#[test]
fn read_only_disk_can_be_read() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let path = disk.path().join("archive.db");
    Archive::open(&path).unwrap().tenant(&Namespace::local()).store(&[original(b"a needle in hay")]).unwrap();
    disk.make_read_only();
    let error = Archive::open(&path).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::ReadOnly, "{error}");
    let shelf = open_read_only(&path);
    assert_eq!(shelf.unfold(Handle::for_content(b"a needle in hay").as_str()).unwrap().bytes, b"a needle in hay");
    assert_eq!(shelf.search("needle", 0, 10).unwrap().total, 1);
    assert_eq!(shelf.store_durably(&[original(b"x")]).unwrap_err().kind(), &ErrorKind::ReadOnly);
}

/// Wherever a file was cut off, what is given out is exact, and what can not be had is a fault.
#[test]
fn truncated_file_yields_no_wrong_bytes() {
    let place = TempArchive::new();
    let texts: Vec<Vec<u8>> = (0..60).map(|at| random_bytes(at, 3000)).collect();
    {
        let shelf = place.local_tenant();
        for text in &texts {
            shelf.store(&[original(text)]).unwrap();
        }
    }
    let whole = std::fs::read(place.path()).unwrap();
    let mut exact = 0;
    for cut in (0..20).map(|at| whole.len() * at / 20 + at) {
        std::fs::write(place.path(), &whole[..cut]).unwrap();
        let _ = std::fs::remove_file(place.path().with_extension("db-wal"));
        // Whoever keeps into what is left of it either hears of it or has it.
        if let Ok(archive) = Archive::open(place.path()) {
            let shelf = archive.tenant(&Namespace::local());
            let bytes = random_bytes(1000, 3000);
            if shelf.store(&[original(&bytes)]).is_ok() {
                assert!(shelf.unfold(Handle::for_content(&bytes).as_str()).unwrap().bytes == bytes);
            }
        }
        std::fs::write(place.path(), &whole[..cut]).unwrap();
        let _ = std::fs::remove_file(place.path().with_extension("db-wal"));
        let Ok(archive) = place.open_read_only() else { continue };
        let shelf = archive.tenant(&Namespace::local());
        for text in &texts {
            match shelf.unfold(Handle::for_content(text).as_str()) {
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
    println!("{exact} originals were had from truncated files");
}

#[test]
fn copied_archive_is_independent() {
    let (place, copy) = (TempArchive::new(), TempArchive::new());
    place.local_tenant().store(&[original(b"before the copy")]).unwrap();
    assert_eq!(place.local_tenant().search("copy", 0, 9).unwrap().total, 1);
    for ending in ["", ".index"] {
        let name = format!("archive.db{ending}");
        std::fs::copy(place.folder.path().join(&name), copy.folder.path().join(&name)).unwrap();
    }
    place.local_tenant().store(&[original(b"later, in the first")]).unwrap();
    assert_eq!(place.local_tenant().search("later", 0, 9).unwrap().total, 1);
    copy.local_tenant().store(&[original(b"later, in the copy")]).unwrap();
    assert_eq!(copy.local_tenant().search("later", 0, 9).unwrap().total, 1);

    // The copy goes back over the original, whose index has seen something else under the same number.
    std::fs::copy(copy.path(), place.path()).unwrap();
    let found = place.local_tenant().search("later", 0, 9).unwrap();
    assert_eq!(found.hits.iter().map(|hit| hit.snippet.as_str()).collect::<Vec<_>>(), ["later, in the copy"]);
}
