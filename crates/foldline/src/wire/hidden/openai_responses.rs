//! Responses: items with an index, every event numbered, and a last event that repeats everything.
//!
//! The response also repeats the tools of the request, ours among them, so those are edited even
//! when no call is made.

use super::{Pass, Positions, ReportedId, Round, summed};
use crate::wire::response::KnownItems;
use crate::wire::scan::{self, Object};
use crate::wire::write::{Change, changed, list};

#[derive(Clone, Debug, Default)]
pub(super) struct Editor {
    pub(super) reported: ReportedId,
    known: KnownItems,
    items: Positions,
    /// Visible items of earlier rounds, and of this one, as JSON.
    earlier: Vec<String>,
    done: Vec<String>,
    /// How many bytes of items may still be kept.
    room: usize,
    /// The number of the last event that the client got.
    sequence: Option<u64>,
    /// Numbers no longer follow the provider's.
    renumbers: bool,
    /// The response as the client first saw it, as JSON.
    opening: Option<String>,
}

/// Fields that a later round may have otherwise than the first, because we asked otherwise.
const OURS: [&str; 3] = ["created_at", "max_output_tokens", "tool_choice"];

impl Editor {
    pub(super) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    pub(super) fn judge(&mut self, kind: &str, data: &Object<'_>, round: &Round, tool: &str) -> Pass {
        let mut changes: Vec<(&str, Change)> = Vec::new();
        match kind {
            "response.created" | "response.queued" | "response.in_progress" => {
                if !round.is_first() {
                    return self.withheld();
                }
                if let Some(response) = data.object("response") {
                    let shown = without_tool(&response, tool).map(|tools| changed(&response, &[tools]));
                    self.opening.get_or_insert_with(|| shown.clone().unwrap_or(response.value.raw().to_owned()));
                    changes.extend(shown.map(|response| ("response", Change::Set(response))));
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.done" => {
                if round.goes_on() {
                    return self.withheld();
                }
                if let Some(response) = data.object("response") {
                    let fields = self.ending(&response, round, tool);
                    if !fields.is_empty() {
                        changes.push(("response", Change::Set(changed(&response, &fields))));
                    }
                }
            }
            _ => {
                if let Some(index) = self.known.index(kind, data) {
                    let item = data.object("item");
                    if item.as_ref().is_some_and(|item| is_call(item, tool)) {
                        self.items.hide(index);
                    }
                    if self.items.is_hidden(index) {
                        return self.withheld();
                    }
                    let position = self.items.of(index);
                    if position != index && data.get("output_index").is_some() {
                        changes.push(("output_index", Change::Set(position.to_string())));
                    }
                    if let Some(item) = item.filter(|_| kind == "response.output_item.done") {
                        self.keep(item.value.raw());
                    }
                }
            }
        }
        if let Some(number) = data.u64(&["sequence_number"]) {
            let next = self.sequence.map_or(0, |last| last + 1);
            let number_shown = if self.renumbers { next } else { number };
            self.sequence = Some(number_shown);
            if number_shown != number {
                changes.push(("sequence_number", Change::Set(number_shown.to_string())));
            }
        }
        if changes.is_empty() { Pass::Whole } else { Pass::Changed(changed(data, &changes)) }
    }

    /// Keeps an item for the response that will repeat it; without room for one, it is left out there.
    fn keep(&mut self, item: &str) {
        if let Some(room) = self.room.checked_sub(item.len()) {
            self.room = room;
            self.done.push(item.to_owned());
        }
    }

    fn withheld(&mut self) -> Pass {
        self.renumbers = true;
        Pass::Withheld
    }

    /// What changes in the response that ends the stream.
    fn ending(&self, response: &Object<'_>, round: &Round, tool: &str) -> Vec<(&'static str, Change)> {
        let mut changes: Vec<(&str, Change)> = without_tool(response, tool).into_iter().collect();
        let output = response.elements("output");
        // Some servers stream the items and leave this list empty; it stays so.
        let repeats = !output.is_empty() || self.done.is_empty();
        if (!round.is_first() || self.items.any_hidden()) && repeats {
            let this = output.iter().filter(|item| !is_call(item, tool)).map(|item| item.value.raw());
            changes.push(("output", Change::Set(list(self.earlier.iter().map(String::as_str).chain(this)))));
        }
        if !round.is_first()
            && let Some(opening) = self.opening.as_deref().and_then(|json| scan::document(json).ok())
        {
            changes.extend(of_several(&opening.object(), response, round, self.reported));
        }
        changes
    }

    /// Returns the event that ends the stream with an error; code and message are JSON.
    pub(super) fn failed(&mut self, code: &str, message: &str) -> String {
        let opening = self.opening.clone().unwrap_or_else(|| r#"{"object":"response"}"#.to_owned());
        let output = list(self.earlier.iter().chain(&self.done).map(String::as_str));
        let changes = [
            ("status", Change::Set(r#""failed""#.to_owned())),
            ("error", Change::Set(format!(r#"{{"code":{code},"message":{message}}}"#))),
            ("output", Change::Set(output)),
        ];
        let response =
            scan::document(&opening).map(|opening| changed(&opening.object(), &changes)).unwrap_or(opening.clone());
        let number = self.sequence.map_or(0, |last| last + 1);
        self.sequence = Some(number);
        format!(
            "event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{number},\"response\":{response}}}\n\n"
        )
    }

    pub(super) fn next_round(&mut self) {
        self.items.next_round();
        self.known = KnownItems::default();
        self.earlier.append(&mut self.done);
    }

    pub(super) fn restart_round(&mut self) {
        self.items.restart_round();
        self.known = KnownItems::default();
    }

    pub(super) fn position(&self) -> u64 {
        self.items.next
    }
}

/// What changes in the last of several responses so that it looks like the end of the first.
fn of_several(
    first: &Object<'_>,
    last: &Object<'_>,
    round: &Round,
    reported: ReportedId,
) -> Vec<(&'static str, Change)> {
    let mut changes = Vec::new();
    let id = (reported == ReportedId::First).then_some("id");
    for key in id.into_iter().chain(OURS) {
        if let (Some(first), Some(_)) = (first.set(key), last.get(key)) {
            changes.push((key, Change::Set(first.raw().to_owned())));
        }
    }
    changes.extend(last.object("usage").map(|usage| ("usage", Change::Set(counted(&usage, round)))));
    changes
}

/// The items of all bodies that the client may see.
pub(super) fn visible<'a>(bodies: &[Object<'a>], tool: &str) -> Vec<&'a str> {
    let items = bodies.iter().flat_map(|body| body.elements("output").into_owned());
    items.filter(|item| !is_call(item, tool)).map(|item| item.value.raw()).collect()
}

/// One body of several; `None` when the only one has nothing to hide.
pub(super) fn merged(bodies: &[Object<'_>], round: &Round, tool: &str, reported: ReportedId) -> Option<String> {
    let (first, last) = (bodies.first()?, bodies.last()?);
    let mut changes: Vec<(&str, Change)> = without_tool(last, tool).into_iter().collect();
    if !round.is_first() || round.hidden > 0 {
        changes.push(("output", Change::Set(list(visible(bodies, tool)))));
    }
    if !round.is_first() {
        changes.extend(of_several(first, last, round, reported));
    }
    (!changes.is_empty()).then(|| changed(last, &changes))
}

fn is_call(item: &Object<'_>, tool: &str) -> bool {
    item.string("type").as_deref() == Some("function_call") && item.string("name").as_deref() == Some(tool)
}

/// The response's list of tools without ours, when ours is in it.
fn without_tool(response: &Object<'_>, tool: &str) -> Option<(&'static str, Change)> {
    let tools = response.elements("tools");
    let ours = |it: &&Object<'_>| it.string("name").as_deref() == Some(tool);
    tools.iter().any(|it| ours(&it)).then(|| {
        let rest = tools.iter().filter(|it| !ours(it)).map(|it| it.value.raw());
        ("tools", Change::Set(list(rest)))
    })
}

/// The prompt is that of the last round; the answer is that of all rounds.
fn counted(usage: &Object<'_>, round: &Round) -> String {
    let reasoned = round.before.and_then(|before| before.reasoning).unwrap_or(0);
    let mut changes: Vec<(&str, Change)> = Vec::new();
    for key in ["output_tokens", "total_tokens"] {
        changes.extend(summed(usage, &[key], round.output_before()).map(|count| (key, Change::Set(count))));
    }
    if let Some(details) = usage.object("output_tokens_details") {
        let count = summed(&details, &["reasoning_tokens"], reasoned);
        let details = count.map(|count| changed(&details, &[("reasoning_tokens", Change::Set(count))]));
        changes.extend(details.map(|details| ("output_tokens_details", Change::Set(details))));
    }
    changed(usage, &changes)
}
