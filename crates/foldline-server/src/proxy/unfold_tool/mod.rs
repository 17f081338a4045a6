//! The hidden unfold tool: its definition, and responses of several rounds.

pub(crate) mod rounds;
pub(crate) mod tool;
