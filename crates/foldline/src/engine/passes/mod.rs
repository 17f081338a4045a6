//! Passes: pure functions that propose folds. None of them applies anything, and none depends on
//! another: removing one from [`ALL`] breaks nothing.
//!
//! A pass looks at a [`PassView`] and pushes [`FoldProposal`]s; `plan` alone decides which of them are taken.
//! To add one: a file with the idea, a line in [`ALL`], a line in the changelog.

pub(crate) mod arguments;
pub(crate) mod duplicate_results;
mod excerpt;
mod media;
pub(crate) mod prose;
mod reasoning;
mod repack;
pub(crate) mod repeated_lines;
pub(crate) mod support;
pub(crate) mod terminal_codes;
pub(crate) mod whole_results;

use std::cell::RefCell;
use std::ops::Range;

use crate::Handle;
use crate::conversation::{Message, Part, PartId};
use crate::engine::marker;
use crate::engine::options::FoldOptions;
use crate::engine::overlay;
use crate::engine::overlay::PartEdit;
use crate::engine::planner::Stage;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::tokens::{IncrementalCount, LineCounts, Tokens};

pub(crate) use crate::engine::identifiers::coverage::IdentifierCoverage;

/// A pass: a name for statistics, its place on the ladder, and what it proposes.
pub(crate) struct FoldPass {
    pub(crate) name: &'static str,
    pub(crate) stage: Stage,
    pub(crate) propose: fn(&PassView<'_>, &mut Vec<FoldProposal>),
}

/// Every pass, in the order of the ladder.
pub(crate) static ALL: &[FoldPass] = &[
    FoldPass { name: "repack", stage: Stage::Repack, propose: crate::engine::passes::repack::propose },
    FoldPass { name: "repeats", stage: Stage::Duplicates, propose: crate::engine::passes::duplicate_results::propose },
    FoldPass { name: "lines", stage: Stage::Duplicates, propose: crate::engine::passes::repeated_lines::propose },
    FoldPass { name: "reasoning", stage: Stage::Reasoning, propose: crate::engine::passes::reasoning::propose },
    FoldPass { name: "media", stage: Stage::Reasoning, propose: crate::engine::passes::media::propose },
    FoldPass { name: "excerpt", stage: Stage::Excerpts, propose: crate::engine::passes::excerpt::propose },
    FoldPass { name: "arguments", stage: Stage::Excerpts, propose: crate::engine::passes::arguments::propose },
    FoldPass { name: "prose", stage: Stage::Excerpts, propose: crate::engine::passes::prose::propose },
    FoldPass { name: "results", stage: Stage::WholeResults, propose: crate::engine::passes::whole_results::propose },
    FoldPass {
        name: "writing",
        stage: Stage::ProseAndArguments,
        propose: crate::engine::passes::whole_results::propose_prose_and_arguments,
    },
];

/// The passes of a rung.
pub(crate) fn passes_for_stage(rung: Stage) -> Vec<&'static FoldPass> {
    let passes = ALL.iter().filter(|pass| pass.stage == rung);
    #[cfg(test)]
    if REVERSE_PASS_ORDER.get() {
        return passes.rev().collect();
    }
    passes.collect()
}

#[cfg(test)]
thread_local! {
    /// Whether the passes of a rung take turns the other way round: nothing that is promised may depend on it.
    pub(crate) static REVERSE_PASS_ORDER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A fold that a pass would make.
#[derive(Clone, Debug)]
pub(crate) struct FoldProposal {
    pub(crate) at: PartId,
    pub(crate) edit: PartEdit,
    /// Tokens that stand there afterwards.
    pub(crate) tokens: Tokens,
    /// What the fold is expected to cost by being asked back, at base price.
    pub(crate) expected_unfold_cost: f64,
}

/// What a pass may look at: the messages before the crease, and what is known of them.
pub(crate) struct PassView<'v> {
    pub(crate) messages: &'v [Message<'v>],
    pub(crate) segments: &'v [Segment],
    /// The pieces of messages that are not gone.
    pub(crate) live: &'v [LiveSegment],
    /// Index of the first piece of each message.
    pub(crate) first_segment: &'v [usize],
    pub(crate) options: &'v FoldOptions,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// Messages before this one are left as they are.
    pub(crate) edit_from: usize,
    /// Messages from here on are the newest round: left whole, since the model has not answered it yet.
    pub(crate) newest_round_start: usize,
    /// Messages before this one are old whatever their age, since younger ones fill their share of the
    /// budget.
    pub(crate) keep_share_start: usize,
    /// The last message in which the user says something: before it stand finished turns.
    pub(crate) last_user_message: usize,
    /// Calls that are expected to come.
    pub(crate) expected_calls: f64,
    /// Tokens of the request as it stands.
    pub(crate) request_tokens: Tokens,
    /// By how much room is valued above its price.
    pub(crate) space_value: f64,
    /// What stands in the request, for the passes that fold what stands elsewhere.
    pub(crate) coverage: RefCell<Option<IdentifierCoverage<'v>>>,
}

/// A piece of a message that is not gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveSegment {
    /// Which one.
    pub(crate) index: usize,
    /// What it is: most passes want one class, and need not look at the other pieces.
    pub(crate) kind: SegmentKind,
    /// How far down the ladder it has come.
    pub(crate) stage: Option<Stage>,
}

