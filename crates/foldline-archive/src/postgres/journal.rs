//! The journal in PostgreSQL.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::postgres::database::{RowScope, TransactionSteps, WaitLimit};
use crate::postgres::journal_thread::JournalRecord;
use crate::postgres::rows::{ENSURE_NAMESPACE, TenantKey, read_count, read_name, to_sql_int};
use crate::postgres::store::PostgresStore;
use crate::store::{CheckpointRow, EventRow, JournalRows, JournalState, RequestRow, SessionRow, StoredName};

impl JournalRows for PostgresStore {
    fn append_request(&self, namespace: &Namespace, request: RequestRow) -> Result<(), Error> {
        self.journal()?.append(namespace, JournalRecord::Request(request));
        Ok(())
    }

    fn append_event(&self, namespace: &Namespace, event: EventRow) -> Result<(), Error> {
        self.journal()?.append(namespace, JournalRecord::Event(event));
        Ok(())
    }

    fn touch_session(&self, namespace: &Namespace, session: StoredName, at: i64) -> Result<(), Error> {
        self.journal()?.append(namespace, JournalRecord::Session(session, at));
        Ok(())
    }

    fn sessions(&self, namespace: &Namespace, limit: usize) -> Result<Vec<SessionRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT s.name, s.sealed_name, s.first_at, s.last_at, count(r.id), sum(r.raw_tokens)::bigint,
                 sum(r.sent_tokens)::bigint
             FROM (SELECT * FROM foldline.session WHERE tenant = $1 ORDER BY last_at DESC LIMIT $2) AS s
             LEFT JOIN foldline.request AS r ON r.tenant = s.tenant AND r.session = s.name
             GROUP BY s.name, s.sealed_name, s.first_at, s.last_at ORDER BY s.last_at DESC, s.first_at DESC";
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&tenant, &to_sql_int(limit)];
        let rows = self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &parameters)?;
        let read = |row: &tokio_postgres::Row| {
            let missing = || Error::new(ErrorKind::Io, "a session has no name");
            Ok(SessionRow {
                name: read_name(row, 0)?.ok_or_else(missing)?,
                first_at: row.try_get(2)?,
                last_at: row.try_get(3)?,
                requests: read_count(row, 4)?,
                raw_tokens: read_count(row, 5)?,
                sent_tokens: read_count(row, 6)?,
            })
        };
        rows.iter().map(read).collect()
    }

    fn requests(&self, namespace: &Namespace, since: i64, limit: usize) -> Result<Vec<RequestRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT r.at, s.name, s.sealed_name, r.model, r.raw_tokens, r.sent_tokens, r.folds, r.payload
             FROM foldline.request AS r
             LEFT JOIN foldline.session AS s ON s.tenant = r.tenant AND s.name = r.session
             WHERE r.tenant = $1 AND r.at >= $2 ORDER BY r.at DESC, r.id DESC LIMIT $3";
        let limit = to_sql_int(limit);
        let rows =
            self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &[&tenant, &since, &limit])?;
        let read = |row: &tokio_postgres::Row| {
            Ok(RequestRow {
                at: row.try_get(0)?,
                session: read_name(row, 1)?,
                model: row.try_get(3)?,
                raw_tokens: read_count(row, 4)?,
                sent_tokens: read_count(row, 5)?,
                folds: read_count(row, 6)?,
                payload: row.try_get(7)?,
            })
        };
        rows.iter().map(read).collect()
    }

    fn events(&self, namespace: &Namespace, after: i64, limit: usize) -> Result<Vec<EventRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT e.id, e.at, s.name, s.sealed_name, e.kind, e.payload
             FROM foldline.event AS e
             LEFT JOIN foldline.session AS s ON s.tenant = e.tenant AND s.name = e.session
             WHERE e.tenant = $1 AND e.id > $2 ORDER BY e.id LIMIT $3";
        let limit = to_sql_int(limit);
        let rows =
            self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &[&tenant, &after, &limit])?;
        let read = |row: &tokio_postgres::Row| {
            Ok(EventRow {
                id: row.try_get(0)?,
                at: row.try_get(1)?,
                session: read_name(row, 2)?,
                kind: row.try_get(4)?,
                payload: row.try_get(5)?,
            })
        };
        rows.iter().map(read).collect()
    }

    fn flush_journal(&self, limit: Duration) -> Result<bool, Error> {
        Ok(self.journal()?.flush_within(limit))
    }

    fn journal_state(&self, namespace: &Namespace) -> Result<JournalState, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT n.deletions, (SELECT max(e.id) FROM foldline.event AS e WHERE e.tenant = $1)
             FROM foldline.namespace AS n WHERE n.tenant = $1";
        let rows = self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &[&tenant])?;
        let read = |row: &tokio_postgres::Row| {
            let newest: Option<i64> = row.try_get(1)?;
            Ok(JournalState { deletions: read_count(row, 0)?, newest_event: newest.unwrap_or(0) })
        };
        rows.first().map_or(Ok(JournalState::default()), read)
    }

    fn checkpoint(&self, namespace: &Namespace) -> Result<Option<CheckpointRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT c.position, n.deletions, c.payload FROM foldline.checkpoint AS c
             JOIN foldline.namespace AS n ON n.tenant = c.tenant WHERE c.tenant = $1";
        let rows = self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &[&tenant])?;
        let read = |row: &tokio_postgres::Row| {
            Ok(CheckpointRow { position: row.try_get(0)?, deletions: read_count(row, 1)?, payload: row.try_get(2)? })
        };
        rows.first().map(read).transpose()
    }

    fn write_checkpoint(&self, namespace: &Namespace, checkpoint: CheckpointRow) -> Result<bool, Error> {
        self.database().check_writable()?;
        let (tenant, name) = (TenantKey::new(namespace), namespace.as_str());
        let CheckpointRow { position, deletions, payload } = checkpoint;
        // A deletion that is not committed yet holds the row of the namespace: this waits for it, and then sees its count.
        let sql = "INSERT INTO foldline.checkpoint AS c (tenant, position, payload)
             SELECT n.tenant, $2, $4 FROM foldline.namespace AS n WHERE n.tenant = $1 AND n.deletions = $3 FOR SHARE OF n
             ON CONFLICT (tenant) DO UPDATE SET position = excluded.position, payload = excluded.payload
             WHERE excluded.position > c.position RETURNING 1";
        let deletions = to_sql_int(deletions);
        let results = self.database().run(
            RowScope::Tenant(tenant),
            WaitLimit::Maintenance,
            &[(ENSURE_NAMESPACE, &[&tenant, &name]), (sql, &[&tenant, &position, &deletions, &payload])],
        )?;
        Ok(results.last().is_some_and(|rows| !rows.is_empty()))
    }
}

/// Deletes the checkpoint of a tenant whose events are deleted in the same transaction, and counts the deletion.
pub(crate) fn count_deletion(steps: &TransactionSteps<'_>, tenant: TenantKey) -> Result<(), Error> {
    steps.query("UPDATE foldline.namespace SET deletions = deletions + 1 WHERE tenant = $1", &[&tenant])?;
    steps.query("DELETE FROM foldline.checkpoint WHERE tenant = $1", &[&tenant])?;
    Ok(())
}
