//! The database of a store: connections, limits on waiting, and transactions for one tenant.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use deadpool_postgres::{Object, Pool};
use tokio::runtime::Runtime;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::encryption::ArchiveCipher;
use crate::error::{Error, ErrorKind};
use crate::object_storage::ObjectStorage;
use crate::postgres::connection::{self, DatabaseHistory};
use crate::postgres::error::is_transient;
use crate::postgres::objects::PackObjects;
use crate::postgres::outage::{CallTime, OutageGuard};
use crate::postgres::pipeline::{BoundStatement, run_pipeline};
use crate::postgres::rows::{ObjectName, TenantKey};
use crate::postgres::schema::{self, ArchiveNames};
use crate::postgres::unreadable_packs::UnreadablePacks;
use crate::postgres::wait::wait_until;
use crate::store::ArchiveScope;

/// Times that a transaction is tried if the server reports a deadlock.
const MAX_ATTEMPTS: usize = 3;

/// Longest time to wait for the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// For work that a request waits for.
    Request,
    /// For maintenance.
    Maintenance,
    /// For the steps of a request that find rows by their keys, until a time.
    Lookup(Instant),
    /// For indexing that a search waits for: its work has the time of maintenance, but it waits no longer for objects than a
    /// request does, and for another replica's locks ten seconds.
    Search,
}

impl WaitLimit {
    /// Returns a limit for all lookups of a request together.
    pub(crate) fn for_lookups() -> Self {
        WaitLimit::Lookup(Instant::now() + WaitLimit::Request.duration())
    }

    /// Returns the longest time for all objects that a transaction with this limit reads.
    fn object_time(self) -> Duration {
        match self {
            WaitLimit::Search => WaitLimit::Request.duration(),
            limit => limit.duration(),
        }
    }

    pub(crate) fn duration(self) -> Duration {
        match self {
            WaitLimit::Request => Duration::from_secs(3),
            WaitLimit::Maintenance | WaitLimit::Search => Duration::from_secs(600),
            // A timeout of 0 would be none.
            WaitLimit::Lookup(end) => end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
        }
    }
}

/// The rows that a transaction may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowScope {
    /// Those of all tenants.
    Everything,
    /// Those of one tenant.
    Tenant(TenantKey),
}

impl From<ArchiveScope<'_>> for RowScope {
    fn from(scope: ArchiveScope<'_>) -> Self {
        scope.namespace().map_or(RowScope::Everything, |namespace| RowScope::Tenant(TenantKey::new(namespace)))
    }
}

/// Parameters of a statement.
pub(crate) type Parameters<'p> = &'p [&'p (dyn ToSql + Sync)];

/// Where a store is, and how it is opened.
#[derive(Debug)]
pub(crate) struct DatabaseOptions<'o> {
    pub(crate) url: &'o str,
    /// The URL without credentials, for messages.
    pub(crate) location: String,
    pub(crate) cipher: ArchiveCipher,
    pub(crate) is_writable: bool,
    /// The store of large packs.
    pub(crate) objects: Option<&'o ObjectStorage>,
}

