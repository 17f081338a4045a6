//! Originals: storing, packs, unfolding and excerpts.

pub(crate) mod entry;
pub(crate) mod excerpt;
pub(crate) mod pack;
pub(crate) mod reader;
pub(crate) mod unfold;
pub(crate) mod unfold_tool;
pub(crate) mod write;
