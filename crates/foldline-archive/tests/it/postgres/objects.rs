//! Large originals in object storage: the conformance suite with all packs in objects, and what happens if objects are
//! missing, changed or not reachable.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use foldline::{Handle, OriginalStore};
use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::{TestDatabase, wait_for};
use foldline_archive::{
    Archive, ArchiveKey, ArchiveOptions, Error, ErrorKind, Namespace, ObjectStorage, RetentionPolicy,
};
use tempfile::TempDir;

use super::{original, tenant, unfolds};

/// A database, and a store of all packs, also the smallest.
struct ObjectFixture {
    database: TestDatabase,
    folder: TempDir,
    storage: ObjectStorage,
}

impl ObjectFixture {
    fn new(database: TestDatabase) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let storage = storage_in(folder.path());
        Self { database, folder, storage }
    }

    /// Opens the archive with another object store, or none.
    fn open_at(&self, objects: Option<ObjectStorage>) -> Archive {
        self.database.open_with(ArchiveOptions { objects, ..ArchiveOptions::default() }).unwrap()
    }

    /// Returns the paths of all packs.
    fn packs(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false if entry.file_name() == "archive" => {}
                    false => files.push(entry.path()),
                }
            }
        }
        files
    }

    /// Returns the number of packs in rows and in objects.
    fn places(&self) -> (usize, usize) {
        let sql = "SET foldline.tenant = '*'; SELECT count(content), count(object) FROM foldline.pack";
        let rows = self.database.query(sql);
        (rows[0][0].parse().unwrap(), rows[0][1].parse().unwrap())
    }
}

impl StoreFixture for ObjectFixture {
    fn open_with(&self, options: ArchiveOptions) -> Result<Archive, Error> {
        self.database.open_with(ArchiveOptions { objects: Some(self.storage.clone()), ..options })
    }
}

fn storage_in(folder: &Path) -> ObjectStorage {
    ObjectStorage { min_bytes: 0, ..ObjectStorage::new(format!("file://{}", folder.display())) }
}

/// Returns a store that refuses connections.
fn absent_storage() -> ObjectStorage {
    s3_storage(1)
}

/// Returns a store that accepts connections and never answers, while the listener exists.
fn silent_storage() -> (TcpListener, ObjectStorage) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, s3_storage(port))
}

fn s3_storage(port: u16) -> ObjectStorage {
    let endpoint = format!("http://127.0.0.1:{port}");
    let variables = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    ObjectStorage { min_bytes: 0, variables, ..ObjectStorage::new("s3://bucket/prefix") }
}

fn unfold_error(archive: &Archive, bytes: &[u8]) -> Error {
    tenant(archive, "ours").unfold(Handle::for_content(bytes).as_str()).unwrap_err()
}

/// Makes objects so old that they can be orphans.
fn age(paths: &[PathBuf]) {
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    for path in paths {
        File::options().write(true).open(path).unwrap().set_modified(two_days_ago).unwrap();
    }
}

fn compact(archive: &Archive) {
    archive.prune(&RetentionPolicy::default()).unwrap();
}

mod conformance {
    use super::{ObjectFixture, TestDatabase};

    foldline_archive::store_conformance!(ObjectFixture::new(database!()));
}

/// The suite on an S3-compatible server. `evals/objects/s3_server.py` starts one and sets the variable.
mod s3_conformance {
    use super::{ObjectFixture, ObjectStorage, TestDatabase};

