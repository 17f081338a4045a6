//! Administration: retention, verification, transfer and statistics.

pub(crate) mod retention;
pub(crate) mod stats;
pub(crate) mod transfer;
pub(crate) mod verify;
