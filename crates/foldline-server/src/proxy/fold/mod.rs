//! Folding a request: session, facts, archive, budget.

pub(crate) mod archive_writer;
pub(crate) mod job;
pub(crate) mod parallel_count;
pub(crate) mod prefix_id;
pub(crate) mod prepare;
pub(crate) mod session_cache;
pub(crate) mod summaries;
pub(crate) mod tenant;
