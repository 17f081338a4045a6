//! The PostgreSQL store (cargo feature `postgres`): all SQL of PostgreSQL, for archives that several proxies share.
//!
//! | file | contents |
//! |---|---|
//! | `store` | the open store and its threads |
//! | `originals`, `ledger`, `journal`, `search`, `retention`, `holds` | the traits of the storage seam |
//! | `schema`, `rows`, `packs` | tables, row-level security, migrations, and reading rows and packs |
//! | `database`, `connection`, `outage`, `pipeline`, `wait`, `error` | connections, transactions in one round trip, limits on waiting |
//! | `pack_objects`, `objects`, `object_client` | packs in an object store (cargo feature `objects`) |
//! | `indexer`, `unreadable_packs`, `repack` | background work: indexing; moving originals between packs |
//!
//! Every table has the tenant as the first column of its key, and every statement names it. Row-level security is a
//! second wall: a transaction sees only the rows of the tenant that it was begun for, except in the search index, whose
//! rows it cannot change.
//!
//! Large packs may be objects of an object store: the row of a pack has its bytes, or the name of the object.
//!
//! Calls wait on the caller's thread, at most for a limit, while a runtime of the store's own moves the bytes. A commit
//! is durable, so a sync has nothing to wait for.

mod connection;
mod database;
mod error;
mod holds;
mod indexer;
mod journal;
mod journal_thread;
mod ledger;
#[cfg(feature = "objects")]
mod object_client;
#[cfg(feature = "objects")]
mod objects;
#[cfg(not(feature = "objects"))]
#[path = "objects_absent.rs"]
mod objects;
mod originals;
mod outage;
mod pack_objects;
mod packs;
mod pipeline;
mod repack;
mod retention;
mod rows;
mod schema;
mod search;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod unreadable_packs;
mod wait;

pub(crate) use database::DatabaseOptions;
pub(crate) use store::PostgresStore;
