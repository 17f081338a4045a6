//! Byte-level JSON: locates values without copying them, records their positions, and edits them in place.

pub(crate) mod layout;
pub(crate) mod lexer;
pub(crate) mod preview;
pub(crate) mod scan;
pub(crate) mod splice;
pub(crate) mod string;
pub(crate) mod write;
