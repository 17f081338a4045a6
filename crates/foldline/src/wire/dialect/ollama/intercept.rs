//! Stream editing for Ollama. Clients append texts and calls in order: the hidden calls are removed from their lines, and
//! lines without anything else are withheld.

use crate::conversation::{Message, Role};
use crate::wire::client_stream::ErrorEvent;
use crate::wire::dialect::ollama::request::parse_call;
use crate::wire::dialect::openai_chat::intercept::{final_text_round, matches_text_round, tool_declaration};
use crate::wire::intercept::positions::PositionMap;
use crate::wire::intercept::restore::{CopiedMessage, HiddenRound};
use crate::wire::intercept::round::{FrameAction, FrameEditor, RoundState, summed_count};
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::scan;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::{Request, number_calls};
use crate::wire::response::ApiError;

pub(crate) const INTERCEPT: InterceptSyntax = InterceptSyntax {
    tool_declaration,
    new_editor: |_| Box::new(OllamaEditor::default()),
    keep_alive: b" ",
    body_turn: |body| body.object("message").map(|message| message.value.raw().to_owned()).into_iter().collect(),
    body_position: |bodies, _| joined_field(bodies, "content").len() as u64,
    merged_body: |bodies, round, tool, _| {
        (!round.is_first() || round.hidden_calls > 0).then(|| merged_body(bodies, round, tool))
    },
    restore: |request, answer, gaps| COPIED_MESSAGE.restore(request, answer, gaps),
};

const COPIED_MESSAGE: CopiedMessage =
    CopiedMessage { matches_round: matches_text_round, final_round: final_text_round, mixed_results };

/// Times that the last line reports, in nanoseconds.
const DURATIONS: [&str; 4] = ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"];
/// Fields of the last line only.
const END_FIELDS: [&str; 3] = ["done_reason", "prompt_eval_count", "eval_count"];

#[derive(Clone, Debug, Default)]
struct OllamaEditor {
    /// The model's name in the first round, as JSON.
    model: Option<String>,
    /// Times of the earlier rounds.
    durations: [u64; DURATIONS.len()],
    /// Indices of the calls.
    positions: PositionMap,
    /// Bytes of text sent to the client.
    text_bytes: u64,
}

impl FrameEditor for OllamaEditor {
    fn edit_frame(&mut self, _: &str, line: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let mut changes: Vec<(&str, FieldChange)> = Vec::new();
        let mut is_empty = false;
        if let Some(message) = line.object("message") {
            let calls = self.edit_message(&message, tool);
            let is_blank = |key| message.string(key).is_none_or(|text| text.is_empty());
            let has_calls = match &calls {
                Some(change) => matches!(change, FieldChange::Set(_)),
                None => message.get("tool_calls").is_some(),
            };
            is_empty = is_blank("content") && is_blank("thinking") && !has_calls;
            if let Some(calls) = calls {
                let message = with_changed_fields(&message, &[("tool_calls", calls)]);
                changes.push(("message", FieldChange::Set(message)));
            }
        }
        let is_end = line.get("done").and_then(JsonValue::bool) == Some(true);
        if is_end {
            self.edit_end(line, round, &mut changes);
        }
        let is_withheld = is_empty && !changes.is_empty() && (!is_end || round.continues());
        self.keep_model(line, round, &mut changes);
        match changes.is_empty() {
            _ if is_withheld => FrameAction::Withhold,
            true => FrameAction::Forward,
            false => FrameAction::Rewrite(with_changed_fields(line, &changes)),
        }
    }

    fn next_round(&mut self) {
        self.positions.next_round();
    }

    fn restart_round(&mut self) {
        self.positions.restart_round();
    }

    fn position(&self) -> u64 {
        self.text_bytes
    }

