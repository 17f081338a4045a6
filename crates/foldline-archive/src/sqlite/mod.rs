//! The SQLite store: schema, connections, the writing thread and maintenance.

pub(crate) mod maintenance;
pub(crate) mod readers;
pub(crate) mod schema;
pub(crate) mod store;
pub(crate) mod sync;
pub(crate) mod writer;
