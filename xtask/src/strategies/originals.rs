//! The algorithms that the classic strategies replace, as they are described, and what both save.
//!
//! They are written for this comparison alone and have the known defects: their results may break laws, and then they
//! are not compared.

use std::collections::HashMap;

use foldline::conversation::OwnedMessage;
use foldline::strategies::{CompactToBudget, apply_all, compact_to_budget};
use foldline::{Message, Part, Role};

use crate::strategies::checks::{CheckedSession, new_violations};

/// Savings over the sessions in which the original algorithm is valid.
#[derive(Default)]
struct SavingRow {
    valid: usize,
    original_bytes: usize,
    our_bytes: usize,
    /// Sessions in which the original saves more.
    worse: Vec<String>,
}

/// Returns the comparison as a table.
pub(crate) fn comparison(sessions: &[CheckedSession], budgets: &[u64]) -> String {
    let mut table = String::from(
        "| algorithm | sessions | original valid | saved by the original | saved by ours | ours saves less in |\n\
         |---|--:|--:|--:|--:|---|\n",
    );
    let mut row = SavingRow::default();
    for session in sessions {
        let original = original_apply_all(&session.messages);
        let mut ours = session.messages.clone();
        apply_all(&mut ours);
        row.compare(session, &original, &ours);
    }
    table.push_str(&row.to_line("apply_all", sessions.len()));
    for &budget in budgets {
        let (mut both, mut original_fits, mut we_fit, mut worse) = (0, 0, 0, Vec::new());
        for session in sessions {
            let (original, after) = original_compact_to_budget(&session.messages, budget);
            let (_, stats) = compact_to_budget(&session.messages, budget, &CompactToBudget::default());
            if !new_violations(session, &original).is_empty() {
                continue;
            }
            both += 1;
            original_fits += usize::from(after <= budget);
            we_fit += usize::from(stats.fits());
            if after <= budget && !stats.fits() {
                worse.push(format!("{} ({} tokens)", session.id, stats.after));
            }
        }
        table.push_str(&format!(
            "| compact_to_budget, {budget} | {} | {both} | {original_fits} fit | {we_fit} fit | {} |\n",
            sessions.len(),
            worse.join(", ")
        ));
    }
    table
}

impl SavingRow {
    fn compare(&mut self, session: &CheckedSession, original: &[Message<'_>], ours: &[Message<'_>]) {
        if !new_violations(session, original).is_empty() {
            return;
        }
        self.valid += 1;
        let before = message_bytes(&session.messages);
        let (original, ours) =
            (before.saturating_sub(message_bytes(original)), before.saturating_sub(message_bytes(ours)));
        self.original_bytes += original;
        self.our_bytes += ours;
        if ours < original {
            self.worse.push(format!("{} ({original} > {ours})", session.id));
        }
    }

    fn to_line(&self, name: &str, sessions: usize) -> String {
        format!(
            "| {name} | {sessions} | {} | {} bytes | {} bytes | {} |\n",
            self.valid,
            self.original_bytes,
            self.our_bytes,
            self.worse.join(", ")
        )
    }
}

fn part_bytes(part: &Part<'_>) -> usize {
    match part {
        Part::Text { text } => text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len() + reasoning.seal.as_deref().map_or(0, str::len),
        Part::ToolCall(call) => call.arguments.as_str().len(),
        Part::ToolResult(result) => result.texts().map(str::len).sum(),
        _ => 0,
    }
}

fn message_bytes(messages: &[Message<'_>]) -> usize {
    messages.iter().flat_map(|message| &message.parts).map(part_bytes).sum()
}

/// Thinking prune, dedup of results and low-entropy prune; the pairs of recorded sessions need no repair.
fn original_apply_all(messages: &[OwnedMessage]) -> Vec<OwnedMessage> {
    let mut messages = messages.to_vec();
    let count = messages.len();
    for message in messages.iter_mut().take(count.saturating_sub(4)).filter(|message| message.is_assistant()) {
        message.parts.retain(|part| !matches!(part, Part::Reasoning(_)));
    }
    let mut first_copies: HashMap<String, String> = HashMap::new();
    for (at, message) in messages.iter_mut().enumerate() {
        for part in &mut message.parts {
            let Part::ToolResult(result) = part else { continue };
            let Some(text) = result.only_text().filter(|text| text.len() >= 256).map(str::to_owned) else { continue };
            match first_copies.get(&text) {
                Some(id) if at + 8 < count => {
                    let marker = format!("[duplicate of tool result {id}, {} bytes]", text.len());
                    result.content = vec![Part::text(marker)];
                }
                Some(_) => {}
                None => drop(first_copies.insert(text, result.call_id.to_string())),
            }
        }
    }
    for message in messages.iter_mut().take(count.saturating_sub(6)).filter(|message| message.is_assistant()) {
        for part in &mut message.parts {
            if let Part::Text { text } = part {
                *part = Part::text(without_noise(text));
            }
        }
    }
    messages.retain(|message| !message.parts.is_empty());
    messages
}

/// Removes trailing blanks, lines of dots and runs of blanks outside code fences.
fn without_noise(text: &str) -> String {
    let mut is_code = false;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let trimmed = line.trim_end();
        if is_code {
            lines.push(line.to_owned());
        } else if !matches!(trimmed.trim(), "..." | "…")
            && (!trimmed.is_empty() || lines.last().is_none_or(|last| !last.is_empty()))
        {
            lines.push(trimmed.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "));
        }
    }
    lines.join("\n")
}

fn estimate(message: &Message<'_>) -> u64 {
    let images = message.parts.iter().filter(|part| matches!(part, Part::Image(_))).count() as u64;
    (message.parts.iter().map(part_bytes).sum::<usize>() as f64 / 3.5) as u64 + 8 + 512 * images
}

/// Elides old results, oldest first, then old prose, until the estimate fits. Returns the estimate.
fn original_compact_to_budget(messages: &[OwnedMessage], budget: u64) -> (Vec<OwnedMessage>, u64) {
    let mut messages = messages.to_vec();
    let last = messages.len().saturating_sub(4);
    let mut total: u64 = messages.iter().map(estimate).sum();
    for is_prose_pass in [false, true] {
        for message in &mut messages[..last] {
            if total <= budget {
                return (messages, total);
            }
            let before = estimate(message);
            for part in &mut message.parts {
                match part {
                    Part::ToolResult(result) if !is_prose_pass => {
                        let size: usize = result.texts().map(str::len).sum();
                        if size >= 256 {
                            result.content = vec![Part::text(format!("[elided {size} bytes]"))];
                        }
                    }
                    Part::Text { text } if is_prose_pass && message.role == Role::Assistant && text.len() >= 256 => {
                        *part = Part::text(format!("[elided {} bytes]", text.len()));
                    }
                    _ => {}
                }
            }
            total = total - before + estimate(message);
        }
    }
    (messages, total)
}
