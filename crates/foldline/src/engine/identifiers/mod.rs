//! Identifiers in texts: extraction, an index of their occurrences, and the coverage of excerpts.

pub(crate) mod coverage;
pub(crate) mod extract;
pub(crate) mod index;
