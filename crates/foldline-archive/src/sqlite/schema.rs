//! The tables of the archive and their migrations.
//!
//! A file with a newer schema is rejected. A released migration is never edited: a change of the tables is a new
//! entry at the end of [`MIGRATIONS`].

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::clock;
use crate::error::{Error, ErrorKind};

/// Identifier in the header of the file: `fold` in ASCII.
const APPLICATION_ID: i64 = 0x666f_6c64;

/// The migrations from an empty file to the newest schema; the version of a file is the number applied to it.
const MIGRATIONS: &[(&str, &str)] = &[
    (
        "originals in packs, sessions, requests, events, ledger",
        "
    CREATE TABLE migration (
        version     INTEGER PRIMARY KEY,
        applied_at  INTEGER NOT NULL,
        what        TEXT NOT NULL
    ) STRICT;

    -- identity: distinguishes this file from another; lock: proves that the key is the right one.
    CREATE TABLE setting (
        name        TEXT PRIMARY KEY,
        value       BLOB NOT NULL
    ) STRICT;

    CREATE TABLE namespace (
        id          INTEGER PRIMARY KEY,
        name        TEXT NOT NULL UNIQUE
    ) STRICT;

    CREATE TABLE session (
        id          INTEGER PRIMARY KEY,
        namespace   INTEGER NOT NULL REFERENCES namespace,
        name        TEXT NOT NULL,
        first_at    INTEGER NOT NULL,
        last_at     INTEGER NOT NULL,
        UNIQUE (namespace, name)
    ) STRICT;

    -- Originals that were kept together are compressed together: they repeat each other.
    CREATE TABLE pack (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace   INTEGER NOT NULL REFERENCES namespace,
        length      INTEGER NOT NULL,           -- before compression
        content     BLOB NOT NULL
    ) STRICT;

    -- Ids only grow, so that the search index knows what it has seen.
    CREATE TABLE original (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace   INTEGER NOT NULL REFERENCES namespace,
        handle      TEXT NOT NULL,
        hash        BLOB NOT NULL,              -- BLAKE3, whole
        state       INTEGER NOT NULL,           -- 0 held, 1 expired, 2 damaged
        pack        INTEGER REFERENCES pack,    -- NULL once expired
        start       INTEGER NOT NULL,           -- in the pack: first what it was, then its bytes
        about       INTEGER NOT NULL,           -- how long the description is
        length      INTEGER NOT NULL,           -- how long the original is
        tokens      INTEGER NOT NULL,
        message     INTEGER NOT NULL,
        session     INTEGER REFERENCES session,
        tool        TEXT,                       -- NULL in a sealed archive; the description has it
        kept_at     INTEGER NOT NULL,
        carried_at  INTEGER NOT NULL,           -- the last request known to carry the marker
        gone_at     INTEGER
    ) STRICT;
    CREATE UNIQUE INDEX original_by_handle ON original (namespace, handle);
    CREATE INDEX original_by_pack ON original (pack) WHERE pack IS NOT NULL;

    CREATE TABLE ledger (
        namespace   INTEGER NOT NULL REFERENCES namespace,
        session     TEXT NOT NULL,              -- empty when the fact belongs to no session
        kind        TEXT NOT NULL,
        fingerprint BLOB NOT NULL,
        payload     BLOB NOT NULL,
        at          INTEGER NOT NULL,
        PRIMARY KEY (namespace, session, kind, fingerprint)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE request (
        id          INTEGER PRIMARY KEY,
        namespace   INTEGER NOT NULL REFERENCES namespace,
        session     INTEGER REFERENCES session,
        at          INTEGER NOT NULL,
        model       TEXT NOT NULL,
        raw_tokens  INTEGER NOT NULL,
        sent_tokens INTEGER NOT NULL,
        folds       INTEGER NOT NULL,
        payload     BLOB NOT NULL
    ) STRICT;
    CREATE INDEX request_by_time ON request (namespace, at);

    CREATE TABLE event (
        id          INTEGER PRIMARY KEY,
        namespace   INTEGER NOT NULL REFERENCES namespace,
        session     INTEGER REFERENCES session,
        at          INTEGER NOT NULL,
        kind        TEXT NOT NULL,
        payload     BLOB NOT NULL
    ) STRICT;
    CREATE INDEX event_by_time ON event (namespace, at);
    ",
    ),
    (
        "small packs are found without a search",
        "CREATE INDEX pack_small ON pack (namespace, length) WHERE length < 32768;",
    ),
    (
        "encrypted names next to keyed hashes of names",
        "
    ALTER TABLE original ADD COLUMN sealed_handle BLOB;   -- NULL in a plaintext archive
    ALTER TABLE session ADD COLUMN sealed_name BLOB;
    CREATE INDEX original_by_session ON original (session) WHERE session IS NOT NULL;
    ",
    ),
    (
        "checkpoints of the journal",
        "
    ALTER TABLE namespace ADD COLUMN deletions INTEGER NOT NULL DEFAULT 0;   -- of events
    CREATE INDEX event_by_namespace ON event (namespace);                    -- and by id
    CREATE TABLE checkpoint (
        namespace   INTEGER PRIMARY KEY REFERENCES namespace,
        position    INTEGER NOT NULL,           -- id of the last event that it covers
        payload     BLOB NOT NULL
    ) STRICT;
    ",
    ),
];

/// Returns the newest schema version that this build supports.
pub(crate) fn latest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("the list of migrations is short")
}

/// Migrates the file to the newest schema; creates it in an empty file.
pub(crate) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    if check_version(connection, path)? == latest_version() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    // Another process may have migrated the file while this one waited for the lock.
    let version = check_version(&transaction, path)?;
    for (number, (what, tables)) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= version) {
        transaction.execute_batch(tables)?;
        transaction.execute(
            "INSERT INTO migration (version, applied_at, what) VALUES (?1, ?2, ?3)",
            (number, clock::now_millis(), what),
        )?;
    }
    if version == 0 {
        transaction.execute("INSERT INTO setting (name, value) VALUES ('identity', randomblob(16))", ())?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.pragma_update(None, "user_version", latest_version())?;
    transaction.commit()?;
    Ok(())
}

/// Returns the schema version of the file (0 if empty), or an error if it is not an archive or too new.
pub(crate) fn check_version(connection: &Connection, path: &Path) -> Result<i64, Error> {
    let number = |sql| connection.query_row(sql, (), |row| row.get::<_, i64>(0));
    let version = number("PRAGMA user_version")?;
    let application = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    let path = path.display();
    match (application, version) {
        (0, 0) if tables == 0 => Ok(0),
        (APPLICATION_ID, version) if version > latest_version() => Err(Error::new(
            ErrorKind::TooNew { found: version, supported: latest_version() },
            format!(
                "{path} has schema {version} and this foldline supports schemas up to {}; \
                 upgrade foldline, or choose another file with --archive",
                latest_version()
            ),
        )),
        (APPLICATION_ID, version) if version > 0 => Ok(version),
        _ => Err(Error::new(
            ErrorKind::NotAnArchive,
            format!("{path} is a database, but not an archive of foldline; choose another file with --archive"),
        )),
    }
}
