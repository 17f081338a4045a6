//! Retention, deletion and statistics in PostgreSQL.
//!
//! Deleted rows remain in the files of the server until it vacuums their table, and in its log and backups for as long as
//! those are kept.

use tokio_postgres::Row;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::postgres::database::{RowScope, TransactionSteps, WaitLimit};
use crate::postgres::holds::{ORIGINAL_IS_FREE, check_no_hold};
use crate::postgres::indexer::remove_documents;
use crate::postgres::journal::count_deletion;
use crate::postgres::repack::{delete_empty_packs, repack, repack_all};
use crate::postgres::rows::{TenantKey, read_count, to_sql_text};
use crate::postgres::schema::PROTECTED_TABLES;
use crate::postgres::store::PostgresStore;
use crate::store::{ArchiveScope, Deletion, RemovedCounts, RetentionRows, StoreStats};

/// Number of tools that are listed.
const MAX_TOOLS: i64 = 20;

/// Returns a condition on the tenant of a scope, and the parameter `$1` for it.
fn scope_condition(scope: ArchiveScope<'_>) -> (&'static str, Option<TenantKey>) {
    match scope.namespace() {
        Some(namespace) => ("tenant = $1", Some(TenantKey::new(namespace))),
        None => ("$1::uuid IS NULL", None),
    }
}

impl RetentionRows for PostgresStore {
    fn used_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error> {
        let (condition, tenant) = scope_condition(scope);
        let sql = format!(
            "SELECT sum(coalesce(object_bytes, octet_length(content)))::bigint FROM foldline.pack WHERE {condition}"
        );
        let rows = self.database().query(scope.into(), WaitLimit::Maintenance, &sql, &[&tenant])?;
        rows.first().map_or(Ok(0), |row| read_count(row, 0))
    }

