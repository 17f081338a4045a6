//! Verification finds damaged originals, marks them, and leaves the rest unchanged.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace};
use rusqlite::Connection;

use crate::support::{TempArchive, original, random_bytes};

#[test]
fn damage_is_found_quarantined_and_recovered() {
    let temp = TempArchive::new();
    let texts: Vec<_> = (0..5).map(|at| random_bytes(at, 70_000)).collect();
    temp.local_tenant().store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    let good: Vec<u8> = Connection::open(temp.path())
        .unwrap()
        .query_row("SELECT content FROM pack WHERE id = 2", (), |row| row.get(0))
        .unwrap();
    let write_pack = |content: &[u8]| {
        Connection::open(temp.path()).unwrap().execute("UPDATE pack SET content = ?1 WHERE id = 2", [content]).unwrap();
    };
    let mut bad = good.clone();
    bad[30_000] ^= 1;
    write_pack(&bad);

    let archive = temp.open();
    let tenant = archive.tenant(&Namespace::local());
    let mut seen = Vec::new();
    let verified = archive.verify(|progress| seen.push(progress)).unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), verified.recovered), (4, 1, 0));
    assert_eq!(verified.damaged[0].handle, Handle::for_content(&texts[1]));
    assert!(
        seen.last()
            .is_some_and(|progress| progress.done_bytes == progress.total_bytes && progress.total_bytes == 350_000)
    );
    assert_eq!(tenant.unfold(Handle::for_content(&texts[1]).as_str()).unwrap_err().kind(), &ErrorKind::Damaged);
    assert!(tenant.unfold(Handle::for_content(&texts[2]).as_str()).unwrap().bytes == texts[2]);
    assert_eq!(tenant.stats().unwrap().damaged, 1);

    // The disk was repaired from a backup.
    write_pack(&good);
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), verified.recovered), (5, 0, 1));
    assert!(tenant.unfold(Handle::for_content(&texts[1]).as_str()).unwrap().bytes == texts[1]);
}
