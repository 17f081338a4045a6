//! Models: the table of windows and limits, and prices.

pub(crate) mod prices;
pub(crate) mod table;

pub use crate::models::prices::{PriceTable, break_even_calls, crease_gain};
pub(crate) use crate::models::table::ModelTable;
pub use crate::models::table::{ModelRow, ModelTableError, model_name};
