//! Compresses a long text into a budget: its highest-ranking chunks, in their order.

use crate::engine::passes::support::clip::clip_to_tokens;
use crate::engine::{marker, text_kind};
use crate::strategies::chunk::split::{TextChunk, chunks};
use crate::tokens::{Meter, Tokens};

/// Options of [`compress`].
#[derive(Clone, Debug)]
pub struct CompressOptions {
    /// Maximum size of a chunk in bytes.
    pub max_chunk_bytes: usize,
    /// Meter that counts the tokens.
    pub meter: Meter,
}

impl Default for CompressOptions {
    /// Returns the defaults: chunks of 2048 bytes; tokens are estimated by bytes.
    fn default() -> Self {
        Self { max_chunk_bytes: 2048, meter: Meter::for_byte_estimate() }
    }
}

/// A compressed text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompressedText {
    /// Text after compression.
    pub text: String,
    /// Tokens before.
    pub before: Tokens,
    /// Tokens after. Above the budget only if not even a marker fits.
    pub after: Tokens,
    /// Number of omitted lines. Markers in the text count them.
    pub omitted_lines: usize,
}

/// Compresses a text into a budget: keeps the chunks of the highest rank, newest first, until the budget is used up.
/// Omitted lines are counted at their position. A text that fits is unchanged.
///
/// ```
/// use foldline::strategies::chunk::{CompressOptions, compress};
///
/// let mut log: String = (0..500).map(|at| format!("step {at} went well\n")).collect();
/// log.insert_str(log.find("step 250 ").unwrap(), "error: the disk is full\n");
/// let compressed = compress(&log, 200, &CompressOptions { max_chunk_bytes: 256, ..CompressOptions::default() });
/// assert!(compressed.after <= 200);
/// assert!(compressed.text.starts_with("[+250]\nerror: the disk is full\n"));
/// assert!(compressed.text.ends_with("\nstep 499 went well"));
/// ```
pub fn compress(text: &str, budget: Tokens, options: &CompressOptions) -> CompressedText {
    let meter = &options.meter;
    let before = meter.text(text);
    let unchanged = || CompressedText { text: text.to_owned(), before, after: before, omitted_lines: 0 };
    if before <= budget || marker::is_only_marker(text) {
        return unchanged();
    }
    let chunks = chunks(text, options.max_chunk_bytes);
    let mut kept = rank_chunks(text, &chunks, budget, meter);
    loop {
        let (candidate, omitted_lines) = match kept.is_empty() {
            true => clip_text(text, budget, meter),
            false => assemble_chunks(text, &chunks, &kept),
        };
        let after = meter.text(&candidate);
        if after <= budget || kept.is_empty() {
            let shorter = candidate.len() < text.len();
            return if shorter {
                CompressedText { text: candidate, before, after, omitted_lines }
            } else {
                unchanged()
            };
        }
        // Counts of parts do not add up exactly: drop the lowest ranks.
        kept.truncate(kept.len() - kept.len().div_ceil(8));
    }
}

/// Returns the text cut inside its chunks, of which none fits, and the number of omitted lines.
fn clip_text(text: &str, budget: Tokens, meter: &Meter) -> (String, usize) {
    let total_lines = count_lines(text);
    let all_omitted = marker::gap(total_lines);
    let clipped = clip_to_tokens(text, budget, meter, &all_omitted);
    let Some(kept) = clipped.strip_prefix(&all_omitted).and_then(|rest| rest.strip_prefix('\n')) else {
        return (all_omitted, total_lines);
    };
    let is_gap = |line: &str| marker::gap_lines(line).is_some();
    // A line that was cut inside counts as omitted.
    let omitted = total_lines.saturating_sub(kept.lines().filter(|line| !is_gap(line)).count()).max(1);
    match kept.lines().any(is_gap) {
        true => (kept.to_owned(), omitted),
        false => (format!("{}\n{kept}", marker::gap(omitted)), omitted),
    }
}

/// Returns the chunks that fit, by rank and then newest first.
fn rank_chunks(text: &str, chunks: &[TextChunk], budget: Tokens, meter: &Meter) -> Vec<usize> {
    let gap = meter.text("[+10000]\n");
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(chunks[at].boundary.priority()), std::cmp::Reverse(at)));
    let mut room = budget.saturating_sub(gap);
    order.retain(|&at| {
        let cost = meter.text(&text[chunks[at].bytes.clone()]) + gap;
        let fits = cost <= room;
        if fits {
            room -= cost;
        }
        fits
    });
    order
}

