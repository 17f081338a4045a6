//! JSON as bytes: finds values without copying them, remembers where they are, and edits them in place.

pub(crate) mod layout;
pub(crate) mod scan;
pub(crate) mod splice;
pub(crate) mod string;
pub(crate) mod write;