/// The database of a store.
pub(crate) struct Database {
    location: String,
    cipher: ArchiveCipher,
    is_writable: bool,
    pool: Pool,
    objects: Option<PackObjects>,
    /// Moves the bytes of all connections; `None` only while it is dropped.
    runtime: Option<Runtime>,
    history: Arc<DatabaseHistory>,
    unreadable_packs: UnreadablePacks,
    outage: OutageGuard,
    /// The names of the archive, once its schema was checked.
    names: Mutex<Option<ArchiveNames>>,
    round_trips: AtomicU64,
    /// False in a test of row-level security alone.
    #[cfg(feature = "testing")]
    checks_tenants: bool,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("location", &self.location).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database at this URL. If it is not reachable now, later calls try again.
    pub(crate) fn open(options: DatabaseOptions<'_>) -> Result<Self, Error> {
        let config = connection::parse_url(options.url)?;
        let history = Arc::new(DatabaseHistory::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("foldline-postgres")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start a runtime: {error}")))?;
        let pool = connection::create_pool(config, history.clone())?;
        let database = Self {
            location: options.location,
            cipher: options.cipher,
            is_writable: options.is_writable,
            objects: options.objects.map(|storage| PackObjects::open(storage, runtime.handle().clone())).transpose()?,
            pool,
            runtime: Some(runtime),
            history,
            unreadable_packs: UnreadablePacks::default(),
            outage: OutageGuard::default(),
            names: Mutex::new(None),
            round_trips: AtomicU64::new(0),
            #[cfg(feature = "testing")]
            checks_tenants: true,
        };
        match database.identity() {
            Err(error) if *error.kind() != ErrorKind::Unavailable => Err(error),
            _ => Ok(database),
        }
    }

    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    pub(crate) fn cipher(&self) -> &ArchiveCipher {
        &self.cipher
    }

    /// Returns the store of large packs, if there is one.
    pub(crate) fn objects(&self) -> Option<&PackObjects> {
        self.objects.as_ref()
    }

    /// Returns the packs that could not be read a moment ago.
    pub(crate) fn unreadable_packs(&self) -> &UnreadablePacks {
        &self.unreadable_packs
    }

    /// Returns how many times the database was replaced by another version of itself.
    pub(crate) fn generation(&self) -> u64 {
        self.history.changes()
    }

    /// Returns the failure of the last call, if the database was not reachable.
    pub(crate) fn outage(&self) -> Option<Error> {
        self.outage.current()
    }

    /// Returns the number of round trips so far.
    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Fails if the archive was opened for reading.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        match self.is_writable {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::ReadOnly, format!("{} was opened for reading", self.location))),
        }
    }

    /// Returns the identity of the archive.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        Ok(self.names()?.identity)
    }

    /// Returns the name of the folder of the archive's objects.
    pub(crate) fn object_folder(&self) -> Result<Vec<u8>, Error> {
        Ok(self.names()?.object_folder)
    }

    /// Returns the names of the archive. The first call migrates the database, or checks that it is an archive.
    fn names(&self) -> Result<ArchiveNames, Error> {
        if let Some(names) = self.known_names() {
            return Ok(names);
        }
        self.outage.check()?;
        let time = CallTime::until(Instant::now() + WaitLimit::Request.duration());
        let client = self.connect(time.deadline());
        let migrated = client.and_then(|client| {
            let migration = schema::migrate(&client, &self.cipher, self.is_writable, &self.location);
            // A migration of much data may take long, and must not be cut.
            let limit = Instant::now() + WaitLimit::Maintenance.duration();
            let migrated = wait_until(migration, limit).unwrap_or_else(|| Err(self.timeout_error()));
            if migrated.is_err() {
                drop(Object::take(client));
            }
            migrated
        });
        self.outage.record(&migrated, time);
        let names = migrated?;
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = Some(names.clone());
        Ok(names)
    }

    /// Replaces the identity of an archive without data.
    pub(crate) fn adopt_identity(&self, identity: &[u8]) -> Result<(), Error> {
        let sql = "UPDATE foldline.setting SET value = $1
             WHERE name = 'identity' AND (value = $1 OR NOT EXISTS (SELECT 1 FROM foldline.namespace)) RETURNING 1";
        if self.query(RowScope::Everything, WaitLimit::Request, sql, &[&identity])?.is_empty() {
            let message = format!("{} has data of another archive; migrate into an empty database", self.location);
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if let Some(names) = &mut *self.names.lock().unwrap_or_else(PoisonError::into_inner) {
            names.identity = identity.to_vec();
        }
        Ok(())
    }

    fn known_names(&self) -> Option<ArchiveNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs statements in one transaction and, once they are prepared on the connection, one round trip.
    pub(crate) fn run(
        &self,
        scope: RowScope,
        limit: WaitLimit,
        statements: &[(&str, Parameters<'_>)],
    ) -> Result<Vec<Vec<Row>>, Error> {
        self.with_client(limit, async |client| {
            let mut bound: Vec<BoundStatement<'_>> = Vec::with_capacity(statements.len());
            for (sql, parameters) in statements {
                bound.push((client.prepare_cached(&self.checked_sql(sql)).await?, parameters.to_vec()));
            }
            run_pipeline(client, &self.begin_sql(scope, limit), &bound).await
        })
    }

    /// Runs one statement; see [`run`](Self::run).
    pub(crate) fn query(
        &self,
        scope: RowScope,
        limit: WaitLimit,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        Ok(self.run(scope, limit, &[(sql, parameters)])?.pop().unwrap_or_default())
    }

    /// Runs a transaction of several steps, each with a round trip. It is committed if `work` returns `Ok`; then the
    /// objects of packs that it has deleted are deleted.
    pub(crate) fn transact<T>(
        &self,
        scope: RowScope,
        limit: WaitLimit,
        work: impl FnMut(&TransactionSteps<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (done, deleted) = self.transact_rows(scope, limit, work)?;
        self.delete_objects(&deleted)?;
        Ok(done)
    }

    /// Runs a transaction like [`transact`](Self::transact), and returns the objects to delete.
    pub(crate) fn transact_rows<T>(
        &self,
        scope: RowScope,
        limit: WaitLimit,
        mut work: impl FnMut(&TransactionSteps<'_>) -> Result<T, Error>,
    ) -> Result<(T, Vec<ObjectName>), Error> {
        self.identity()?;
        self.outage.check()?;
        let time = CallTime::until(Instant::now() + limit.duration());
        let deadline = time.deadline();
        let client = self.connect(deadline).inspect_err(|error| self.outage.record::<()>(&Err(error.clone()), time));
        client.and_then(|client| {
            let (object_time, deleted) = (Cell::new(limit.object_time()), RefCell::default());
            let steps = TransactionSteps { database: self, client: &client, object_time, deadline, deleted };
            let outcome = steps.execute(&self.begin_sql(scope, limit)).and_then(|()| work(&steps)).and_then(|done| {
                steps.execute("COMMIT")?;
                Ok((done, steps.deleted.take()))
            });
            if outcome.is_err() {
                // Closing the connection rolls the transaction back.
                drop(Object::take(client));
            }
            outcome
        })
    }

    /// Deletes the objects of packs whose rows were deleted.
    pub(crate) fn delete_objects(&self, names: &[ObjectName]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let objects = self.objects().ok_or_else(|| self.no_objects_error())?;
        let deadline = Instant::now() + WaitLimit::Maintenance.duration();
        objects.delete(&self.object_folder()?, names, deadline).map_err(|error| {
            let message = format!(
                "the rows were deleted, but their objects were not: {error}; `foldline archive prune` deletes them a day later"
            );
            Error::new(error.kind().clone(), message)
        })
    }

    /// Returns the error of a database whose object store is not set.
    pub(crate) fn no_objects_error(&self) -> Error {
        let message = format!(
            "{} has originals in an object store, which is not set; set it with --archive-objects",
            self.location()
        );
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Runs an exchange with the server on a connection of the pool, and again after a deadlock. After another failure the
    /// connection is closed: its state is unknown, and its server may have become a standby.
    fn with_client<T>(
        &self,
        limit: WaitLimit,
        exchange: impl AsyncFn(&Object) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        self.identity()?;
        self.outage.check()?;
        let time = CallTime::until(Instant::now() + limit.duration());
        let deadline = time.deadline();
        let mut attempts = 0;
        let outcome = loop {
            attempts += 1;
            let client = match self.connect(deadline) {
                Ok(client) => client,
                Err(error) => break Err(error),
            };
            self.round_trips.fetch_add(1, Ordering::Relaxed);
            match wait_until(exchange(&client), deadline) {
                Some(Ok(done)) => break Ok(done),
                Some(Err(error)) if is_transient(&error) && attempts < MAX_ATTEMPTS => {}
                Some(Err(error)) => {
                    drop(Object::take(client));
                    break Err(error.into());
                }
                None => {
                    drop(Object::take(client));
                    break Err(self.timeout_error());
                }
            }
        };
        self.outage.record(&outcome, time);
        outcome
    }

    /// Takes a connection from the pool, or opens one on the store's runtime.
    fn connect(&self, deadline: Instant) -> Result<Object, Error> {
        use deadpool_postgres::{HookError, PoolError};
        let runtime = self.runtime.as_ref().ok_or_else(|| self.timeout_error())?;
        let pool = self.pool.clone();
        let connecting = runtime.spawn(async move { pool.get().await });
        match wait_until(connecting, deadline) {
            Some(Ok(Ok(client))) => Ok(client),
            Some(Ok(Err(PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error))))) => {
                Err(error.into())
            }
            Some(Ok(Err(PoolError::Timeout(_)))) | None => Err(self.timeout_error()),
            Some(Ok(Err(error))) => {
                Err(Error::new(ErrorKind::Unavailable, format!("no connection to {}: {error}", self.location)))
            }
            Some(Err(error)) => Err(Error::new(ErrorKind::Io, format!("could not connect: {error}"))),
        }
    }

    /// Returns the statements that begin a transaction. The tenant has only digits and `-`.
    fn begin_sql(&self, scope: RowScope, limit: WaitLimit) -> String {
        let access = if self.is_writable { "READ WRITE" } else { "READ ONLY" };
        let (timeout, tenant) = (
            limit.duration().as_millis(),
            match scope {
                RowScope::Everything => "*".to_owned(),
                RowScope::Tenant(tenant) => tenant.to_string(),
            },
        );
        // Lookups use the indexes of keys, whatever statistics there are: they may be of a time when tables were small, and
        // row-level security makes the server expect fewer rows than there are. So one plan serves all values.
        let plan = match limit {
            WaitLimit::Lookup(_) => "; SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan",
            WaitLimit::Search => "; SET LOCAL lock_timeout = '10s'",
            WaitLimit::Request | WaitLimit::Maintenance => "",
        };
        format!("BEGIN {access}; SET LOCAL statement_timeout = {timeout}; SET LOCAL foldline.tenant = '{tenant}'{plan}")
    }

    /// Removes the conditions on the tenant from all statements.
    #[cfg(feature = "testing")]
    pub(crate) fn without_tenant_checks(mut self) -> Self {
        self.checks_tenants = false;
        self
    }

    /// Returns the statement; in a test of row-level security, without its condition on the tenant.
    #[cfg(feature = "testing")]
    fn checked_sql<'s>(&self, sql: &'s str) -> std::borrow::Cow<'s, str> {
        match self.checks_tenants {
            true => sql.into(),
            // Tables have aliases of one letter.
            false => ('a'..='z')
                .fold(sql.to_owned(), |sql, alias| sql.replace(&format!(" {alias}.tenant = $1"), " tenant = $1"))
                .replace("tenant = $1", "$1::uuid IS NOT NULL")
                .into(),
        }
    }

    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "a test replaces conditions")]
    fn checked_sql<'s>(&self, sql: &'s str) -> std::borrow::Cow<'s, str> {
        sql.into()
    }

    fn timeout_error(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("{} did not answer in time", self.location))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Waiting for it would panic on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The open transaction of [`Database::transact`].