    fn error_event(&mut self, _: &str, error: &ApiError) -> ErrorEvent {
        ErrorEvent { name: None, data: format!(r#"{{"error":{}}}"#, quoted(&error.message)) }
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl OllamaEditor {
    /// Returns the change of a message's calls: without the hidden ones, and numbered without gaps.
    fn edit_message(&mut self, message: &JsonObject<'_>, tool: &str) -> Option<FieldChange> {
        self.text_bytes += message.string("content").map_or(0, |text| text.len() as u64);
        let calls = message.elements("tool_calls");
        let mut is_edited = false;
        let mut shown: Vec<String> = Vec::with_capacity(calls.len());
        for call in calls.iter() {
            let Some(function) = call.object("function") else {
                shown.push(call.value.raw().to_owned());
                continue;
            };
            let index = function.u64(&["index"]);
            if is_hidden_call(call, tool) {
                index.into_iter().for_each(|index| self.positions.hide(index));
                is_edited = true;
                continue;
            }
            let position = index.map(|index| self.positions.client_position(index));
            match position.filter(|_| position != index) {
                Some(position) => {
                    is_edited = true;
                    let function = with_changed_fields(&function, &[("index", FieldChange::Set(position.to_string()))]);
                    shown.push(with_changed_fields(call, &[("function", FieldChange::Set(function))]));
                }
                None => shown.push(call.value.raw().to_owned()),
            }
        }
        is_edited.then(|| calls_change(&shown))
    }

    /// Edits the line that ends a round: it does not end the answer, or it reports all rounds.
    fn edit_end(&mut self, line: &JsonObject<'_>, round: &RoundState, changes: &mut Vec<(&'static str, FieldChange)>) {
        if round.continues() {
            for (key, sum) in DURATIONS.iter().zip(&mut self.durations) {
                *sum = sum.saturating_add(line.u64(&[key]).unwrap_or(0));
            }
            changes.push(("done", FieldChange::Set("false".to_owned())));
            changes.extend(DURATIONS.iter().chain(&END_FIELDS).map(|key| (*key, FieldChange::Remove)));
        } else if !round.is_first() {
            changes.extend(summed_end(line, round, self.durations));
        }
    }

    fn keep_model(&mut self, line: &JsonObject<'_>, round: &RoundState, changes: &mut Vec<(&str, FieldChange)>) {
        let Some(model) = line.get_non_null("model") else { return };
        match &self.model {
            Some(first) if !round.is_first() && first != model.raw() => {
                changes.push(("model", FieldChange::Set(first.clone())));
            }
            None if round.is_first() => self.model = Some(model.raw().to_owned()),
            _ => {}
        }
    }
}

fn is_hidden_call(call: &JsonObject<'_>, tool: &str) -> bool {
    call.object("function").and_then(|function| function.string("name")).as_deref() == Some(tool)
}

fn calls_change(shown: &[String]) -> FieldChange {
    match shown {
        [] => FieldChange::Remove,
        shown => FieldChange::Set(json_array(shown.iter().map(String::as_str))),
    }
}

/// Returns the counts and times of all rounds: the prompt of the last one, the output and the times of all.
fn summed_end(
    end: &JsonObject<'_>,
    round: &RoundState,
    earlier: [u64; DURATIONS.len()],
) -> Vec<(&'static str, FieldChange)> {
    let durations = DURATIONS.into_iter().zip(earlier);
    let sums = std::iter::once(("eval_count", round.earlier_output_tokens())).chain(durations);
    sums.filter_map(|(key, before)| Some((key, FieldChange::Set(summed_count(end, &[key], before)?)))).collect()
}

fn joined_field(bodies: &[JsonObject<'_>], key: &str) -> String {
    bodies.iter().filter_map(|body| body.object("message")?.string(key)).collect()
}

/// Merges several bodies: texts and reasoning of all, calls of the last without the hidden ones, counts of all.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let (Some(first), Some(last)) = (bodies.first(), bodies.last()) else { return String::new() };
    let Some(message) = last.object("message") else { return last.value.raw().to_owned() };
    let mut fields: Vec<(&str, FieldChange)> = Vec::new();
    for key in ["content", "thinking"] {
        let text = joined_field(bodies, key);
        if bodies.len() > 1 && !text.is_empty() {
            fields.push((key, FieldChange::Set(quoted(&text))));
        }
    }
    let calls = message.elements("tool_calls");
    if calls.iter().any(|call| is_hidden_call(call, tool)) {
        let visible = calls.iter().filter(|call| !is_hidden_call(call, tool));
        let visible: Vec<String> = visible.map(|call| call.value.raw().to_owned()).collect();
        fields.push(("tool_calls", calls_change(&visible)));
    }
    let mut changes = vec![("message", FieldChange::Set(with_changed_fields(&message, &fields)))];
    if let (Some(model), Some(_)) = (first.get_non_null("model"), last.get("model")) {
        changes.push(("model", FieldChange::Set(model.raw().to_owned())));
    }
    if !round.is_first() {
        let earlier = &bodies[..bodies.len() - 1];
        let durations = DURATIONS.map(|key| earlier.iter().filter_map(|body| body.u64(&[key])).sum());
        changes.extend(summed_end(last, round, durations));
    }
    with_changed_fields(last, &changes)
}

/// Puts the hidden results before the client's own: results without ids answer calls in order, so each hidden result
/// goes where its call is.
fn mixed_results(request: &Request<'_>, answer: usize, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
    let order = call_order(gap)?;
    let client_results =
        request.conversation().messages.get(answer + 1..)?.iter().take_while(|message| message.has_results());
    let available = client_results.count();
    let mut hidden = gap.results.iter();
    let mut before = 0;
    let mut edits = Vec::with_capacity(gap.results.len());
    for is_hidden in order {
        match is_hidden {
            true => edits.extend(hidden.next().map(|json| RequestEdit::InsertJson {
                before: answer + 1 + before.min(available),
                json: json.clone(),
            })),
            false => before += 1,
        }
    }
    Some(edits)
}

/// Returns for each call of a recorded turn if it is hidden.
fn call_order(gap: &HiddenRound) -> Option<Vec<bool>> {
    let turn = scan::parse_document(gap.turn_json.first()?).ok()?.object();
    let calls = turn.elements("tool_calls").iter().map(|call| parse_call(call).0).collect();
    let mut message = Message::new(Role::Assistant, calls);
    number_calls(std::slice::from_mut(&mut message));
    Some(message.calls().map(|call| gap.call_ids.iter().any(|id| *id == call.id)).collect())
}
