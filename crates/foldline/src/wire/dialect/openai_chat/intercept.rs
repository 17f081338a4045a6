//! Stream editing for Chat Completions: a chunk may contain text, calls, the stop reason and counts at once, so chunks
//! are often rewritten instead of forwarded or withheld.

use crate::wire::client_stream::ErrorEvent;
use crate::wire::dialect::openai_chat::call_tracker::{CallDelta, CallShape, CallTracker};
use crate::wire::intercept::InjectedTool;
use crate::wire::intercept::positions::PositionMap;
use crate::wire::intercept::restore::{CopiedMessage, HiddenRound};
use crate::wire::intercept::round::{FrameAction, FrameEditor, RoundState, summed_count};
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::scan;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::Request;
use crate::wire::response::ApiError;

pub(crate) const INTERCEPT: InterceptSyntax = InterceptSyntax {
    tool_declaration,
    new_editor: |_| Box::new(ChatEditor::default()),
    keep_alive: b": keep-alive\n\n",
    body_turn: |body| first_message(body).map(|message| message.value.raw().to_owned()).into_iter().collect(),
    body_position: |bodies, _| joined_field(bodies, "content").len() as u64,
    merged_body: |bodies, round, tool, _| {
        (!round.is_first() || round.hidden_calls > 0).then(|| merged_body(bodies, round, tool))
    },
    restore: |request, answer, gaps| COPIED_MESSAGE.restore(request, answer, gaps),
};

const COPIED_MESSAGE: CopiedMessage =
    CopiedMessage { matches_round: matches_text_round, final_round: final_text_round, mixed_results };

