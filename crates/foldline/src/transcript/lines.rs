//! Lines of a bounded length, with their numbers.
//!
//! One buffer is reused for all lines. A line that is longer than the limit is skipped and never held
//! in memory.

use std::io::{self, BufRead};

pub(crate) struct LineReader<R> {
    input: R,
    limit: usize,
    number: u64,
    line: Vec<u8>,
}

/// One line of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine<'a> {
    /// The bytes without the line end.
    Bytes(&'a [u8]),
    /// Longer than the limit.
    Oversized,
}

impl<R: BufRead> LineReader<R> {
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self { input, limit, number: 0, line: Vec::new() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of the last line read.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next line with its number, starting at one; `None` at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<(u64, InputLine<'_>)>> {
        self.line.clear();
        // One line with a large image must not keep megabytes allocated for the other lines.
        self.line.shrink_to(1 << 20);
        let mut too_long = false;
        let mut has_input = false;
        loop {
            let chunk = fill_buffer(&mut self.input)?;
            if chunk.is_empty() {
                break;
            }
            has_input = true;
            let end = memchr::memchr(b'\n', chunk);
            let piece = &chunk[..end.unwrap_or(chunk.len())];
            too_long |= piece.len() > self.limit - self.line.len();
            if !too_long {
                self.line.extend_from_slice(piece);
            }
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.input.consume(taken);
            if end.is_some() {
                break;
            }
        }
        if !has_input {
            return Ok(None);
        }
        self.number += 1;
        let line = if too_long { InputLine::Oversized } else { InputLine::Bytes(&self.line) };
        Ok(Some((self.number, line)))
    }
}

/// Returns the buffered bytes, reading more if there are none; empty at the end.
pub(crate) fn fill_buffer<R: BufRead>(input: &mut R) -> io::Result<&[u8]> {
    while let Err(error) = input.fill_buf() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    input.fill_buf()
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn read(text: &str, limit: usize, capacity: usize) -> Vec<(u64, Option<String>)> {
        let mut lines = LineReader::new(BufReader::with_capacity(capacity, text.as_bytes()), limit);
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next_line().unwrap() {
            let text = match line {
                InputLine::Bytes(bytes) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
                InputLine::Oversized => None,
            };
            found.push((number, text));
        }
        found
    }

    #[test]
    fn oversized_line_is_reported_and_next_line_is_read() {
        for capacity in [1, 3, 64] {
            let found = read("ab\nabcdef\n\nabcde", 5, capacity);
            let expected = [(1, Some("ab")), (2, None), (3, Some("")), (4, Some("abcde"))];
            assert_eq!(found, expected.map(|(number, text)| (number, text.map(str::to_owned))), "buffer of {capacity}");
        }
    }
}
