//! Legal holds in PostgreSQL: originals and records under a hold are neither expired nor deleted.

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::postgres::database::{RowScope, TransactionSteps, WaitLimit};
use crate::postgres::rows::{ENSURE_NAMESPACE, TenantKey, to_sql_text};
use crate::postgres::store::PostgresStore;
use crate::store::{HoldRow, HoldRows, StoredName};

/// A condition on an original `o` that no hold covers.
pub(crate) const ORIGINAL_IS_FREE: &str = "NOT EXISTS (SELECT 1 FROM foldline.hold AS h
    WHERE h.tenant = o.tenant AND h.session IN ('', coalesce(o.session, '')))";

impl HoldRows for PostgresStore {
    fn set_hold(&self, namespace: &Namespace, hold: HoldRow) -> Result<(), Error> {
        self.database().check_writable()?;
        let (tenant, name) = (TenantKey::new(namespace), namespace.as_str());
        let session = hold.session.as_ref().map(|name| to_sql_text(&name.key)).unwrap_or_default();
        let sealed = hold.session.as_ref().and_then(|name| name.sealed.as_deref());
        let sql = "INSERT INTO foldline.hold (tenant, session, sealed_session, reason, at) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (tenant, session) DO UPDATE SET reason = excluded.reason";
        self.database().run(
            RowScope::Tenant(tenant),
            WaitLimit::Request,
            &[
                (ENSURE_NAMESPACE, &[&tenant, &name]),
                (sql, &[&tenant, &session, &sealed, &to_sql_text(&hold.reason), &hold.at]),
            ],
        )?;
        Ok(())
    }

    fn release_hold(&self, namespace: &Namespace, session: Option<&str>) -> Result<bool, Error> {
        self.database().check_writable()?;
        let tenant = TenantKey::new(namespace);
        let sql = "DELETE FROM foldline.hold WHERE tenant = $1 AND session = $2 RETURNING 1";
        let session = to_sql_text(session.unwrap_or_default());
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&tenant, &session];
        let released = self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &parameters)?;
        Ok(!released.is_empty())
    }

    fn holds(&self, namespace: &Namespace) -> Result<Vec<HoldRow>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql =
            "SELECT session, sealed_session, reason, at FROM foldline.hold WHERE tenant = $1 ORDER BY at, session";
        let rows = self.database().query(RowScope::Tenant(tenant), WaitLimit::Request, sql, &[&tenant])?;
        let read = |row: &tokio_postgres::Row| {
            let key: String = row.try_get(0)?;
            let sealed = row.try_get(1)?;
            let session = Some(StoredName { key, sealed }).filter(|name| !name.key.is_empty());
            Ok(HoldRow { session, reason: row.try_get(2)?, at: row.try_get(3)? })
        };
        rows.iter().map(read).collect()
    }
}

/// Fails if a hold covers an original or session that is to be deleted. `condition` selects the originals.
pub(crate) fn check_no_hold(
    steps: &TransactionSteps<'_>,
    tenant: TenantKey,
    condition: &str,
    key: &str,
) -> Result<(), Error> {
    let sql = format!(
        "SELECT h.reason FROM foldline.hold AS h WHERE h.tenant = $1 AND (h.session = '' OR h.session = $2 OR $2 = ''
             OR EXISTS (SELECT 1 FROM foldline.original AS o
                 WHERE o.tenant = $1 AND {condition} AND o.session = h.session)) LIMIT 1"
    );
    match steps.query(&sql, &[&tenant, &key])?.first() {
        None => Ok(()),
        Some(row) => {
            let reason: String = row.try_get(0)?;
            Err(Error::new(ErrorKind::Held, format!("under legal hold ({reason}); nothing was deleted")))
        }
    }
}
