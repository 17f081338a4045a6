//! Folding a request: session, facts, archive, budget.

pub(crate) mod archive_writer;
pub(crate) mod budget_choice;
pub(crate) mod fold_events;
pub(crate) mod job;
pub(crate) mod known_requests;
pub(crate) mod parallel_count;
pub(crate) mod prefix_facts;
pub(crate) mod prefix_id;
pub(crate) mod prepare;
pub(crate) mod prepared;
pub(crate) mod request_facts;
pub(crate) mod session_cache;
pub(crate) mod session_facts;
pub(crate) mod session_pins;
pub(crate) mod summaries;
pub(crate) mod summary_job;
pub(crate) mod tenant;
pub(crate) mod tenant_mode;
pub(crate) mod tenant_quota;
