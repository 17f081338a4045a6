//! A text cut to a size: its head, its tail, and what reports a failure between them.
//!
//! The last resort for what is protected but too big. Whole lines where there are any; a text of one
//! endless line is cut inside it.

use crate::content;
use crate::marker;
use crate::measure::{Meter, Tokens};

/// The text with a marker in front, at most so many tokens; the marker alone when nothing else fits.
pub(crate) fn clip(text: &str, limit: Tokens, meter: &Meter, marker: &str) -> String {
    let room = limit.saturating_sub(meter.text(marker) + 8);
    // Bytes for the tokens that are left; halved until it really fits.
    let mut bytes = usize::try_from(room).unwrap_or(usize::MAX).saturating_mul(4).min(text.len());
    while bytes > 80 {
        let clipped = cut(text, bytes, marker);
        if meter.text(&clipped) <= limit {
            return clipped;
        }
        bytes = bytes / 4 * 3;
    }
    marker.to_owned()
}

fn cut(text: &str, bytes: usize, marker: &str) -> String {
    let lines = content::lines(text);
    if lines.len() < 4 || lines.iter().any(|line| line.len() > bytes / 2) {
        let head = text.floor_char_boundary(bytes * 3 / 5);
        let tail = text.ceil_char_boundary(text.len() - bytes * 2 / 5);
        return format!("{marker}\n{}\n[+1]\n{}", &text[..head], &text[tail.max(head)..]);
    }
    let mut kept = vec![false; lines.len()];
    let mut left = bytes;
    let mut keep = |at: usize, share: &mut usize| {
        let size = lines[at].len() + 1;
        let fits = size <= *share && !kept[at];
        if fits {
            kept[at] = true;
            *share -= size;
        }
        fits
    };
    let mut head = left * 2 / 5;
    (0..lines.len()).take_while(|&at| keep(at, &mut head)).for_each(drop);
    let mut tail = left * 2 / 5;
    (0..lines.len()).rev().take_while(|&at| keep(at, &mut tail)).for_each(drop);
    left = left / 5 + head + tail;
    for (at, range) in lines.iter().enumerate() {
        if content::is_failure(&text[range.clone()]) {
            keep(at, &mut left);
        }
    }
    assemble(marker, text, &lines, &kept)
}

/// The kept lines under a marker, with the gaps between them marked.
pub(super) fn assemble(marker: &str, text: &str, lines: &[std::ops::Range<usize>], kept: &[bool]) -> String {
    let mut out = String::from(marker);
    // Where lines carry their numbers the gaps show by themselves.
    let gaps = !content::is_numbered(text);
    let mut left_out = 0;
    let close = |left_out: &mut usize, out: &mut String| {
        if *left_out > 0 && gaps {
            out.push('\n');
            out.push_str(&marker::gap(*left_out));
        }
        *left_out = 0;
    };
    for (range, &keep) in lines.iter().zip(kept) {
        if keep {
            close(&mut left_out, &mut out);
            out.push('\n');
            out.push_str(&text[range.clone()]);
        } else {
            left_out += 1;
        }
    }
    close(&mut left_out, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelTable;

    fn meter() -> Meter {
        Meter::for_model(ModelTable::builtin(), Some("gpt-4o"))
    }

    #[test]
    fn head_tail_and_the_failure_between_them_stay() {
        let mut text: String = (0..400).map(|at| format!("line {at} of the build\n")).collect();
        text.insert_str(text.len() / 2, "error: it broke here\n");
        let clipped = clip(&text, 300, &meter(), "[folded: x]");
        assert!(meter().text(&clipped) <= 300);
        for line in ["line 0 of", "line 399 of", "error: it broke here"] {
            assert!(clipped.contains(line), "{clipped}");
        }
    }

    #[test]
    fn one_endless_line_is_cut_inside() {
        let text = "é".repeat(1_000_000);
        let clipped = clip(&text, 200, &meter(), "[folded: x]");
        assert!(meter().text(&clipped) <= 200 && clipped.len() > 100, "{clipped}");
    }

    #[test]
    fn where_nothing_fits_the_marker_stays() {
        assert_eq!(clip("long text\n".repeat(99).as_str(), 1, &meter(), "[folded: x]"), "[folded: x]");
    }
}
