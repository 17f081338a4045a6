//! Packs as objects of an object store (cargo feature `objects`).
//!
//! A key is `prefix/folder/tenant/name`: a folder that the database alone has, so that archives may share a prefix, the
//! tenant as in all tables, and a name that is used once. It begins with the hash of the object, for people who check
//! objects. A name is never used again, so an object without a row, older than any transaction, can be deleted.
//!
//! Calls wait on the caller's thread, at most until a deadline. After a failure they fail at once for a moment.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind};
use crate::object_storage::ObjectStorage;
use crate::postgres::object_client::create_client;
use crate::postgres::outage::{CallTime, MIN_PATIENCE, OutageGuard};
use crate::postgres::rows::{ObjectName, TenantKey};
use crate::postgres::wait::wait_until;

/// Objects that are read, written or deleted at the same time.
const MAX_CONCURRENT: usize = 16;

/// Objects of one batch of a listing.
const LIST_BATCH: usize = 1_000;

/// Rate at which a slow line sends objects: a put that takes longer than at this rate may be one to a store that is down.
const SLOW_BYTES_PER_SECOND: u64 = 1_000_000;

/// Age from which an object without a row is an orphan. No transaction lasts that long, whatever the clocks show.
pub(crate) const ORPHAN_AGE: Duration = Duration::from_secs(24 * 3600);

/// The object that shows that a prefix has objects of an archive.
const ARCHIVE_MARK: &str = "archive";

/// The objects of an archive's packs.
#[derive(Debug)]
pub(crate) struct PackObjects {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    location: String,
    min_bytes: u64,
    runtime: Handle,
    outage: Arc<OutageGuard>,
    /// True once the mark of the archive was written.
    is_marked: AtomicBool,
}

impl PackObjects {
    /// Opens the store; connects to nothing yet.
    pub(crate) fn open(storage: &ObjectStorage, runtime: Handle) -> Result<Self, Error> {
        // Clients of some stores need a runtime to be created.
        let (store, prefix) = {
            let _entered = runtime.enter();
            create_client(storage)?
        };
        Ok(Self {
            store,
            prefix,
            location: storage.location(),
            min_bytes: storage.min_bytes,
            runtime,
            outage: Arc::default(),
            is_marked: AtomicBool::new(false),
        })
    }

    /// Returns the number of bytes from which a pack is an object.
    pub(crate) fn min_bytes(&self) -> u64 {
        self.min_bytes
    }

    /// Returns the failure of the last call, if the store was not reachable.
    pub(crate) fn outage(&self) -> Option<Error> {
        self.outage.current()
    }

    /// Returns true if calls fail at once, because one failed a moment ago.
    pub(crate) fn is_paused(&self) -> bool {
        self.outage.check().is_err()
    }

    /// Returns true if the store answers and has objects of this archive, also a moment after a failure.
    pub(crate) fn answers(&self, folder: &[u8]) -> bool {
        let (store, path) = (self.store.clone(), self.mark_path(folder));
        let request = self.runtime.spawn(async move { store.head(&path).await });
        matches!(wait_until(request, Instant::now() + MIN_PATIENCE), Some(Ok(Ok(_))))
    }

    /// Writes objects, durably, and returns their names.
    pub(crate) fn put(
        &self,
        folder: &[u8],
        tenant: TenantKey,
        contents: &[Bytes],
        deadline: Instant,
    ) -> Result<Vec<ObjectName>, Error> {
        if !self.is_marked.load(Ordering::Acquire) {
            let mark = PutPayload::from_static(b"This folder has originals of a foldline archive.\n");
            self.run_all([self.spawn_put(self.mark_path(folder), mark)], CallTime::until(deadline))?;
            self.is_marked.store(true, Ordering::Release);
        }
        let names: Vec<ObjectName> =
            contents.iter().map(|content| ObjectName { tenant, name: unused_name(content) }).collect();
        for (names, contents) in names.chunks(MAX_CONCURRENT).zip(contents.chunks(MAX_CONCURRENT)) {
            let put = |(name, content): (&ObjectName, &Bytes)| {
                self.spawn_put(self.path(folder, name), PutPayload::from_bytes(content.clone()))
            };
            let bytes = contents.iter().map(|content| content.len() as u64).sum::<u64>();
            let transfer = Duration::from_millis(bytes * 1_000 / SLOW_BYTES_PER_SECOND);
            let time = CallTime::until(deadline).with_patience(MIN_PATIENCE + transfer);
            self.run_all(names.iter().zip(contents).map(put), time)?;
        }
        Ok(names)
    }

