//! Chat Completions: chunks that may hold text, calls, the reason to stop and counts all at once, so
//! that a chunk is often neither passed nor withheld but passed in part.

use super::{Pass, Positions, Round, summed};
use crate::wire::response::{KnownCalls, Mention, Shape};
use crate::wire::scan::Object;
use crate::wire::write::{Change, changed, list, quoted};

#[derive(Clone, Debug, Default)]
pub(super) struct Editor {
    /// What the first chunk of the first round said of the response, as JSON.
    identity: Vec<(&'static str, String)>,
    known: KnownCalls,
    calls: Vec<Call>,
    positions: Positions,
    /// Indices of `reasoning_details`, which go on from round to round.
    details: Positions,
    /// Bytes of text that the client got.
    text: u64,
}

#[derive(Clone, Debug)]
enum Call {
    /// Its name has not come yet; what has come is held until it is clear whose call it is.
    Nameless {
        id: String,
        arguments: String,
    },
    Hidden,
    Visible,
}

/// The most that is held of a call whose name does not come.
const MAX_HELD: usize = 1 << 20;

/// Fields that must not change in the course of a stream.
const IDENTITY: [&str; 4] = ["id", "created", "model", "system_fingerprint"];

impl Editor {
    pub(super) fn judge(&mut self, chunk: &Object<'_>, round: &Round, tool: &str) -> Pass {
        let mut changes: Vec<(&str, Change)> = Vec::new();
        let choices = chunk.elements("choices");
        let mut edited = false;
        let mut shown: Vec<String> = Vec::with_capacity(choices.len());
        for choice in choices.iter() {
            let fields = self.choice(choice, round, tool);
            edited |= !fields.is_empty();
            shown.push(if fields.is_empty() { choice.value.raw().to_owned() } else { changed(choice, &fields) });
        }
        if edited {
            changes.push(("choices", Change::Set(list(shown.iter().map(String::as_str)))));
        }
        if let Some(usage) = chunk.object("usage") {
            if round.goes_on() {
                changes.push(("usage", Change::Set("null".to_owned())));
                edited = true;
            } else if !round.is_first() {
                changes.push(("usage", Change::Set(counted(&usage, round))));
            }
        }
        self.identify(chunk, round, &mut changes);
        if changes.is_empty() {
            return Pass::Whole;
        }
        let data = changed(chunk, &changes);
        if edited && says_nothing(&data) { Pass::Withheld } else { Pass::Changed(data) }
    }

    fn identify(&mut self, chunk: &Object<'_>, round: &Round, changes: &mut Vec<(&str, Change)>) {
        if round.is_first() {
            for key in IDENTITY {
                if let Some(value) = chunk.set(key).filter(|_| !self.identity.iter().any(|(known, _)| *known == key)) {
                    self.identity.push((key, value.raw().to_owned()));
                }
            }
            return;
        }
        for (key, value) in &self.identity {
            if chunk.get(key).is_some_and(|it| it.raw() != value) {
                changes.push((key, Change::Set(value.clone())));
            }
        }
    }

    fn choice(&mut self, choice: &Object<'_>, round: &Round, tool: &str) -> Vec<(&'static str, Change)> {
        let mut changes = Vec::new();
        let number = choice.u64(&["index"]).unwrap_or(0);
        if let Some(delta) = choice.object("delta") {
            let fields = self.delta(number, &delta, round, tool);
            if !fields.is_empty() {
                changes.push(("delta", Change::Set(changed(&delta, &fields))));
            }
        }
        if round.goes_on() {
            if choice.set("finish_reason").is_some() {
                changes.push(("finish_reason", Change::Set("null".to_owned())));
            }
            if choice.set("usage").is_some() {
                changes.push(("usage", Change::Remove));
            }
        } else if let Some(usage) = choice.object("usage").filter(|_| !round.is_first()) {
            changes.push(("usage", Change::Set(counted(&usage, round))));
        }
        changes
    }

