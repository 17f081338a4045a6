//! Results that a later call supersedes: a file that was read or written again, a command that was run again, a failed
//! attempt before a successful one.
//!
//! Only identical calls count (same tool, same arguments), because another range of a file is another text. A failure
//! supersedes only failures.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::identity_hasher::IdentityHasher;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::tool_action::ActionKind;

/// The newest result of each call.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestResults {
    by_call: HashMap<u64, usize, BuildHasherDefault<IdentityHasher>>,
}

impl LatestResults {
    /// Records the segment at an index. Returns the index of the segment that it supersedes.
    pub(crate) fn record(&mut self, segments: &[Segment], index: usize) -> Option<usize> {
        let segment = &segments[index];
        let call = segment.tool_call.as_ref().filter(|_| segment.kind == SegmentKind::Result)?;
        let file = file_key(&call.action.target);
        let key = match call.action.kind {
            // The written content is what a read of the file would return.
            ActionKind::Write if !segment.failed => file,
            _ => call.call_hash,
        };
        let before = self.by_call.get(&key).copied();
        let superseded = before.filter(|&before| segments[before].failed || !segment.failed);
        // Texts of the same result do not supersede each other.
        let superseded = superseded.filter(|&before| segments[before].at.message != segment.at.message);
        if before.is_none() || superseded.is_some() {
            self.by_call.insert(key, index);
        }
        if segment.shows_file_read() {
            self.by_call.insert(file, index);
        }
        superseded
    }
}

fn file_key(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::engine::segment;
    use crate::engine::segment::PendingCalls;
    use crate::tokens::Meter;

    /// Returns the calls whose results are superseded after these calls (tool, arguments, result).
    fn superseded(calls: &[(&str, &str, &str)]) -> Vec<usize> {
        let (mut segments, mut pending, mut latest) = (Vec::new(), PendingCalls::new(), LatestResults::default());
        let mut superseded = Vec::new();
        let meter = Meter::for_byte_estimate();
        for (at, (tool, arguments, result)) in calls.iter().enumerate() {
            let call = Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), *tool, *arguments)]);
            let result = Message::new(Role::Tool, vec![Part::result(format!("c{at}"), *result)]);
            for (offset, message) in [call, result].iter().enumerate() {
                let first = segments.len();
                segments.extend(segment::message_segments(2 * at + offset, message, 0, &mut pending, &meter));
                superseded.extend((first..segments.len()).filter_map(|index| latest.record(&segments, index)));
            }
        }
        superseded.into_iter().map(|index| segments[index].at.message / 2).collect()
    }

    #[test]
    fn newer_read_or_write_supersedes_older_read() {
        let read = ("read_file", r#"{"path":"a.rs"}"#, "fn a() {}");
        assert_eq!(superseded(&[read, ("read_file", r#"{"path":"b.rs"}"#, "x"), read]), [0]);
        assert_eq!(superseded(&[read, ("write_file", r#"{"path":"a.rs","content":"x"}"#, "ok")]), [0]);
        let part = ("read_file", r#"{"path":"a.rs","offset":200}"#, "fn b() {}");
        assert_eq!(superseded(&[read, part]), [] as [usize; 0]);
        assert_eq!(superseded(&[read, ("edit_file", r#"{"path":"a.rs","old":"x"}"#, "ok")]), [] as [usize; 0]);
    }

    #[test]
    fn only_the_same_command_supersedes_output() {
        let run = ("bash", r#"{"command":"make"}"#, "all is well");
        assert_eq!(superseded(&[run, ("bash", r#"{"command":"make test"}"#, "fine"), run, run]), [0, 2]);
    }

    #[test]
    fn success_supersedes_failure_but_not_vice_versa() {
        let failed = ("bash", r#"{"command":"make"}"#, "Exit code 2\nerror: no rule");
        let passed = ("bash", r#"{"command":"make"}"#, "all is well");
        assert_eq!(superseded(&[failed, passed, failed]), [0]);
        assert_eq!(superseded(&[failed, failed]), [0]);
    }
}
