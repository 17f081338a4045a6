//! Folds lines of an old result that appear again, in the same order, in a newer one: a file read again around
//! another line, the same tail of every test run. The newest copy is kept.
//!
//! Removed lines are marked by a gap and not by a reference, so no reference dangles when the newer text is folded
//! later.
//!
//! For policies without excerpts. An excerpt already omits lines that appear elsewhere: where both were made, one
//! excerpt in twenty-five was longer than the output of this pass.

use std::borrow::Cow;

use crate::engine::marker;
use crate::engine::segment::Segment;
use crate::engine::text_kind;

use crate::engine::line_index::{LineHashes, LineIndex};
use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};
use crate::engine::policy::Policy;
use crate::engine::stage::Stage;

/// Minimum sizes of a text and of a run of lines.
pub(crate) const MIN_RESULT_TOKENS: u64 = 60;
const MIN_RUN_BYTES: usize = 160;

/// Returns true if the pass proposes anything under this policy.
pub(crate) fn is_enabled(policy: &Policy) -> bool {
    policy.max_stage < Stage::Excerpts
}

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    if !is_enabled(&view.options.policy) {
        return;
    }
    let may_repeat =
        |segment: &&Segment| segment.repeated_later && segment.tokens >= MIN_RESULT_TOKENS && view.is_old(segment);
    // Results older than the oldest candidate are not compared.
    let Some(oldest) = view.unfolded_results().find(may_repeat) else { return };
    let mut newer_lines = LineIndex::default();
    let newer = view.unfolded_results().rev().take_while(|segment| segment.at >= oldest.at);
    for segment in newer.filter(|segment| segment.tokens >= MIN_RESULT_TOKENS) {
        let (repeats, is_source) = (may_repeat(&segment), segment.repeats_earlier_lines && segment.at > oldest.at);
        if !repeats && !is_source {
            continue;
        }
        let text = view.text(segment);
        let hashes = segment.line_hashes.clone().unwrap_or_else(|| LineHashes::new(text));
        if repeats && newer_lines.has_any(&hashes) {
            proposals.extend(without_repeated_lines(view, segment, text, &hashes, &newer_lines));
        }
        if is_source {
            newer_lines.add(Cow::Borrowed(text), &hashes);
        }
    }
}

/// Returns a result without its lines that appear elsewhere.
fn without_repeated_lines(
    view: &PassView<'_>,
    segment: &Segment,
    text: &str,
    hashes: &LineHashes,
    newer_lines: &LineIndex<'_>,
) -> Option<FoldProposal> {
    let lines = text_kind::line_ranges(text);
    let mut kept = vec![true; lines.len()];
    for run in newer_lines.matching_runs(text, hashes, &lines, MIN_RUN_BYTES) {
        kept[run.lines].fill(false);
    }
    let count = kept.iter().filter(|&&kept| kept).count();
    if count == 0 || count == lines.len() {
        return None;
    }
    let marker = marker::excerpt(count, lines.len(), view.handle(text));
    let line_texts = lines.iter().map(|line| &text[line.clone()]);
    let (folded, tokens) = view.assemble(&marker, text, (line_texts, &kept), segment.line_counts.as_ref());
    let tokens = tokens.unwrap_or_else(|| view.options.meter.text_by_lines(&folded));
    (tokens < segment.tokens).then_some(FoldProposal {
        at: segment.at,
        edit: PartEdit::Text(folded),
        tokens,
        expected_unfold_cost: 0.0,
    })
}
