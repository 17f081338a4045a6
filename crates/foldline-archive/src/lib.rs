//! The archive of foldline: everything that was folded, held durably, exactly and privately.
//!
//! An [`Archive`] is one SQLite file. What belongs to one user lies on one [`Shelf`] and can be reached
//! through that shelf alone. A shelf implements [`foldline::OriginalStore`]: when `keep` returns, the originals
//! are on disk, and [`Shelf::unfold_cost`] gives back the identical bytes, or says why not, for as long as
//! retention holds them.
//!
//! This crate touches the disk and the clock. It reads no environment and no settings, and speaks to
//! no network.

pub(crate) mod admin;
mod archive;
mod clock;
pub(crate) mod encryption;
mod error;
mod namespace;
pub(crate) mod originals;
pub(crate) mod permissions;
pub(crate) mod search;
pub(crate) mod sessions;
pub(crate) mod sqlite;
pub(crate) mod tenant;

pub use crate::admin::retention::{PruneReport, RetentionPolicy};
pub use crate::admin::stats::{ArchiveStats, ToolStats};
pub use crate::admin::transfer::{ExportReport, ImportReport};
pub use crate::admin::verify::{ByteProgress, DamagedOriginal, VerifyReport};
pub use crate::encryption::ArchiveKey;
pub use crate::originals::entry::{OriginalInfo, UnfoldedOriginal};
pub use crate::originals::excerpt::{Excerpt, ExcerptQuery, LineRange, PAGE_BYTES, excerpt};
pub use crate::originals::write::StoreCounts;
pub use crate::search::query::{SearchHit, SearchResults};
pub use crate::sessions::journal::{EventRecord, RequestRecord, SessionRecord};
pub use crate::sessions::ledger::LedgerFact;
pub use crate::sqlite::sync::SyncHandle;
pub use crate::tenant::TenantArchive;
pub use archive::{AccessMode, Archive, ArchiveOptions};
pub use error::{Error, ErrorKind};
pub use namespace::Namespace;
