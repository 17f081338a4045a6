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

pub use archive::{Access, Archive, Options};
pub use disk::OnDisk;
pub use entry::{Entry, Unfolded};
pub use error::{Error, ErrorKind};
pub use journal::{Event, Request, Session};
pub use keep::Kept;
pub use ledger::Fact;
pub use namespace::Namespace;
pub use retain::{Pruned, Retention};
pub use seal::Key;
pub use search::{Found, Hit};
pub use shelf::Shelf;
pub use stats::{Stats, ToolStats};
pub use transfer::{Exported, Imported};
pub use verify::{Damage, Progress, Verified};
pub use view::{Excerpt, Lines, PAGE, View, view};
