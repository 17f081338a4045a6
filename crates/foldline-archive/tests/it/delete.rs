//! Deletion on request: one original, one session, everything of a namespace.

use foldline::{Handle, OriginalStore};
use foldline_archive::{ErrorKind, Namespace, RetentionPolicy, TenantArchive};

use crate::support::{TempArchive, original, random_bytes};

/// Returns the files of the archive that contain these bytes.
fn files_with(temp: &TempArchive, wanted: &[u8]) -> Vec<String> {
    let files = std::fs::read_dir(temp.folder.path()).unwrap().map(|entry| entry.unwrap());
    let contain = files.filter(|file| {
        let bytes = std::fs::read(file.path()).unwrap();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    });
    let mut names: Vec<String> = contain.map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a text and a word of it that nothing else contains. Random bytes around it keep it readable in a pack.
fn secret_text(seed: u64) -> (Vec<u8>, Vec<u8>) {
    let word: Vec<u8> = random_bytes(seed, 40).iter().map(|byte| b'a' + byte % 26).collect();
    ([&word[..], b"\n", &random_bytes(seed, 4_000)[..]].concat(), word)
}

fn is_found(tenant: &TenantArchive, bytes: &[u8]) -> bool {
    match tenant.unfold(Handle::for_content(bytes).as_str()) {
        Ok(unfolded) => unfolded.bytes == bytes,
        // A deleted original leaves no tombstone.
        Err(error) => {
            assert_eq!(error.kind(), &ErrorKind::NotFound);
            false
        }
    }
}

#[test]
fn one_original_is_deleted() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    tenant.store(&[original(b"keep this"), original(b"delete this")]).unwrap();
    assert_eq!(tenant.search("delete", 0, 9).unwrap().total, 1);
    let deleted = tenant.delete_original(Handle::for_content(b"delete this")).unwrap();
    assert_eq!((deleted.originals, deleted.bytes), (1, 11));
    assert!(is_found(&tenant, b"keep this") && !is_found(&tenant, b"delete this"));
    assert_eq!(tenant.search("delete", 0, 9).unwrap().total, 0);
    assert_eq!(tenant.delete_original(Handle::for_content(b"delete this")).unwrap().originals, 0);
    // It can be stored again.
    tenant.store(&[original(b"delete this")]).unwrap();
    assert!(is_found(&tenant, b"delete this"));
}

#[test]
fn one_session_is_deleted() {
    let temp = TempArchive::new();
    let (first, second) = (temp.local_tenant().in_session("s-1"), temp.local_tenant().in_session("s-2"));
    for (tenant, text) in [(&first, b"of the first"), (&second, b"of a second")] as [(_, &[u8]); 2] {
        tenant.store(&[original(text)]).unwrap();
        tenant.record_fact("summary", b"f", text).unwrap();
        tenant.append_event("creased", text).unwrap();
    }
    assert_eq!(first.delete_session("s-1").unwrap().originals, 1);
    assert!(!is_found(&first, b"of the first") && is_found(&second, b"of a second"));
    assert!(first.facts().unwrap().is_empty() && second.facts().unwrap().len() == 1);
    assert_eq!(first.events(0, 9).unwrap().len(), 1);
    assert_eq!(first.sessions(9).unwrap().iter().map(|session| &session.name[..]).collect::<Vec<_>>(), ["s-2"]);
}

/// Only the namespace is emptied, and the bytes are gone from the files.
#[test]
fn everything_of_a_namespace_is_deleted() {
    let temp = TempArchive::new();
    let archive = temp.open();
    let (ours, theirs) = (archive.tenant(&Namespace::local()), archive.tenant(&Namespace::new("theirs").unwrap()));
    let secret = random_bytes(7, 40_000);
    ours.in_session("s").store(&[original(&secret), original(b"more")]).unwrap();
    ours.in_session("s").record_fact("summary", b"f", b"payload").unwrap();
    theirs.store(&[original(b"their text")]).unwrap();
    let on_disk = || files_with(&temp, &secret[30_000..30_064]);
    assert!(!on_disk().is_empty(), "the text is not compressible");
    assert_eq!(ours.delete_everything().unwrap().originals, 2);
    assert!(on_disk().is_empty(), "{:?}", on_disk());
    assert!(!is_found(&ours, &secret) && is_found(&theirs, b"their text"));
    assert!(ours.in_session("s").facts().unwrap().is_empty() && ours.sessions(9).unwrap().is_empty());
    assert_eq!(archive.verify(|_| ()).unwrap().intact, 1);
}

