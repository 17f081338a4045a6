//! The input and the output of a pass: the view of a conversation, and the proposals.
//!
//! A view is read-only. It answers which segments are old enough, what they cost, and how their markers read; it proposes
//! nothing.

use std::cell::RefCell;
use std::ops::Range;

use crate::Handle;
use crate::conversation::{Message, Part, PartId};
use crate::engine::argument_values::MIN_ARGUMENT_BYTES;
use crate::engine::identifiers::coverage::{IdentifierCoverage, RetentionPrices};
use crate::engine::marker;
use crate::engine::marker::MarkerHandle;
use crate::engine::options::FoldOptions;
use crate::engine::original;
use crate::engine::overlay::{FoldSet, PartEdit};
use crate::engine::passes::support::clip;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::stage::Stage;
use crate::engine::state::segments::SegmentTable;
use crate::tokens::{IncrementalCount, LineCounts, Tokens};

/// Minimum size of a text that gets an excerpt.
pub(crate) const MIN_EXCERPT_TOKENS: u64 = 60;

/// A fold that a pass proposes.
#[derive(Clone, Debug)]
pub(crate) struct FoldProposal {
    pub(crate) at: PartId,
    pub(crate) edit: PartEdit,
    /// Tokens at this position after the fold.
    pub(crate) tokens: Tokens,
    /// Expected cost of unfolding it later, at base price.
    pub(crate) expected_unfold_cost: f64,
}

/// The input of a pass: the messages before the crease and the facts known about them.
pub(crate) struct PassView<'v> {
    pub(crate) messages: &'v [Message<'v>],
    pub(crate) segments: &'v SegmentTable,
    /// Segments of messages that are not dropped.
    pub(crate) live: &'v [LiveSegment],
    /// Folds accepted so far.
    pub(crate) folds: &'v FoldSet,
    pub(crate) options: &'v FoldOptions,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// First message that may be changed.
    pub(crate) edit_from: usize,
    /// Start of the newest round, which is kept whole because the model has not answered it yet.
    pub(crate) newest_round_start: usize,
    /// Messages before this one are old whatever their age, since newer ones fill their share of the budget.
    pub(crate) keep_share_start: usize,
    /// Last message with text of the user; the turns before it are finished.
    pub(crate) last_user_message: usize,
    /// Number of calls that are expected to follow.
    pub(crate) expected_calls: f64,
    /// Tokens of the request as currently rendered.
    pub(crate) request_tokens: Tokens,
    /// Factor by which space is valued above its price.
    pub(crate) space_value: f64,
    /// True if excerpts of results may be cut again, because space is valued higher than when they were cut.
    pub(crate) cuts_excerpts: bool,
    /// Identifiers that appear in the request, for passes that fold text that appears elsewhere.
    pub(crate) coverage: RefCell<Option<IdentifierCoverage<'v>>>,
}

/// A segment of a message that is not dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveSegment {
    /// Index into `segments`.
    pub(crate) index: usize,
    /// Kind of the segment: most passes need one kind and skip the others.
    pub(crate) kind: SegmentKind,
    /// Last stage that folded it.
    pub(crate) stage: Option<Stage>,
}

impl<'v> PassView<'v> {
    /// Returns the segments of a kind that are old enough to be folded and not yet folded at this stage.
    pub(crate) fn old_segments(
        &self,
        kind: SegmentKind,
        stage: Stage,
    ) -> impl DoubleEndedIterator<Item = &'v Segment> + '_ {
        let not_folded = self.filter_live(move |live| live.kind == kind && live.stage.is_none_or(|last| last < stage));
        not_folded.filter(|segment| self.is_old(segment))
    }

    /// Returns the segments that were not folded at this stage or a later one, oldest first.
    pub(crate) fn before_stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v> {
        self.filter_live(move |live| live.stage.is_none_or(|last| last < stage))
    }

    /// Returns the results that are not folded, oldest first.
    pub(crate) fn unfolded_results(&self) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v> {
        self.filter_live(|live| live.kind == SegmentKind::Result && live.stage.is_none())
    }

    fn filter_live<F: Fn(&LiveSegment) -> bool>(
        &self,
        predicate: F,
    ) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v, F> {
        let segments = self.segments.as_slice();
        self.live.iter().filter(move |live| predicate(live)).map(move |live| &segments[live.index])
    }

