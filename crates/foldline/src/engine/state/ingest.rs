//! Adds messages to a state, and makes the folds that need no crease because their text was never sent.

use crate::conversation::Message;
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::options::FoldOptions;
use crate::engine::overlay::{AppliedFold, PartEdit};
use crate::engine::passes::{DUPLICATE_AT_INGEST, TERMINAL_CODES_AT_INGEST, terminal_codes};
use crate::engine::policy::CreaseMode;
use crate::engine::segment;
use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;
use crate::engine::state::FoldState;
use crate::engine::state::rounds::RoundRule;
use crate::tokens::Tokens;

/// Returns the text of a result as a terminal would show it; `None` if it is unchanged. A file that was read has no terminal:
/// an edit quotes its exact bytes, and lines may end in carriage returns.
fn visible_text(segment: &segment::Segment, text: &str) -> Option<String> {
    if segment.may_show_file_read() { None } else { terminal_codes::strip_terminal_codes(text) }
}

/// Name suffix of tools with which a model unfolds originals.
const UNFOLD_TOOL_SUFFIX: &str = "unfold";

impl FoldState {
    /// Adds the next message to the state. `decides` is false if others decided about the request in which it was first sent.
    pub(crate) fn ingest(&mut self, options: &FoldOptions, message: &Message<'_>, decides: bool) {
        let at = self.len();
        let rule = if options.results_only { RoundRule::Messages } else { RoundRule::Turns };
        self.rounds.push_message(message, rule, |id| self.segments.message_of_call(id));
        let new = self.segments.push_message(message, self.rounds.calls(), &options.meter);
        let segments = &self.segments.as_slice()[new.clone()];
        let in_segments: Tokens = segments.iter().map(|segment| segment.tokens).sum();
        let tokens = in_segments + segment::overhead_tokens(message, &options.meter);
        debug_assert_eq!(tokens, options.meter.message(message));
        self.totals.push_message(tokens);
        if !message.has_results() {
            let texts = segments.iter().filter(|segment| segment.kind == SegmentKind::InputText);
            let texts = texts.map(|segment| segment.tokens).sum();
            self.totals.record_input_texts(message.role, self.rounds.is_task(at), texts);
        }
        for index in new {
            self.results.mark_superseded(self.segments.as_mut_slice(), index);
            if options.policy.crease_mode != CreaseMode::Never {
                self.fold_at_ingest(options, message, index, decides);
            }
        }
    }

    /// Folds a result before it is first sent, if it repeats an earlier result or contains terminal control codes
    /// and is not a file.
    /// Nothing else that the model has not seen yet may be folded.
    fn fold_at_ingest(&mut self, options: &FoldOptions, message: &Message<'_>, index: usize, decides: bool) {
        let segments = self.segments.as_slice();
        let segment = &segments[index];
        if segment.kind != SegmentKind::Result
            || segment.tokens < segment::MIN_COUNTED_TOKENS
            || options.pins.matches(segment)
        {
            return;
        }
        // A model that unfolds an original and receives a marker would call the tool again.
        if segment.tool_call.as_ref().is_some_and(|call| call.tool.ends_with(UNFOLD_TOOL_SUFFIX)) {
            return;
        }
        let text = segment::text_in_message(message, segment.at);
        let handle = || options.marker_handle(|| Handle::for_content(text.as_bytes()));
        let is_whole = |earlier: &segment::Segment| self.folds.stage(earlier.at).is_none();
        let above = self.results.record_text(segments, index, is_whole);
        if !decides {
            return;
        }
        let (folded, stage, pass_name) = if above.is_some() {
            (marker::duplicate_text(text, handle()), Stage::Duplicates, DUPLICATE_AT_INGEST)
        } else if let Some(shown) = visible_text(segment, text) {
            (terminal_codes::with_marker(&shown, handle()), Stage::Repack, TERMINAL_CODES_AT_INGEST)
        } else {
            return;
        };
        let tokens = options.meter.text(&folded);
        let Some(saved) = segment.tokens.checked_sub(tokens).filter(|&saved| saved > 0) else { return };
        let at = segment.at;
        if let Some(above) = above {
            // The model requested it again, so its age restarts.
            let above = &mut self.segments.as_mut_slice()[above];
            above.call_index = self.rounds.calls();
            above.superseded = false;
        }
        self.totals.subtract(at.message, saved);
        self.last_record.note_change(at.message, &self.folds);
        self.folds.set_part(at, AppliedFold { edit: PartEdit::Text(folded), tokens, stage, pass_name });
    }
}