    fn delta(&mut self, choice: u64, delta: &Object<'_>, round: &Round, tool: &str) -> Vec<(&'static str, Change)> {
        let mut changes = Vec::new();
        if !round.is_first() && delta.set("role").is_some() {
            // Accumulators append what comes twice: "assistantassistant".
            changes.push(("role", Change::Remove));
        }
        self.text += delta.string("content").map_or(0, |text| text.len() as u64);
        let details = delta.elements("reasoning_details");
        let moved: Vec<Option<String>> = details.iter().map(|detail| self.detail(detail)).collect();
        if moved.iter().any(Option::is_some) {
            let raw = details.iter().zip(&moved).map(|(it, moved)| moved.as_deref().unwrap_or(it.value.raw()));
            changes.push(("reasoning_details", Change::Set(list(raw))));
        }
        let calls = delta.elements("tool_calls");
        let judged: Vec<Pass> = calls.iter().map(|call| self.call(choice, call, tool)).collect();
        if judged.iter().any(|pass| !matches!(pass, Pass::Whole)) {
            let shown: Vec<&str> = calls
                .iter()
                .zip(&judged)
                .filter_map(|(call, pass)| match pass {
                    Pass::Whole => Some(call.value.raw()),
                    Pass::Withheld => None,
                    Pass::Changed(json) => Some(json),
                })
                .collect();
            let change = if shown.is_empty() { Change::Remove } else { Change::Set(list(shown)) };
            changes.push(("tool_calls", change));
        }
        changes
    }

    fn detail(&mut self, detail: &Object<'_>) -> Option<String> {
        let index = detail.u64(&["index"])?;
        let position = self.details.of(index);
        (position != index).then(|| changed(detail, &[("index", Change::Set(position.to_string()))]))
    }

    fn call(&mut self, choice: u64, delta: &Object<'_>, tool: &str) -> Pass {
        let (shape, function) = match delta.object("custom") {
            Some(custom) => (Shape::Custom, Some(custom)),
            None => (Shape::Function, delta.object("function")),
        };
        let text = |key: &str| function.as_ref().and_then(|function| function.string(key)).unwrap_or_default();
        let (id, name) = (delta.string("id").unwrap_or_default(), text("name"));
        let index = delta.u64(&["index"]);
        let mention = Mention { choice, index, id: &id, name: &name, shape };
        let number = self.known.find(mention).unwrap_or_else(|| {
            self.calls.push(Call::Nameless { id: String::new(), arguments: String::new() });
            self.known.add(mention)
        });
        self.known.grew(number, mention);
        let mut whole = None;
        if let Call::Nameless { id: kept, arguments } = &mut self.calls[number] {
            kept.push_str(if kept.is_empty() { &id } else { "" });
            if name.is_empty() && arguments.len() < MAX_HELD {
                arguments.push_str(&text("arguments"));
                return Pass::Withheld;
            }
            if name == tool {
                self.calls[number] = Call::Hidden;
                if let Some(index) = index {
                    self.positions.hide(index);
                }
            } else {
                if !arguments.is_empty() {
                    // What was held comes with the name.
                    let all = format!("{arguments}{}", text("arguments"));
                    let function = format!(r#"{{"name":{},"arguments":{}}}"#, quoted(&name), quoted(&all));
                    whole = Some((quoted(kept), function));
                }
                self.calls[number] = Call::Visible;
            }
        }
        if matches!(self.calls[number], Call::Hidden) {
            return Pass::Withheld;
        }
        let mut changes: Vec<(&str, Change)> = Vec::new();
        if let Some((id, function)) = whole {
            changes.extend([("id", Change::Set(id)), ("function", Change::Set(function))]);
        }
        if let Some(index) = index {
            let position = self.positions.of(index);
            if position != index {
                changes.push(("index", Change::Set(position.to_string())));
            }
        }
        if changes.is_empty() { Pass::Whole } else { Pass::Changed(changed(delta, &changes)) }
    }

    pub(super) fn next_round(&mut self) {
        self.known = KnownCalls::default();
        self.calls.clear();
        self.positions.next_round();
        self.details.next_round();
    }

    pub(super) fn restart_round(&mut self) {
        self.known = KnownCalls::default();
        self.calls.clear();
        self.positions.restart_round();
        self.details.restart_round();
    }

    pub(super) fn position(&self) -> u64 {
        self.text
    }
}

/// The message of the first choice of a body.
pub(super) fn message<'a>(body: &Object<'a>) -> Option<Object<'a>> {
    body.elements("choices").first().and_then(|choice| choice.object("message"))
}

