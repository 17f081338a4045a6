//! Cover: the fewest old lines such that every identifier a later action needs still appears somewhere, and every text
//! that a later edit replaces is there in one piece.

use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use foldline::{Message, Part};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::case::ReplayCase;
use crate::engine::SharedMessage;
use crate::oracle::crease::OracleCrease;
use crate::text::{TextOrigin, for_each_text, without_line_numbers};

/// Text that replaces a result of which no line is kept.
const FOLDED_STUB: &str = "[folded]";

/// The foldable lines of a conversation, and the identifiers needed from them.
pub(crate) struct LineCover {
    messages: Vec<MessageLines>,
    /// Tokens of all messages before each index when nothing foldable is kept.
    stub_token_sums: Vec<u64>,
    /// The foldable lines that contain an identifier: message and index of the line in it, in order.
    lines_by_identifier: FxHashMap<u32, Vec<(usize, usize)>>,
    /// The first message from which an identifier appears in a text that is never folded.
    unfolded_from: FxHashMap<u32, usize>,
    /// Identifiers that later actions need: last message, call, identifier; in order.
    needs: Vec<(usize, usize, u32)>,
    /// Texts that later edits replace, in order of their messages.
    passages: Vec<EditPassage>,
}

/// The foldable lines with the old text of an edit, at its newest position.
#[derive(Clone, Debug)]
struct EditPassage {
    message: usize,
    call: usize,
    part: usize,
    /// Indices of its lines: in the part, then among the foldable lines of the message.
    lines: Range<usize>,
}

/// The foldable lines of a message that contain an identifier.
#[derive(Default)]
struct MessageLines {
    lines: Vec<FoldableLine>,
}

struct FoldableLine {
    part: usize,
    index: usize,
    tokens: u64,
    identifiers: Box<[u32]>,
}

fn is_foldable(kind: TextOrigin) -> bool {
    matches!(kind, TextOrigin::Prose | TextOrigin::Reasoning | TextOrigin::Result)
}

impl LineCover {
    pub(crate) fn new(case: &ReplayCase) -> Self {
        let mut cover = Self {
            messages: Vec::new(),
            stub_token_sums: vec![0],
            lines_by_identifier: FxHashMap::default(),
            unfolded_from: FxHashMap::default(),
            needs: Vec::new(),
            passages: find_passages(case),
        };
        let marker = case.meter.text(FOLDED_STUB);
        for (at, message) in case.messages.iter().enumerate() {
            let mut foldable = MessageLines::default();
            let mut removed = 0;
            let passages = cover.passages_in(at, at + 1);
            let mut seen_parts: FxHashMap<usize, usize> = FxHashMap::default();
            for_each_text(message, |kind, part, text| {
                let first_line = *seen_parts.get(&part).unwrap_or(&0);
                let mut lines = 0;
                for (line_at, line) in text.lines().enumerate() {
                    lines += 1;
                    let index = first_line + line_at;
                    let is_edited = cover.passages[passages.clone()]
                        .iter()
                        .any(|passage| passage.part == part && passage.lines.contains(&index));
                    let identifiers = case.line_identifiers(kind, line).unwrap_or_default();
                    if identifiers.is_empty() && !is_edited {
                        continue;
                    }
                    if is_foldable(kind) {
                        let tokens = case.meter.text(line) + 1;
                        for &id in identifiers {
                            cover.lines_by_identifier.entry(id).or_default().push((at, foldable.lines.len()));
                        }
                        foldable.lines.push(FoldableLine { part, index, tokens, identifiers: identifiers.into() });
                    } else {
                        for &id in identifiers {
                            cover.unfolded_from.entry(id).or_insert(at);
                        }
                    }
                }
                if is_foldable(kind) {
                    seen_parts.insert(part, first_line + lines);
                    let left = if kind == TextOrigin::Result { marker } else { 0 };
                    removed += case.meter.text(text).saturating_sub(left);
                }
            });
            for passage in &mut cover.passages[passages] {
                let part = passage.part;
                let lines = std::mem::replace(&mut passage.lines, 0..0);
                let start = foldable.lines.iter().position(|line| line.part == part && line.index >= lines.start);
                let count =
                    foldable.lines.iter().filter(|line| line.part == part && lines.contains(&line.index)).count();
                passage.lines = start.map_or(0..0, |start| start..start + count);
            }
            cover.stub_token_sums.push(cover.stub_token_sums[at] + case.metrics[at].tokens.saturating_sub(removed));
            cover.messages.push(foldable);
        }
        for (index, call) in case.calls.iter().enumerate() {
            for need in call.needs.iter().filter(|need| is_foldable(need.position.kind)) {
                cover.needs.push((need.position.message, index, need.identifier));
            }
        }
        cover.needs.sort_unstable();
        cover
    }