pub(crate) struct TransactionSteps<'t> {
    database: &'t Database,
    client: &'t Object,
    /// Time left for waiting for objects.
    object_time: Cell<Duration>,
    deadline: Instant,
    /// Objects whose rows the transaction has deleted.
    deleted: RefCell<Vec<ObjectName>>,
}

impl TransactionSteps<'_> {
    /// Returns the database.
    pub(crate) fn database(&self) -> &Database {
        self.database
    }

    /// Returns the bytes of an object; `None` if it does not exist.
    pub(crate) fn read_object(&self, name: ObjectName) -> Result<Option<Bytes>, Error> {
        let begin = Instant::now();
        let mut read = self.database.read_objects(&[name], WaitLimit::Lookup(begin + self.object_time.get()))?;
        self.object_time.set(self.object_time.get().saturating_sub(begin.elapsed()));
        Ok(read.pop().flatten())
    }

    /// Records that the row of an object was deleted.
    pub(crate) fn add_deleted_object(&self, object: ObjectName) {
        self.deleted.borrow_mut().push(object);
    }

    /// Runs a statement.
    pub(crate) fn query(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        let sql = self.database.checked_sql(sql);
        self.wait(async { self.client.query(&self.client.prepare_cached(&sql).await?, parameters).await })
    }

    fn execute(&self, sql: &str) -> Result<(), Error> {
        self.wait(self.client.batch_execute(sql))
    }

    fn wait<T>(&self, step: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        self.database.round_trips.fetch_add(1, Ordering::Relaxed);
        let time = CallTime::until(self.deadline);
        let done = match wait_until(step, self.deadline) {
            Some(done) => done.map_err(Error::from),
            None => Err(self.database.timeout_error()),
        };
        // Only the steps are calls of the database; others may be between them.
        self.database.outage.record(&done, time);
        done
    }
}
