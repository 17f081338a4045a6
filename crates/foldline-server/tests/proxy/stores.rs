//! The archives on which tests of isolation run: a file, PostgreSQL, and PostgreSQL in which row-level security alone
//! separates tenants.

use foldline_archive::Archive;
#[cfg(feature = "postgres")]
use foldline_archive::{conformance::StoreFixture, postgres_testing::TestDatabase};

/// A kind of archive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestStore {
    File,
    #[cfg(feature = "postgres")]
    Postgres,
    /// The conditions on the tenant are removed from all statements.
    #[cfg(feature = "postgres")]
    RowSecurity,
}

/// An archive, and what it is stored in.
pub(crate) struct TempArchive {
    pub(crate) archive: Archive,
    _folder: Option<tempfile::TempDir>,
    #[cfg(feature = "postgres")]
    _database: Option<OwnedDatabase>,
}

/// Creates an archive in a file.
pub(crate) fn temp_archive() -> TempArchive {
    let folder = tempfile::tempdir().unwrap();
    TempArchive {
        archive: Archive::open(folder.path().join("archive.db")).unwrap(),
        _folder: Some(folder),
        #[cfg(feature = "postgres")]
        _database: None,
    }
}

impl TestStore {
    /// Creates an empty archive.
    pub(crate) fn create(self) -> TempArchive {
        #[cfg(feature = "postgres")]
        let open = match self {
            TestStore::File => return temp_archive(),
            TestStore::Postgres => |database: &TestDatabase| database.open(),
            TestStore::RowSecurity => |database: &TestDatabase| database.open_without_tenant_checks(None),
        };
        #[cfg(feature = "postgres")]
        {
            let database = OwnedDatabase::create();
            TempArchive { archive: open(database.get()), _folder: None, _database: Some(database) }
        }
        #[cfg(not(feature = "postgres"))]
        temp_archive()
    }
}

/// A database that is created and dropped on a thread of its own: both wait, which a thread of a runtime cannot.
#[cfg(feature = "postgres")]
struct OwnedDatabase(Option<TestDatabase>);

#[cfg(feature = "postgres")]
impl OwnedDatabase {
    fn create() -> Self {
        Self(std::thread::spawn(crate::replicas::database).join().unwrap())
    }

    fn get(&self) -> &TestDatabase {
        self.0.as_ref().expect("the test was skipped without a server")
    }
}

#[cfg(feature = "postgres")]
impl Drop for OwnedDatabase {
    fn drop(&mut self) {
        let database = self.0.take();
        std::thread::spawn(|| drop(database)).join().unwrap();
    }
}

/// Runs a test on one thread, as `tokio::test` does.
pub(crate) fn run_test(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// Returns true if there is a server for tests.
#[cfg(feature = "postgres")]
pub(crate) fn has_server() -> bool {
    crate::replicas::database().is_some()
}

/// Makes a test of each function on each store.
macro_rules! store_tests {
    ($($name:ident),* $(,)?) => {
        mod in_a_file {
            $(#[test]
            fn $name() {
                crate::stores::run_test(super::$name(crate::stores::TestStore::File));
            })*
        }

        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[test]
            fn $name() {
                if crate::stores::has_server() {
                    crate::stores::run_test(super::$name(crate::stores::TestStore::Postgres));
                }
            })*
        }

        #[cfg(feature = "postgres")]
        mod with_row_level_security_alone {
            $(#[test]
            fn $name() {
                if crate::stores::has_server() {
                    crate::stores::run_test(super::$name(crate::stores::TestStore::RowSecurity));
                }
            })*
        }
    };
}

pub(crate) use store_tests;