    /// Returns a fixture on the server for tests; ends the test if there is none.
    macro_rules! s3_fixture {
        () => {{
            let Ok(endpoint) = std::env::var("TEST_S3_ENDPOINT") else {
                println!("skipped: needs an S3-compatible server, see evals/objects/s3_server.py");
                return;
            };
            let fixture = ObjectFixture::new(database!());
            let variables = [
                ("AWS_ENDPOINT", endpoint.as_str()),
                ("AWS_ALLOW_HTTP", "true"),
                ("AWS_ACCESS_KEY_ID", "id"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            let storage = ObjectStorage { min_bytes: 0, variables, ..ObjectStorage::new("s3://foldline/tests") };
            ObjectFixture { storage, ..fixture }
        }};
    }

    foldline_archive::store_conformance!(s3_fixture!());
}

#[test]
fn only_large_packs_are_objects() {
    let fixture = ObjectFixture::new(database!());
    let storage = ObjectStorage { min_bytes: 1_000, ..fixture.storage.clone() };
    let archive = fixture.open_at(Some(storage));
    let ours = tenant(&archive, "ours");
    let large: Vec<u8> = (0..4_000_u32).flat_map(handle_text).collect();
    ours.store(&[original(b"small")]).unwrap();
    assert_eq!(fixture.places(), (1, 0));
    ours.store(&[original(&large)]).unwrap();
    assert_eq!(fixture.places(), (1, 1));
    assert!(unfolds(&ours, b"small") && unfolds(&ours, &large));
    let size = fs::metadata(&fixture.packs()[0]).unwrap().len();
    let stats = ours.stats().unwrap();
    assert_eq!(stats.object_bytes, size);
    assert!(stats.packed_bytes > size && ours.used_bytes().unwrap() == stats.packed_bytes);
}

/// Returns text that compression leaves large.
fn handle_text(seed: u32) -> Vec<u8> {
    Handle::for_content(&seed.to_le_bytes()).as_str().as_bytes().to_vec()
}

/// Returns bytes that cannot be compressed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    next.flat_map(u64::to_le_bytes).take(length).collect()
}

/// Objects of each tenant have a prefix of their own.
#[test]
fn tenant_is_in_the_key() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    for name in ["ours", "theirs"] {
        tenant(&archive, name).store(&[original(b"the same text")]).unwrap();
    }
    let packs = fixture.packs();
    let folders: std::collections::BTreeSet<_> = packs.iter().map(|path| path.parent().unwrap()).collect();
    assert_eq!((packs.len(), folders.len()), (2, 2));
}

#[test]
fn objects_of_an_encrypted_archive_are_encrypted() {
    let fixture = ObjectFixture::new(database!());
    let options = ArchiveOptions { key: Some(ArchiveKey::new(&[1; 32]).unwrap()), ..ArchiveOptions::default() };
    let archive = fixture.open_with(options).unwrap();
    // A short text is not changed by compression.
    tenant(&archive, "ours").store(&[original(b"the secret recipe")]).unwrap();
    let stored = fs::read(&fixture.packs()[0]).unwrap();
    assert!(!stored.windows(6).any(|bytes| bytes == b"secret"));
    assert!(unfolds(&tenant(&archive, "ours"), b"the secret recipe"));
}

/// A missing object is damage, and storing its text again repairs it.
#[test]
fn missing_object_is_a_typed_error() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"lost text")]).unwrap();
    ours.store(&[original(b"kept text")]).unwrap();
    let lost = fixture.packs().into_iter().find(|path| fs::read(path).unwrap().windows(4).any(|it| it == b"lost"));
    fs::remove_file(lost.unwrap()).unwrap();
    assert_eq!(unfold_error(&archive, b"lost text").kind(), &ErrorKind::Damaged);
    assert!(unfolds(&ours, b"kept text"));
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len()), (1, 1));
    assert_eq!(ours.stats().unwrap().damaged, 1);
    assert_eq!(ours.store_durably(&[original(b"lost text")]).unwrap().added, 1);
    assert!(unfolds(&ours, b"lost text"));
}

/// Changed bytes are never returned.
#[test]
fn changed_object_is_a_typed_error() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"a text of some length")]).unwrap();
    let path = &fixture.packs()[0];
    let stored = fs::read(path).unwrap();
    for at in 0..stored.len() {
        let mut changed = stored.clone();
        changed[at] ^= 0x20;
        fs::write(path, changed).unwrap();
        match ours.unfold(Handle::for_content(b"a text of some length").as_str()) {
            Ok(unfolded) => assert_eq!(unfolded.bytes, b"a text of some length", "byte {at}"),
            Err(error) => assert_eq!(error.kind(), &ErrorKind::Damaged, "byte {at}"),
        }
        fs::write(path, &stored).unwrap();
        archive.verify(|_| ()).unwrap();
    }
    assert!(unfolds(&ours, b"a text of some length"));
}

/// A replica with another object store, or none, damages nothing.
#[test]
fn wrong_object_store_is_no_damage() {
    let fixture = ObjectFixture::new(database!());
    let ours = tenant(&fixture.open(), "ours");
    ours.store(&[original(b"text")]).unwrap();
    let empty = tempfile::tempdir().unwrap();
    for objects in [Some(storage_in(empty.path())), Some(absent_storage()), None] {
        let archive = fixture.open_at(objects.clone());
        assert_eq!(unfold_error(&archive, b"text").kind(), &ErrorKind::Unavailable, "{objects:?}");
        assert_eq!(archive.verify(|_| ()).unwrap_err().kind(), &ErrorKind::Unavailable, "{objects:?}");
        assert!(!format!("{:?}", unfold_error(&archive, b"text")).contains("hidden"));
    }
    assert!(unfolds(&ours, b"text"));
    assert_eq!(ours.stats().unwrap().damaged, 0);
}

