//! Stream editing for Responses: indexed items, numbered events, and a last event that repeats the whole response.
//!
//! The response also repeats the request's tools, including the injected one, so they are edited even without a call.

use crate::wire::intercept::{FrameAction, PositionMap, ReportedId, RoundState, summed_count};
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::{FieldChange, json_array, with_changed_fields};
use crate::wire::response::ItemTracker;

#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsesEditor {
    pub(crate) reported_id: ReportedId,
    tracker: ItemTracker,
    items: PositionMap,
    /// Visible items of earlier rounds as JSON; the next field has those of this round.
    earlier_items: Vec<String>,
    done_items: Vec<String>,
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

impl ResponsesEditor {
    pub(crate) fn new(max_kept_bytes: usize) -> Self {
        Self { remaining_bytes: max_kept_bytes, ..Self::default() }
    }

    pub(crate) fn edit_frame(
        &mut self,
        kind: &str,
        data: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
    ) -> FrameAction {
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

    /// Keeps an item for the final response that repeats it; without memory for it, it is omitted there.
    fn keep_item(&mut self, item: &str) {
        if let Some(remaining) = self.remaining_bytes.checked_sub(item.len()) {
            self.remaining_bytes = remaining;
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

    /// Returns the event that ends the stream with an error; code and message are JSON.
    pub(crate) fn error_event(&mut self, code: &str, message: &str) -> String {
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
        format!(
            "event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{number},\"response\":{response}}}\n\n"
        )
    }

    pub(crate) fn next_round(&mut self) {
        self.items.next_round();
        self.tracker = ItemTracker::default();
        self.earlier_items.append(&mut self.done_items);
    }

    pub(crate) fn restart_round(&mut self) {
        self.items.restart_round();
        self.tracker = ItemTracker::default();
    }

    pub(crate) fn position(&self) -> u64 {
        self.items.next
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
pub(crate) fn visible_items<'a>(bodies: &[JsonObject<'a>], tool: &str) -> Vec<&'a str> {
    let items = bodies.iter().flat_map(|body| body.elements("output").into_owned());
    items.filter(|item| !is_hidden_call(item, tool)).map(|item| item.value.raw()).collect()
}

/// Merges several bodies; `None` if there is only one and nothing to hide.
pub(crate) fn merged_body(
    bodies: &[JsonObject<'_>],
    round: &RoundState,
    tool: &str,
    reported: ReportedId,
) -> Option<String> {
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
