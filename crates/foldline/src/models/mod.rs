//! Models: the table of windows and limits, and prices.

pub(crate) mod prices;
pub(crate) mod table;
