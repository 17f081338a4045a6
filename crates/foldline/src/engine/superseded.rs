//! What a later call says better: a file that was read again or written anew, a command that was run again,
//! an attempt that failed before one that did not.
//!
//! Only calls that are the same count: the same tool with the same arguments, since another part of a file is
//! another text. What failed makes nothing outdated but what failed too.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::identifiers::index::IdentityHasher;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::tool_action::ActionKind;

/// The newest result of each call that may come again.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestResults {
    by_call: HashMap<u64, usize, BuildHasherDefault<IdentityHasher>>,
}

impl LatestResults {
    /// Takes note of the piece at an index. Gives the index of the one that it makes outdated.
    pub(crate) fn record(&mut self, pieces: &[Segment], index: usize) -> Option<usize> {
        let piece = &pieces[index];
        let done = piece.tool_call.as_ref().filter(|_| piece.kind == SegmentKind::Result)?;
        let file = file_key(&done.action.target);
        let key = match done.action.kind {
            // A file that is written is what a read of it would show.
            ActionKind::Write if !piece.failed => file,
            _ => done.call_hash,
        };
        let before = self.by_call.get(&key).copied();
        let outdated = before.filter(|&before| pieces[before].failed || !piece.failed);
        // A result in two texts is no newer than itself.
        let outdated = outdated.filter(|&before| pieces[before].at.message != piece.at.message);
        if before.is_none() || outdated.is_some() {
            self.by_call.insert(key, index);
        }
        if piece.shows_file_read() {
            self.by_call.insert(file, index);
        }
        outdated
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

    /// The calls whose results are outdated after all of these: tool, arguments, result.
    fn superseded(calls: &[(&str, &str, &str)]) -> Vec<usize> {
        let (mut pieces, mut open, mut latest) = (Vec::new(), PendingCalls::new(), LatestResults::default());
        let mut outdated = Vec::new();
        let meter = Meter::for_byte_estimate();
        for (at, (tool, arguments, result)) in calls.iter().enumerate() {
            let call = Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), *tool, *arguments)]);
            let result = Message::new(Role::Tool, vec![Part::result(format!("c{at}"), *result)]);
            for (offset, message) in [call, result].iter().enumerate() {
                let first = pieces.len();
                pieces.extend(segment::message_segments(2 * at + offset, message, 0, &mut open, &meter));
                outdated.extend((first..pieces.len()).filter_map(|index| latest.record(&pieces, index)));
            }
        }
        outdated.into_iter().map(|index| pieces[index].at.message / 2).collect()
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
