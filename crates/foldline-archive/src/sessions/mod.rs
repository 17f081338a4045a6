//! Sessions: the ledger of facts, and the journal for the dashboard.

pub(crate) mod journal;
pub(crate) mod ledger;