/// Returns the kept chunks in their order, and the number of omitted lines.
fn assemble_chunks(text: &str, chunks: &[TextChunk], kept: &[usize]) -> (String, usize) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    let mut out = String::new();
    let (mut omitted, mut gap) = (0, 0);
    let push_line = |out: &mut String, line: &str| {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(line);
    };
    for (at, chunk) in chunks.iter().enumerate() {
        let chunk_text = &text[chunk.bytes.clone()];
        if kept.next_if_eq(&at).is_some() {
            if gap > 0 {
                push_line(&mut out, &marker::gap(std::mem::take(&mut gap)));
            }
            push_line(&mut out, chunk_text);
        } else {
            gap += count_lines(chunk_text);
            omitted += count_lines(chunk_text);
        }
    }
    if gap > 0 {
        push_line(&mut out, &marker::gap(gap));
    }
    (out, omitted)
}

/// Counts the lines of a text, including those that its gap markers represent.
fn count_lines(text: &str) -> usize {
    text_kind::line_ranges(text)
        .into_iter()
        .map(|line| marker::gap_lines(&text[line]).unwrap_or(1))
        .fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::strategies::chunk::BoundaryKind;
    use crate::strategies::chunk::render_transcript;
    use crate::{ModelTable, testing};

    fn long_session() -> String {
        let mut messages = vec![Message::text(Role::User, "make the build pass")];
        for at in 0..200 {
            let id = format!("c{at}");
            messages.push(Message::new(Role::Assistant, vec![Part::call(id.clone(), "sh", r#"{"command":"make"}"#)]));
            let output = match at {
                17 => "cc main.c\nerror: expected ';' before '}'\n".to_owned(),
                _ => "cc main.c and link everything together\n".repeat(9),
            };
            messages.push(Message::new(Role::Tool, vec![Part::result(id, output)]));
        }
        messages.push(Message::text(Role::User, "and the docs"));
        render_transcript(&messages)
    }

    /// Priorities were once computed and then ignored: the newest lines won over the only error.
    #[test]
    fn only_error_of_a_long_session_is_kept() {
        let compressed = compress(&long_session(), 400, &CompressOptions::default());
        assert!(compressed.after <= 400);
        for line in ["error: expected ';'", "make the build pass", "and the docs"] {
            assert!(compressed.text.contains(line), "{line}: {}", compressed.text);
        }
    }

    /// A summary once received only 80 lines of a long session: every line must be kept or counted.
    #[test]
    fn every_line_is_kept_or_counted() {
        let text = long_session();
        for budget in [50, 400, 3_000] {
            let compressed = compress(&text, budget, &CompressOptions::default());
            assert_eq!(count_lines(&compressed.text), count_lines(&text), "{}", compressed.text);
            assert!(compressed.omitted_lines > 0);
        }
    }

    #[test]
    fn newest_chunk_wins_among_equal_ranks() {
        let text: String =
            (0..50).map(|at| format!("## Part {at}\n{}\n", "Some words of this part. ".repeat(20))).collect();
        let compressed = compress(&text, 600, &CompressOptions::default());
        assert!(
            compressed.text.contains("## Part 49") && !compressed.text.contains("## Part 0\n"),
            "{}",
            compressed.text
        );
        assert_eq!(super::chunks(&text, 2048)[0].boundary, BoundaryKind::Heading);
    }

    #[test]
    fn omitted_lines_are_counted_when_nothing_fits() {
        let text = "a line of the file\n".repeat(40);
        let compressed = compress(&text, 1, &CompressOptions::default());
        assert_eq!((compressed.text.as_str(), compressed.omitted_lines), ("[+40]", 40));
    }

    #[test]
    fn single_long_line_is_cut_inside() {
        let compressed = compress(&"é".repeat(100_000), 200, &CompressOptions::default());
        assert!(compressed.after <= 200 && compressed.text.contains('é'));
    }

    #[test]
    fn result_fits_the_budget_of_an_exact_meter() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let options = CompressOptions { meter: meter.clone(), ..CompressOptions::default() };
        for budget in [20, 100, 1_000] {
            assert!(meter.text(&compress(&long_session(), budget, &options).text) <= budget);
        }
    }

    proptest! {
        #[test]
        fn compress_fits_never_grows_and_is_idempotent(
            parts in proptest::collection::vec(testing::sample_text(), 0..40),
            budget in 0..400_u64,
            max_chunk_bytes in 0..600_usize,
        ) {
            let text = parts.join("\n");
            let options = CompressOptions { max_chunk_bytes, ..CompressOptions::default() };
            let once = compress(&text, budget, &options);
            prop_assert!(once.text.len() <= text.len());
            prop_assert_eq!(once.after, options.meter.text(&once.text));
            // A marker alone has at most a dozen bytes.
            prop_assert!(once.after <= budget.max(4), "{:?}", once);
            let again = compress(&once.text, budget, &options);
            prop_assert_eq!(again.text, once.text);
        }
    }
}