/// Returns the declaration of a function.
pub(crate) fn tool_declaration(tool: &InjectedTool<'_>) -> String {
    let (name, description, schema) = (quoted(tool.name), quoted(tool.description), tool.schema);
    format!(r#"{{"type":"function","function":{{"name":{name},"description":{description},"parameters":{schema}}}}}"#)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ChatEditor {
    /// Identity fields of the first chunk of the first round, as JSON.
    identity: Vec<(&'static str, String)>,
    tracker: CallTracker,
    calls: Vec<CallVisibility>,
    positions: PositionMap,
    /// Indices of `reasoning_details`, which continue from round to round.
    details: PositionMap,
    /// Bytes of text sent to the client.
    text_bytes: u64,
}

#[derive(Clone, Debug)]
enum CallVisibility {
    /// The name is unknown so far; the call is held back until it arrives.
    Unnamed {
        id: String,
        arguments: String,
    },
    Hidden,
    Visible,
}

/// Maximum bytes held back for a call without a name.
const MAX_UNNAMED_CALL_BYTES: usize = 1 << 20;

/// Fields that must not change within a stream.
const IDENTITY_FIELDS: [&str; 4] = ["id", "created", "model", "system_fingerprint"];

impl FrameEditor for ChatEditor {
    fn edit_frame(&mut self, _: &str, chunk: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        let choices = chunk.elements("choices");
        let mut edited = false;
        let mut shown: Vec<String> = Vec::with_capacity(choices.len());
        for choice in choices.iter() {
            let fields = self.edit_choice(choice, round, tool);
            edited |= !fields.is_empty();
            shown.push(if fields.is_empty() {
                choice.value.raw().to_owned()
            } else {
                with_changed_fields(choice, &fields)
            });
        }
        if edited {
            changes.push(("choices", FieldChange::Set(json_array(shown.iter().map(String::as_str)))));
        }
        if let Some(usage) = chunk.object("usage") {
            if round.continues() {
                changes.push(("usage", FieldChange::Set("null".to_owned())));
                edited = true;
            } else if !round.is_first() {
                changes.push(("usage", FieldChange::Set(summed_usage(&usage, round))));
            }
        }
        self.keep_identity(chunk, round, &mut changes);
        if changes.is_empty() {
            return FrameAction::Forward;
        }
        let data = with_changed_fields(chunk, &changes);
        if edited && is_empty_chunk(&data) { FrameAction::Withhold } else { FrameAction::Rewrite(data) }
    }

    fn next_round(&mut self) {
        self.tracker = CallTracker::default();
        self.calls.clear();
        self.positions.next_round();
        self.details.next_round();
    }

    fn restart_round(&mut self) {
        self.tracker = CallTracker::default();
        self.calls.clear();
        self.positions.restart_round();
        self.details.restart_round();
    }

    fn position(&self) -> u64 {
        self.text_bytes
    }

    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent {
        let (kind, message) = (quoted(kind), quoted(&error.message));
        let code = error.code.as_deref().map_or("null".to_owned(), quoted);
        let data = format!(r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":{code}}}}}"#);
        ErrorEvent { name: None, data }
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl ChatEditor {
    fn keep_identity(&mut self, chunk: &JsonObject<'_>, round: &RoundState, changes: &mut Vec<(&str, FieldChange)>) {
        if round.is_first() {
            for key in IDENTITY_FIELDS {
                if let Some(value) =
                    chunk.get_non_null(key).filter(|_| !self.identity.iter().any(|(known, _)| *known == key))
                {
                    self.identity.push((key, value.raw().to_owned()));
                }
            }
            return;
        }
        for (key, value) in &self.identity {
            if chunk.get(key).is_some_and(|field| field.raw() != value) {
                changes.push((key, FieldChange::Set(value.clone())));
            }
        }
    }

    fn edit_choice(
        &mut self,
        choice: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
    ) -> Vec<(&'static str, FieldChange)> {
        let mut changes = Vec::new();
        let number = choice.u64(&["index"]).unwrap_or(0);
        if let Some(delta) = choice.object("delta") {
            let fields = self.edit_delta(number, &delta, round, tool);
            if !fields.is_empty() {
                changes.push(("delta", FieldChange::Set(with_changed_fields(&delta, &fields))));
            }
        }
        if round.continues() {
            if choice.get_non_null("finish_reason").is_some() {
                changes.push(("finish_reason", FieldChange::Set("null".to_owned())));
            }
            if choice.get_non_null("usage").is_some() {
                changes.push(("usage", FieldChange::Remove));
            }
        } else {
            if round.is_exhausted() && choice.get_non_null("finish_reason").is_some() {
                changes.push(stop_without_calls());
            }
            if let Some(usage) = choice.object("usage").filter(|_| !round.is_first()) {
                changes.push(("usage", FieldChange::Set(summed_usage(&usage, round))));
            }
        }
        changes
    }

    fn edit_delta(
        &mut self,
        choice: u64,
        delta: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
    ) -> Vec<(&'static str, FieldChange)> {
        let mut changes = Vec::new();
        if !round.is_first() && delta.get_non_null("role").is_some() {
            // Clients concatenate repeated roles: "assistantassistant".
            changes.push(("role", FieldChange::Remove));
        }
        self.text_bytes += delta.string("content").map_or(0, |text| text.len() as u64);
        let details = delta.elements("reasoning_details");
        let moved: Vec<Option<String>> = details.iter().map(|detail| self.edit_detail(detail)).collect();
        if moved.iter().any(Option::is_some) {
            let raw = details.iter().zip(&moved).map(|(detail, moved)| moved.as_deref().unwrap_or(detail.value.raw()));
            changes.push(("reasoning_details", FieldChange::Set(json_array(raw))));
        }
        let calls = delta.elements("tool_calls");
        let judged: Vec<FrameAction> = calls.iter().map(|call| self.edit_call(choice, call, tool)).collect();
        if judged.iter().any(|pass| !matches!(pass, FrameAction::Forward)) {
            let shown: Vec<&str> = calls
                .iter()
                .zip(&judged)
                .filter_map(|(call, pass)| match pass {
                    FrameAction::Forward => Some(call.value.raw()),
                    FrameAction::Withhold => None,
                    FrameAction::Rewrite(json) => Some(json),
                })
                .collect();
            let change = if shown.is_empty() { FieldChange::Remove } else { FieldChange::Set(json_array(shown)) };
            changes.push(("tool_calls", change));
        }
        changes
    }

    fn edit_detail(&mut self, detail: &JsonObject<'_>) -> Option<String> {
        let index = detail.u64(&["index"])?;
        let position = self.details.client_position(index);
        (position != index).then(|| with_changed_fields(detail, &[("index", FieldChange::Set(position.to_string()))]))
    }

    fn edit_call(&mut self, choice: u64, delta: &JsonObject<'_>, tool: &str) -> FrameAction {
        let (shape, function) = match delta.object("custom") {
            Some(custom) => (CallShape::Custom, Some(custom)),
            None => (CallShape::Function, delta.object("function")),
        };
        let text = |key: &str| function.as_ref().and_then(|function| function.string(key)).unwrap_or_default();
        let (id, name) = (delta.string("id").unwrap_or_default(), text("name"));
        let index = delta.u64(&["index"]);
        let mention = CallDelta { choice, index, id: &id, name: &name, shape };
        let number = self.tracker.find(mention).unwrap_or_else(|| {
            self.calls.push(CallVisibility::Unnamed { id: String::new(), arguments: String::new() });
            self.tracker.add(mention)
        });
        self.tracker.record_delta(number, mention);
        let mut complete = None;
        if let CallVisibility::Unnamed { id: held_id, arguments } = &mut self.calls[number] {
            held_id.push_str(if held_id.is_empty() { &id } else { "" });
            if name.is_empty() && arguments.len() < MAX_UNNAMED_CALL_BYTES {
                arguments.push_str(&text("arguments"));
                return FrameAction::Withhold;
            }
            if name == tool {
                self.calls[number] = CallVisibility::Hidden;
                if let Some(index) = index {
                    self.positions.hide(index);
                }
            } else {
                if !arguments.is_empty() {
                    // The held arguments are sent with the name.
                    let all = format!("{arguments}{}", text("arguments"));
                    let function = format!(r#"{{"name":{},"arguments":{}}}"#, quoted(&name), quoted(&all));
                    complete = Some((quoted(held_id), function));
                }
                self.calls[number] = CallVisibility::Visible;
            }
        }
        if matches!(self.calls[number], CallVisibility::Hidden) {
            return FrameAction::Withhold;
        }
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        if let Some((id, function)) = complete {
            changes.extend([("id", FieldChange::Set(id)), ("function", FieldChange::Set(function))]);
        }
        if let Some(index) = index {
            let position = self.positions.client_position(index);
            if position != index {
                changes.push(("index", FieldChange::Set(position.to_string())));
            }
        }
        if changes.is_empty() {
            FrameAction::Forward
        } else {
            FrameAction::Rewrite(with_changed_fields(delta, &changes))
        }
    }
}

/// Returns the finish reason of an answer without calls.
fn stop_without_calls() -> (&'static str, FieldChange) {
    ("finish_reason", FieldChange::Set(r#""stop""#.to_owned()))
}

/// Returns the message of a body's first choice.
fn first_message<'a>(body: &JsonObject<'a>) -> Option<JsonObject<'a>> {
    body.elements("choices").first().and_then(|choice| choice.object("message"))
}

fn joined_field(bodies: &[JsonObject<'_>], key: &str) -> String {
    bodies.iter().filter_map(|body| first_message(body)?.string(key)).collect()
}

/// Merges several bodies: identity of the first, texts and reasoning of all, calls of the last without the hidden ones.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let (Some(first), Some(last)) = (bodies.first(), bodies.last()) else { return String::new() };
    let Some(message) = first_message(last) else { return last.value.raw().to_owned() };
    let mut fields: Vec<(&str, FieldChange)> = Vec::new();
    for key in ["content", "reasoning_content", "reasoning", "reasoning_text"] {
        let text = joined_field(bodies, key);
        if bodies.len() > 1 && !text.is_empty() {
            fields.push((key, FieldChange::Set(quoted(&text))));
        }
    }
    let details: Vec<&str> = bodies
        .iter()
        .filter_map(first_message)
        .flat_map(|message| message.elements("reasoning_details").into_owned())
        .map(|detail| detail.value.raw())
        .collect();
    if !details.is_empty() {
        fields.push(("reasoning_details", FieldChange::Set(json_array(details))));
    }
    let calls = message.elements("tool_calls");
    let hidden = |call: &&JsonObject<'_>| {
        call.object("function").and_then(|function| function.string("name")).as_deref() == Some(tool)
    };
    if calls.iter().any(|call| hidden(&call)) {
        let shown: Vec<&str> = calls.iter().filter(|call| !hidden(call)).map(|call| call.value.raw()).collect();
        let change = if shown.is_empty() { FieldChange::Remove } else { FieldChange::Set(json_array(shown)) };
        fields.push(("tool_calls", change));
    }
    let choices = last.elements("choices");
    let rewritten: Vec<String> = choices
        .iter()
        .enumerate()
        .map(|(at, choice)| match at {
            0 => {
                let mut fields = vec![("message", FieldChange::Set(with_changed_fields(&message, &fields)))];
                fields.extend(round.is_exhausted().then(stop_without_calls));
                with_changed_fields(choice, &fields)
            }
            _ => choice.value.raw().to_owned(),
        })
        .collect();
    let mut changes = vec![("choices", FieldChange::Set(json_array(rewritten.iter().map(String::as_str))))];
    for key in IDENTITY_FIELDS {
        if let (Some(first), Some(_)) = (first.get_non_null(key), last.get(key)) {
            changes.push((key, FieldChange::Set(first.raw().to_owned())));
        }
    }
    if let Some(usage) = last.object("usage").filter(|_| !round.is_first()) {
        changes.push(("usage", FieldChange::Set(summed_usage(&usage, round))));
    }
    with_changed_fields(last, &changes)
}

/// Returns true if an edited chunk has no content left.
fn is_empty_chunk(chunk: &str) -> bool {
    let Ok(document) = scan::parse_document(chunk) else { return false };
    let chunk = document.object();
    let blank = |value: JsonValue<'_>| matches!(value.raw(), "null" | "\"\"" | "[]" | "{}");
    let silent = |choice: &JsonObject<'_>| {
        let delta = choice.object("delta");
        let quiet = delta.is_none_or(|delta| delta.fields().iter().all(|field| blank(field.value)));
        quiet && choice.get_non_null("finish_reason").is_none() && choice.get_non_null("usage").is_none()
    };
    chunk.get_non_null("usage").is_none()
        && chunk.get_non_null("error").is_none()
        && chunk.elements("choices").iter().all(silent)
}

/// Returns merged counts: the prompt of the last round, the output of all rounds.
fn summed_usage(usage: &JsonObject<'_>, round: &RoundState) -> String {
    let reasoned = round.earlier_usage.and_then(|before| before.reasoning).unwrap_or(0);
    let mut changes: Vec<(&str, FieldChange)> = Vec::new();
    for key in ["completion_tokens", "total_tokens"] {
        changes.extend(
            summed_count(usage, &[key], round.earlier_output_tokens()).map(|count| (key, FieldChange::Set(count))),
        );
    }
    if let Some(details) = usage.object("completion_tokens_details") {
        let count = summed_count(&details, &["reasoning_tokens"], reasoned);
        let details =
            count.map(|count| with_changed_fields(&details, &[("reasoning_tokens", FieldChange::Set(count))]));
        changes.extend(details.map(|details| ("completion_tokens_details", FieldChange::Set(details))));
    }
    with_changed_fields(usage, &changes)
}

/// Returns true if the text of a copy, from a position, begins with that of a round.
pub(crate) fn matches_text_round(copy: &JsonObject<'_>, start: u64, gap: &HiddenRound) -> bool {
    let Some(turn) = gap.turn_json.first().and_then(|turn| scan::parse_document(turn).ok()) else { return false };
    let turn = turn.object();
    let recorded = turn.string("content").unwrap_or_default();
    let copied = copy.string("content").unwrap_or_default();
    usize::try_from(start).is_ok_and(|start| copied.get(start..).is_some_and(|text| text.starts_with(&*recorded)))
}

/// Returns the copy with its text from a position on; `None` if nothing is left.
pub(crate) fn final_text_round(copy: &JsonObject<'_>, start: u64) -> Option<String> {
    let text = copy.string("content").unwrap_or_default();
    let text = text.get(usize::try_from(start).ok()?..)?;
    let calls = copy.get("tool_calls").is_some_and(|value| !value.is_null());
    let content = match (text, calls) {
        ("", true) => "null".to_owned(),
        ("", false) => return None,
        (text, _) => quoted(text),
    };
    Some(with_changed_fields(copy, &[("content", FieldChange::Set(content))]))
}

fn mixed_results(_: &Request<'_>, answer: usize, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
    let insert = |json: &String| RequestEdit::InsertJson { before: answer + 1, json: json.clone() };
    Some(gap.results.iter().map(insert).collect())
}
