//! Statistics: how much a shelf holds, of what, since when.

use crate::originals::write::find_namespace;
use crate::tenant::TenantArchive;
use crate::{Error, permissions};

/// How many tools are listed.
const MAX_TOOLS: i64 = 20;

/// How much a shelf holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveStats {
    /// Originals that can be unfolded.
    pub available: u64,
    /// Originals that retention gave up.
    pub expired: u64,
    /// Originals that are damaged on disk.
    pub damaged: u64,
    /// Bytes of the held originals.
    pub bytes: u64,
    /// Tokens of the held originals.
    pub tokens: u64,
    /// Bytes that they take on disk, packed.
    pub packed_bytes: u64,
    /// Sessions that were seen.
    pub sessions: u64,
    /// When the oldest of the held was kept, in milliseconds since 1970.
    pub oldest_at: Option<i64>,
    /// When the newest was.
    pub newest_at: Option<i64>,
    /// What produced most of it. Empty in a sealed archive, where tools are sealed too.
    pub tools: Vec<ToolStats>,
    /// The size of the archive's file, all namespaces together.
    pub file_bytes: u64,
    /// The size of the search index beside it.
    pub index_bytes: u64,
}

/// How much a tool produced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolStats {
    /// Its name.
    pub tool: String,
    /// Originals of it that are held.
    pub originals: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
}

impl TenantArchive {
    /// How much this shelf holds.
    pub fn stats(&self) -> Result<ArchiveStats, Error> {
        let store = self.backend();
        let size = |ending| std::fs::metadata(permissions::sibling_path(&store.path, ending)).map_or(0, |it| it.len());
        let empty = ArchiveStats {
            file_bytes: size("") + size("-wal"),
            index_bytes: size(".index") + size(".index-wal"),
            ..ArchiveStats::default()
        };
        store.readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(empty) };
            let number = |row: &rusqlite::Row<'_>, column| -> rusqlite::Result<u64> {
                Ok(u64::try_from(row.get::<_, Option<i64>>(column)?.unwrap_or(0)).unwrap_or(0))
            };
            let mut stats = connection.query_row(
                "SELECT sum(state = 0), sum(state = 1), sum(state = 2),
                     sum(length) FILTER (WHERE state = 0), sum(tokens) FILTER (WHERE state = 0),
                     min(kept_at) FILTER (WHERE state = 0), max(kept_at) FILTER (WHERE state = 0)
                 FROM original WHERE namespace = ?1",
                [namespace],
                |row| {
                    Ok(ArchiveStats {
                        available: number(row, 0)?,
                        expired: number(row, 1)?,
                        damaged: number(row, 2)?,
                        bytes: number(row, 3)?,
                        tokens: number(row, 4)?,
                        oldest_at: row.get(5)?,
                        newest_at: row.get(6)?,
                        ..empty
                    })
                },
            )?;
            let one = |sql: &str| connection.query_row(sql, [namespace], |row| number(row, 0));
            stats.packed_bytes = one("SELECT sum(length(content)) FROM pack WHERE namespace = ?1")?;
            stats.sessions = one("SELECT count(*) FROM session WHERE namespace = ?1")?;
            stats.tools = connection
                .prepare(
                    "SELECT tool, count(*), sum(length), sum(tokens) FROM original
                     WHERE namespace = ?1 AND state = 0 AND tool IS NOT NULL
                     GROUP BY tool ORDER BY sum(length) DESC, tool LIMIT ?2",
                )?
                .query_map((namespace, MAX_TOOLS), |row| {
                    Ok(ToolStats {
                        tool: row.get(0)?,
                        originals: number(row, 1)?,
                        bytes: number(row, 2)?,
                        tokens: number(row, 3)?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok(stats)
        })
    }
}