    /// Returns the tokens of the messages of a crease after folding.
    pub(crate) fn folded_tokens(&self, crease: OracleCrease) -> u64 {
        let lines = self.choose_lines(crease, &FxHashSet::default());
        self.stub_token_sums[crease.to] - self.stub_token_sums[crease.from]
            + lines.iter().map(|&(at, line)| self.messages[at].lines[line].tokens).sum::<u64>()
    }

    /// Returns the empty set of kept identifiers.
    pub(crate) fn no_identifiers(&self) -> FxHashSet<u32> {
        FxHashSet::default()
    }

    /// Folds the messages of a crease. `kept` are the identifiers of the lines that earlier creases kept.
    pub(crate) fn fold_messages(
        &self,
        case: &ReplayCase,
        crease: OracleCrease,
        kept: &mut FxHashSet<u32>,
    ) -> Vec<(usize, SharedMessage)> {
        if crease.from == 0 {
            kept.clear();
        }
        let mut lines = self.choose_lines(crease, kept);
        lines.sort_unstable();
        let mut by_message: FxHashMap<usize, Vec<&FoldableLine>> = FxHashMap::default();
        for (at, line) in lines {
            let line = &self.messages[at].lines[line];
            kept.extend(line.identifiers.iter().copied());
            by_message.entry(at).or_default().push(line);
        }
        (crease.from..crease.to)
            .map(|at| {
                let lines = by_message.remove(&at).unwrap_or_default();
                let folded = fold_message(&case.messages[at], &lines);
                match case.meter.message(&folded) < case.metrics[at].tokens {
                    true => (at, Arc::new(folded)),
                    false => (at, Arc::clone(&case.messages[at])),
                }
            })
            .collect()
    }

    /// Returns the indices of the passages in some messages.
    fn passages_in(&self, from: usize, to: usize) -> Range<usize> {
        self.passages.partition_point(|passage| passage.message < from)
            ..self.passages.partition_point(|passage| passage.message < to)
    }

