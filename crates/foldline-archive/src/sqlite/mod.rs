//! The SQLite store: all SQL of SQLite, and everything that is special about a database in one file.
//!
//! | file | contents |
//! |---|---|
//! | `store` | the open database, and opening it again if its file was removed |
//! | `originals`, `ledger`, `journal`, `search`, `retention` | the traits of the storage seam |
//! | `schema`, `rows` | tables, migrations, and reading rows |
//! | `database`, `connection`, `readers`, `writer`, `sync` | connections, group commits and disk syncs |
//! | `search_index` | the index of words, a file of its own |
//! | `maintenance`, `repack` | background work: indexing, and merging small packs |

mod connection;
mod database;
mod error;
mod journal;
mod ledger;
mod maintenance;
mod originals;
mod readers;
mod repack;
mod retention;
mod rows;
mod schema;
mod search;
mod search_index;
mod store;
mod sync;
mod work_progress;
mod writer;

pub(crate) use store::SqliteStore;
