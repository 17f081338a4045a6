//! Statistics of a tenant's part of the archive.

use crate::originals::write::find_namespace;
use crate::tenant::TenantArchive;
use crate::{Error, permissions};

/// Number of tools that are listed.
const MAX_TOOLS: i64 = 20;

/// Statistics of a tenant's part of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveStats {
    /// Originals that can be unfolded.
    pub available: u64,
    /// Originals that retention has removed.
    pub expired: u64,
    /// Originals that are damaged on disk.
    pub damaged: u64,
    /// Bytes of the available originals.
    pub bytes: u64,
    /// Tokens of the available originals.
    pub tokens: u64,
    /// Bytes of their packs on disk.
    pub packed_bytes: u64,
    /// Sessions that were seen.
    pub sessions: u64,
    /// Time at which the oldest available original was stored, in milliseconds since 1970.
    pub oldest_at: Option<i64>,
    /// Time at which the newest available original was stored.
    pub newest_at: Option<i64>,
    /// The tools that produced most bytes. Empty in an encrypted archive, where tool names are encrypted too.
    pub tools: Vec<ToolStats>,
    /// The size of the archive's file, all namespaces together.
    pub file_bytes: u64,
    /// The size of the search index next to it.
    pub index_bytes: u64,
}

/// Statistics of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolStats {
    /// Its name.
    pub tool: String,
    /// Its available originals.
    pub originals: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
}

impl TenantArchive {
    /// Returns the statistics of this tenant.
    pub fn stats(&self) -> Result<ArchiveStats, Error> {
        let store = self.backend();
        let size =
            |suffix| std::fs::metadata(permissions::sibling_path(&store.path, suffix)).map_or(0, |file| file.len());
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
