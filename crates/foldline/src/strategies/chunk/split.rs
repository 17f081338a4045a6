//! Splits a text into chunks at its boundaries.

use std::ops::Range;

use crate::engine::text_kind;
use crate::strategies::chunk::boundary::{BoundaryKind, BoundaryScanner, ContentKind};

/// Size below which neighbors of the same kind are merged into one chunk.
const MERGE_BELOW_BYTES: usize = 256;

/// Consecutive lines of a text that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextChunk {
    /// Boundary at the start of the chunk.
    pub boundary: BoundaryKind,
    /// Lines of the chunk, counted from zero.
    pub lines: Range<usize>,
    /// Bytes of the lines, without the last line break.
    pub bytes: Range<usize>,
}

/// Splits a text into chunks of at most `max_bytes` bytes; only a single longer line makes a longer chunk. The
/// remainder of a split chunk ranks as plain text: the boundary is in its first part.
pub fn chunks(text: &str, max_bytes: usize) -> Vec<TextChunk> {
    let mut scanner = BoundaryScanner::new(ContentKind::detect(text));
    let mut chunks: Vec<TextChunk> = Vec::new();
    for (at, line) in text_kind::line_ranges(text).into_iter().enumerate() {
        let boundary = scanner.boundary_at(&text[line.clone()]);
        if let Some(last) = chunks.last_mut() {
            let size = line.end - last.bytes.start;
            let continues = match boundary {
                None => true,
                Some(boundary) => boundary == last.boundary && last.bytes.len() < MERGE_BELOW_BYTES,
            };
            if continues && size <= max_bytes {
                (last.lines.end, last.bytes.end) = (at + 1, line.end);
                continue;
            }
        }
        chunks.push(TextChunk { boundary: boundary.unwrap_or(BoundaryKind::Text), lines: at..at + 1, bytes: line });
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds(text: &str) -> Vec<(BoundaryKind, usize)> {
        chunks(text, 2048).into_iter().map(|chunk| (chunk.boundary, chunk.lines.len())).collect()
    }

    #[test]
    fn document_is_split_at_headings_and_code() {
        let text = "## One\nThis is a sentence that has quite a few plain words in it.\n\n```\n# no heading\n```\n## Two\nAnd here is another sentence with quite a few plain words.\n";
        assert_eq!(ContentKind::detect(text), ContentKind::Document);
        assert_eq!(kinds(text), [(BoundaryKind::Heading, 3), (BoundaryKind::Code, 3), (BoundaryKind::Heading, 2)]);
    }

    #[test]
    fn source_is_split_at_definitions_not_error_names() {
        let body = "    let value = compute(value, error, panic);\n".repeat(8);
        let text = format!("fn handle_error() {{\n{body}}}\n\nfn other() {{\n{body}}}\n");
        assert_eq!(ContentKind::detect(&text), ContentKind::Code);
        assert_eq!(kinds(&text), [(BoundaryKind::Definition, 11), (BoundaryKind::Definition, 10)]);
    }

    #[test]
    fn split_remainder_ranks_as_text() {
        let text = format!("ERROR: it broke\n{}", "at some place in the program\n".repeat(40));
        let found = chunks(&text, 400);
        assert_eq!(found[0].boundary, BoundaryKind::Error);
        assert!(found.len() > 2 && found[1..].iter().all(|chunk| chunk.boundary == BoundaryKind::Text), "{found:?}");
        assert!(found.iter().all(|chunk| chunk.bytes.len() <= 400));
    }

    proptest! {
        #[test]
        fn every_line_is_in_one_chunk(text in "(\\PC|\n|# |error|```|\\[user\\]\n|fn a\\(\\)){0,120}", max_bytes in 0..200_usize) {
            let found = chunks(&text, max_bytes);
            let mut next = 0;
            for chunk in &found {
                prop_assert_eq!(chunk.lines.start, next);
                prop_assert!(text.get(chunk.bytes.clone()).is_some() && !chunk.lines.is_empty());
                next = chunk.lines.end;
            }
            prop_assert_eq!(next, text_kind::line_ranges(&text).len());
        }
    }
}
