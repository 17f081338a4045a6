//! Originals in PostgreSQL.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use foldline::Handle;
use tokio_postgres::Row;

use crate::clock;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::originals::write::TOUCH_INTERVAL;
use crate::postgres::database::{Database, Parameters, RowScope, WaitLimit};
use crate::postgres::pack_objects::PackPlace;
use crate::postgres::packs::read_pack;
use crate::postgres::rows::{
    ENSURE_NAMESPACE, ENSURE_SESSIONS, ORIGINAL_COLUMNS, ObjectName, SessionColumns, TenantKey, read_original,
    to_sql_int, to_sql_text,
};
use crate::postgres::store::PostgresStore;
use crate::store::{
    ArchiveScope, InsertOutcome, KeyRange, KnownOriginal, NewPack, NewRow, OriginalRows, OriginalSelection,
    OriginalState, OriginalVisitor, StoredPack,
};

/// Number of keys from which it is cheaper to query which are stored than to send all of them.
const MIN_KNOWN_KEYS: usize = 32;

/// Bytes of originals after which a group that is read by ids ends: about what a search ranks.
const GROUP_BYTES: i64 = 2 * 1024 * 1024;

/// Stores originals, and the packs that have a new one, and returns the handles that were written, and whether they are
/// new. Rows are locked in the
/// order of their handles, so that two replicas cannot wait for each other.
const INSERT_ORIGINALS: &str = "
    WITH given AS (
        SELECT * FROM unnest($2::text[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::bigint[])
        AS g (handle, sealed_handle, hash, pack_number, start, description_len, length, tokens, message, session, tool,
            kept_at, carried_at)
    ), new_pack AS MATERIALIZED (
        SELECT g.number, g.content, g.length, g.object, g.object_bytes, nextval('foldline.pack_id') AS id
        FROM unnest($15::bytea[], $16::bigint[], $19::text[], $20::bigint[])
            WITH ORDINALITY AS g (content, length, object, object_bytes, number)
    ), stored AS (
        INSERT INTO foldline.original AS o (tenant, id, handle, sealed_handle, hash, state, pack, start,
            description_len, length, tokens, message, session, tool, kept_at, carried_at)
        SELECT $1, nextval('foldline.original_id'), g.handle, g.sealed_handle, g.hash, 0, p.id, g.start,
            g.description_len, g.length, g.tokens, g.message, g.session, g.tool, g.kept_at, g.carried_at
        FROM given AS g JOIN new_pack AS p ON p.number = g.pack_number ORDER BY g.handle
        ON CONFLICT (tenant, handle) DO UPDATE SET
            id = CASE WHEN o.state = 0 THEN o.id ELSE excluded.id END,
            pack = CASE WHEN o.state = 0 THEN o.pack ELSE excluded.pack END,
            start = CASE WHEN o.state = 0 THEN o.start ELSE excluded.start END,
            description_len = CASE WHEN o.state = 0 THEN o.description_len ELSE excluded.description_len END,
            kept_at = CASE WHEN o.state = 0 THEN o.kept_at ELSE excluded.kept_at END,
            session = CASE WHEN o.state = 0 THEN o.session ELSE excluded.session END,
            state = 0, expired_at = NULL, carried_at = greatest(o.carried_at, excluded.carried_at)
        WHERE o.hash = excluded.hash AND (o.state <> 0 OR o.carried_at < excluded.carried_at - $17)
        RETURNING o.handle, o.pack
    ), packed AS (
        INSERT INTO foldline.pack (tenant, id, length, content, object, object_bytes)
        SELECT $1, p.id, p.length, p.content, p.object, p.object_bytes FROM new_pack AS p WHERE p.id IN (SELECT pack FROM stored)
        RETURNING id
    ), queued AS (
        INSERT INTO foldline.unindexed (tenant, pack) SELECT $1, id FROM packed WHERE $18
    )
    SELECT s.handle, s.pack IN (SELECT id FROM new_pack) FROM stored AS s";

/// The pack of an original `o`. The limit keeps the server from reading all packs of the tenant and joining them.
const SELECT_PACK: &str = "SELECT p.length, p.content, p.object FROM foldline.pack AS p
    WHERE p.tenant = o.tenant AND p.id = o.pack LIMIT 1";

/// Hashes of stored originals.
const SELECT_KNOWN: &str = "SELECT o.handle, o.hash, o.state, o.carried_at FROM foldline.original AS o
    WHERE o.tenant = $1 AND o.handle = ANY($2)";

impl OriginalRows for PostgresStore {
    fn find_known(&self, namespace: &Namespace, keys: &[&str]) -> Result<Vec<KnownOriginal>, Error> {
        // Writing an object for nothing costs more than a query.
        if keys.len() < MIN_KNOWN_KEYS && self.database().objects().is_none() {
            return Ok(Vec::new());
        }
        let tenant = TenantKey::new(namespace);
        let database = self.database();
        let rows =
            database.query(RowScope::Tenant(tenant), WaitLimit::for_lookups(), SELECT_KNOWN, &[&tenant, &keys])?;
        rows.iter().map(read_known).collect()
    }

    fn insert(&self, namespace: &Namespace, packs: Vec<NewPack>) -> Result<Vec<InsertOutcome>, Error> {
        self.database().check_writable()?;
        let outcomes = insert_packs(self.database(), namespace, packs)?;
        self.wake_indexer();
        Ok(outcomes)
    }

    fn touch(&self, namespace: &Namespace, keys: Vec<String>, at: i64) -> Result<(), Error> {
        self.journal()?.touch(namespace, keys, at);
        Ok(())
    }

    fn read(
        &self,
        scope: ArchiveScope<'_>,
        selection: OriginalSelection<'_>,
        visit: &mut OriginalVisitor<'_>,
    ) -> Result<(), Error> {
        match selection {
            // A whole handle is in one partition.
            OriginalSelection::Keys(range, _) if self.is_whole_handle(range) => {
                let tenant = scope.namespace().map(TenantKey::new);
                let condition = "o.tenant = $1 AND o.handle = $2";
                self.read_at_once(scope, condition, &[&tenant, &range.from], visit).map(drop)
            }
            OriginalSelection::Keys(range, limit) => {
                let condition = "o.tenant = $1 AND o.handle >= $2 AND o.handle < $3
                     ORDER BY o.state = 1, o.handle LIMIT $4";
                let tenant = scope.namespace().map(TenantKey::new);
                let limit = to_sql_int(limit);
                self.read_at_once(scope, condition, &[&tenant, &range.from, &range.to, &limit], visit).map(drop)
            }
            OriginalSelection::Ids(ids) => self.read_by_ids(scope, ids, visit),
            OriginalSelection::After(id, limit) => self.read_in_steps(scope, id, limit, visit),
        }
    }

    fn set_states(&self, changes: Vec<(i64, OriginalState)>) -> Result<(), Error> {
        self.database().check_writable()?;
        let (ids, states): (Vec<i64>, Vec<i16>) = changes.iter().map(|(id, state)| (*id, *state as i16)).unzip();
        let sql = "UPDATE foldline.original AS o SET state = g.state
             FROM unnest($1::bigint[], $2::smallint[]) AS g (id, state) WHERE o.id = g.id AND o.state <> 1";
        self.database().query(RowScope::Everything, WaitLimit::Request, sql, &[&ids, &states])?;
        Ok(())
    }
}

impl PostgresStore {
    /// Returns true if a range has the key of one handle. In an encrypted archive a range is that of a prefix.
    fn is_whole_handle(&self, range: &KeyRange) -> bool {
        self.database().cipher().is_plaintext() && range.from.len() == Handle::LENGTH
    }

    /// Visits available originals in the order of their ids in a list, a group of them at a time: a caller that has enough
    /// ends the read before the others are fetched.
    fn read_by_ids(&self, scope: ArchiveScope<'_>, ids: &[i64], visit: &mut OriginalVisitor<'_>) -> Result<(), Error> {
        let owned = |alias: &str| match scope {
            ArchiveScope::Namespace(_) => format!(" {alias}.tenant = $1"),
            ArchiveScope::Everything => "$1::uuid IS NULL".to_owned(),
        };
        let (outer, inner) = (owned("o"), owned("i"));
        let condition = format!(
            "{outer} AND o.state = 0 AND o.id IN (
                 SELECT g.id FROM (
                     SELECT i.id, sum(i.length) OVER (ORDER BY array_position($2, i.id)) - i.length AS before
                     FROM foldline.original AS i WHERE {inner} AND i.id = ANY($2) AND i.state = 0) AS g
                 WHERE g.before < $3::bigint)
             ORDER BY array_position($2, o.id)"
        );
        let (tenant, mut rest) = (scope.namespace().map(TenantKey::new), ids);
        while !rest.is_empty() {
            let mut last = None;
            let flow =
                self.read_at_once(scope, &condition, &[&tenant, &rest, &GROUP_BYTES], &mut |namespace, row, pack| {
                    last = Some(row.id);
                    visit(namespace, row, pack)
                })?;
            let Some(at) = last.and_then(|last| rest.iter().position(|id| *id == last)) else { break };
            if flow.is_break() {
                break;
            }
            rest = &rest[at + 1..];
        }
        Ok(())
    }

    /// Visits few originals, which are read with their packs in one round trip, and then their objects at once.
    fn read_at_once(
        &self,
        scope: ArchiveScope<'_>,
        condition: &str,
        parameters: Parameters<'_>,
        visit: &mut OriginalVisitor<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let sql = format!(
            "SELECT {ORIGINAL_COLUMNS}, p.length, p.content, p.object FROM foldline.original AS o
             LEFT JOIN LATERAL ({SELECT_PACK}) AS p ON true WHERE {condition}"
        );
        let limit = WaitLimit::for_lookups();
        let mut missing: HashSet<String> = HashSet::new();
        let (rows, objects) = loop {
            let rows = self.database().query(scope.into(), limit, &sql, parameters)?;
            let objects = self.read_objects_of(&rows, limit)?;
            // Another replica may have moved the originals to another object since the rows were read, and again since
            // then. An object that is missing and still named is lost.
            let known = missing.len();
            missing.extend(objects.iter().filter(|(_, content)| content.is_none()).map(|(name, _)| name.clone()));
            if missing.len() == known {
                break (rows, objects);
            }
        };
        for row in &rows {
            let located = read_original(row)?;
            let (length, content, object): (Option<i64>, Option<&[u8]>, Option<&str>) =
                (row.try_get(18)?, row.try_get(19)?, row.try_get(20)?);
            let content = content.or_else(|| objects.get(object?)?.as_deref());
            let pack = located.pack.zip(length.zip(content)).map(|(id, (length, content))| StoredPack {
                id,
                length: usize::try_from(length).unwrap_or(0),
                content,
            });
            if visit(&located.namespace, located.row, pack)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the objects that rows name, by their names.
    fn read_objects_of(&self, rows: &[Row], limit: WaitLimit) -> Result<HashMap<String, Option<Bytes>>, Error> {
        let mut names: Vec<ObjectName> = Vec::new();
        for row in rows {
            if let Some(name) = row.try_get::<_, Option<String>>(20)?
                && names.iter().all(|known| known.name != name)
            {
                names.push(ObjectName { tenant: row.try_get(17)?, name });
            }
        }
        let contents = self.database().read_objects(&names, limit)?;
        Ok(names.into_iter().map(|object| object.name).zip(contents).collect())
    }

    /// Visits many originals, whose packs are read one after the other.
    fn read_in_steps(
        &self,
        scope: ArchiveScope<'_>,
        after: i64,
        limit: usize,
        visit: &mut OriginalVisitor<'_>,
    ) -> Result<(), Error> {
        let tenant = scope.namespace().map(TenantKey::new);
        let condition = match scope {
            ArchiveScope::Namespace(_) => "o.tenant = $1",
            ArchiveScope::Everything => "$1::uuid IS NULL",
        };
        let sql = format!(
            "SELECT {ORIGINAL_COLUMNS} FROM foldline.original AS o
             WHERE {condition} AND o.id > $2 AND o.state <> 1 ORDER BY o.id LIMIT $3"
        );
        self.database().transact(scope.into(), WaitLimit::Maintenance, |steps| {
            steps.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", &[])?;
            let mut last = None;
            for row in steps.query(&sql, &[&tenant, &after, &to_sql_int(limit)])? {
                let located = read_original(&row)?;
                let flow = match read_pack(steps, located.tenant, located.pack, &mut last)? {
                    Some(pack) => visit(&located.namespace, located.row, Some(pack))?,
                    // Its object is missing, or another replica has moved it since the transaction began.
                    None => {
                        let scope = ArchiveScope::Namespace(&located.namespace);
                        let condition = "o.tenant = $1 AND o.handle = $2 AND o.state <> 1";
                        self.read_at_once(scope, condition, &[&located.tenant, &located.row.handle.key], visit)?
                    }
                };
                if flow.is_break() {
                    break;
                }
            }
            Ok(())
        })
    }
}

fn read_known(row: &Row) -> Result<KnownOriginal, Error> {
    let hash: &[u8] = row.try_get(1)?;
    Ok(KnownOriginal {
        key: row.try_get(0)?,
        // A hash of another length equals none.
        hash: hash.try_into().unwrap_or_default(),
        is_available: row.try_get::<_, i16>(2)? == OriginalState::Available as i16,
        carried_at: row.try_get(3)?,
    })
}

fn insert_packs(
    database: &Database,
    namespace: &Namespace,
    mut packs: Vec<NewPack>,
) -> Result<Vec<InsertOutcome>, Error> {
    let (tenant, limit) = (TenantKey::new(namespace), WaitLimit::for_lookups());
    let contents = packs.iter_mut().map(|pack| std::mem::take(&mut pack.content).into()).collect();
    let places = database.place_packs(tenant, contents, limit)?;
    let numbered =
        || (1_i64..).zip(&packs).flat_map(|(number, pack)| pack.originals.iter().map(move |row| (number, row)));
    let rows: Vec<&NewRow> = numbered().map(|(_, row)| row).collect();
    let name = namespace.as_str();
    let seen = SessionColumns::new(rows.iter().map(|row| (row.session.as_ref(), row.carried_at)));
    let ints = |value: fn(&NewRow) -> i64| rows.iter().map(|row| value(row)).collect::<Vec<i64>>();
    let handles: Vec<&str> = rows.iter().map(|row| row.handle.key.as_str()).collect();
    let sealed: Vec<Option<&[u8]>> = rows.iter().map(|row| row.handle.sealed.as_deref()).collect();
    let hashes: Vec<&[u8]> = rows.iter().map(|row| &row.hash[..]).collect();
    let pack_numbers: Vec<i64> = numbered().map(|(number, _)| number).collect();
    let (starts, descriptions) =
        (ints(|row| to_sql_int(row.slot.start)), ints(|row| to_sql_int(row.slot.description_len)));
    let (lengths, tokens) = (ints(|row| to_sql_int(row.slot.length)), ints(|row| to_sql_int(row.tokens)));
    let messages = ints(|row| to_sql_int(row.message));
    let (kept, carried) = (ints(|row| row.kept_at), ints(|row| row.carried_at));
    let sessions: Vec<Option<_>> =
        rows.iter().map(|row| row.session.as_ref().map(|name| to_sql_text(&name.key))).collect();
    let tools: Vec<Option<_>> = rows.iter().map(|row| row.tool.as_deref().map(to_sql_text)).collect();
    let contents: Vec<Option<&[u8]>> = places.iter().map(PackPlace::content).collect();
    let objects: Vec<Option<&str>> = places.iter().map(PackPlace::object).collect();
    let object_bytes: Vec<Option<i64>> = places.iter().map(PackPlace::object_bytes).collect();
    let pack_lengths: Vec<i64> = packs.iter().map(|pack| to_sql_int(pack.length)).collect();
    let touch_after = clock::to_millis(TOUCH_INTERVAL) / 2;
    let is_indexed = database.cipher().is_plaintext();
    let results = database.run(
        RowScope::Tenant(tenant),
        limit,
        &[
            (ENSURE_NAMESPACE, &[&tenant, &name]),
            (ENSURE_SESSIONS, &[&tenant, &seen.names, &seen.sealed, &seen.times]),
            (
                INSERT_ORIGINALS,
                &[
                    &tenant,
                    &handles,
                    &sealed,
                    &hashes,
                    &pack_numbers,
                    &starts,
                    &descriptions,
                    &lengths,
                    &tokens,
                    &messages,
                    &sessions,
                    &tools,
                    &kept,
                    &carried,
                    &contents,
                    &pack_lengths,
                    &touch_after,
                    &is_indexed,
                    &objects,
                    &object_bytes,
                ],
            ),
        ],
    )?;
    let written: HashMap<&str, bool> =
        results[2].iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Error>>()?;
    // What was not written is stored already, or belongs to another text.
    let others: Vec<&str> = handles.iter().filter(|handle| !written.contains_key(**handle)).copied().collect();
    let known = match others.is_empty() {
        true => Vec::new(),
        false => database.query(RowScope::Tenant(tenant), limit, SELECT_KNOWN, &[&tenant, &others])?,
    };
    let known = known.iter().map(read_known).collect::<Result<Vec<_>, _>>()?;
    let known: HashMap<&str, [u8; 32]> = known.iter().map(|known| (known.key.as_str(), known.hash)).collect();
    let outcome = |row: &&NewRow| match (written.get(row.handle.key.as_str()), known.get(row.handle.key.as_str())) {
        (Some(true), _) => InsertOutcome::Added,
        (None, Some(hash)) if *hash != row.hash => InsertOutcome::HandleTaken,
        _ => InsertOutcome::Existing,
    };
    let is_used = |pack: &NewPack| pack.originals.iter().any(|row| written.get(row.handle.key.as_str()) == Some(&true));
    let unused = packs.iter().zip(&places).filter(|(pack, _)| !is_used(pack));
    database.discard_objects(unused.map(|(_, place)| place));
    Ok(rows.iter().map(outcome).collect())
}
