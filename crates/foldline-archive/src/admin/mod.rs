//! Administration: retention, deletion, verification, transfer and statistics.

pub(crate) mod delete;
pub(crate) mod hold;
pub(crate) mod migrate;
pub(crate) mod retention;
pub(crate) mod stats;
pub(crate) mod transfer;
pub(crate) mod verify;
