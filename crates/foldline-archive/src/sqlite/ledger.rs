//! The ledger in SQLite.

use rusqlite::{Connection, Row, ToSql};

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::sqlite::rows::{ensure_namespace, ensure_session, find_namespace, get_name};
use crate::sqlite::store::SqliteStore;
use crate::store::{FactRow, FactSelection, LedgerRows};

impl LedgerRows for SqliteStore {
    fn insert_fact(&self, namespace: &Namespace, fact: FactRow) -> Result<(FactRow, bool), Error> {
        let key = fact.session.as_ref().map(|name| name.key.clone()).unwrap_or_default();
        let selection = FactSelection::One { session: &key, kind: &fact.kind, fingerprint: &fact.fingerprint };
        // Most facts of a running conversation are recorded again by each request.
        if let Some(stored) = self.facts(namespace, selection)?.pop() {
            return Ok((stored, false));
        }
        let namespace = namespace.clone();
        self.write_with(|database| {
            database.write_queue()?.write(move |connection| insert_fact(connection, &namespace, &key, &fact))
        })
    }

    fn facts(&self, namespace: &Namespace, selection: FactSelection<'_>) -> Result<Vec<FactRow>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(Vec::new()) };
                select_facts(connection, namespace, selection)
            })
        })
    }
}

fn insert_fact(
    connection: &Connection,
    namespace: &Namespace,
    session: &str,
    fact: &FactRow,
) -> Result<(FactRow, bool), Error> {
    let namespace = ensure_namespace(connection, namespace)?;
    ensure_session(connection, namespace, fact.session.as_ref(), fact.at)?;
    let added = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO ledger (namespace, session, kind, fingerprint, payload, at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((namespace, session, &fact.kind, &fact.fingerprint, &fact.payload, fact.at))?;
    let selection = FactSelection::One { session, kind: &fact.kind, fingerprint: &fact.fingerprint };
    let stored = select_facts(connection, namespace, selection)?.pop();
    let missing = || Error::new(ErrorKind::Io, "a fact that was just recorded is missing");
    Ok((stored.ok_or_else(missing)?, added > 0))
}

fn select_facts(connection: &Connection, namespace: i64, selection: FactSelection<'_>) -> Result<Vec<FactRow>, Error> {
    let (condition, parameters): (String, Vec<&dyn ToSql>) = match &selection {
        FactSelection::One { session, kind, fingerprint } => {
            let condition = "AND l.session = ?2 AND l.kind = ?3 AND l.fingerprint = ?4";
            (condition.to_owned(), vec![&namespace, session, kind, fingerprint])
        }
        FactSelection::Sessions(sessions) => {
            let places = (0..sessions.len()).map(|at| format!("?{}", at + 2)).collect::<Vec<_>>().join(", ");
            let sessions = sessions.iter().map(|session| session as &dyn ToSql);
            (
                format!("AND l.session IN ({places})"),
                std::iter::once(&namespace as &dyn ToSql).chain(sessions).collect(),
            )
        }
        FactSelection::All => (String::new(), vec![&namespace]),
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT s.name, s.sealed_name, l.kind, l.fingerprint, l.payload, l.at, s.last_at
         FROM ledger AS l LEFT JOIN session AS s ON s.namespace = l.namespace AND s.name = l.session
         WHERE l.namespace = ?1 {condition} ORDER BY l.at, l.kind, l.fingerprint"
    ))?;
    let read = |row: &Row<'_>| {
        Ok(FactRow {
            session: get_name(row, 0)?,
            kind: row.get(2)?,
            fingerprint: row.get(3)?,
            payload: row.get(4)?,
            at: row.get(5)?,
            session_used_at: row.get(6)?,
        })
    };
    Ok(statement.query_map(parameters.as_slice(), read)?.collect::<Result<_, _>>()?)
}