    /// Returns the bytes of objects; `None` for those that do not exist.
    pub(crate) fn get(
        &self,
        folder: &[u8],
        names: &[ObjectName],
        deadline: Instant,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let mut contents = Vec::with_capacity(names.len());
        for names in names.chunks(MAX_CONCURRENT) {
            let get = |name: &ObjectName| {
                let (store, path, outage) = (self.store.clone(), self.path(folder, name), self.outage.clone());
                self.runtime.spawn(async move {
                    let found = store.get(&path).await?;
                    // However long the rest takes.
                    outage.record_answer();
                    found.bytes().await
                })
            };
            contents.extend(self.run_all(names.iter().map(get), CallTime::until(deadline))?);
        }
        // A missing object is damage only if this is the store in which the others are.
        if contents.contains(&None) && !self.is_archive_marked(folder, deadline)? {
            let message = format!("{} has no objects of this archive; check --archive-objects", self.location);
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(contents)
    }

    /// Deletes objects that no row names, without waiting. Those that remain are orphans.
    pub(crate) fn discard(&self, folder: &[u8], names: &[ObjectName]) {
        for name in names {
            let (store, path) = (self.store.clone(), self.path(folder, name));
            self.runtime.spawn(async move { store.delete(&path).await });
        }
    }

    /// Deletes objects. One that does not exist is no error.
    pub(crate) fn delete(&self, folder: &[u8], names: &[ObjectName], deadline: Instant) -> Result<(), Error> {
        for names in names.chunks(MAX_CONCURRENT) {
            let delete = |name: &ObjectName| {
                let (store, path) = (self.store.clone(), self.path(folder, name));
                self.runtime.spawn(async move { store.delete(&path).await })
            };
            self.run_all(names.iter().map(delete), CallTime::until(deadline))?;
        }
        Ok(())
    }

    /// Calls `visit` with the names of objects that are old enough to be orphans, of one tenant or of all.
    pub(crate) fn visit_old(
        &self,
        folder: &[u8],
        tenant: Option<TenantKey>,
        deadline: Instant,
        mut visit: impl FnMut(Vec<ObjectName>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let folder = self.folder(folder);
        let listed = tenant.map_or_else(|| folder.clone(), |tenant| folder.clone().join(tenant.to_string()));
        let newest = SystemTime::now() - ORPHAN_AGE;
        let (sender, mut batches) = mpsc::channel::<object_store::Result<Vec<ObjectName>>>(1);
        let store = self.store.clone();
        let listing = self.runtime.spawn(async move {
            let mut objects = store.list(Some(&listed)).try_chunks(LIST_BATCH);
            loop {
                let batch = match objects.try_next().await {
                    Ok(None) => return,
                    Ok(Some(batch)) => {
                        let old = batch.iter().filter(|object| SystemTime::from(object.last_modified) < newest);
                        Ok(old.filter_map(|object| parse_path(&folder, &object.location)).collect())
                    }
                    Err(error) => Err(error.1),
                };
                let failed = batch.is_err();
                if sender.send(batch).await.is_err() || failed {
                    return;
                }
            }
        });
        loop {
            match wait_until(batches.recv(), deadline) {
                Some(Some(Ok(names))) => visit(names)?,
                Some(Some(Err(error))) => return Err(self.to_error(&error)),
                Some(None) => return Ok(()),
                None => {
                    listing.abort();
                    return Err(self.timeout_error());
                }
            }
        }
    }

    /// Returns true if the store has objects of this archive.
    fn is_archive_marked(&self, folder: &[u8], deadline: Instant) -> Result<bool, Error> {
        let (store, path) = (self.store.clone(), self.mark_path(folder));
        let request = self.runtime.spawn(async move { store.head(&path).await });
        let found = self.run_all([request], CallTime::until(deadline))?;
        Ok(found.iter().all(Option::is_some))
    }

    fn spawn_put(&self, path: ObjectPath, content: PutPayload) -> JoinHandle<object_store::Result<()>> {
        let store = self.store.clone();
        self.runtime.spawn(async move { store.put(&path, content).await.map(drop) })
    }

    /// Waits for requests, and returns `None` for those whose object does not exist. The first other error ends all.
    fn run_all<T>(
        &self,
        requests: impl IntoIterator<Item = JoinHandle<object_store::Result<T>>>,
        time: CallTime,
    ) -> Result<Vec<Option<T>>, Error> {
        self.outage.check()?;
        let mut requests: Vec<_> = requests.into_iter().collect();
        let mut wait = |request: &mut JoinHandle<object_store::Result<T>>| match wait_until(request, time.deadline()) {
            Some(Ok(Ok(done))) => Ok(Some(done)),
            Some(Ok(Err(object_store::Error::NotFound { .. }))) => Ok(None),
            Some(Ok(Err(error))) => Err(self.to_error(&error)),
            Some(Err(error)) => Err(Error::new(ErrorKind::Io, format!("a request for an object ended: {error}"))),
            None => Err(self.timeout_error()),
        };
        let results: Result<Vec<Option<T>>, Error> = requests.iter_mut().map(&mut wait).collect();
        if results.is_err() {
            requests.iter().for_each(JoinHandle::abort);
        }
        self.outage.record(&results, time);
        results
    }

    fn folder(&self, name: &[u8]) -> ObjectPath {
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        self.prefix.clone().join(name)
    }

    fn path(&self, folder: &[u8], object: &ObjectName) -> ObjectPath {
        self.folder(folder).join(object.tenant.to_string()).join(object.name.as_str())
    }

    fn mark_path(&self, folder: &[u8]) -> ObjectPath {
        self.folder(folder).join(ARCHIVE_MARK)
    }

    /// Converts an error. Keys are sent in headers, which errors do not have.
    fn to_error(&self, error: &object_store::Error) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the object store {} failed: {error}", self.location))
    }

    fn timeout_error(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the object store {} did not answer in time", self.location))
    }
}

/// Returns a name that no object has: the hash of the content, and a number that is used once.
fn unused_name(content: &[u8]) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = RandomState::new().hash_one((
        COUNT.fetch_add(1, Ordering::Relaxed),
        std::process::id(),
        SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
    ));
    format!("{}-{unique:016x}", &blake3::hash(content).to_hex()[..32])
}