/// While the object store does not answer, packs are stored in rows, within the limit; compaction moves them.
#[test]
fn absent_object_store_costs_no_original() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open_at(Some(absent_storage()));
    let ours = tenant(&archive, "ours");
    let begin = Instant::now();
    for text in [b"one", b"two"] {
        ours.store(&[original(text)]).unwrap();
        assert!(unfolds(&ours, text));
    }
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let outage = archive.health().objects.unwrap().outage.unwrap();
    assert!(outage.contains("s3://bucket/prefix") && !outage.contains("hidden"), "{outage}");
    assert!(archive.health().outage.is_none() && archive.ping().is_ok(), "the database answers");
    assert_eq!(fixture.places(), (2, 0));

    let archive = fixture.open();
    compact(&archive);
    assert_eq!((fixture.places().0, fixture.packs().len()), (0, fixture.places().1));
    assert!(unfolds(&tenant(&archive, "ours"), b"one") && unfolds(&tenant(&archive, "ours"), b"two"));
    assert!(archive.health().objects.unwrap().outage.is_none());
}

/// Objects that no row names are deleted when they are older than a transaction can be.
#[test]
fn old_orphans_are_deleted() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"text")]).unwrap();
    let kept = fixture.packs().remove(0);
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    let add = |name: &str, at: SystemTime| {
        let path = kept.with_file_name(name);
        fs::write(&path, b"orphan").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        path
    };
    let (old, new) = (add("old", two_days_ago), add("new", SystemTime::now()));
    File::options().write(true).open(&kept).unwrap().set_modified(two_days_ago).unwrap();
    compact(&archive);
    assert_eq!((old.exists(), new.exists(), kept.exists()), (false, true, true));
    assert!(unfolds(&ours, b"text"));
}

/// A migrated archive had the folder of its source: each of the two deleted the objects of the other.
#[test]
fn migrated_archives_keep_their_objects() {
    let fixture = ObjectFixture::new(database!());
    let target = database!();
    let open_target = || {
        let objects = Some(fixture.storage.clone());
        target.open_with(ArchiveOptions { objects, ..ArchiveOptions::default() }).unwrap()
    };
    let texts: Vec<Vec<u8>> = (0..20_u32).map(|at| at.to_le_bytes().repeat(700)).collect();
    let source = fixture.open();
    tenant(&source, "ours").store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    let report = source.migrate_to(&open_target(), |_| ()).unwrap();
    assert_eq!((report.added, report.failed.len()), (20, 0));
    age(&fixture.packs());
    for archive in [fixture.open(), open_target(), fixture.open()] {
        compact(&archive);
    }
    for archive in [fixture.open(), open_target()] {
        assert!(texts.iter().all(|text| unfolds(&tenant(&archive, "ours"), text)));
        assert_eq!(archive.verify(|_| ()).unwrap().intact, 20);
    }
    assert_eq!(
        source.namespace_for_credential(b"key").unwrap(),
        open_target().namespace_for_credential(b"key").unwrap()
    );
}

/// A search waited ten minutes for an object that it wanted to index, and its failure counted as one of the database.
#[test]
fn search_does_not_wait_for_a_silent_object_store() {
    let fixture = ObjectFixture::new(database!());
    // An archive that is closed at once has indexed nothing.
    tenant(&fixture.open(), "ours").store(&[original(b"text in an object")]).unwrap();
    let (_listener, storage) = silent_storage();
    let ours = tenant(&fixture.open_at(Some(storage)), "ours");
    let begin = Instant::now();
    assert_eq!(ours.search("text", 0, 9).unwrap().total, 0, "not indexed yet");
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    assert!(ours.facts().is_ok(), "the database answers");
    drop(ours);
    assert_eq!(tenant(&fixture.open(), "ours").search("text", 0, 9).unwrap().total, 1);
}

/// A pack that cannot be read within the limit of an unfold is not an object.
#[test]
fn largest_packs_stay_in_rows() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    let largest = noise(9_000_000);
    ours.store(&[original(&largest)]).unwrap();
    assert_eq!(fixture.places(), (1, 0));
    ours.store(&[original(b"small")]).unwrap();
    compact(&archive);
    assert_eq!(fixture.places(), (1, 1));
    assert!(unfolds(&ours, &largest));
}

