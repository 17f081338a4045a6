//! Cuts a text to a size: its head, its tail, and the failures between them.
//!
//! The last resort for protected parts that are too large. Keeps whole lines if possible; a text that is one long
//! line is cut inside it.

use crate::engine::marker;
use crate::engine::text_kind;
use crate::tokens::{Meter, Tokens};

/// Minimum size of a cut; below it only the marker is kept.
const MIN_CUT_BYTES: usize = 80;
/// Maximum number of attempts to enlarge a cut that fits.
const MAX_ATTEMPTS: usize = 6;

/// Returns the text with a marker in front, cut to at most `limit` tokens and close to it; the marker alone if
/// nothing else fits.
pub(crate) fn clip_to_tokens(text: &str, limit: Tokens, meter: &Meter, marker: &str) -> String {
    let overhead = meter.text(marker) + 8;
    let room = limit.saturating_sub(overhead);
    let size = |tokens: Tokens| usize::try_from(tokens).unwrap_or(usize::MAX);
    // Largest size that fits, and smallest size that does not.
    let (mut fits, mut exceeds) = (0, text.len().saturating_mul(2));
    let mut best = (0, marker.to_owned());
    let mut bytes = size(room).saturating_mul(4).min(text.len());
    for attempt in 1.. {
        if bytes <= MIN_CUT_BYTES || exceeds - fits <= MIN_CUT_BYTES || attempt > MAX_ATTEMPTS && fits > 0 {
            break;
        }
        let clipped = clip_lines(text, ClipShares::for_bytes(bytes), marker);
        let tokens = meter.text(&clipped);
        // Estimates the next size from the tokens per byte.
        let guess = (bytes as f64 * room as f64 / tokens.saturating_sub(overhead).max(1) as f64) as usize;
        bytes = if tokens > limit {
            exceeds = bytes;
            if attempt < MAX_ATTEMPTS { guess.min(bytes / 32 * 31) } else { bytes / 2 }
        } else {
            fits = bytes;
            if tokens > best.0 {
                best = (tokens, clipped);
            }
            if tokens + limit / 32 >= limit {
                break;
            }
            guess
        };
        if bytes <= fits || bytes >= exceeds {
            bytes = fits.midpoint(exceeds);
        }
    }
    best.1
}

/// Numbers of bytes to keep: of the head, of the tail, and of the lines between them that report a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClipShares {
    pub(crate) head: usize,
    pub(crate) tail: usize,
    pub(crate) failures: usize,
}

impl ClipShares {
    /// Splits the bytes: two fifths each for head and tail, one fifth for failures.
    pub(crate) fn for_bytes(bytes: usize) -> Self {
        Self { head: bytes * 2 / 5, tail: bytes * 2 / 5, failures: bytes / 5 }
    }
}

/// Returns the head and the tail of a text under a marker, with the failures between them: whole lines, unless
/// neither the first nor the last one fits.
pub(crate) fn clip_lines(text: &str, shares: ClipShares, marker: &str) -> String {
    // Each line costs its line break and the gap marker before it.
    const LINE_BREAK_BYTES: usize = 1;
    const GAP_BYTES: usize = 9;
    let lines = text_kind::line_ranges(text);
    let endless = lines.first().is_some_and(|line| line.len() >= shares.head)
        && lines.last().is_some_and(|line| line.len() >= shares.tail);
    if lines.len() < 4 || endless {
        let head = text.floor_char_boundary(shares.head + shares.failures);
        let tail = text.ceil_char_boundary(text.len() - shares.tail.min(text.len()));
        return format!("{marker}\n{}\n{}\n{}", &text[..head], marker::gap(1), &text[tail.max(head)..]);
    }
    let mut kept = vec![false; lines.len()];
    let mut keep = |at: usize, room: &mut usize, overhead: usize| {
        let size = lines[at].len() + overhead;
        let fits = size <= *room && !kept[at];
        if fits {
            kept[at] = true;
            *room -= size;
        }
        fits
    };
    let (mut head, mut tail) = (shares.head, shares.tail);
    (0..lines.len()).take_while(|&at| keep(at, &mut head, LINE_BREAK_BYTES)).for_each(drop);
    (0..lines.len()).rev().take_while(|&at| keep(at, &mut tail, LINE_BREAK_BYTES)).for_each(drop);
    let mut failures = shares.failures + head + tail;
    for (at, range) in lines.iter().enumerate() {
        if text_kind::has_failure_word(&text[range.clone()]) {
            keep(at, &mut failures, LINE_BREAK_BYTES + GAP_BYTES);
        }
    }
    assemble_lines(marker, text, lines.into_iter().map(|line| &text[line]), &kept, |_, _, _| {})
}