    /// Chooses the lines to keep: those of passages, then by a greedy cover repeatedly the line with the most missing
    /// identifiers per token.
    fn choose_lines(&self, crease: OracleCrease, kept: &FxHashSet<u32>) -> Vec<(usize, usize)> {
        let start = self.needs.partition_point(|&(message, ..)| message < crease.from);
        let end = self.needs.partition_point(|&(message, ..)| message < crease.to);
        let mut missing: FxHashSet<u32> = self.needs[start..end]
            .iter()
            .filter(|&&(_, call, _)| call >= crease.call)
            .map(|&(_, _, id)| id)
            .filter(|id| self.unfolded_from.get(id).is_none_or(|&from| from >= crease.to) && !kept.contains(id))
            .collect();
        let edited = self.passages[self.passages_in(crease.from, crease.to)].iter();
        let edited = edited.filter(|passage| passage.call >= crease.call);
        let mut lines: Vec<(usize, usize)> =
            edited.flat_map(|passage| passage.lines.clone().map(|line| (passage.message, line))).collect();
        lines.sort_unstable();
        lines.dedup();
        for &(at, line) in &lines {
            self.messages[at].lines[line].identifiers.iter().for_each(|id| {
                missing.remove(id);
            });
        }
        let mut gains: FxHashMap<(usize, usize), u64> = FxHashMap::default();
        for id in &missing {
            let holders = &self.lines_by_identifier[id];
            let first = holders.partition_point(|&(at, _)| at < crease.from);
            for &holder in holders[first..].iter().take_while(|&&(at, _)| at < crease.to) {
                *gains.entry(holder).or_default() += 1;
            }
        }
        let worth = |gain: u64, (at, line): (usize, usize)| (gain << 20) / self.messages[at].lines[line].tokens.max(1);
        let mut best: BinaryHeap<(u64, (usize, usize))> =
            gains.into_iter().map(|(holder, gain)| (worth(gain, holder), holder)).collect();
        while !missing.is_empty() {
            let Some((value, holder)) = best.pop() else { break };
            let identifiers = &self.messages[holder.0].lines[holder.1].identifiers;
            let gain = identifiers.iter().filter(|id| missing.contains(id)).count() as u64;
            // Other lines may have covered some of its identifiers; then it is queued again with its new value.
            let now = worth(gain, holder);
            if now < value {
                if gain > 0 {
                    best.push((now, holder));
                }
                continue;
            }
            identifiers.iter().for_each(|id| {
                missing.remove(id);
            });
            lines.push(holder);
        }
        lines
    }
}

/// Returns the foldable lines that contain the old text of each edit, by message. An edit that finds its text in a part
/// that is never folded needs none.
fn find_passages(case: &ReplayCase) -> Vec<EditPassage> {
    let mut passages = Vec::new();
    for (call, recorded) in case.calls.iter().enumerate() {
        for anchor in &recorded.anchors {
            let Some(&message) = anchor.messages.last() else { continue };
            let mut first_line = 0;
            let mut found = None;
            for_each_text(&case.messages[message], |kind, part, text| {
                if part != anchor.part || found.is_some() || !is_foldable(kind) {
                    return;
                }
                if let Some(at) = without_line_numbers(text).find(&anchor.old_text) {
                    let start = first_line + line_breaks(&without_line_numbers(text)[..at]);
                    let lines = start..start + line_breaks(&anchor.old_text) + 1;
                    found = Some(EditPassage { message, call, part, lines });
                }
                first_line += text.lines().count();
            });
            passages.extend(found);
        }
    }
    passages.sort_by_key(|passage| passage.message);
    passages
}

fn line_breaks(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

/// Returns the message with only these of its foldable lines.
fn fold_message(message: &Message<'static>, lines: &[&FoldableLine]) -> Message<'static> {
    let keep = |part: usize, text: &str| {
        let wanted: FxHashSet<usize> = lines.iter().filter(|line| line.part == part).map(|line| line.index).collect();
        let kept = text.lines().enumerate().filter(|(at, _)| wanted.contains(at));
        kept.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
    };
    let mut parts: Vec<Part<'static>> = Vec::new();
    for (at, part) in message.parts.iter().enumerate() {
        match part {
            Part::Text { text } if message.is_assistant() => {
                let kept = keep(at, text);
                if !kept.is_empty() {
                    parts.push(Part::text(kept));
                }
            }
            Part::Reasoning(reasoning) => {
                let kept = keep(at, &reasoning.text);
                if !kept.is_empty() {
                    parts.push(Part::reasoning(kept));
                }
            }
            Part::ToolResult(result) => {
                let text: Vec<&str> = result.texts().flat_map(str::lines).collect();
                let kept = keep(at, &text.join("\n"));
                let mut result = result.clone();
                result.content.retain(|part| part.as_text().is_none());
                result.content.push(Part::text(if kept.is_empty() { FOLDED_STUB.to_owned() } else { kept }));
                parts.push(Part::ToolResult(result));
            }
            other => parts.push(other.clone()),
        }
    }
    let is_content = |part: &Part<'_>| !matches!(part, Part::Reasoning(_));
    if !parts.iter().any(is_content) {
        parts.push(Part::text(FOLDED_STUB));
    }
    Message::new(message.role, parts)
}