/// Originals that were stored together are in one pack, and each has its words in the index.
#[test]
fn deleted_text_is_erased_from_all_files() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let texts: Vec<_> = (0..20).map(secret_text).collect();
    let originals: Vec<_> = texts.iter().map(|(text, _)| original(text)).collect();
    tenant.in_session("s").store(&originals[..5]).unwrap();
    originals[5..].chunks(3).for_each(|some| tenant.store(some).unwrap());
    let found = |word: &[u8]| tenant.search(std::str::from_utf8(word).unwrap(), 0, 9).unwrap().total;
    for (_, word) in &texts {
        assert_eq!(found(word), 1);
    }
    let suffix = |word: &[u8]| word[4..].to_vec();
    assert!(files_with(&temp, &suffix(&texts[3].1)).len() >= 2, "pack and index are readable");
    tenant.delete_original(originals[3].handle).unwrap();
    tenant.delete_original(originals[19].handle).unwrap();
    for at in [3, 19] {
        assert_eq!(files_with(&temp, &suffix(&texts[at].1)), [""; 0], "{at}");
    }
    tenant.delete_session("s").unwrap();
    for (at, (text, word)) in texts.iter().enumerate() {
        let is_kept = at >= 5 && at != 19;
        assert_eq!(is_found(&tenant, text), is_kept, "{at}");
        assert_eq!((found(word) == 1, !files_with(&temp, &suffix(word)).is_empty()), (is_kept, is_kept), "{at}");
    }
    tenant.delete_everything().unwrap();
    for (_, word) in &texts {
        assert_eq!(files_with(&temp, &suffix(word)), [""; 0]);
    }
}

/// An expired original has no link to its pack any more, and may be in it together with others.
#[test]
fn expired_text_is_erased_from_its_pack() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let (expired, kept) = (random_bytes(1, 9_000), random_bytes(2, 9_000));
    tenant.store(&[original(&expired), original(&kept)]).unwrap();
    let writer = rusqlite::Connection::open(temp.path()).unwrap();
    let handle = Handle::for_content(&expired);
    writer.execute("UPDATE original SET carried_at = 0 WHERE handle = ?1", [handle.as_str()]).unwrap();
    drop(writer);
    let day = std::time::Duration::from_secs(24 * 3600);
    let pruned = tenant.prune(&RetentionPolicy { max_age: Some(day), ..RetentionPolicy::default() }).unwrap();
    assert_eq!(pruned.originals, 1);
    tenant.delete_original(handle).unwrap();
    assert_eq!(files_with(&temp, &expired[4_000..4_064]), [""; 0]);
    assert!(is_found(&tenant, &kept));
}

/// The others in a pack with a damaged original keep their bytes.
#[test]
fn deletion_next_to_damage_erases_the_text() {
    let temp = TempArchive::new();
    let (secret, kept, damaged) = (random_bytes(1, 9_000), random_bytes(2, 9_000), random_bytes(3, 9_000));
    let tenant = temp.local_tenant();
    tenant.store(&[original(&secret), original(&kept), original(&damaged)]).unwrap();
    drop(tenant);
    let mut file = std::fs::read(temp.path()).unwrap();
    let at = file.windows(64).position(|window| window == &damaged[100..164]).expect("in the file after closing");
    file[at] ^= 1;
    std::fs::write(temp.path(), file).unwrap();
    let tenant = temp.local_tenant();
    tenant.delete_original(Handle::for_content(&secret)).unwrap();
    assert_eq!(files_with(&temp, &secret[2_000..2_064]), [""; 0]);
    assert!(is_found(&tenant, &kept));
    let error = tenant.unfold(Handle::for_content(&damaged).as_str()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Damaged);
}

/// The log cannot be emptied while another process reads it, and the caller learns that.
#[test]
fn reader_that_delays_erasure_is_reported() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let secret = random_bytes(1, 9_000);
    tenant.store(&[original(&secret), original(b"kept")]).unwrap();
    let reader = rusqlite::Connection::open(temp.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM original;").unwrap();
    let count = |reader: &rusqlite::Connection| {
        reader.query_row("SELECT count(*) FROM original", (), |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(count(&reader), 2);
    let handle = Handle::for_content(&secret);
    let error = tenant.delete_original(handle).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Busy, "{error}");
    assert!(!is_found(&tenant, &secret));
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(tenant.delete_original(handle).unwrap().originals, 0);
    assert_eq!(files_with(&temp, &secret[2_000..2_064]), [""; 0]);
}