/// A search read all its candidates, up to 64, before it ranked the newest 2 MB of them.
#[cfg(unix)]
#[test]
fn search_reads_only_what_it_ranks() {
    let fixture = ObjectFixture::new(database!());
    let ours = tenant(&fixture.open(), "ours");
    let mut oldest = Vec::new();
    for at in 0..6_u8 {
        let mut text: Vec<u8> = format!("needle {at}\n").into_bytes();
        text.resize(1_100_000, b'a' + at);
        ours.store(&[original(&text)]).unwrap();
        if at == 1 {
            oldest = fixture.packs();
        }
    }
    assert_eq!(ours.search("needle", 0, 9).unwrap().total, 3);
    for path in &oldest {
        fs::remove_file(path).unwrap();
        // Opening it is an error that is not its absence.
        std::os::unix::fs::symlink(path, path).unwrap();
    }
    assert_eq!(ours.search("needle", 0, 9).unwrap().total, 3);
    let mut oldest_text = b"needle 0\n".to_vec();
    oldest_text.resize(1_100_000, b'a');
    let error = ours.unfold(Handle::for_content(&oldest_text).as_str()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
}

/// A pack whose object could not be read kept all later ones from being indexed.
#[cfg(unix)]
#[test]
fn unreadable_pack_does_not_hold_up_the_index() {
    let fixture = ObjectFixture::new(database!());
    // An archive that is closed at once has indexed nothing.
    tenant(&fixture.open(), "ours").store(&[original(b"first text")]).unwrap();
    let path = fixture.packs().remove(0);
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Opening it is an error that is not its absence.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"second text")]).unwrap();
    wait_for("the second original is indexed", || ours.search("second", 0, 9).unwrap().total == 1);
    assert_eq!(unfold_error(&archive, b"first text").kind(), &ErrorKind::Unavailable);
    let queued = "SET foldline.tenant = '*'; SELECT count(*) FROM foldline.unindexed";
    assert_eq!(fixture.database.query(queued), [["1"]], "it is indexed later");
    fs::remove_file(&path).unwrap();
    fs::write(&path, content).unwrap();
    assert_eq!(tenant(&fixture.open(), "ours").search("first", 0, 9).unwrap().total, 1);
}

/// A failure of the object store ended `prune` before it enforced the limit on the size.
#[test]
fn size_limit_holds_without_the_object_store() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open_at(Some(absent_storage()));
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"one"), original(b"two")]).unwrap();
    fixture.database.query("SET foldline.tenant = '*'; UPDATE foldline.original SET carried_at = 1");
    let policy = RetentionPolicy { max_bytes: Some(0), ..RetentionPolicy::default() };
    let error = archive.prune(&policy).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
    assert!(matches!(unfold_error(&archive, b"one").kind(), ErrorKind::Expired { .. }));
    assert_eq!(ours.used_bytes().unwrap(), 0);
}

/// The rows of expired originals are deleted, and their objects later, if the object store is down meanwhile.
#[test]
fn expiry_goes_on_without_the_object_store() {
    let fixture = ObjectFixture::new(database!());
    // Large enough not to be merged with the other.
    let texts: Vec<Vec<u8>> = (0..2_u8).map(|at| vec![b'a' + at; 40_000]).collect();
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    texts.iter().for_each(|text| ours.store(&[original(text)]).unwrap());
    ours.record_fact("cold", b"fingerprint", b"payload").unwrap();
    fixture.database.query(
        "SET foldline.tenant = '*'; UPDATE foldline.original SET carried_at = 1; UPDATE foldline.ledger SET at = 1;
         UPDATE foldline.session SET last_at = 1",
    );
    let policy = RetentionPolicy { max_age: Some(Duration::ZERO), ..RetentionPolicy::default() };
    assert!(fixture.open_at(Some(absent_storage())).prune(&policy).is_err());
    for text in &texts {
        assert!(matches!(unfold_error(&archive, text).kind(), ErrorKind::Expired { .. }));
    }
    assert!(ours.facts().unwrap().is_empty());
    age(&fixture.packs());
    compact(&archive);
    assert_eq!(fixture.packs().len(), 0);
}