/// The texts of all bodies, joined.
pub(super) fn text(bodies: &[Object<'_>]) -> String {
    joined(bodies, "content")
}

fn joined(bodies: &[Object<'_>], key: &str) -> String {
    bodies.iter().filter_map(|body| message(body)?.string(key)).collect()
}

/// One body of several: the first one's name, everyone's texts and thoughts, the last one's calls
/// without those that the client must not see.
pub(super) fn merged(bodies: &[Object<'_>], round: &Round, tool: &str) -> String {
    let (Some(first), Some(last)) = (bodies.first(), bodies.last()) else { return String::new() };
    let Some(spoken) = message(last) else { return last.value.raw().to_owned() };
    let mut fields: Vec<(&str, Change)> = Vec::new();
    for key in ["content", "reasoning_content", "reasoning", "reasoning_text"] {
        let text = joined(bodies, key);
        if bodies.len() > 1 && !text.is_empty() {
            fields.push((key, Change::Set(quoted(&text))));
        }
    }
    let details: Vec<&str> = bodies
        .iter()
        .filter_map(message)
        .flat_map(|message| message.elements("reasoning_details").into_owned())
        .map(|detail| detail.value.raw())
        .collect();
    if !details.is_empty() {
        fields.push(("reasoning_details", Change::Set(list(details))));
    }
    let calls = spoken.elements("tool_calls");
    let hidden = |call: &&Object<'_>| {
        call.object("function").and_then(|function| function.string("name")).as_deref() == Some(tool)
    };
    if calls.iter().any(|call| hidden(&call)) {
        let shown: Vec<&str> = calls.iter().filter(|call| !hidden(call)).map(|call| call.value.raw()).collect();
        let change = if shown.is_empty() { Change::Remove } else { Change::Set(list(shown)) };
        fields.push(("tool_calls", change));
    }
    let choices = last.elements("choices");
    let rewritten: Vec<String> = choices
        .iter()
        .enumerate()
        .map(|(at, choice)| match at {
            0 => changed(choice, &[("message", Change::Set(changed(&spoken, &fields)))]),
            _ => choice.value.raw().to_owned(),
        })
        .collect();
    let mut changes = vec![("choices", Change::Set(list(rewritten.iter().map(String::as_str))))];
    for key in IDENTITY {
        if let (Some(first), Some(_)) = (first.set(key), last.get(key)) {
            changes.push((key, Change::Set(first.raw().to_owned())));
        }
    }
    if let Some(usage) = last.object("usage").filter(|_| !round.is_first()) {
        changes.push(("usage", Change::Set(counted(&usage, round))));
    }
    changed(last, &changes)
}

/// Whether a chunk from which something was taken has nothing left to say.
fn says_nothing(chunk: &str) -> bool {
    let Ok(document) = crate::wire::scan::document(chunk) else { return false };
    let chunk = document.object();
    let blank = |value: crate::wire::scan::Value<'_>| matches!(value.raw(), "null" | "\"\"" | "[]" | "{}");
    let silent = |choice: &Object<'_>| {
        let delta = choice.object("delta");
        let quiet = delta.is_none_or(|delta| delta.fields().iter().all(|field| blank(field.value)));
        quiet && choice.set("finish_reason").is_none() && choice.set("usage").is_none()
    };
    chunk.set("usage").is_none() && chunk.set("error").is_none() && chunk.elements("choices").iter().all(silent)
}

/// The prompt is that of the last round; the answer is that of all rounds.
fn counted(usage: &Object<'_>, round: &Round) -> String {
    let reasoned = round.before.and_then(|before| before.reasoning).unwrap_or(0);
    let mut changes: Vec<(&str, Change)> = Vec::new();
    for key in ["completion_tokens", "total_tokens"] {
        changes.extend(summed(usage, &[key], round.output_before()).map(|count| (key, Change::Set(count))));
    }
    if let Some(details) = usage.object("completion_tokens_details") {
        let count = summed(&details, &["reasoning_tokens"], reasoned);
        let details = count.map(|count| changed(&details, &[("reasoning_tokens", Change::Set(count))]));
        changes.extend(details.map(|details| ("completion_tokens_details", Change::Set(details))));
    }
    changed(usage, &changes)
}
