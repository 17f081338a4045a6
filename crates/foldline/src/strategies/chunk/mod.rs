//! The semantic chunker, and a compression of long texts that needs no model.
//!
//! A text is split at boundaries: an error, a heading, a turn, a definition. The boundary ranks the chunk, and
//! [`compress`] keeps the highest ranks, newest first, in their order, with the lines between them counted.
//! Deterministic; calls no model.
//!
//! ```
//! use foldline::strategies::chunk::{BoundaryKind, ContentKind, chunks};
//!
//! let log = "2026-01-02T03:04:05Z starting\n2026-01-02T03:04:06Z ready\n2026-01-02T03:04:07Z error: no disk\n";
//! assert_eq!(ContentKind::detect(log), ContentKind::Log);
//! let chunks: Vec<(BoundaryKind, usize)> =
//!     chunks(log, 2048).into_iter().map(|chunk| (chunk.boundary, chunk.lines.len())).collect();
//! assert_eq!(chunks, [(BoundaryKind::Text, 2), (BoundaryKind::Error, 1)]);
//! ```

pub(crate) mod boundary;
mod compress;
pub(crate) mod render;
mod split;

pub use crate::strategies::chunk::boundary::{BoundaryKind, ContentKind};
pub use crate::strategies::chunk::compress::{CompressOptions, CompressedText, compress};
pub use crate::strategies::chunk::render::render_transcript;
pub use crate::strategies::chunk::split::{TextChunk, chunks};