impl<'v> PassView<'v> {
    /// The pieces of a class that are old enough to be folded and not folded yet at this rung.
    pub(crate) fn old_segments(
        &self,
        class: SegmentKind,
        rung: Stage,
    ) -> impl DoubleEndedIterator<Item = &'v Segment> + '_ {
        let above = self.filter_live(move |it| it.kind == class && it.stage.is_none_or(|taken| taken < rung));
        above.filter(|piece| self.is_old(piece))
    }

    /// The pieces that have not come down the ladder to this rung, oldest first.
    pub(crate) fn before_stage(&self, rung: Stage) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v> {
        self.filter_live(move |it| it.stage.is_none_or(|taken| taken < rung))
    }

    /// The results that stand as they came, oldest first.
    pub(crate) fn unfolded_results(&self) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v> {
        self.filter_live(|it| it.kind == SegmentKind::Result && it.stage.is_none())
    }

    fn filter_live<F: Fn(&LiveSegment) -> bool>(
        &self,
        is: F,
    ) -> impl DoubleEndedIterator<Item = &'v Segment> + use<'v, F> {
        let pieces = self.segments;
        self.live.iter().filter(move |it| is(it)).map(move |it| &pieces[it.index])
    }

    /// The old pieces of a class that are long enough to be cut to an excerpt, and are not cut yet.
    pub(crate) fn long_segments(&self, class: SegmentKind) -> impl DoubleEndedIterator<Item = &'v Segment> + '_ {
        self.old_segments(class, Stage::Excerpts).filter(|piece| match piece.kind {
            SegmentKind::Arguments => self.text(piece).len() >= crate::engine::passes::arguments::MIN_ARGUMENT_BYTES,
            _ => piece.tokens >= crate::engine::passes::excerpt::MIN_EXCERPT_TOKENS,
        })
    }

    pub(crate) fn is_old(&self, piece: &Segment) -> bool {
        let aged = self.age(piece) >= retention_calls(self.options, piece) || piece.at.message < self.keep_share_start;
        let may_change = self.edit_from..self.newest_round_start;
        aged && may_change.contains(&piece.at.message) && !self.options.pins.matches(piece)
    }

    /// The pieces of a range of messages.
    pub(crate) fn segments_of(&self, messages: Range<usize>) -> &'v [Segment] {
        let index = |message: usize| self.first_segment.get(message).copied().unwrap_or(self.segments.len());
        &self.segments[index(messages.start)..index(messages.end)]
    }

    pub(crate) fn age(&self, piece: &Segment) -> u32 {
        self.calls - piece.call_index
    }

    /// The text of a piece.
    pub(crate) fn text(&self, piece: &Segment) -> &'v str {
        segment::segment_text(self.messages, piece.at)
    }

    /// The kept lines of a text under a marker, and how many tokens that is if those of the lines are known.
    fn assemble<'t>(
        &self,
        marker: &str,
        text: &'t str,
        (lines, kept): (impl Iterator<Item = &'t str>, &[bool]),
        counts: Option<&LineCounts>,
    ) -> (String, Option<Tokens>) {
        let Some(counts) = counts else {
            return (
                crate::engine::passes::support::clip::assemble_lines(marker, text, lines, kept, |_, _, _| {}),
                None,
            );
        };
        let mut tally = IncrementalCount::new(&self.options.meter);
        let assembled =
            crate::engine::passes::support::clip::assemble_lines(marker, text, lines, kept, |before, line, number| {
                tally.add_line(before, line, number.and_then(|number| counts.get(number)));
            });
        let tokens = tally.finish(&assembled);
        (assembled, Some(tokens))
    }

    /// The handle of a text, when markers carry handles.
    pub(crate) fn handle(&self, text: &str) -> Option<Handle> {
        self.options.handles.then(|| Handle::for_content(text.as_bytes()))
    }

    /// The marker of a whole piece.
    pub(crate) fn marker(&self, piece: &Segment) -> String {
        let text = self.text(piece);
        marker::whole_text(text, self.handle(text))
    }

    /// The marker of an image or a file.
    pub(crate) fn media_marker(&self, piece: &Segment) -> String {
        let part = self.messages[piece.at.message].parts.get(piece.at.part);
        let part = match (part, piece.at.inner) {
            (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner),
            (part, _) => part,
        };
        let what = match part {
            Some(Part::File(file)) => file.name.as_ref().map_or("a file".to_owned(), |name| format!("file {name}")),
            _ => "an image".to_owned(),
        };
        let handle =
            part.filter(|_| self.options.handles).map(|part| Handle::for_content(&overlay::original_bytes(part)));
        marker::described(&what, handle)
    }

    /// What a kept token costs until the end of the session: it is written once more at this crease
    /// and read by every call to come.
    pub(crate) fn retention_cost(&self) -> f64 {
        let prices = &self.options.prices;
        (prices.write + prices.read * self.expected_calls) * self.space_value
    }

    /// What it costs when a piece that was folded is needed after all.
    pub(crate) fn unfold_cost(&self, piece: &Segment) -> f64 {
        self.options.prices.unfold_cost(self.request_tokens, piece.tokens)
    }
}

/// For how many calls a piece is left whole.
pub(crate) fn retention_calls(setup: &FoldOptions, piece: &Segment) -> u32 {
    let policy = &setup.policy;
    if piece.is_kept_longer() && !piece.superseded { policy.keep_file_calls } else { policy.keep_other_calls }
}
