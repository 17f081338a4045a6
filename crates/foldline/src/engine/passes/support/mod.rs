//! Functions shared by several passes; none of them is a pass.

pub(crate) mod clip;
pub(crate) mod json_clip;
pub(crate) mod round_note;
