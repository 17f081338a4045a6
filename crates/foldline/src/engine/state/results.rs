//! What is known about tool results across messages: which supersede or repeat others.

use std::collections::HashMap;

use crate::conversation::Message;
use crate::engine::line_index::{LineHashes, LineOwners};
use crate::engine::options::FoldOptions;
use crate::engine::passes::{prose, repeated_lines};
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::superseded::LatestResults;
use crate::error::Error;

/// The results of a conversation by call, by text and by line.
#[derive(Clone, Default)]
pub(crate) struct ResultIndex {
    latest_results: LatestResults,
    /// Newest result with each text, by text hash.
    by_text: HashMap<u128, usize>,
    /// Owners of the lines of the first `indexed_segments` segments.
    line_owners: LineOwners,
    indexed_segments: usize,
}

impl ResultIndex {
    /// Marks the result that the segment at an index supersedes.
    pub(crate) fn mark_superseded(&mut self, segments: &mut [Segment], index: usize) {
        if let Some(before) = self.latest_results.record(segments, index) {
            segments[before].superseded = true;
        }
    }

    /// Records the text of the result at an index. Returns the newest earlier result with the same text for which
    /// `is_whole` returns true; that one remains the recorded one.
    pub(crate) fn record_text(
        &mut self,
        segments: &[Segment],
        index: usize,
        is_whole: impl Fn(&Segment) -> bool,
    ) -> Option<usize> {
        let newest = self.by_text.entry(segments[index].text_hash).or_insert(index);
        if *newest != index && is_whole(&segments[*newest]) {
            return Some(*newest);
        }
        *newest = index;
        None
    }

    /// Caches per-segment facts that passes query on every planning run: which new results repeat lines of earlier
    /// ones, and which prose contains noise.
    pub(crate) fn index_new_results(
        &mut self,
        segments: &mut [Segment],
        options: &FoldOptions,
        messages: &[Message<'_>],
    ) -> Result<(), Error> {
        let for_lines = repeated_lines::is_enabled(&options.policy);
        for index in self.indexed_segments..segments.len() {
            self.indexed_segments = index;
            options.cancel.check()?;
            let segment = &segments[index];
            let text = segment::segment_text(messages, segment.at);
            match segment.kind {
                SegmentKind::Result if for_lines && segment.tokens >= repeated_lines::MIN_RESULT_TOKENS => {
                    let hashes = LineHashes::new(text);
                    self.line_owners.record(index as u32, &hashes, |before| {
                        let before = &mut segments[before as usize];
                        before
                            .line_hashes
                            .get_or_insert_with(|| LineHashes::new(segment::segment_text(messages, before.at)));
                        before.repeated_later = true;
                        segments[index].repeats_earlier_lines = true;
                    });
                    segments[index].line_hashes = segments[index].repeats_earlier_lines.then_some(hashes);
                }
                SegmentKind::Prose if segment.tokens >= prose::MIN_PROSE_TOKENS => {
                    segments[index].has_noise = prose::without_noise(text).is_some();
                }
                _ => {}
            }
        }
        self.indexed_segments = segments.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Part, Role};
    use crate::engine::state::segments::SegmentTable;
    use crate::{Meter, ModelTable, Policy, Prices};

    fn messages(results: &[&str]) -> Vec<Message<'static>> {
        let round = |(at, text): (usize, &&str)| {
            let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"{at}.rs"}}"#));
            [
                Message::new(Role::Assistant, vec![call]),
                Message::new(Role::Tool, vec![Part::result(format!("c{at}"), (*text).to_owned())]),
            ]
        };
        results.iter().enumerate().flat_map(round).collect()
    }

    fn table(messages: &[Message<'_>]) -> SegmentTable {
        let mut table = SegmentTable::default();
        for message in messages {
            table.push_message(message, 0, &Meter::for_byte_estimate());
        }
        table
    }

    #[test]
    fn whole_copy_remains_the_recorded_one() {
        let segments = table(&messages(&["same", "same", "same"]));
        let mut results = ResultIndex::default();
        assert_eq!(results.record_text(segments.as_slice(), 1, |_| true), None);
        assert_eq!(results.record_text(segments.as_slice(), 3, |_| true), Some(1));
        assert_eq!(results.record_text(segments.as_slice(), 5, |_| true), Some(1));
    }

    /// A folded copy cannot be referred to, so the newer one takes its place.
    #[test]
    fn folded_copy_is_replaced() {
        let segments = table(&messages(&["same", "same", "same"]));
        let mut results = ResultIndex::default();
        results.record_text(segments.as_slice(), 1, |_| true);
        assert_eq!(results.record_text(segments.as_slice(), 3, |_| false), None);
        assert_eq!(results.record_text(segments.as_slice(), 5, |_| true), Some(3));
    }

    #[test]
    fn shared_lines_mark_both_results() {
        let line = |at: usize| format!("    let value_{at} = compute(input);\n");
        let [first, second, other] =
            [0..20, 15..35, 90..110].map(|lines: std::ops::Range<usize>| lines.map(line).collect::<String>());
        let messages = messages(&[&first, &other, &second]);
        let mut segments = table(&messages);
        let model = ModelTable::builtin();
        let mut options = FoldOptions::new(Meter::for_byte_estimate(), Prices::for_model(model, None), 1_000);
        options.policy = Policy::lossless();
        ResultIndex::default().index_new_results(segments.as_mut_slice(), &options, &messages).unwrap();
        let marks: Vec<(bool, bool)> = [1, 3, 5]
            .map(|at| &segments.as_slice()[at])
            .map(|segment| (segment.repeated_later, segment.repeats_earlier_lines))
            .into();
        assert_eq!(marks, [(true, false), (false, false), (false, true)]);
    }
}
