//! The ledger in PostgreSQL.

use tokio_postgres::Row;

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::postgres::database::{RowScope, WaitLimit};
use crate::postgres::rows::{ENSURE_NAMESPACE, ENSURE_SESSIONS, TenantKey, read_name, to_sql_text};
use crate::postgres::store::PostgresStore;
use crate::store::{FactRow, FactSelection, LedgerRows};

/// Columns and tables of a fact, for [`read_fact`].
const SELECT_FACTS: &str = "SELECT s.name, s.sealed_name, l.kind, l.fingerprint, l.payload, l.at, s.last_at
    FROM foldline.ledger AS l LEFT JOIN foldline.session AS s ON s.tenant = l.tenant AND s.name = l.session
    WHERE l.tenant = $1";

const FACT_ORDER: &str = "ORDER BY l.at, l.kind, l.fingerprint";

impl LedgerRows for PostgresStore {
    fn insert_fact(&self, namespace: &Namespace, fact: FactRow) -> Result<(FactRow, bool), Error> {
        self.database().check_writable()?;
        let (tenant, name) = (TenantKey::new(namespace), namespace.as_str());
        let session = fact.session.as_ref().map(|name| to_sql_text(&name.key)).unwrap_or_default();
        let sealed = [fact.session.as_ref().and_then(|name| name.sealed.as_deref())];
        let (names, times) = ([session.as_ref()], [fact.at]);
        let count = usize::from(fact.session.is_some());
        let (names, sealed, times) = (&names[..count], &sealed[..count], &times[..count]);
        let kind = to_sql_text(&fact.kind);
        let insert = "INSERT INTO foldline.ledger (tenant, session, kind, fingerprint, payload, at)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING 1";
        // After the insert every replica sees the fact that was committed first.
        let select = format!("{SELECT_FACTS} AND l.session = $2 AND l.kind = $3 AND l.fingerprint = $4");
        let results = self.database().run(
            RowScope::Tenant(tenant),
            WaitLimit::Request,
            &[
                (ENSURE_NAMESPACE, &[&tenant, &name]),
                (ENSURE_SESSIONS, &[&tenant, &names, &sealed, &times]),
                (insert, &[&tenant, &session, &kind, &fact.fingerprint, &fact.payload, &fact.at]),
                (&select, &[&tenant, &session, &kind, &fact.fingerprint]),
            ],
        )?;
        let missing = || Error::new(ErrorKind::Io, "a fact that was just recorded is missing");
        Ok((read_fact(results[3].first().ok_or_else(missing)?)?, !results[2].is_empty()))
    }

    fn facts(&self, namespace: &Namespace, selection: FactSelection<'_>) -> Result<Vec<FactRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let (scope, database) = (RowScope::Tenant(tenant), self.database());
        let rows = match selection {
            FactSelection::One { session, kind, fingerprint } => {
                let sql = format!("{SELECT_FACTS} AND l.session = $2 AND l.kind = $3 AND l.fingerprint = $4");
                let (session, kind) = (to_sql_text(session), to_sql_text(kind));
                database.query(scope, WaitLimit::Request, &sql, &[&tenant, &session, &kind, &fingerprint])?
            }
            FactSelection::Sessions(sessions) => {
                let sql = format!("{SELECT_FACTS} AND l.session = ANY($2) {FACT_ORDER}");
                let sessions: Vec<_> = sessions.iter().map(|session| to_sql_text(session)).collect();
                database.query(scope, WaitLimit::Request, &sql, &[&tenant, &sessions])?
            }
            FactSelection::All => {
                let sql = format!("{SELECT_FACTS} {FACT_ORDER}");
                database.query(scope, WaitLimit::Maintenance, &sql, &[&tenant])?
            }
        };
        rows.iter().map(read_fact).collect()
    }
}

fn read_fact(row: &Row) -> Result<FactRow, Error> {
    Ok(FactRow {
        session: read_name(row, 0)?,
        kind: row.try_get(2)?,
        fingerprint: row.try_get(3)?,
        payload: row.try_get(4)?,
        at: row.try_get(5)?,
        session_used_at: row.try_get(6)?,
    })
}