/// Moving packs into objects read the packs of all tenants for each sixteen that it moved.
#[test]
fn compaction_reads_few_packs_twice() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open_at(None);
    for name in ["ours", "theirs"] {
        tenant(&archive, name).store(&[original(b"text")]).unwrap();
    }
    let add = |length: u32, count: u32| {
        fixture.database.query(&format!(
            "SET foldline.tenant = '*';
             INSERT INTO foldline.pack (tenant, id, length, content)
             SELECT n.tenant, nextval('foldline.pack_id'), 100000, decode(repeat('00', {length}), 'hex')
             FROM foldline.namespace AS n, generate_series(1, {count})"
        ));
    };
    add(1, 5_000);
    add(2_000, 100);
    drop(archive);
    let rows_read = || -> u64 {
        let sql = "SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0) FROM pg_stat_user_tables
             WHERE relname ~ '^pack_[0-9]$'";
        fixture.database.query(sql)[0][0].parse().unwrap()
    };
    let before = rows_read();
    let storage = ObjectStorage { min_bytes: 1_000, ..fixture.storage.clone() };
    compact(&fixture.open_at(Some(storage)));
    assert_eq!(fixture.places().1, 200);
    // The server counts when a connection ends.
    wait_for("the server counts", || rows_read() >= before + 10_000);
    std::thread::sleep(Duration::from_millis(500));
    let read = rows_read() - before;
    // Sizes, candidates for repacking and for objects.
    assert!(read < 80_000, "compaction read {read} rows of 10,202 packs");
}

/// Storing what is stored already, or was stored by another replica meanwhile, leaves no object.
#[test]
fn storing_again_leaves_no_object() {
    let fixture = ObjectFixture::new(database!());
    let ours = tenant(&fixture.open(), "ours");
    for _ in 0..3 {
        ours.store(&[original(b"one"), original(b"two")]).unwrap();
    }
    assert_eq!(fixture.packs().len(), 1);
}

/// No text of a deleted or expired original remains in an object.
#[test]
fn deletion_deletes_objects() {
    let fixture = ObjectFixture::new(database!());
    let archive = fixture.open();
    let ours = tenant(&archive, "ours");
    ours.store(&[original(b"kept text"), original(b"deleted text")]).unwrap();
    ours.delete_original(Handle::for_content(b"deleted text")).unwrap();
    let packs = fixture.packs();
    assert_eq!(packs.len(), 1);
    assert!(!fs::read(&packs[0]).unwrap().windows(7).any(|it| it == b"deleted"));
    assert!(unfolds(&ours, b"kept text"));
    fixture.database.query("SET foldline.tenant = '*'; UPDATE foldline.original SET carried_at = 1");
    let policy = RetentionPolicy { max_age: Some(Duration::ZERO), ..RetentionPolicy::default() };
    ours.set_hold(None, "case 7").unwrap();
    assert_eq!(archive.prune(&policy).unwrap().originals, 0);
    assert_eq!(fixture.packs().len(), 1, "under legal hold");
    ours.release_hold(None).unwrap();
    assert_eq!(archive.prune(&policy).unwrap().originals, 1);
    assert_eq!(fixture.packs().len(), 0);
}

/// A replica reads while another one moves originals to other objects.
#[test]
fn moved_originals_stay_readable() {
    let fixture = ObjectFixture::new(database!());
    let (writer, reader) = (tenant(&fixture.open(), "ours"), tenant(&fixture.open(), "ours"));
    let texts: Vec<Vec<u8>> = (0..40_u32).map(|at| at.to_le_bytes().to_vec()).collect();
    let kept = b"in the same pack";
    let originals: Vec<_> = texts.iter().map(|text| original(text)).chain([original(kept)]).collect();
    writer.store(&originals).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(unfolds(&reader, kept));
            }
        });
        for text in &texts {
            writer.delete_original(Handle::for_content(text)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(writer.stats().unwrap().damaged, 0);
}

#[test]
fn file_migrates_into_objects() {
    let fixture = ObjectFixture::new(database!());
    let folder = tempfile::tempdir().unwrap();
    let file = Archive::open(folder.path().join("archive.db")).unwrap();
    let from = file.tenant(&Namespace::local());
    let texts: Vec<Vec<u8>> = (0..60_u32).map(|at| at.to_le_bytes().repeat(700)).collect();
    from.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    let target = fixture.open();
    let report = file.migrate_to(&target, |_| ()).unwrap();
    assert_eq!((report.added, report.failed.len(), fixture.places().0), (60, 0, 0));
    assert!(texts.iter().all(|text| unfolds(&target.tenant(&Namespace::local()), text)));
}

#[test]
fn invalid_object_stores_are_refused() {
    let fixture = ObjectFixture::new(database!());
    for url in ["ftp://host/prefix", "bucket", "file://relative/path", "s3://"] {
        let options = ArchiveOptions { objects: Some(ObjectStorage::new(url)), ..ArchiveOptions::default() };
        let error = fixture.database.open_with(options.clone()).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidInput, "{url}: {error}");
        let error = Archive::open_with(fixture.folder.path().join("archive.db"), options).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidInput, "an archive in a file: {error}");
    }
}
