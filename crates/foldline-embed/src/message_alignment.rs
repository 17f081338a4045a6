//! Messages that a strategy returned, mapped back to the JSON of the caller.
//!
//! A message that was not changed is the caller's; the changes of one that was shortened are written into its JSON, so
//! that all other bytes stay; only a message that the caller does not have is written as a new one.

use std::collections::{BTreeSet, HashMap, HashSet};

use foldline::conversation::{PartId, ToolResult};
use foldline::engine::JsonMessage;
use foldline::wire::{Format, MessageWriter, Request, RequestEdit};
use foldline::{Message, Part};
use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::EmbedError;

/// Start of every marker.
const MARKER_START: &str = "[folded: ";

/// Returns messages in the JSON of a request's dialect; those that the request has by their index.
pub(crate) fn aligned_messages(request: &Request<'_>, after: &[Message<'_>]) -> Result<Vec<JsonMessage>, EmbedError> {
    let before = &request.conversation().messages;
    let mut writer = MessageWriter::new(request.format());
    let mut aligned = Vec::with_capacity(after.len());
    for (message, origin) in after.iter().zip(find_origins(before, after)) {
        // Every message is written, because results refer to the calls before them.
        let written = writer.write(message);
        match origin {
            Some(index) if before[index] == *message => {
                aligned.push(JsonMessage::Unchanged(index));
                continue;
            }
            Some(index) => {
                let raw = request.raw_message(index).unwrap_or_default();
                let edits = part_edits(&before[index], message).unwrap_or_default();
                if let Some(json) = spliced_message(request.format(), raw, &edits) {
                    aligned.push(JsonMessage::Edited { index, json });
                    continue;
                }
            }
            None => {}
        }
        aligned.extend(written?.into_iter().map(|json| JsonMessage::Note { json: json.get().to_owned() }));
    }
    match request.format() {
        Format::Gemini | Format::Converse => Ok(with_whole_turns(request, aligned)),
        _ => Ok(aligned),
    }
}

/// A message that is a role and a list.
#[derive(Deserialize)]
struct TurnMessage<'a> {
    role: &'a str,
    #[serde(borrow)]
    parts: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// Joins messages of the same role that became neighbors, for dialects whose roles alternate.
fn with_whole_turns(request: &Request<'_>, messages: Vec<JsonMessage>) -> Vec<JsonMessage> {
    let mut turns: Vec<JsonMessage> = Vec::with_capacity(messages.len());
    for message in messages {
        let joined = turns.last().and_then(|last| joined_turn(request, last, &message));
        match (joined, turns.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => turns.push(message),
        }
    }
    turns
}

