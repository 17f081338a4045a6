//! A set of messages as ranges: its size depends on the number of ranges and not on the number of messages.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of messages as sorted ranges, no two of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageRanges {
    /// End of each range by its start.
    ends: BTreeMap<usize, usize>,
}

impl MessageRanges {
    /// Adds a message.
    pub(crate) fn insert(&mut self, message: usize) {
        let before = self.ends.range(..=message).next_back().map(|(&start, &end)| start..end);
        let start = match before {
            Some(range) if range.end > message => return,
            Some(range) if range.end == message => range.start,
            _ => message,
        };
        let end = self.ends.remove(&(message + 1)).unwrap_or(message + 1);
        self.ends.insert(start, end);
    }

    /// Removes a message.
    pub(crate) fn remove(&mut self, message: usize) {
        let around = self.ends.range(..=message).next_back().map(|(&start, &end)| start..end);
        let Some(range) = around.filter(|range| range.contains(&message)) else { return };
        self.ends.remove(&range.start);
        let rest = [range.start..message, message + 1..range.end];
        self.ends.extend(rest.into_iter().filter(|rest| !rest.is_empty()).map(|rest| (rest.start, rest.end)));
    }

    pub(crate) fn contains(&self, message: usize) -> bool {
        self.first_outside(message) != message
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the first message from `from` on that is not in the set.
    pub(crate) fn first_outside(&self, from: usize) -> usize {
        self.ends.range(..=from).next_back().map_or(from, |(_, &end)| end.max(from))
    }

    /// Returns the ranges, oldest first.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the ranges of messages that are not in the set, oldest first, of a conversation with this many messages.
    /// They may be empty.
    pub(crate) fn gaps(&self, messages: usize) -> impl Iterator<Item = Range<usize>> {
        let starts = self.ends.keys().copied().chain([messages]);
        std::iter::once(0).chain(self.ends.values().copied()).zip(starts).map(|(from, to)| from..to)
    }
}

impl FromIterator<usize> for MessageRanges {
    fn from_iter<I: IntoIterator<Item = usize>>(messages: I) -> Self {
        let mut ranges = Self::default();
        messages.into_iter().for_each(|message| ranges.insert(message));
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_equal_a_set_of_messages(
            messages in prop::collection::vec(0_usize..40, 0..60),
            removed in prop::collection::vec(0_usize..40, 0..20),
        ) {
            let mut set: BTreeSet<usize> = messages.iter().copied().collect();
            let mut ranges: MessageRanges = messages.into_iter().collect();
            for message in removed {
                set.remove(&message);
                ranges.remove(message);
            }
            prop_assert_eq!(ranges.ranges().flatten().collect::<BTreeSet<_>>(), set.clone());
            let outside: BTreeSet<usize> = (0..50).filter(|at| !set.contains(at)).collect();
            prop_assert_eq!(ranges.gaps(50).flatten().collect::<BTreeSet<_>>(), outside.clone());
            for at in 0..50 {
                prop_assert_eq!(ranges.contains(at), set.contains(&at));
                prop_assert_eq!(Some(ranges.first_outside(at)), outside.range(at..).next().copied().or(Some(at)));
            }
            let touching = ranges.ranges().zip(ranges.ranges().skip(1)).any(|(one, next)| one.end >= next.start);
            prop_assert!(!touching && ranges.is_empty() == set.is_empty());
        }
    }
}
