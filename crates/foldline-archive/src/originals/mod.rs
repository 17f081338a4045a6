//! Originals: packs, writing, repacking and excerpts.

pub(crate) mod entry;
pub(crate) mod excerpt;
pub(crate) mod pack;
pub(crate) mod repack;
pub(crate) mod write;
