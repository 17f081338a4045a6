//! Identifiers in a text: extraction, an index of their uses, and the coverage of excerpts.

pub(crate) mod coverage;
pub(crate) mod extract;
pub(crate) mod index;
