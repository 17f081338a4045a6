//! Rows of PostgreSQL as rows of the storage seam.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::pack::PackSlot;
use crate::store::{OriginalRow, OriginalState, StoredName};

/// Creates the namespace.
pub(crate) const ENSURE_NAMESPACE: &str =
    "INSERT INTO foldline.namespace (tenant, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Creates a session or updates its last-seen time.
pub(crate) const ENSURE_SESSIONS: &str = "
    INSERT INTO foldline.session AS s (tenant, name, sealed_name, first_at, last_at)
    SELECT $1, g.name, g.sealed_name, g.at, g.at
    FROM unnest($2::text[], $3::bytea[], $4::bigint[]) AS g (name, sealed_name, at) ORDER BY g.name
    ON CONFLICT (tenant, name) DO UPDATE SET last_at = excluded.last_at WHERE s.last_at < excluded.last_at";

/// The tenant of a namespace in all tables: the first half of the hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TenantKey([u8; 16]);

impl TenantKey {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let hash = blake3::derive_key("foldline archive 2026-11 tenants of namespaces", namespace.as_str().as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hash[..16]);
        Self(key)
    }

    /// Parses the text of a key, as [`Display`](fmt::Display) writes it.
    #[cfg(feature = "objects")]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let number = u128::from_str_radix(&digits, 16).ok()?;
        let key = Self(number.to_be_bytes());
        (key.to_string() == text).then_some(key)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let separator = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl ToSql for TenantKey {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for TenantKey {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

/// A pack in the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) tenant: TenantKey,
    pub(crate) name: String,
}

/// Columns of an original `o`, for [`read_original`]. The session and the namespace are subqueries: a join would be planned
/// as a scan of all of them, because row-level security makes the server expect few.
pub(crate) const ORIGINAL_COLUMNS: &str = "o.id, o.handle, o.sealed_handle, o.hash, o.state, o.pack, o.start, \
     o.description_len, o.length, o.tokens, o.message, o.session, \
     (SELECT s.sealed_name FROM foldline.session AS s WHERE s.tenant = o.tenant AND s.name = o.session), o.kept_at, o.carried_at, \
     o.expired_at, (SELECT n.name FROM foldline.namespace AS n WHERE n.tenant = o.tenant), o.tenant";

/// An original, its namespace and the id of its pack.
#[derive(Debug)]
pub(crate) struct LocatedOriginal {
    pub(crate) row: OriginalRow,
    pub(crate) pack: Option<i64>,
    pub(crate) namespace: Namespace,
    pub(crate) tenant: TenantKey,
}

/// Reads the columns of [`ORIGINAL_COLUMNS`].
pub(crate) fn read_original(row: &Row) -> Result<LocatedOriginal, Error> {
    let size = |column: usize| row.try_get::<_, i64>(column).map(|size| usize::try_from(size).unwrap_or(0));
    let state = match row.try_get::<_, i16>(4)? {
        0 => OriginalState::Available,
        1 => OriginalState::Expired,
        2 => OriginalState::Damaged,
        _ => return Err(Error::new(ErrorKind::Damaged, "invalid state of an original in the database")),
    };
    let hash: &[u8] = row.try_get(3)?;
    let hash = hash.try_into().map_err(|_| Error::new(ErrorKind::Damaged, "invalid hash in the database"))?;
    Ok(LocatedOriginal {
        row: OriginalRow {
            id: row.try_get(0)?,
            handle: StoredName { key: row.try_get(1)?, sealed: row.try_get(2)? },
            hash,
            state,
            slot: PackSlot { start: size(6)?, description_len: size(7)?, length: size(8)? },
            tokens: read_count(row, 9)?,
            message: read_count(row, 10)?,
            session: read_name(row, 11)?,
            kept_at: row.try_get(13)?,
            carried_at: row.try_get(14)?,
            expired_at: row.try_get(15)?,
        },
        pack: row.try_get(5)?,
        namespace: Namespace::new(row.try_get::<_, String>(16)?)?,
        tenant: row.try_get(17)?,
    })
}

/// Returns a column that is never negative, 0 if it is NULL.
pub(crate) fn read_count(row: &Row, column: usize) -> Result<u64, Error> {
    Ok(u64::try_from(row.try_get::<_, Option<i64>>(column)?.unwrap_or(0)).unwrap_or(0))
}

/// Returns a name from two columns: its key, and its encrypted form.
pub(crate) fn read_name(row: &Row, column: usize) -> Result<Option<StoredName>, Error> {
    let (key, sealed): (Option<String>, Option<Vec<u8>>) = (row.try_get(column)?, row.try_get(column + 1)?);
    Ok(key.map(|key| StoredName { key, sealed }))
}

/// Converts a number to PostgreSQL's integer type, saturating.
pub(crate) fn to_sql_int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns a text without the character that PostgreSQL cannot store.
pub(crate) fn to_sql_text(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}").into(),
        false => text.into(),
    }
}

/// The sessions of records, each once, with the last time.
#[derive(Default)]
pub(crate) struct SessionColumns<'r> {
    pub(crate) names: Vec<Cow<'r, str>>,
    pub(crate) sealed: Vec<Option<&'r [u8]>>,
    pub(crate) times: Vec<i64>,
}

impl<'r> SessionColumns<'r> {
    pub(crate) fn new(seen: impl Iterator<Item = (Option<&'r StoredName>, i64)>) -> Self {
        let mut columns = Self::default();
        for (session, at) in seen {
            let Some(name) = session else { continue };
            let key = to_sql_text(&name.key);
            match columns.names.iter().position(|known| *known == key) {
                Some(known) => columns.times[known] = columns.times[known].max(at),
                None => {
                    columns.names.push(key);
                    columns.sealed.push(name.sealed.as_deref());
                    columns.times.push(at);
                }
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_is_written_as_a_uuid() {
        let key = TenantKey::new(&Namespace::local());
        let text = key.to_string();
        assert_eq!(text.len(), 36);
        assert!(text.chars().all(|c| c.is_ascii_hexdigit() || c == '-'), "{text}");
        assert_ne!(key, TenantKey::new(&Namespace::new("other").unwrap()));
    }
}
