//! The tables of the archive and their migrations.
//!
//! A database with a newer schema is rejected. A released migration is never edited: a change of the tables is a new
//! entry at the end of [`MIGRATIONS`]. Migrations run in one transaction under a lock, so that replicas which start at
//! once migrate once.
//!
//! Originals are partitioned by their handle and packs by their id, so that a content address stays unique in its
//! tenant: partitions by time would need one look-up each.

use deadpool_postgres::Object;

use crate::clock;
use crate::encryption::ArchiveCipher;
use crate::error::{Error, ErrorKind};

/// The migrations from an empty database to the newest schema; the version of a database is the number applied to it.
const MIGRATIONS: &[(&str, &str)] = &[
    (
        "originals in packs, sessions, requests, events, ledger, search, holds",
        "
    -- identity: a random name; lock: proves that the key is the right one; object_folder: a random name.
    CREATE TABLE foldline.setting (
        name        text PRIMARY KEY,
        value       bytea NOT NULL
    );

    -- The tenant is a hash of the name, so that no statement has to look it up.
    CREATE TABLE foldline.namespace (
        tenant      uuid PRIMARY KEY,
        name        text NOT NULL UNIQUE
    );

    CREATE TABLE foldline.session (
        tenant      uuid NOT NULL,
        name        text COLLATE \"C\" NOT NULL,
        sealed_name bytea,
        first_at    bigint NOT NULL,
        last_at     bigint NOT NULL,
        PRIMARY KEY (tenant, name)
    );
    CREATE INDEX session_by_time ON foldline.session (tenant, last_at);

    -- Originals that were stored together are compressed together.
    CREATE SEQUENCE foldline.pack_id;
    CREATE TABLE foldline.pack (
        tenant      uuid NOT NULL,
        id          bigint NOT NULL,
        length      bigint NOT NULL,            -- before compression
        content     bytea NOT NULL,
        PRIMARY KEY (tenant, id)
    ) PARTITION BY HASH (id);

    CREATE SEQUENCE foldline.original_id;
    CREATE TABLE foldline.original (
        tenant      uuid NOT NULL,
        handle      text COLLATE \"C\" NOT NULL,
        id          bigint NOT NULL,
        sealed_handle bytea,                    -- NULL in a plaintext archive
        hash        bytea NOT NULL,             -- BLAKE3, whole
        state       smallint NOT NULL,          -- 0 available, 1 expired, 2 damaged
        pack        bigint,                     -- NULL once expired
        start       bigint NOT NULL,            -- in the pack: first its description, then its bytes
        description_len bigint NOT NULL,
        length      bigint NOT NULL,
        tokens      bigint NOT NULL,
        message     bigint NOT NULL,
        session     text COLLATE \"C\",
        tool        text,                       -- NULL in an encrypted archive
        kept_at     bigint NOT NULL,
        carried_at  bigint NOT NULL,            -- the last request known to carry the marker
        expired_at  bigint,
        PRIMARY KEY (tenant, handle)
    ) PARTITION BY HASH (handle);
    CREATE INDEX original_by_id ON foldline.original (id);
    CREATE INDEX original_by_pack ON foldline.original (tenant, pack) WHERE pack IS NOT NULL;
    CREATE INDEX original_by_session ON foldline.original (tenant, session) WHERE session IS NOT NULL;
    DO $$ BEGIN
        FOR part IN 0..7 LOOP
            EXECUTE format('CREATE TABLE foldline.pack_%s PARTITION OF foldline.pack
                FOR VALUES WITH (MODULUS 8, REMAINDER %s)', part, part);
            -- It is compressed already.
            EXECUTE format('ALTER TABLE foldline.pack_%s ALTER COLUMN content SET STORAGE EXTERNAL', part);
            EXECUTE format('CREATE TABLE foldline.original_%s PARTITION OF foldline.original
                FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (fillfactor = 90)', part, part);
        END LOOP;
    END $$;

    CREATE TABLE foldline.ledger (
        tenant      uuid NOT NULL,
        session     text COLLATE \"C\" NOT NULL,  -- empty if the fact belongs to no session
        kind        text COLLATE \"C\" NOT NULL,
        fingerprint bytea NOT NULL,
        payload     bytea NOT NULL,
        at          bigint NOT NULL,
        PRIMARY KEY (tenant, session, kind, fingerprint)
    );

    CREATE TABLE foldline.request (
        tenant      uuid NOT NULL,
        id          bigint GENERATED ALWAYS AS IDENTITY,
        session     text COLLATE \"C\",
        at          bigint NOT NULL,
        model       text NOT NULL,
        raw_tokens  bigint NOT NULL,
        sent_tokens bigint NOT NULL,
        folds       bigint NOT NULL,
        payload     bytea NOT NULL,
        PRIMARY KEY (tenant, id)
    );
    CREATE INDEX request_by_time ON foldline.request (tenant, at);
    CREATE INDEX request_by_session ON foldline.request (tenant, session);

    CREATE TABLE foldline.event (
        tenant      uuid NOT NULL,
        id          bigint GENERATED ALWAYS AS IDENTITY,
        session     text COLLATE \"C\",
        at          bigint NOT NULL,
        kind        text NOT NULL,
        payload     bytea NOT NULL,
        PRIMARY KEY (tenant, id)
    );
    CREATE INDEX event_by_time ON foldline.event (tenant, at);

    -- Legal holds: of a session, or with an empty name of a tenant.
    CREATE TABLE foldline.hold (
        tenant      uuid NOT NULL,
        session     text COLLATE \"C\" NOT NULL,
        sealed_session bytea,
        reason      text NOT NULL,
        at          bigint NOT NULL,
        PRIMARY KEY (tenant, session)
    );

    -- Packs whose originals are not in the search index yet.
    CREATE TABLE foldline.unindexed (
        tenant      uuid NOT NULL,
        pack        bigint NOT NULL,
        PRIMARY KEY (tenant, pack)
    );

    -- The search index. Its terms are hashes that are different in every tenant, so no query of one finds rows of
    -- another. Row-level security would prevent the use of the index: text search operators are not leakproof.
    CREATE TABLE foldline.document (
        tenant      uuid NOT NULL,
        id          bigint NOT NULL,
        words       bigint NOT NULL,
        terms       tsvector NOT NULL,
        PRIMARY KEY (tenant, id)
    );
    CREATE INDEX document_by_term ON foldline.document USING gin (terms);
    CREATE TABLE foldline.index_size (
        tenant      uuid PRIMARY KEY,
        documents   bigint NOT NULL,
        words       bigint NOT NULL
    );

    DO $$ DECLARE name text; BEGIN
        FOREACH name IN ARRAY ARRAY['session', 'pack', 'original', 'ledger', 'request', 'event', 'hold', 'unindexed']
        LOOP
            EXECUTE format('ALTER TABLE foldline.%I ENABLE ROW LEVEL SECURITY', name);
            EXECUTE format('ALTER TABLE foldline.%I FORCE ROW LEVEL SECURITY', name);
            EXECUTE format('CREATE POLICY tenant ON foldline.%I
                USING (current_setting(''foldline.tenant'', true) IN (tenant::text, ''*''))', name);
        END LOOP;
        -- A partition that is named in a statement applies only its own policies: none lets anyone in.
        FOR part IN 0..7 LOOP
            EXECUTE format('ALTER TABLE foldline.pack_%s ENABLE ROW LEVEL SECURITY', part);
            EXECUTE format('ALTER TABLE foldline.pack_%s FORCE ROW LEVEL SECURITY', part);
            EXECUTE format('ALTER TABLE foldline.original_%s ENABLE ROW LEVEL SECURITY', part);
            EXECUTE format('ALTER TABLE foldline.original_%s FORCE ROW LEVEL SECURITY', part);
        END LOOP;
    END $$;
    ",
    ),
    (
        "checkpoints of the journal",
        "
    ALTER TABLE foldline.namespace ADD COLUMN deletions bigint NOT NULL DEFAULT 0;  -- of events
    CREATE TABLE foldline.checkpoint (
        tenant      uuid PRIMARY KEY,
        position    bigint NOT NULL,            -- id of the last event that it covers
        payload     bytea NOT NULL
    );
    -- It is compressed already.
    ALTER TABLE foldline.checkpoint ALTER COLUMN payload SET STORAGE EXTERNAL;
    ALTER TABLE foldline.checkpoint ENABLE ROW LEVEL SECURITY;
    ALTER TABLE foldline.checkpoint FORCE ROW LEVEL SECURITY;
    CREATE POLICY tenant ON foldline.checkpoint
        USING (current_setting('foldline.tenant', true) IN (tenant::text, '*'));
    ",
    ),
    (
        "packs in an object store",
        "
    ALTER TABLE foldline.pack ALTER COLUMN content DROP NOT NULL;
    -- The name and size of the object that has the content, if the row has not.
    ALTER TABLE foldline.pack ADD COLUMN object text COLLATE \"C\";
    ALTER TABLE foldline.pack ADD COLUMN object_bytes bigint;
    CREATE INDEX pack_by_object ON foldline.pack (tenant, object) WHERE object IS NOT NULL;
    ",
    ),
    (
        "a folder of objects for each database",
        "
    -- A database that has objects has them in the folder that it was given by its identity, which a migrated archive shares
    -- with its source.
    SELECT set_config('foldline.tenant', '*', true);
    INSERT INTO foldline.setting (name, value)
    SELECT 'object_folder', CASE WHEN EXISTS (SELECT 1 FROM foldline.pack WHERE object IS NOT NULL)
        THEN (SELECT value FROM foldline.setting WHERE name = 'identity')
        ELSE decode(replace(gen_random_uuid()::text, '-', ''), 'hex') END;
    ",
    ),
    (
        "row-level security of namespaces and the search index",
        "
    DO $$ DECLARE name text; BEGIN
        FOREACH name IN ARRAY ARRAY['namespace', 'index_size', 'document'] LOOP
            EXECUTE format('ALTER TABLE foldline.%I ENABLE ROW LEVEL SECURITY', name);
            EXECUTE format('ALTER TABLE foldline.%I FORCE ROW LEVEL SECURITY', name);
        END LOOP;
        FOREACH name IN ARRAY ARRAY['namespace', 'index_size'] LOOP
            EXECUTE format('CREATE POLICY tenant ON foldline.%I
                USING (current_setting(''foldline.tenant'', true) IN (tenant::text, ''*''))', name);
        END LOOP;
    END $$;
    -- A condition on reading would prevent the use of the index of terms.
    CREATE POLICY tenant_read ON foldline.document FOR SELECT USING (true);
    CREATE POLICY tenant_insert ON foldline.document FOR INSERT
        WITH CHECK (current_setting('foldline.tenant', true) IN (tenant::text, '*'));
    CREATE POLICY tenant_update ON foldline.document FOR UPDATE
        USING (current_setting('foldline.tenant', true) IN (tenant::text, '*'));
    CREATE POLICY tenant_delete ON foldline.document FOR DELETE
        USING (current_setting('foldline.tenant', true) IN (tenant::text, '*'));
    ",
    ),
];

/// The tables with row-level security: all with data of tenants. That of `document` covers writing only.
pub(crate) const PROTECTED_TABLES: [&str; 12] = [
    "session",
    "pack",
    "original",
    "ledger",
    "request",
    "event",
    "hold",
    "unindexed",
    "checkpoint",
    "namespace",
    "index_size",
    "document",
];

/// The lock under which migrations run: `foldline` in ASCII.
const MIGRATION_LOCK: i64 = 0x666f_6c64_6c69_6e65;

/// Returns the newest schema version that this build supports.
fn latest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("the list of migrations is short")
}

/// The random names of an archive, which were chosen when its tables were created.
#[derive(Clone, Debug)]
pub(crate) struct ArchiveNames {
    /// The identity, on which the namespaces of credentials depend. A migration copies it.
    pub(crate) identity: Vec<u8>,
    /// The folder of its objects. No other database has it, unless it is a copy by PostgreSQL's own means.
    pub(crate) object_folder: Vec<u8>,
}

/// Migrates the database to the newest schema, if `is_writable`, checks the key and returns the archive's names.
pub(crate) async fn migrate(
    client: &Object,
    cipher: &ArchiveCipher,
    is_writable: bool,
    location: &str,
) -> Result<ArchiveNames, Error> {
    let mut version = read_version(client, location).await?;
    if is_writable && version < latest_version() {
        client.batch_execute("BEGIN").await?;
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        // Another process may have migrated the database while this one waited for the lock.
        version = read_version(client, location).await?;
        if version == 0 {
            create_schema(client).await?;
        }
        for (number, (what, tables)) in (1_i64..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= version) {
            client.batch_execute(tables).await?;
            let sql = "INSERT INTO foldline.migration (version, applied_at, what) VALUES ($1, $2, $3)";
            client.execute(sql, &[&number, &clock::now_millis(), what]).await?;
        }
        if version == 0 {
            let sql = "INSERT INTO foldline.setting (name, value)
                 VALUES ('identity', decode(replace(gen_random_uuid()::text, '-', ''), 'hex')), ('lock', $1)";
            client.execute(sql, &[&cipher.new_key_check()?]).await?;
        }
        client.batch_execute("COMMIT").await?;
    } else if version == 0 {
        return Err(Error::new(ErrorKind::NotAnArchive, format!("{location} has no archive")));
    }
    let find = async |name: &str| -> Result<Option<Vec<u8>>, Error> {
        let sql = "SELECT value FROM foldline.setting WHERE name = $1";
        Ok(client.query_opt(sql, &[&name]).await?.map(|row| row.get(0)))
    };
    let read = async |name: &str| -> Result<Vec<u8>, Error> {
        find(name).await?.ok_or_else(|| {
            Error::new(ErrorKind::NotAnArchive, format!("the archive in {location} has no setting {name}"))
        })
    };
    cipher.verify_key_check(read("lock").await?, location)?;
    let identity = read("identity").await?;
    // A database with an older schema, opened for reading, has none.
    let object_folder = find("object_folder").await?.unwrap_or_else(|| identity.clone());
    Ok(ArchiveNames { identity, object_folder })
}

async fn create_schema(client: &Object) -> Result<(), Error> {
    // An administrator may have created the schema for a role that cannot.
    let exists = client.query_opt("SELECT 1 FROM pg_namespace WHERE nspname = 'foldline'", &[]).await?.is_some();
    if !exists {
        client.batch_execute("CREATE SCHEMA foldline").await?;
    }
    let sql = "CREATE TABLE foldline.migration (
             version bigint PRIMARY KEY, applied_at bigint NOT NULL, what text NOT NULL)";
    Ok(client.batch_execute(sql).await?)
}

/// Returns the schema version of the database, 0 if it has none, or an error if it is too new.
async fn read_version(client: &Object, location: &str) -> Result<i64, Error> {
    // Not by `to_regclass`: it may use what the session has in memory, from before another process created the table.
    let find = "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = 'foldline' AND c.relname = 'migration'";
    if client.query_opt(find, &[]).await?.is_none() {
        return Ok(0);
    }
    let row = client.query_one("SELECT coalesce(max(version), 0) FROM foldline.migration", &[]).await?;
    let version = row.get(0);
    if version > latest_version() {
        return Err(Error::new(
            ErrorKind::TooNew { found: version, supported: latest_version() },
            format!(
                "{location} has schema {version} and this foldline supports schemas up to {}; upgrade foldline",
                latest_version()
            ),
        ));
    }
    Ok(version)
}
