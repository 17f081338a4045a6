//! The journal in PostgreSQL.

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::postgres::database::{RowScope, WaitLimit};
use crate::postgres::journal_thread::JournalRecord;
use crate::postgres::rows::{TenantKey, read_count, read_name, to_sql_int};
use crate::postgres::store::PostgresStore;
use crate::store::{EventRow, JournalRows, RequestRow, SessionRow, StoredName};

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
}
