//! Entries of the archive: the metadata of an original.

use foldline::Handle;
use rusqlite::Row;
use rusqlite::types::Type;

use crate::originals::pack::{OriginalDescription, PackSlot};

/// Metadata of an original.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginalInfo {
    /// Its content address.
    pub handle: Handle,
    /// Its length in bytes.
    pub length: u64,
    /// Its tokens by the counter in use when it was stored.
    pub tokens: u64,
    /// The tool that produced it, if any.
    pub tool: Option<String>,
    /// The arguments of the tool call.
    pub arguments: Option<String>,
    /// The session in which it was folded first.
    pub session: Option<String>,
    /// The index of its message in that session.
    pub message: u64,
    /// Time at which it was stored, in milliseconds since 1970.
    pub kept_at: i64,
    /// Time of the last known request with its marker, in milliseconds since 1970.
    pub carried_at: i64,
}

impl OriginalInfo {
    pub(crate) fn new(stored: OriginalRow, description: OriginalDescription) -> Self {
        Self {
            handle: stored.handle,
            length: stored.slot.length as u64,
            tokens: stored.tokens,
            tool: description.tool,
            arguments: description.arguments,
            session: stored.session,
            message: stored.message,
            kept_at: stored.kept_at,
            carried_at: stored.carried_at,
        }
    }
}

/// A restored original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfoldedOriginal {
    /// Its metadata.
    pub info: OriginalInfo,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

/// The state of an original; the numbers are stored in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginalState {
    Available = 0,
    Expired = 1,
    Damaged = 2,
}

/// A row of the table of originals.
#[derive(Clone, Debug)]
pub(crate) struct OriginalRow {
    pub(crate) id: i64,
    pub(crate) handle: Handle,
    pub(crate) hash: [u8; 32],
    pub(crate) state: OriginalState,
    pub(crate) pack: Option<i64>,
    pub(crate) slot: PackSlot,
    pub(crate) tokens: u64,
    pub(crate) message: u64,
    pub(crate) session: Option<String>,
    pub(crate) kept_at: i64,
    pub(crate) carried_at: i64,
    pub(crate) expired_at: Option<i64>,
}

impl OriginalRow {
    /// The columns that [`OriginalRow::from_row`] reads, of `original AS o LEFT JOIN session AS s`.
    pub(crate) const COLUMNS: &'static str = "o.id, o.handle, o.hash, o.state, o.pack, o.start, o.about, o.length, \
         o.tokens, o.message, s.name, o.kept_at, o.carried_at, o.gone_at";

    pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let invalid = |column, what: &str| {
            rusqlite::Error::FromSqlConversionFailure(
                column,
                Type::Text,
                format!("invalid {what} in the archive").into(),
            )
        };
        let number = |column| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
        let size = |column| Ok::<_, rusqlite::Error>(usize::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
        Ok(Self {
            id: row.get(0)?,
            handle: row.get_ref(1)?.as_str()?.parse().map_err(|_| invalid(1, "handle"))?,
            hash: row.get(2)?,
            state: match row.get(3)? {
                0 => OriginalState::Available,
                1 => OriginalState::Expired,
                2 => OriginalState::Damaged,
                _ => return Err(invalid(3, "state")),
            },
            pack: row.get(4)?,
            slot: PackSlot { start: size(5)?, description_len: size(6)?, length: size(7)? },
            tokens: number(8)?,
            message: number(9)?,
            session: row.get(10)?,
            kept_at: row.get(11)?,
            carried_at: row.get(12)?,
            expired_at: row.get(13)?,
        })
    }
}
