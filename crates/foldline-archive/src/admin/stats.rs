//! Statistics of a tenant's part of the archive.

use crate::error::Error;
use crate::store::ArchiveScope;
use crate::tenant::TenantArchive;

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
    /// The part of them that is in an object store.
    pub object_bytes: u64,
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
    /// Returns the bytes of this namespace's originals in the store, compressed.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn used_bytes(&self) -> Result<u64, Error> {
        self.store_rows().used_bytes(ArchiveScope::Namespace(self.namespace()))
    }

    /// Returns the statistics of this tenant.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn stats(&self) -> Result<ArchiveStats, Error> {
        let stats = self.store_rows().stats(self.namespace())?;
        let tool = |(tool, originals, bytes, tokens)| ToolStats { tool, originals, bytes, tokens };
        Ok(ArchiveStats {
            available: stats.available,
            expired: stats.expired,
            damaged: stats.damaged,
            bytes: stats.bytes,
            tokens: stats.tokens,
            packed_bytes: stats.packed_bytes,
            object_bytes: stats.object_bytes,
            sessions: stats.sessions,
            oldest_at: stats.oldest_at,
            newest_at: stats.newest_at,
            tools: stats.tools.into_iter().map(tool).collect(),
            file_bytes: stats.file_bytes,
            index_bytes: stats.index_bytes,
        })
    }
}
