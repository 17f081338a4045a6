//! The archive of foldline: a durable, exact and private store of everything that was folded.
//!
//! An [`Archive`] is one SQLite file, or a PostgreSQL database (cargo feature `postgres`); both implement the traits of
//! [`store`]. The data of one user is reachable only through that user's [`TenantArchive`], which implements
//! [`foldline::OriginalStore`]: when `store` returns, the originals are on disk, and [`TenantArchive::unfold`] returns
//! the identical bytes, or a typed error, for as long as retention keeps them.
//!
//! This crate uses the disk and the clock. It reads no environment and no settings, and uses no network, except to reach
//! the database and the object store of an archive that is not a file.

mod admin;
mod archive;
mod audit;
mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod encryption;
mod error;
mod handle_prefix;
mod location;
mod namespace;
mod object_storage;
mod originals;
mod permissions;
#[cfg(feature = "postgres")]
mod postgres;
mod search;
mod sessions;
mod sqlite;
pub mod store;
mod sync_handle;
mod tenant;

pub use crate::admin::delete::DeleteReport;
pub use crate::admin::hold::LegalHold;
pub use crate::admin::migrate::MigrateReport;
pub use crate::admin::retention::{PruneReport, RetentionPolicy};
pub use crate::admin::stats::{ArchiveStats, ToolStats};
pub use crate::admin::transfer::{ExportReport, ImportReport};
pub use crate::admin::verify::{ByteProgress, DamagedOriginal, VerifyReport};
pub use crate::archive::{AccessMode, Archive, ArchiveOptions};
pub use crate::audit::AuditLog;
pub use crate::encryption::ArchiveKey;
pub use crate::error::{Error, ErrorKind};
pub use crate::namespace::Namespace;
pub use crate::object_storage::ObjectStorage;
pub use crate::originals::entry::{OriginalInfo, UnfoldedOriginal};
pub use crate::originals::excerpt::excerpt;
pub use crate::originals::unfold_tool::answer_unfold;
pub use crate::originals::write::{RefusedOriginal, StoreCounts};
#[cfg(all(feature = "postgres", feature = "testing"))]
pub use crate::postgres::testing as postgres_testing;
pub use crate::search::query::{SearchHit, SearchResults, find_lines};
pub use crate::sessions::journal::{EventRecord, JournalCheckpoint, RequestRecord, SessionRecord};
pub use crate::sessions::ledger::{LedgerFact, SessionLedger};
pub use crate::store::JournalState;
pub use crate::sync_handle::{SyncCompletion, SyncHandle};
pub use crate::tenant::TenantArchive;
pub use foldline::engine::{Excerpt, ExcerptQuery, LineRange, PAGE_BYTES, UNFOLD_TOOL, truncate_answer};
