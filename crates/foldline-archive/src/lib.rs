//! The archive of foldline: everything that was folded, held durably, exactly and privately.
//!
//! An [`Archive`] is one SQLite file. What belongs to one user lies on one [`Shelf`] and can be reached
//! through that shelf alone. A shelf implements [`foldline::OriginalStore`]: when `keep` returns, the originals
//! are on disk, and [`Shelf::unfold_cost`] gives back the identical bytes, or says why not, for as long as
//! retention holds them.
//!
//! This crate touches the disk and the clock. It reads no environment and no settings, and speaks to
//! no network.

mod archive;
mod clock;
mod disk;
mod entry;
mod error;
mod index;
mod journal;
mod keep;
mod keeper;
mod ledger;
mod mask;
mod namespace;
mod pack;
mod place;
mod reader;
mod repack;
mod retain;
mod schema;
mod seal;
mod search;
mod shelf;
mod snippet;
mod stats;
mod store;
mod transfer;
mod verify;
mod view;
mod words;
mod writer;

pub use archive::{AccessMode, Archive, ArchiveOptions};
pub use disk::SyncHandle;
pub use entry::{OriginalInfo, UnfoldedOriginal};
pub use error::{Error, ErrorKind};
pub use journal::{EventRecord, RequestRecord, SessionRecord};
pub use keep::StoreCounts;
pub use ledger::LedgerFact;
pub use namespace::Namespace;
pub use retain::{PruneReport, RetentionPolicy};
pub use seal::ArchiveKey;
pub use search::{SearchHit, SearchResults};
pub use shelf::TenantArchive;
pub use stats::{ArchiveStats, ToolStats};
pub use transfer::{ExportReport, ImportReport};
pub use verify::{ByteProgress, DamagedOriginal, VerifyReport};
pub use view::{Excerpt, ExcerptQuery, LineRange, PAGE_BYTES, excerpt};