    fn unused_since(&self, scope: ArchiveScope<'_>, before: i64) -> Result<Vec<i64>, Error> {
        self.flush_journal();
        let (condition, tenant) = scope_condition(scope);
        let sql = format!(
            "SELECT id FROM foldline.original AS o
             WHERE {condition} AND state <> 1 AND carried_at < $2 AND {ORIGINAL_IS_FREE} ORDER BY carried_at, id"
        );
        let rows = self.database().query(scope.into(), WaitLimit::Maintenance, &sql, &[&tenant, &before])?;
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    fn expire(&self, ids: &[i64], before: i64, now: i64) -> Result<RemovedCounts, Error> {
        self.database().check_writable()?;
        let sql = format!(
            "UPDATE foldline.original AS o SET state = 1, pack = NULL, expired_at = $3
             FROM (SELECT o.tenant, o.handle, o.pack FROM foldline.original AS o
                 WHERE o.id = ANY($1) AND o.state <> 1 AND o.carried_at < $2 AND {ORIGINAL_IS_FREE}
                 ORDER BY o.tenant, o.handle FOR UPDATE OF o) AS g
             WHERE o.tenant = g.tenant AND o.handle = g.handle
             RETURNING o.tenant, o.id, o.length, g.pack"
        );
        let (counts, deleted) =
            self.database().transact_rows(RowScope::Everything, WaitLimit::Maintenance, |steps| {
                let removed = RemovedRows::read(&steps.query(&sql, &[&ids, &before, &now])?)?;
                remove_documents(steps, &removed.tenants, &removed.ids)?;
                let (tenants, packs): (Vec<TenantKey>, Vec<i64>) = removed.packs().unzip();
                delete_empty_packs(steps, &tenants, &packs)?;
                Ok(removed.counts())
            })?;
        // Objects that remain are orphans: a compaction deletes them a day later, and reports meanwhile that it cannot.
        let _ = self.database().delete_objects(&deleted);
        Ok(counts)
    }

    fn delete_records(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error> {
        self.database().check_writable()?;
        let (condition, tenant) = scope_condition(scope);
        let is_free = |session: &str| {
            format!(
                "NOT EXISTS (SELECT 1 FROM foldline.hold AS h
                     WHERE h.tenant = r.tenant AND h.session IN ('', coalesce({session}, '')))"
            )
        };
        let condition = format!("r.{condition}").replace("r.$1", "$1");
        let by_session = is_free("r.session");
        let by_name = is_free("r.name");
        let affected = format!(
            "SELECT DISTINCT r.tenant FROM foldline.event AS r WHERE {condition} AND r.at < $2 AND {by_session}"
        );
        let statements = [
            format!("DELETE FROM foldline.request AS r WHERE {condition} AND r.at < $2 AND {by_session}"),
            format!("DELETE FROM foldline.event AS r WHERE {condition} AND r.at < $2 AND {by_session}"),
            format!(
                "DELETE FROM foldline.ledger AS r WHERE {condition} AND r.at < $2 AND {by_session} AND NOT EXISTS (
                     SELECT 1 FROM foldline.session AS s
                     WHERE s.tenant = r.tenant AND s.name = r.session AND s.last_at >= $2)"
            ),
            format!(
                "DELETE FROM foldline.session AS r WHERE {condition} AND r.last_at < $2 AND {by_name} AND NOT EXISTS (
                     SELECT 1 FROM foldline.original AS o WHERE o.tenant = r.tenant AND o.session = r.name)"
            ),
        ];
        self.database().transact(scope.into(), WaitLimit::Maintenance, |steps| {
            for row in steps.query(&affected, &[&tenant, &before])? {
                count_deletion(steps, row.try_get(0)?)?;
            }
            statements.iter().try_for_each(|sql| steps.query(sql, &[&tenant, &before]).map(drop))
        })
    }

    fn delete_tombstones(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error> {
        self.database().check_writable()?;
        let (condition, tenant) = scope_condition(scope);
        let sql = format!("DELETE FROM foldline.original WHERE {condition} AND state = 1 AND expired_at < $2");
        self.database().query(scope.into(), WaitLimit::Maintenance, &sql, &[&tenant, &before])?;
        Ok(())
    }

    fn delete(&self, namespace: &Namespace, deletion: &Deletion) -> Result<RemovedCounts, Error> {
        self.database().check_writable()?;
        self.flush_journal();
        let tenant = TenantKey::new(namespace);
        self.database().transact(RowScope::Tenant(tenant), WaitLimit::Maintenance, |steps| {
            let removed = delete_rows(steps, tenant, deletion)?;
            // The text of a deleted original must not remain in a pack with others.
            let mut packs: Vec<i64> = removed.packs().map(|(_, pack)| pack).collect();
            packs.sort_unstable();
            packs.dedup();
            repack(self.database(), steps, namespace, &packs)?;
            Ok(removed.counts())
        })
    }

    fn namespaces(&self) -> Result<Vec<Namespace>, Error> {
        let sql = "SELECT name FROM foldline.namespace ORDER BY name";
        let rows = self.database().query(RowScope::Everything, WaitLimit::Maintenance, sql, &[])?;
        rows.iter().map(|row| Namespace::new(row.try_get::<_, String>(0)?)).collect()
    }

    fn compact(&self, scope: ArchiveScope<'_>) -> Result<(), Error> {
        self.database().check_writable()?;
        let tenants: Vec<TenantKey> = match scope {
            ArchiveScope::Namespace(namespace) => vec![TenantKey::new(namespace)],
            ArchiveScope::Everything => self.namespaces()?.iter().map(TenantKey::new).collect(),
        };
        // Each of these steps is of use without the others.
        let repacked = repack_all(self.database(), scope.into());
        let moved = self.database().move_packs_to_objects(&tenants);
        let deleted = self.database().delete_orphans(scope.into());
        repacked.and(moved).and(deleted)
    }

    fn stats(&self, namespace: &Namespace) -> Result<StoreStats, Error> {
        self.select_stats(TenantKey::new(namespace))
    }

    fn original_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error> {
        let (condition, tenant) = scope_condition(scope);
        let sql = format!("SELECT sum(length)::bigint FROM foldline.original WHERE {condition} AND state <> 1");
        let rows = self.database().query(scope.into(), WaitLimit::Maintenance, &sql, &[&tenant])?;
        rows.first().map_or(Ok(0), |row| read_count(row, 0))
    }

    /// Checks that row-level security applies: the server checks its own pages.
    fn check_structure(&self) -> Result<Vec<String>, Error> {
        let role = "SELECT current_user::text FROM pg_roles
             WHERE rolname = current_user AND (rolsuper OR rolbypassrls)";
        let tables = "SELECT relname::text FROM pg_class
             WHERE relnamespace = 'foldline'::regnamespace AND relname = ANY($1)
                 AND NOT (relrowsecurity AND relforcerowsecurity)";
        let results = self.database().run(
            RowScope::Everything,
            WaitLimit::Maintenance,
            &[(role, &[]), (tables, &[&&PROTECTED_TABLES[..]])],
        )?;
        let mut errors = Vec::new();
        for row in &results[0] {
            let role: String = row.try_get(0)?;
            errors.push(format!("the role {role} bypasses row-level security; use a role without that right"));
        }
        for row in &results[1] {
            let table: String = row.try_get(0)?;
            errors.push(format!("row-level security is off on the table foldline.{table}"));
        }
        Ok(errors)
    }
}

