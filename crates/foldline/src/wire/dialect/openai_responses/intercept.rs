//! Stream editing for Responses: indexed items, numbered events, and a last event that repeats the whole response.
//!
//! The response also repeats the request's tools, including the injected one, so they are edited even without a call.

use crate::conversation::OpaqueBlock;
use crate::wire::client_stream::ErrorEvent;
use crate::wire::dialect::openai_responses::item_tracker::ItemTracker;
use crate::wire::intercept::InjectedTool;
use crate::wire::intercept::positions::PositionMap;
use crate::wire::intercept::restore::HiddenRound;
use crate::wire::intercept::round::{FrameAction, FrameEditor, ReportedId, RoundState, summed_count};
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::Request;
use crate::wire::response::ApiError;

pub(crate) const INTERCEPT: InterceptSyntax = InterceptSyntax {
    tool_declaration,
    new_editor: |limits| Box::new(ResponsesEditor::new(limits.max_kept_bytes)),
    keep_alive: b": keep-alive\n\n",
    body_turn: |body| body.elements("output").iter().map(|item| item.value.raw().to_owned()).collect(),
    body_position: |bodies, tool| visible_items(bodies, tool).len() as u64,
    merged_body,
    restore,
};

fn tool_declaration(tool: &InjectedTool<'_>) -> String {
    let (name, description, schema) = (quoted(tool.name), quoted(tool.description), tool.schema);
    format!(r#"{{"type":"function","name":{name},"description":{description},"parameters":{schema},"strict":false}}"#)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsesEditor {
    reported_id: ReportedId,
    tracker: ItemTracker,
    items: PositionMap,
    /// Visible items of earlier rounds as JSON; the next field has those of this round.
    earlier_items: Vec<String>,
    done_items: Vec<String>,
    kept_bytes: usize,
    /// Bytes of items that may still be kept.
    remaining_bytes: usize,
    /// The number of the last event sent to the client.
    last_sequence_number: Option<u64>,
    /// Event numbers no longer match the provider's.
    renumber: bool,
    /// The response as first sent to the client, as JSON.
    first_response: Option<String>,
}

/// Fields that may differ in a later round, because foldline's request differs.
const ROUND_SPECIFIC_FIELDS: [&str; 3] = ["created_at", "max_output_tokens", "tool_choice"];

impl FrameEditor for ResponsesEditor {
    fn edit_frame(&mut self, kind: &str, data: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        match kind {
            "response.created" | "response.queued" | "response.in_progress" => {
                if !round.is_first() {
                    return self.withhold();
                }
                if let Some(response) = data.object("response") {
                    let shown = without_tool(&response, tool).map(|tools| with_changed_fields(&response, &[tools]));
                    self.first_response.get_or_insert_with(|| shown.clone().unwrap_or(response.value.raw().to_owned()));
                    changes.extend(shown.map(|response| ("response", FieldChange::Set(response))));
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.done" => {
                if round.continues() {
                    return self.withhold();
                }
                if let Some(response) = data.object("response") {
                    let fields = self.final_changes(&response, round, tool);
                    if !fields.is_empty() {
                        changes.push(("response", FieldChange::Set(with_changed_fields(&response, &fields))));
                    }
                }
            }
            _ => {
                if let Some(index) = self.tracker.resolve_index(kind, data) {
                    let item = data.object("item");
                    if item.as_ref().is_some_and(|item| is_hidden_call(item, tool)) {
                        self.items.hide(index);
                    }
                    if self.items.is_hidden(index) {
                        return self.withhold();
                    }
                    let position = self.items.client_position(index);
                    if position != index && data.get("output_index").is_some() {
                        changes.push(("output_index", FieldChange::Set(position.to_string())));
                    }
                    if let Some(item) = item.filter(|_| kind == "response.output_item.done") {
                        self.keep_item(item.value.raw());
                    }
                }
            }
        }
        if let Some(number) = data.u64(&["sequence_number"]) {
            let next = self.last_sequence_number.map_or(0, |last| last + 1);
            let number_shown = if self.renumber { next } else { number };
            self.last_sequence_number = Some(number_shown);
            if number_shown != number {
                changes.push(("sequence_number", FieldChange::Set(number_shown.to_string())));
            }
        }
        if changes.is_empty() {
            FrameAction::Forward
        } else {
            FrameAction::Rewrite(with_changed_fields(data, &changes))
        }
    }

    fn next_round(&mut self) {
        self.items.next_round();
        self.tracker = ItemTracker::default();
        self.earlier_items.append(&mut self.done_items);
    }

    fn restart_round(&mut self) {
        self.items.restart_round();
        self.tracker = ItemTracker::default();
    }

    fn position(&self) -> u64 {
        self.items.next
    }

    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent {
        let (code, message) = (quoted(error.code.as_deref().unwrap_or(kind)), quoted(&error.message));
        let opening = self.first_response.clone().unwrap_or_else(|| r#"{"object":"response"}"#.to_owned());
        let output = json_array(self.earlier_items.iter().chain(&self.done_items).map(String::as_str));
        let changes = [
            ("status", FieldChange::Set(r#""failed""#.to_owned())),
            ("error", FieldChange::Set(format!(r#"{{"code":{code},"message":{message}}}"#))),
            ("output", FieldChange::Set(output)),
        ];
        let response = scan::parse_document(&opening)
            .map(|opening| with_changed_fields(&opening.object(), &changes))
            .unwrap_or(opening.clone());
        let number = self.last_sequence_number.map_or(0, |last| last + 1);
        self.last_sequence_number = Some(number);
        let data = format!(r#"{{"type":"response.failed","sequence_number":{number},"response":{response}}}"#);
        ErrorEvent { name: Some("response.failed"), data }
    }

    fn report_id(&mut self, id: ReportedId) {
        self.reported_id = id;
    }

    fn is_stored(&self) -> bool {
        self.reported_id == ReportedId::Last
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn stop_keeping(&mut self) {
        self.remaining_bytes = 0;
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl ResponsesEditor {
    fn new(max_kept_bytes: usize) -> Self {
        Self { remaining_bytes: max_kept_bytes, ..Self::default() }
    }

    /// Keeps an item for the final response that repeats it; without memory for it, it is omitted there.
    fn keep_item(&mut self, item: &str) {
        if let Some(remaining) = self.remaining_bytes.checked_sub(item.len()) {
            self.remaining_bytes = remaining;
            self.kept_bytes += item.len();
            self.done_items.push(item.to_owned());
        }
    }

    fn withhold(&mut self) -> FrameAction {
        self.renumber = true;
        FrameAction::Withhold
    }

    /// Returns the changes to the response that ends the stream.
    fn final_changes(
        &self,
        response: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
    ) -> Vec<(&'static str, FieldChange)> {
        let mut changes: Vec<(&str, FieldChange)> = without_tool(response, tool).into_iter().collect();
        let output = response.elements("output");
        // Some servers stream the items and leave this list empty; it stays empty.
        let repeats = !output.is_empty() || self.done_items.is_empty();
        if (!round.is_first() || self.items.any_hidden()) && repeats {
            let this = output.iter().filter(|item| !is_hidden_call(item, tool)).map(|item| item.value.raw());
            changes.push((
                "output",
                FieldChange::Set(json_array(self.earlier_items.iter().map(String::as_str).chain(this))),
            ));
        }
        if !round.is_first()
            && let Some(opening) = self.first_response.as_deref().and_then(|json| scan::parse_document(json).ok())
        {
            changes.extend(merge_changes(&opening.object(), response, round, self.reported_id));
        }
        changes
    }
}

/// Returns the changes that make the last of several responses look like the end of the first.
fn merge_changes(
    first: &JsonObject<'_>,
    last: &JsonObject<'_>,
    round: &RoundState,
    reported: ReportedId,
) -> Vec<(&'static str, FieldChange)> {
    let mut changes = Vec::new();
    let id = (reported == ReportedId::First).then_some("id");
    for key in id.into_iter().chain(ROUND_SPECIFIC_FIELDS) {
        if let (Some(first), Some(_)) = (first.get_non_null(key), last.get(key)) {
            changes.push((key, FieldChange::Set(first.raw().to_owned())));
        }
    }
    changes.extend(last.object("usage").map(|usage| ("usage", FieldChange::Set(summed_usage(&usage, round)))));
    changes
}

/// Returns the items of all bodies that the client may see.
fn visible_items<'a>(bodies: &[JsonObject<'a>], tool: &str) -> Vec<&'a str> {
    let items = bodies.iter().flat_map(|body| body.elements("output").into_owned());
    items.filter(|item| !is_hidden_call(item, tool)).map(|item| item.value.raw()).collect()
}

/// Merges several bodies; `None` if there is only one and nothing to hide.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str, reported: ReportedId) -> Option<String> {
    let (first, last) = (bodies.first()?, bodies.last()?);
    let mut changes: Vec<(&str, FieldChange)> = without_tool(last, tool).into_iter().collect();
    if !round.is_first() || round.hidden_calls > 0 {
        changes.push(("output", FieldChange::Set(json_array(visible_items(bodies, tool)))));
    }
    if !round.is_first() {
        changes.extend(merge_changes(first, last, round, reported));
    }
    (!changes.is_empty()).then(|| with_changed_fields(last, &changes))
}

fn is_hidden_call(item: &JsonObject<'_>, tool: &str) -> bool {
    item.string("type").as_deref() == Some("function_call") && item.string("name").as_deref() == Some(tool)
}

/// Returns the response's list of tools without the injected one, if it contains it.
fn without_tool(response: &JsonObject<'_>, tool: &str) -> Option<(&'static str, FieldChange)> {
    let tools = response.elements("tools");
    let is_injected = |entry: &&JsonObject<'_>| entry.string("name").as_deref() == Some(tool);
    tools.iter().any(|entry| is_injected(&entry)).then(|| {
        let rest = tools.iter().filter(|entry| !is_injected(entry)).map(|entry| entry.value.raw());
        ("tools", FieldChange::Set(json_array(rest)))
    })
}

/// Returns merged counts: the prompt of the last round, the output of all rounds.
fn summed_usage(usage: &JsonObject<'_>, round: &RoundState) -> String {
    let reasoned = round.earlier_usage.and_then(|before| before.reasoning).unwrap_or(0);
    let mut changes: Vec<(&str, FieldChange)> = Vec::new();
    for key in ["output_tokens", "total_tokens"] {
        changes.extend(
            summed_count(usage, &[key], round.earlier_output_tokens()).map(|count| (key, FieldChange::Set(count))),
        );
    }
    if let Some(details) = usage.object("output_tokens_details") {
        let count = summed_count(&details, &["reasoning_tokens"], reasoned);
        let details =
            count.map(|count| with_changed_fields(&details, &[("reasoning_tokens", FieldChange::Set(count))]));
        changes.extend(details.map(|details| ("output_tokens_details", FieldChange::Set(details))));
    }
    with_changed_fields(usage, &changes)
}

/// Inserts the hidden items between the client's, each at its position. Reasoning that the client omitted stays
/// omitted; a call then loses the id through which the provider would require it (R3.1).
fn restore(request: &Request<'_>, answer: usize, gaps: &[HiddenRound]) -> Option<Vec<RequestEdit>> {
    let (mut at, mut reasoning_omitted, mut edits) = (answer, false, Vec::new());
    for gap in gaps {
        for json in &gap.turn_json {
            let recorded = scan::parse_document(json).ok()?.object();
            let id = recorded.string("call_id");
            if id.is_some_and(|id| gap.call_ids.iter().any(|call| *call == *id)) {
                let json = if reasoning_omitted {
                    with_changed_fields(&recorded, &[("id", FieldChange::Remove)])
                } else {
                    json.clone()
                };
                edits.push(RequestEdit::InsertJson { before: at, json });
            } else if request.message_value(at).is_some_and(|copied| is_copy(gap, &recorded, &copied.object())) {
                at += 1;
            } else if item_type(&recorded) == "reasoning" && !gap.is_interrupted {
                reasoning_omitted = true;
            } else {
                return None;
            }
        }
        edits.extend(gap.results.iter().map(|json| RequestEdit::InsertJson { before: at, json: json.clone() }));
    }
    Some(edits)
}

/// Returns true if the client's item is a copy of the recorded one. After an interrupted round the items of another
/// answer may be in its place, so the id must be the same.
fn is_copy(round: &HiddenRound, recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    let id = recorded.string("id");
    let has_same_id = id.is_some() && id == copied.string("id");
    // A client may send a reference in place of an item that the provider stores.
    if copied.string("type").is_none_or(|kind| kind == OpaqueBlock::REFERENCE_KIND) && copied.get("role").is_none() {
        return has_same_id;
    }
    is_same_item(recorded, copied) && (!round.is_interrupted || has_same_id)
}

/// Returns the type of an item; a message may omit it.
fn item_type(item: &JsonObject<'_>) -> String {
    item.string("type").map_or_else(|| "message".to_owned(), |kind| kind.into_owned())
}

/// Returns true if two items have the same type, and the same call id if they are calls.
fn is_same_item(recorded: &JsonObject<'_>, copied: &JsonObject<'_>) -> bool {
    item_type(recorded) == item_type(copied) && recorded.string("call_id") == copied.string("call_id")
}