/// Returns the tenant and name of an object below the folder of an archive; `None` for the mark of the archive.
fn parse_path(folder: &ObjectPath, path: &ObjectPath) -> Option<ObjectName> {
    let parts: Vec<_> = path.prefix_match(folder)?.collect();
    let [tenant, name] = &parts[..] else { return None };
    Some(ObjectName { tenant: TenantKey::parse(tenant.as_ref())?, name: name.as_ref().to_owned() })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::namespace::Namespace;

    /// Gets an object of a server that sends this much and then nothing, within a time, and returns whether the failure is an
    /// outage for others.
    fn is_outage(sent: &'static str, limit: Duration) -> bool {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let _ = connection.read(&mut [0; 4096]);
            connection.write_all(sent.as_bytes()).unwrap();
            // Until the client closes the connection.
            let _ = connection.read(&mut [0]);
        });
        let variables = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let storage = ObjectStorage { variables, ..ObjectStorage::new("s3://bucket") };
        let objects = PackObjects::open(&storage, runtime.handle().clone()).unwrap();
        let name = ObjectName { tenant: TenantKey::new(&Namespace::local()), name: "name".into() };
        let begin = Instant::now();
        let error = objects.get(b"folder", &[name], begin + limit).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        assert!(begin.elapsed() >= limit);
        let is_outage = objects.outage().is_some();
        assert_eq!(objects.outage.check().is_err(), is_outage);
        drop((objects, runtime));
        server.join().unwrap();
        is_outage
    }

    /// A read that its caller had no time for made the reads of all tenants fail for a second.
    #[test]
    fn outage_is_a_silence_that_nothing_explains() {
        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\netag: \"a\"\r\n\
            last-modified: Wed, 18 Nov 2026 00:00:00 GMT\r\n\r\npart";
        assert!(!is_outage("", Duration::from_millis(100)), "the caller had no time");
        assert!(!is_outage(begun, Duration::from_millis(1_200)), "the object is large");
        assert!(is_outage("", Duration::from_millis(1_200)));
    }

    #[test]
    fn names_are_used_once() {
        let (one, two) = (unused_name(b"text"), unused_name(b"text"));
        assert_eq!(one[..33], two[..33], "the hash of the content");
        assert_ne!(one, two);
    }

    #[test]
    fn paths_are_parsed_back() {
        let folder = ObjectPath::from("prefix/0a0b");
        let tenant = TenantKey::new(&Namespace::local());
        let path = folder.clone().join(tenant.to_string()).join("name");
        assert_eq!(parse_path(&folder, &path), Some(ObjectName { tenant, name: "name".into() }));
        assert_eq!(parse_path(&folder, &folder.clone().join(ARCHIVE_MARK)), None);
        assert_eq!(parse_path(&folder, &ObjectPath::from("prefix/0c/x/name")), None);
    }
}