impl PostgresStore {
    fn select_stats(&self, tenant: TenantKey) -> Result<StoreStats, Error> {
        let counts = "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),
                 count(*) FILTER (WHERE state = 2), sum(length) FILTER (WHERE state = 0)::bigint,
                 sum(tokens) FILTER (WHERE state = 0)::bigint, min(kept_at) FILTER (WHERE state = 0),
                 max(kept_at) FILTER (WHERE state = 0)
             FROM foldline.original WHERE tenant = $1";
        let sizes = "SELECT (SELECT sum(coalesce(object_bytes, octet_length(content)))::bigint FROM foldline.pack
                     WHERE tenant = $1),
                 (SELECT sum(object_bytes)::bigint FROM foldline.pack WHERE tenant = $1),
                 (SELECT count(*) FROM foldline.session WHERE tenant = $1),
                 pg_total_relation_size('foldline.document'), pg_database_size(current_database())";
        let tools = "SELECT tool, count(*), sum(length)::bigint, sum(tokens)::bigint FROM foldline.original
             WHERE tenant = $1 AND state = 0 AND tool IS NOT NULL
             GROUP BY tool ORDER BY sum(length) DESC, tool LIMIT $2";
        let results = self.database().run(
            RowScope::Tenant(tenant),
            WaitLimit::Maintenance,
            &[(counts, &[&tenant]), (sizes, &[&tenant]), (tools, &[&tenant, &MAX_TOOLS])],
        )?;
        let (counts, sizes) = (&results[0][0], &results[1][0]);
        let index_bytes = read_count(sizes, 3)?;
        let read_tool =
            |row: &Row| Ok((row.try_get(0)?, read_count(row, 1)?, read_count(row, 2)?, read_count(row, 3)?));
        Ok(StoreStats {
            available: read_count(counts, 0)?,
            expired: read_count(counts, 1)?,
            damaged: read_count(counts, 2)?,
            bytes: read_count(counts, 3)?,
            tokens: read_count(counts, 4)?,
            oldest_at: counts.try_get(5)?,
            newest_at: counts.try_get(6)?,
            packed_bytes: read_count(sizes, 0)?,
            object_bytes: read_count(sizes, 1)?,
            sessions: read_count(sizes, 2)?,
            tools: results[2].iter().map(read_tool).collect::<Result<_, Error>>()?,
            file_bytes: read_count(sizes, 4)?.saturating_sub(index_bytes),
            index_bytes,
        })
    }
}

/// Originals that were removed.
#[derive(Default)]
struct RemovedRows {
    tenants: Vec<TenantKey>,
    ids: Vec<i64>,
    packs: Vec<Option<i64>>,
    bytes: u64,
}

impl RemovedRows {
    /// Reads rows of tenant, id, length and pack.
    fn read(rows: &[Row]) -> Result<Self, Error> {
        let mut removed = Self::default();
        for row in rows {
            removed.tenants.push(row.try_get(0)?);
            removed.ids.push(row.try_get(1)?);
            removed.bytes += read_count(row, 2)?;
            removed.packs.push(row.try_get(3)?);
        }
        Ok(removed)
    }

    fn packs(&self) -> impl Iterator<Item = (TenantKey, i64)> {
        self.tenants.iter().zip(&self.packs).filter_map(|(tenant, pack)| Some((*tenant, (*pack)?)))
    }

    fn counts(&self) -> RemovedCounts {
        RemovedCounts { originals: self.ids.len() as u64, bytes: self.bytes }
    }
}

/// Deletes rows of a tenant without tombstones.
fn delete_rows(steps: &TransactionSteps<'_>, tenant: TenantKey, deletion: &Deletion) -> Result<RemovedRows, Error> {
    let (condition, key) = match deletion {
        Deletion::Everything => ("$2::text = ''", ""),
        Deletion::Session(key) => ("o.session = $2", key.as_str()),
        Deletion::Original(key) => ("o.handle = $2", key.as_str()),
    };
    let key = to_sql_text(key);
    check_no_hold(steps, tenant, condition, &key)?;
    let sql = format!(
        "DELETE FROM foldline.original AS o WHERE o.tenant = $1 AND {condition} RETURNING o.tenant, o.id, o.length, o.pack"
    );
    let removed = RemovedRows::read(&steps.query(&sql, &[&tenant, &key])?)?;
    remove_documents(steps, &removed.tenants, &removed.ids)?;
    let by_session = match deletion {
        Deletion::Original(_) => return Ok(removed),
        Deletion::Everything => ["$2::text = ''"; 2],
        Deletion::Session(_) => ["session = $2", "name = $2"],
    };
    count_deletion(steps, tenant)?;
    for (table, condition) in
        [("request", by_session[0]), ("event", by_session[0]), ("ledger", by_session[0]), ("session", by_session[1])]
    {
        let sql = format!("DELETE FROM foldline.{table} WHERE tenant = $1 AND {condition}");
        steps.query(&sql, &[&tenant, &key])?;
    }
    Ok(removed)
}
