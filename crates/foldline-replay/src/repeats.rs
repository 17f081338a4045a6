//! Repeated results: calls that fetch again what an earlier, equal call already gave.
//!
//! A recorded agent reads unchanged content again, and an engine that had folded it cannot claim that the
//! second read was free: see `ReplayScore::record_retry`.

use std::ops::Range;

use foldline::Part;
use foldline::conversation::{ToolCall, ToolResult};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::engine::SharedMessage;

/// A result that repeats an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepeatedResult {
    /// The key of its text.
    pub(crate) key: u64,
    /// Message and part of the newest earlier result with this text.
    pub(crate) earlier: (usize, usize),
}

/// Minimum bytes of a result: a short one is a confirmation and not content.
const MIN_RESULT_BYTES: usize = 400;

/// Returns the key of a result's text; `None` if it is short.
pub(crate) fn result_key(result: &ToolResult<'_>) -> Option<u64> {
    let mut hasher = Xxh3::new();
    let mut bytes = 0;
    for text in result.texts() {
        hasher.update(text.as_bytes());
        bytes += text.len();
    }
    (bytes >= MIN_RESULT_BYTES).then(|| hasher.digest())
}

/// Returns for each action the results of its calls that an equal call had before.
pub(crate) fn find_repeats(
    messages: &[SharedMessage],
    actions: impl Iterator<Item = Range<usize>>,
) -> Vec<Vec<RepeatedResult>> {
    let actions: Vec<Range<usize>> = actions.collect();
    let mut repeats = vec![Vec::new(); actions.len()];
    let mut action = 0;
    let mut pending: FxHashMap<&str, (usize, u64)> = FxHashMap::default();
    let mut seen: FxHashMap<(u64, u64), (usize, usize)> = FxHashMap::default();
    for (at, message) in messages.iter().enumerate() {
        while actions.get(action).is_some_and(|range| range.end <= at) {
            action += 1;
        }
        for (index, part) in message.parts.iter().enumerate() {
            match part {
                Part::ToolCall(call) if actions.get(action).is_some_and(|range| range.contains(&at)) => {
                    pending.insert(&call.id, (action, call_key(call)));
                }
                Part::ToolResult(result) => {
                    let Some((call_action, call)) = pending.remove(&*result.call_id) else { continue };
                    let Some(key) = result_key(result) else { continue };
                    if let Some(earlier) = seen.insert((call, key), (at, index)) {
                        repeats[call_action].push(RepeatedResult { key, earlier });
                    }
                }
                _ => {}
            }
        }
    }
    repeats
}

fn call_key(call: &ToolCall<'_>) -> u64 {
    xxh3_64(call.name.as_bytes()) ^ xxh3_64(call.arguments.as_str().as_bytes()).rotate_left(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::{Message, Role};
    use std::sync::Arc;

    #[test]
    fn only_unchanged_content_is_a_repeat() {
        let file = "let value = 1;\n".repeat(40);
        let round = |id: &'static str, path: &str, text: &str| {
            let arguments = format!("{{\"path\":\"{path}\"}}");
            [
                Arc::new(Message::new(Role::Assistant, vec![Part::call(id, "read", arguments)])),
                Arc::new(Message::new(Role::Tool, vec![Part::result(id, text.to_owned())])),
            ]
        };
        let changed = file.replace('1', "2");
        let rounds = [
            round("c1", "a.rs", &file),
            round("c2", "b.rs", &file),
            round("c3", "a.rs", &file),
            round("c4", "a.rs", &changed),
            round("c5", "short.rs", "ok"),
            round("c6", "short.rs", "ok"),
        ];
        let messages: Vec<SharedMessage> =
            [Arc::new(Message::text(Role::User, "go"))].into_iter().chain(rounds.into_iter().flatten()).collect();
        let found = find_repeats(&messages, (0..6).map(|at| 2 * at + 1..2 * at + 2));
        let counts: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(counts, [0, 0, 1, 0, 0, 0]);
        assert_eq!(found[2][0].earlier, (2, 0));
    }
}
