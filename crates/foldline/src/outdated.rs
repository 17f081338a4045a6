//! What a later call says better: a file that was read again or written anew, a command that was run again,
//! an attempt that failed before one that did not.
//!
//! Only calls that are the same count: the same tool with the same arguments, since another part of a file is
//! another text. What failed makes nothing outdated but what failed too.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::xxh3_64;

use crate::deed::Act;
use crate::lexicon::Key;
use crate::piece::{Class, Piece};

/// The newest result of each call that may come again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest {
    by_call: HashMap<u64, usize, BuildHasherDefault<Key>>,
}

impl Latest {
    /// Takes note of the piece at an index. Gives the index of the one that it makes outdated.
    pub(crate) fn note(&mut self, pieces: &[Piece], index: usize) -> Option<usize> {
        let piece = &pieces[index];
        let done = piece.deed.as_ref().filter(|_| piece.class == Class::Result)?;
        let file = of_file(&done.deed.target);
        let key = match done.deed.act {
            // A file that is written is what a read of it would show.
            Act::Write if !piece.failed => file,
            _ => done.call,
        };
        let before = self.by_call.get(&key).copied();
        let outdated = before.filter(|&before| pieces[before].failed || !piece.failed);
        // A result in two texts is no newer than itself.
        let outdated = outdated.filter(|&before| pieces[before].at.message != piece.at.message);
        if before.is_none() || outdated.is_some() {
            self.by_call.insert(key, index);
        }
        if piece.is_read() {
            self.by_call.insert(file, index);
        }
        outdated
    }
}

fn of_file(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Message, Part, Role};
    use crate::measure::Meter;
    use crate::piece::{self, Open};

    /// The calls whose results are outdated after all of these: tool, arguments, result.
    fn outdated(calls: &[(&str, &str, &str)]) -> Vec<usize> {
        let (mut pieces, mut open, mut latest) = (Vec::new(), Open::new(), Latest::default());
        let mut outdated = Vec::new();
        let meter = Meter::by_bytes();
        for (at, (tool, arguments, result)) in calls.iter().enumerate() {
            let call = Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), *tool, *arguments)]);
            let result = Message::new(Role::Tool, vec![Part::result(format!("c{at}"), *result)]);
            for (offset, message) in [call, result].iter().enumerate() {
                let first = pieces.len();
                pieces.extend(piece::pieces(2 * at + offset, message, 0, &mut open, &meter));
                outdated.extend((first..pieces.len()).filter_map(|index| latest.note(&pieces, index)));
            }
        }
        outdated.into_iter().map(|index| pieces[index].at.message / 2).collect()
    }

    #[test]
    fn a_file_read_again_or_written_anew_makes_the_older_read_outdated() {
        let read = ("read_file", r#"{"path":"a.rs"}"#, "fn a() {}");
        assert_eq!(outdated(&[read, ("read_file", r#"{"path":"b.rs"}"#, "x"), read]), [0]);
        assert_eq!(outdated(&[read, ("write_file", r#"{"path":"a.rs","content":"x"}"#, "ok")]), [0]);
        let part = ("read_file", r#"{"path":"a.rs","offset":200}"#, "fn b() {}");
        assert_eq!(outdated(&[read, part]), [] as [usize; 0]);
        assert_eq!(outdated(&[read, ("edit_file", r#"{"path":"a.rs","old":"x"}"#, "ok")]), [] as [usize; 0]);
    }

    #[test]
    fn the_same_command_makes_its_older_output_outdated_and_another_does_not() {
        let run = ("bash", r#"{"command":"make"}"#, "all is well");
        assert_eq!(outdated(&[run, ("bash", r#"{"command":"make test"}"#, "fine"), run, run]), [0, 2]);
    }

    #[test]
    fn a_failure_is_outdated_by_a_success_and_a_success_not_by_a_failure() {
        let failed = ("bash", r#"{"command":"make"}"#, "Exit code 2\nerror: no rule");
        let passed = ("bash", r#"{"command":"make"}"#, "all is well");
        assert_eq!(outdated(&[failed, passed, failed]), [0]);
        assert_eq!(outdated(&[failed, failed]), [0]);
    }
}