    /// Returns the old segments of a kind that are long enough for an excerpt and do not have one yet, or one that may be
    /// cut again.
    pub(crate) fn long_segments(&self, kind: SegmentKind) -> impl DoubleEndedIterator<Item = &'v Segment> + '_ {
        let cuts_excerpts = self.cuts_excerpts && kind == SegmentKind::Result;
        let stage = if cuts_excerpts { Stage::WholeResults } else { Stage::Excerpts };
        self.old_segments(kind, stage).filter(|segment| match segment.kind {
            SegmentKind::Arguments => self.text(segment).len() >= MIN_ARGUMENT_BYTES,
            _ => segment.tokens >= MIN_EXCERPT_TOKENS,
        })
    }

    pub(crate) fn is_old(&self, segment: &Segment) -> bool {
        let is_aged =
            self.age(segment) >= retention_calls(self.options, segment) || segment.at.message < self.keep_share_start;
        let may_change = self.edit_from..self.newest_round_start;
        let may_edit = match segment.kind {
            SegmentKind::Arguments => self.options.edit_arguments,
            SegmentKind::Media => self.options.edit_media,
            _ => true,
        };
        is_aged && may_edit && may_change.contains(&segment.at.message) && !self.options.pins.matches(segment)
    }

    /// Returns the segments of a range of messages.
    pub(crate) fn segments_of(&self, messages: Range<usize>) -> &'v [Segment] {
        self.segments.of_messages(messages)
    }

    fn age(&self, segment: &Segment) -> u32 {
        self.calls - segment.call_index
    }

    /// Returns the text of a segment.
    pub(crate) fn text(&self, segment: &Segment) -> &'v str {
        segment::segment_text(self.messages, segment.at)
    }

    /// Assembles the kept lines of a text under a marker; also returns its tokens if those of the lines are known.
    pub(crate) fn assemble<'t>(
        &self,
        marker: &str,
        text: &'t str,
        (lines, kept): (impl Iterator<Item = &'t str>, &[bool]),
        counts: Option<&LineCounts>,
    ) -> (String, Option<Tokens>) {
        let Some(counts) = counts else {
            return (clip::assemble_lines(marker, text, lines, kept, |_, _, _| {}), None);
        };
        let mut tally = IncrementalCount::new(self.options.meter.texts());
        let assembled = clip::assemble_lines(marker, text, lines, kept, |before, line, number| {
            tally.add_line(before, line, number.and_then(|number| counts.get(number)));
        });
        let tokens = tally.finish(&assembled);
        (assembled, Some(tokens))
    }

    /// Returns the handle of a text if markers carry handles.
    pub(crate) fn handle(&self, text: &str) -> Option<MarkerHandle> {
        self.options.marker_handle(|| Handle::for_content(text.as_bytes()))
    }

    /// Returns the marker of a whole segment.
    pub(crate) fn marker(&self, segment: &Segment) -> String {
        let text = self.text(segment);
        marker::whole_text(text, self.handle(text))
    }

    /// Returns the marker of an image or a file.
    pub(crate) fn media_marker(&self, segment: &Segment) -> String {
        let part = self.messages[segment.at.message].parts.get(segment.at.part);
        let part = match (part, segment.at.inner) {
            (Some(Part::ToolResult(result)), Some(inner)) => result.content.get(inner),
            (part, _) => part,
        };
        let description = match part {
            Some(Part::File(file)) => file.name.as_ref().map_or("a file".to_owned(), |name| format!("file {name}")),
            _ => "an image".to_owned(),
        };
        let handle =
            part.and_then(|part| self.options.marker_handle(|| Handle::for_content(&original::part_bytes(part))));
        marker::described(&description, handle)
    }

    /// Returns the cost of a kept token until the end of the session: one write at this crease and one read per
    /// expected call.
    fn retention_cost(&self) -> f64 {
        let prices = &self.options.prices;
        (prices.write + prices.read * self.expected_calls) * self.space_value
    }

    /// Returns the prices that decide which lines of a segment are kept.
    pub(crate) fn retention_prices(&self, segment: &Segment) -> RetentionPrices {
        RetentionPrices {
            age: self.age(segment),
            calls: self.calls,
            retention_cost: self.retention_cost(),
            unfold_cost: self.unfold_cost(segment),
        }
    }

    /// Returns the cost of unfolding a folded segment.
    pub(crate) fn unfold_cost(&self, segment: &Segment) -> f64 {
        self.options.prices.unfold_cost(self.request_tokens, segment.tokens)
    }
}

/// Returns the number of calls for which a segment is kept whole.
fn retention_calls(options: &FoldOptions, segment: &Segment) -> u32 {
    let policy = &options.policy;
    if segment.is_kept_longer() && !segment.superseded { policy.keep_file_calls } else { policy.keep_other_calls }
}