/// Returns two messages as one, if both have the same role and the caller does not send them one after the other.
fn joined_turn(request: &Request<'_>, first: &JsonMessage, second: &JsonMessage) -> Option<JsonMessage> {
    let parts_of = |message: &JsonMessage| match message {
        JsonMessage::Unchanged(index) => (Some(*index), request.raw_message(*index).unwrap_or_default().to_owned()),
        JsonMessage::Edited { index, json } => (Some(*index), json.clone()),
        JsonMessage::Note { json } => (None, json.clone()),
    };
    let ((first_index, first), (second_index, second)) = (parts_of(first), parts_of(second));
    if second_index.is_some() && first_index.map(|index| index + 1) == second_index {
        return None;
    }
    let (first, second): (TurnMessage<'_>, TurnMessage<'_>) =
        (serde_json::from_str(&first).ok()?, serde_json::from_str(&second).ok()?);
    if first.role != second.role {
        return None;
    }
    let (key, lists) = match (first.parts.zip(second.parts), first.content.zip(second.content)) {
        (Some(lists), _) => ("parts", lists),
        (None, Some(lists)) => ("content", lists),
        (None, None) => return None,
    };
    let items = |list: &RawValue| Some(list.get().strip_prefix('[')?.strip_suffix(']')?.trim().to_owned());
    let items = [items(lists.0)?, items(lists.1)?].into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>();
    let json = format!(r#"{{"role":"{}","{key}":[{}]}}"#, first.role, items.join(","));
    Some(match second_index.or(first_index) {
        Some(index) => JsonMessage::Edited { index, json },
        None => JsonMessage::Note { json },
    })
}

/// Returns for each message the one from which it was made; none if it is new.
fn find_origins(before: &[Message<'_>], after: &[Message<'_>]) -> Vec<Option<usize>> {
    let mut unused: HashMap<u64, BTreeSet<usize>> = HashMap::new();
    for (index, message) in before.iter().enumerate() {
        unused.entry(content_hash(message)).or_default().insert(index);
    }
    let mut is_free = vec![true; before.len()];
    let mut origins: Vec<Option<usize>> = vec![None; after.len()];
    let mut cursor = 0;
    for (message, origin) in after.iter().zip(&mut origins) {
        let Some(equal) = unused.get_mut(&content_hash(message)) else { continue };
        // Repairs move results, so an earlier one is the second choice.
        let Some(index) = equal.range(cursor..).next().or(equal.first()).copied() else { continue };
        equal.remove(&index);
        is_free[index] = false;
        *origin = Some(index);
        cursor = index + 1;
    }
    let mut ends = vec![before.len(); after.len()];
    for at in (1..after.len()).rev() {
        ends[at - 1] = origins[at].unwrap_or(ends[at]);
    }
    let mut start = 0;
    for at in 0..after.len() {
        if origins[at].is_none() && !is_marker_message(&after[at]) {
            let shown = words(&after[at]);
            let fits = |index: &usize| is_free[*index] && part_edits(&before[*index], &after[at]).is_some();
            let is_same_text = |index: &usize| fits(index) && shares_words(&before[*index], &shown);
            // A text that was replaced altogether, such as that of an image, has the first message that it fits.
            let candidates = start..ends[at];
            origins[at] = candidates.clone().find(is_same_text).or_else(|| candidates.clone().find(fits));
        }
        if let Some(index) = origins[at] {
            is_free[index] = false;
            start = index + 1;
        }
    }
    origins
}

/// Returns a hash of everything that a message has.
fn content_hash(message: &Message<'_>) -> u64 {
    xxh3_64(&serde_json::to_vec(message).unwrap_or_default())
}

/// Returns true if a message is nothing but a marker for dropped messages.
fn is_marker_message(message: &Message<'_>) -> bool {
    matches!(&message.parts[..], [part] if part.as_text().is_some_and(|text| text.starts_with(MARKER_START)))
}

/// Returns the words of a message's prose.
fn words<'m>(message: &'m Message<'_>) -> HashSet<&'m str> {
    message.parts.iter().filter_map(Part::as_text).flat_map(str::split_whitespace).collect()
}

/// Returns true if a message has most of these words. Calls and results are recognized by their ids.
fn shares_words(before: &Message<'_>, shown: &HashSet<&str>) -> bool {
    let known = words(before);
    2 * shown.iter().filter(|word| known.contains(*word)).count() >= shown.len()
}

/// Returns the edits that make one message of another; none if it cannot be made of it.
fn part_edits(before: &Message<'_>, after: &Message<'_>) -> Option<Vec<RequestEdit>> {
    if before.role != after.role || after.parts.is_empty() {
        return None;
    }
    let mut edits = Vec::new();
    let mut rest = after.parts.iter().peekable();
    for (at, part) in before.parts.iter().enumerate() {
        let place = PartId::new(0, at);
        match rest.peek().and_then(|next| edits_of_part(place, part, next)) {
            Some(found) => {
                edits.extend(found);
                rest.next();
            }
            None => edits.push(RequestEdit::DropPart(place)),
        }
    }
    rest.next().is_none().then_some(edits)
}

fn edits_of_part(at: PartId, before: &Part<'_>, after: &Part<'_>) -> Option<Vec<RequestEdit>> {
    if before == after {
        return Some(Vec::new());
    }
    match (before, after) {
        (Part::Text { .. } | Part::Image(_) | Part::File(_), Part::Text { .. }) => {
            Some(vec![RequestEdit::Text { at, text: after.as_text()?.to_owned() }])
        }
        (Part::ToolCall(before), Part::ToolCall(after)) if before.id == after.id && before.name == after.name => {
            Some(vec![RequestEdit::Arguments { at, arguments: after.arguments.as_str().to_owned() }])
        }
        (Part::ToolResult(before), Part::ToolResult(after)) => edits_of_result(at, before, after),
        _ => None,
    }
}

fn edits_of_result(at: PartId, before: &ToolResult<'_>, after: &ToolResult<'_>) -> Option<Vec<RequestEdit>> {
    if before.call_id != after.call_id || before.is_error != after.is_error {
        return None;
    }
    if let Some(text) = after.only_text() {
        return Some(vec![RequestEdit::Text { at, text: text.to_owned() }]);
    }
    if before.content.len() != after.content.len() {
        return None;
    }
    let pairs = before.content.iter().zip(&after.content).enumerate();
    let edits: Option<Vec<_>> = pairs.map(|(inner, (a, b))| edits_of_part(at.inner(inner), a, b)).collect();
    Some(edits?.into_iter().flatten().collect())
}

/// Writes edits into the JSON of one message. Returns none if the dialect has no such edit.
fn spliced_message(format: Format, raw: &str, edits: &[RequestEdit]) -> Option<String> {
    let list = format!("[{raw}]");
    let spliced = Request::parse(format, list.as_bytes()).ok()?.splice(edits).ok()?.into_owned();
    let text = String::from_utf8(spliced).ok()?;
    Some(text.get(1..text.len() - 1)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::Role;

    const LIST: &str = r#"[{"role":"user","content":"Go.","cache_control":1},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"s"},{"type":"text","text":"I  look.","mark":2},
            {"type":"tool_use","id":"c1","name":"ls","input":{}}],"mark":3},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"long","mark":4}]}],"mark":5}]"#;

    fn aligned(change: impl Fn(&mut Vec<Message<'_>>)) -> Vec<String> {
        let request = Request::parse(Format::Anthropic, LIST.as_bytes()).unwrap();
        let mut messages = request.conversation().messages.clone();
        change(&mut messages);
        let text = |message| match message {
            JsonMessage::Unchanged(index) => index.to_string(),
            JsonMessage::Edited { index, json } => format!("{index} {}", json.replace("\n            ", "")),
            JsonMessage::Note { json } => json,
        };
        aligned_messages(&request, &messages).unwrap().into_iter().map(text).collect()
    }

    #[test]
    fn unchanged_messages_are_indexes_in_any_order() {
        assert_eq!(aligned(|_| ()), ["0", "1", "2"]);
        assert_eq!(aligned(|messages| messages.swap(0, 2)), ["2", "1", "0"]);
        assert_eq!(aligned(|messages| drop(messages.remove(1))), ["0", "2"]);
    }

    #[test]
    fn shortened_text_is_not_taken_for_that_of_a_dropped_message() {
        let list = r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"First I read.","id":1},
            {"role":"assistant","content":"Then I  wrote the parser.","id":2}]"#;
        let request = Request::parse(Format::OpenAiChat, list.as_bytes()).unwrap();
        let mut messages = request.conversation().messages.clone();
        messages.remove(1);
        messages[1] = Message::text(Role::Assistant, "Then I wrote the parser.");
        let aligned = aligned_messages(&request, &messages).unwrap();
        let json = r#"{"role":"assistant","content":"Then I wrote the parser.","id":2}"#.to_owned();
        assert_eq!(aligned, [JsonMessage::Unchanged(0), JsonMessage::Edited { index: 2, json }]);
    }

    #[test]
    fn text_in_place_of_an_image_keeps_the_fields_of_its_message() {
        let list = r#"[{"role":"user","content":"Go."},
            {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}],"id":1}]"#;
        let request = Request::parse(Format::OpenAiChat, list.as_bytes()).unwrap();
        let mut messages = request.conversation().messages.clone();
        messages[1] = Message::text(Role::User, "an image of 2 bytes");
        let aligned = aligned_messages(&request, &messages).unwrap();
        assert!(
            matches!(&aligned[1], JsonMessage::Edited { index: 1, json } if json.contains(r#""id":1"#)),
            "{aligned:?}"
        );
    }

    #[test]
    fn fields_around_shortened_texts_are_kept() {
        let shortened = aligned(|messages| {
            messages[1].parts.remove(0);
            messages[1].parts[0] = Part::text("I look.");
            messages[2].parts[0] = Part::result("c1", "short");
        });
        assert_eq!(
            shortened,
            [
                "0",
                r#"1 {"role":"assistant","content":[{"type":"text","text":"I look.","mark":2},{"type":"tool_use","id":"c1","name":"ls","input":{}}],"mark":3}"#,
                r#"2 {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"short","mark":4}]}],"mark":5}"#,
            ]
        );
    }

    #[test]
    fn new_result_joins_the_turn_after_it() {
        let list = r#"[{"role":"model","parts":[{"functionCall":{"name":"ls","args":{}}}]},{"role":"user","parts":[{"text":"Stop.","x":1}]}]"#;
        let request = Request::parse(Format::Gemini, list.as_bytes()).unwrap();
        let mut messages = request.conversation().messages.clone();
        let id = messages[0].calls().next().unwrap().id.to_string();
        messages.insert(1, Message::new(Role::Tool, vec![Part::result(id, "none")]));
        let aligned = aligned_messages(&request, &messages).unwrap();
        let JsonMessage::Edited { index: 1, json } = &aligned[1] else { panic!("{aligned:?}") };
        assert!(json.starts_with(r#"{"role":"user","parts":[{"functionResponse":"#), "{json}");
        assert!(json.ends_with(r#",{"text":"Stop.","x":1}]}"#) && aligned.len() == 2, "{aligned:?}");
    }

    #[test]
    fn marker_for_dropped_messages_is_a_note() {
        let shortened = aligned(|messages| {
            messages.truncate(1);
            messages.insert(0, Message::text(Role::User, "[folded: 2 messages, 9 bytes]"));
        });
        assert_eq!(
            shortened,
            [r#"{"role":"user","content":[{"type":"text","text":"[folded: 2 messages, 9 bytes]"}]}"#, "0"]
        );
    }
}
