//! The segments of a conversation by message, and the calls that its results may refer to.

use std::ops::Range;

use crate::conversation::{Message, PartId};
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment};
use crate::tokens::Meter;

/// The segments of a conversation, in order.
#[derive(Clone, Default)]
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    /// Index of the first segment of each message.
    first_segment: Vec<usize>,
    calls: PendingCalls,
}

impl SegmentTable {
    /// Adds the segments of the next message and returns their indices.
    pub(crate) fn push_message(&mut self, message: &Message<'_>, call_index: u32, meter: &Meter) -> Range<usize> {
        let (at, first) = (self.first_segment.len(), self.segments.len());
        self.first_segment.push(first);
        self.segments.extend(segment::message_segments(at, message, call_index, &mut self.calls, meter));
        first..self.segments.len()
    }

    /// Returns all segments.
    pub(crate) fn as_slice(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns all segments for changes of their facts.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Segment] {
        &mut self.segments
    }

    /// Returns the segment at a position.
    pub(crate) fn get(&self, at: PartId) -> Option<&Segment> {
        let segments = self.of_messages(at.message..at.message + 1);
        segments.binary_search_by_key(&at, |segment| segment.at).ok().map(|index| &segments[index])
    }

    /// Returns the segments of some messages.
    pub(crate) fn of_messages(&self, messages: Range<usize>) -> &[Segment] {
        &self.segments[self.indices(messages)]
    }

    /// Returns the segments of a part, including those inside a result.
    pub(crate) fn of_part(&self, message: usize, part: usize) -> &[Segment] {
        let segments = self.of_messages(message..message + 1);
        let start = segments.partition_point(|segment| segment.at.part < part);
        let end = segments.partition_point(|segment| segment.at.part <= part);
        &segments[start..end]
    }

    /// Returns the indices of the segments of some messages.
    pub(crate) fn indices(&self, messages: Range<usize>) -> Range<usize> {
        let index = |message: usize| self.first_segment.get(message).copied().unwrap_or(self.segments.len());
        index(messages.start)..index(messages.end)
    }

    /// Returns the message with the call of this id.
    pub(crate) fn message_of_call(&self, id: &str) -> Option<usize> {
        self.calls.get(id).map(|&(_, message)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Part, Role, ToolResult};

    fn table(messages: &[Message<'_>]) -> SegmentTable {
        let mut table = SegmentTable::default();
        for message in messages {
            table.push_message(message, 0, &Meter::for_byte_estimate());
        }
        table
    }

    fn two_texts(call_id: &'static str) -> Part<'static> {
        let content = vec![Part::text("one"), Part::text("two")];
        Part::ToolResult(ToolResult { call_id: call_id.into(), content, is_error: false })
    }

    #[test]
    fn segments_are_found_by_position() {
        let user = Message::new(Role::User, vec![Part::text("a"), two_texts("c"), Part::text("b")]);
        let table = table(&[Message::text(Role::User, "go"), Message::new(Role::Assistant, vec![]), user]);
        let result = PartId::new(2, 1);
        for at in [PartId::new(0, 0), PartId::new(2, 0), result.inner(0), result.inner(1), PartId::new(2, 2)] {
            assert_eq!(table.get(at).map(|segment| segment.at), Some(at));
        }
        for at in [result, result.inner(2), PartId::new(1, 0), PartId::new(3, 0)] {
            assert!(table.get(at).is_none(), "{at}");
        }
    }

    #[test]
    fn ranges_of_messages_and_parts_are_exact() {
        let round = [
            Message::text(Role::User, "go"),
            Message::new(Role::Assistant, vec![Part::text("reading"), Part::call("c", "read", "{}")]),
            Message::new(Role::Tool, vec![two_texts("c")]),
        ];
        let table = table(&round);
        assert_eq!(table.indices(1..3), 1..5);
        assert_eq!(table.indices(2..9), 3..5);
        assert_eq!(table.of_part(2, 0).len(), 2);
        assert_eq!(table.of_part(1, 2).len(), 0);
        assert_eq!((table.message_of_call("c"), table.message_of_call("d")), (Some(1), None));
    }
}