/// Returns the kept lines under a marker, with the gaps between them marked. Calls `each` with the text before a
/// line, the line, and its number unless it is a gap marker.
pub(crate) fn assemble_lines<'t>(
    marker: &str,
    text: &'t str,
    lines: impl Iterator<Item = &'t str>,
    kept: &[bool],
    mut each: impl FnMut(&str, &str, Option<usize>),
) -> String {
    let mut out = String::with_capacity(text.len() / 4);
    out.push_str(marker);
    // Line numbers in the text make gap markers unnecessary.
    let gaps = !text_kind::has_line_numbers(text);
    let mut left_out = 0;
    let mut add = |out: &mut String, line: &str, number: Option<usize>| {
        out.push('\n');
        each(out, line, number);
        out.push_str(line);
    };
    for (number, (line, &keep)) in lines.zip(kept).enumerate() {
        if !keep {
            left_out += 1;
            continue;
        }
        if left_out > 0 && gaps {
            add(&mut out, &marker::gap(left_out), None);
        }
        left_out = 0;
        add(&mut out, line, Some(number));
    }
    if left_out > 0 && gaps {
        add(&mut out, &marker::gap(left_out), None);
    }
    out
}

/// Returns the size to which the largest of these must be cut to remove `excess`; zero if even that is not enough.
pub(crate) fn common_clip_size(sorted: &[Tokens], excess: Tokens) -> Tokens {
    let mut excess = excess;
    for (count, window) in (1..).zip(sorted.windows(2).rev()) {
        let step = (window[1] - window[0]) * count;
        if step >= excess {
            return window[1] - excess.div_ceil(count);
        }
        excess -= step;
    }
    let count = sorted.len() as Tokens;
    let Some(&smallest) = sorted.first() else { return 0 };
    smallest.saturating_sub(excess.div_ceil(count.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelTable;

    fn meter() -> Meter {
        Meter::for_model(ModelTable::builtin(), Some("gpt-4o"))
    }

    #[test]
    fn head_tail_and_failures_are_kept() {
        let mut text: String = (0..400).map(|at| format!("line {at} of the build\n")).collect();
        text.insert_str(text.len() / 2, "error: it broke here\n");
        let clipped = clip_to_tokens(&text, 300, &meter(), "[folded: x]");
        assert!(meter().text(&clipped) <= 300);
        for line in ["line 0 of", "line 399 of", "error: it broke here"] {
            assert!(clipped.contains(line), "{clipped}");
        }
    }

    /// Holds for any cost per byte, and if no line reports a failure.
    #[test]
    fn room_is_used() {
        let lines = |line: &str| (0..20_000).map(|at| format!("{line} {at}\n")).collect::<String>();
        for text in
            [lines("the quick brown fox jumps over it"), lines("0123456789 9876543210 -- ::"), lines("数字を読む")]
        {
            for limit in [400, 5_000, 40_000] {
                let tokens = meter().text(&clip_to_tokens(&text, limit, &meter(), "[folded: x]"));
                assert!((limit * 9 / 10..=limit).contains(&tokens), "{tokens} of {limit}");
            }
        }
    }

    #[test]
    fn single_long_line_is_cut_inside() {
        let text = "é".repeat(1_000_000);
        let clipped = clip_to_tokens(&text, 200, &meter(), "[folded: x]");
        assert!(meter().text(&clipped) <= 200 && clipped.len() > 100, "{clipped}");
    }

    #[test]
    fn only_the_marker_is_left_without_room() {
        assert_eq!(clip_to_tokens("long text\n".repeat(99).as_str(), 1, &meter(), "[folded: x]"), "[folded: x]");
    }
}
