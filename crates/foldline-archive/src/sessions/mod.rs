//! Sessions: the ledger of facts and the journal for people.

pub(crate) mod journal;
pub(crate) mod ledger;
