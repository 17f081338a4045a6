//! Stream editing for Gemini. Clients append parts in order, so nothing is renumbered: the parts of hidden calls are
//! removed, and chunks without anything else are withheld.

use crate::wire::client_stream::ErrorEvent;
use crate::wire::dialect::gemini::request::{is_thought, signature};
use crate::wire::dialect::gemini::response::{ENVELOPE_KEY, RESPONSE, with_summed_usage};
use crate::wire::intercept::InjectedTool;
use crate::wire::intercept::restore::{CopiedMessage, HiddenRound};
use crate::wire::intercept::round::{FrameAction, FrameEditor, RoundState};
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::RequestEdit;
use crate::wire::json::write::{FieldChange, json_array, quoted, with_changed_fields};
use crate::wire::request::Request;
use crate::wire::response::ApiError;

pub(crate) const INTERCEPT: InterceptSyntax = InterceptSyntax {
    tool_declaration,
    new_editor: |_| Box::new(GeminiEditor::default()),
    keep_alive: b": keep-alive\n\n",
    body_turn: |body| first_content(body).map(|content| content.value.raw().to_owned()).into_iter().collect(),
    body_position: |bodies, _| {
        let contents = bodies.iter().filter_map(first_content);
        contents.map(|content| visible_text(&content).len() as u64).sum()
    },
    merged_body: |bodies, round, tool, _| {
        (!round.is_first() || round.hidden_calls > 0).then(|| merged_body(bodies, round, tool))
    },
    restore: |request, answer, gaps| COPIED_MESSAGE.restore(request, answer, gaps),
};

const COPIED_MESSAGE: CopiedMessage = CopiedMessage { matches_round, final_round, mixed_results };

/// Fields that must not change within an answer.
const IDENTITY_FIELDS: [&str; 2] = ["responseId", "modelVersion"];

fn tool_declaration(tool: &InjectedTool<'_>) -> String {
    let (name, description, schema) = (quoted(tool.name), quoted(tool.description), tool.schema);
    format!(r#"{{"name":{name},"description":{description},"parametersJsonSchema":{schema}}}"#)
}

#[derive(Clone, Debug, Default)]
struct GeminiEditor {
    /// Identity fields of the first round, as JSON.
    identity: Vec<(&'static str, String)>,
    /// Bytes of visible text sent to the client.
    text_bytes: u64,
}

impl FrameEditor for GeminiEditor {
    fn edit_frame(&mut self, _: &str, chunk: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let Some(content) = chunk.object(ENVELOPE_KEY) else { return self.edit_chunk(chunk, round, tool) };
        match self.edit_chunk(&content, round, tool) {
            FrameAction::Rewrite(json) => FrameAction::Rewrite(in_envelope(chunk, json)),
            action => action,
        }
    }

    fn next_round(&mut self) {}

    fn restart_round(&mut self) {}

    fn position(&self) -> u64 {
        self.text_bytes
    }

    fn error_event(&mut self, kind: &str, error: &ApiError) -> ErrorEvent {
        let (kind, message) = (quoted(kind), quoted(&error.message));
        let code = error.code.as_deref().and_then(|code| code.parse::<u16>().ok()).unwrap_or(500);
        let data = format!(r#"{{"error":{{"code":{code},"message":{message},"status":{kind}}}}}"#);
        ErrorEvent { name: None, data }
    }

    fn boxed_clone(&self) -> Box<dyn FrameEditor> {
        Box::new(self.clone())
    }
}

impl GeminiEditor {
    fn edit_chunk(&mut self, chunk: &JsonObject<'_>, round: &RoundState, tool: &str) -> FrameAction {
        let mut changes = Vec::new();
        let candidates = chunk.elements("candidates");
        let mut is_empty = true;
        let mut is_edited = false;
        let mut shown = Vec::with_capacity(candidates.len());
        for candidate in candidates.iter() {
            let edited = self.edit_candidate(candidate, round, tool, &mut is_empty);
            is_edited |= edited.is_some();
            shown.push(edited.unwrap_or_else(|| candidate.value.raw().to_owned()));
        }
        self.keep_identity(chunk, round, &mut changes);
        if is_edited && is_empty && chunk.get_non_null("error").is_none() {
            return FrameAction::Withhold;
        }
        if is_edited {
            changes.push(("candidates", FieldChange::Set(json_array(shown.iter().map(String::as_str)))));
        }
        if let Some(usage) = chunk.object("usageMetadata").filter(|_| !round.is_first()) {
            changes.push(("usageMetadata", FieldChange::Set(summed_usage(&usage, round))));
        }
        if changes.is_empty() {
            FrameAction::Forward
        } else {
            FrameAction::Rewrite(with_changed_fields(chunk, &changes))
        }
    }

    /// Returns a candidate without hidden calls and, if the answer continues, without its finish reason. Returns `None`
    /// if nothing changes. Clears `is_empty` if the candidate shows anything.
    fn edit_candidate(
        &mut self,
        candidate: &JsonObject<'_>,
        round: &RoundState,
        tool: &str,
        is_empty: &mut bool,
    ) -> Option<String> {
        let mut changes = Vec::new();
        if let Some(content) = candidate.object("content") {
            let parts = content.elements("parts");
            let visible: Vec<&JsonObject<'_>> = parts.iter().filter(|part| !is_hidden_call(part, tool)).collect();
            self.text_bytes +=
                visible.iter().map(|part| part_text(part).map_or(0, |text| text.len() as u64)).sum::<u64>();
            *is_empty &= visible.is_empty();
            if visible.len() < parts.len() {
                let list = json_array(visible.iter().map(|part| part.value.raw()));
                let content = with_changed_fields(&content, &[("parts", FieldChange::Set(list))]);
                changes.push(("content", FieldChange::Set(content)));
            }
        }
        if candidate.get_non_null("finishReason").is_some() {
            if round.continues() {
                changes.push(("finishReason", FieldChange::Remove));
            } else {
                *is_empty = false;
            }
        }
        (!changes.is_empty()).then(|| with_changed_fields(candidate, &changes))
    }

    fn keep_identity(&mut self, chunk: &JsonObject<'_>, round: &RoundState, changes: &mut Vec<(&str, FieldChange)>) {
        for key in IDENTITY_FIELDS {
            let Some(value) = chunk.get_non_null(key) else { continue };
            match self.identity.iter().find(|(known, _)| *known == key) {
                Some((_, first)) if !round.is_first() && first != value.raw() => {
                    changes.push((key, FieldChange::Set(first.clone())));
                }
                None if round.is_first() => self.identity.push((key, value.raw().to_owned())),
                _ => {}
            }
        }
    }
}

fn is_hidden_call(part: &JsonObject<'_>, tool: &str) -> bool {
    let call = part.object("functionCall").or_else(|| part.object("function_call"));
    call.is_some_and(|call| call.string("name").as_deref() == Some(tool))
}

/// Returns the text of a part that is not reasoning.
fn part_text<'a>(part: &JsonObject<'a>) -> Option<std::borrow::Cow<'a, str>> {
    part.string("text").filter(|_| !is_thought(part))
}

/// Returns the concatenated texts of a content.
fn visible_text(content: &JsonObject<'_>) -> String {
    content.elements("parts").iter().filter_map(part_text).collect()
}

fn first_content<'a>(body: &JsonObject<'a>) -> Option<JsonObject<'a>> {
    let content = body.object(ENVELOPE_KEY);
    let body = content.as_ref().unwrap_or(body);
    body.elements("candidates").first().and_then(|candidate| candidate.object("content"))
}

fn summed_usage(usage: &JsonObject<'_>, round: &RoundState) -> String {
    let thoughts = round.earlier_usage.and_then(|before| before.reasoning).unwrap_or(0);
    with_summed_usage(usage, round.earlier_output_tokens(), thoughts)
}

/// Merges several bodies: identity of the first, parts of all, end of the last.
fn merged_body(bodies: &[JsonObject<'_>], round: &RoundState, tool: &str) -> String {
    let (Some(first), Some(outer)) = (bodies.first(), bodies.last()) else { return String::new() };
    let [first, last] = [first, outer].map(|body| RESPONSE.without_envelope(body.clone()));
    let contents: Vec<JsonObject<'_>> = bodies.iter().filter_map(first_content).collect();
    let parts: Vec<&str> = contents
        .iter()
        .flat_map(|content| content.elements("parts").into_owned())
        .filter(|part| !is_hidden_call(part, tool))
        .map(|part| part.value.raw())
        .collect();
    let candidates = last.elements("candidates");
    let merged = candidates.iter().enumerate().map(|(at, candidate)| match (at, candidate.object("content")) {
        (0, Some(content)) => {
            let content =
                with_changed_fields(&content, &[("parts", FieldChange::Set(json_array(parts.iter().copied())))]);
            with_changed_fields(candidate, &[("content", FieldChange::Set(content))])
        }
        _ => candidate.value.raw().to_owned(),
    });
    let merged: Vec<String> = merged.collect();
    let mut changes = vec![("candidates", FieldChange::Set(json_array(merged.iter().map(String::as_str))))];
    for key in IDENTITY_FIELDS {
        if let (Some(first), Some(_)) = (first.get_non_null(key), last.get(key)) {
            changes.push((key, FieldChange::Set(first.raw().to_owned())));
        }
    }
    if let Some(usage) = last.object("usageMetadata").filter(|_| !round.is_first()) {
        changes.push(("usageMetadata", FieldChange::Set(summed_usage(&usage, round))));
    }
    let merged = with_changed_fields(&last, &changes);
    if outer.object(ENVELOPE_KEY).is_some() { in_envelope(outer, merged) } else { merged }
}

/// Returns a response in the envelope of another one.
fn in_envelope(outer: &JsonObject<'_>, response: String) -> String {
    with_changed_fields(outer, &[(ENVELOPE_KEY, FieldChange::Set(response))])
}

fn recorded_content(gap: &HiddenRound) -> Option<JsonObject<'_>> {
    gap.turn_json.first().and_then(|turn| scan::parse_document(turn).ok()).map(|document| document.object())
}

/// Compares texts only: clients join the texts of chunks, and some drop thoughts. A round that ends inside a signed part
/// does not match, because the part cannot be split.
fn matches_round(copy: &JsonObject<'_>, start: u64, gap: &HiddenRound) -> bool {
    let Some(turn) = recorded_content(gap) else { return false };
    let Ok(start) = usize::try_from(start) else { return false };
    let (copied, recorded) = (visible_text(copy), visible_text(&turn));
    copied.get(start..).is_some_and(|text| text.starts_with(&recorded))
        && !splits_signed_part(copy, start + recorded.len())
}

/// Returns true if a number of bytes of text ends inside a part with a signature.
fn splits_signed_part(copy: &JsonObject<'_>, end: usize) -> bool {
    let mut before = 0;
    copy.elements("parts").iter().any(|part| {
        let start = before;
        before += part_text(part).map_or(0, |text| text.len());
        (start + 1..before).contains(&end) && signature(part).is_some()
    })
}

/// Returns the parts of the copy after a number of bytes of text. A text across that position is split; thoughts before
/// it belong to earlier rounds.
fn final_round(copy: &JsonObject<'_>, start: u64) -> Option<String> {
    let mut before = usize::try_from(start).ok()?;
    let mut rest: Vec<String> = Vec::new();
    for part in copy.elements("parts").iter() {
        match part_text(part) {
            _ if before == 0 => rest.push(part.value.raw().to_owned()),
            None => {}
            Some(text) if text.len() <= before => before -= text.len(),
            Some(text) => {
                let text = text.get(before..)?;
                rest.push(with_changed_fields(part, &[("text", FieldChange::Set(quoted(text)))]));
                before = 0;
            }
        }
    }
    if rest.is_empty() {
        return None;
    }
    let parts = json_array(rest.iter().map(String::as_str));
    Some(with_changed_fields(copy, &[("parts", FieldChange::Set(parts))]))
}

/// Puts the hidden results into the client's content with its own results: a content has as many results as the one
/// before it has calls.
fn mixed_results(request: &Request<'_>, answer: usize, gap: &HiddenRound) -> Option<Vec<RequestEdit>> {
    let next = request.message_value(answer + 1)?.object();
    let hidden = gap.results.iter().filter_map(|content| scan::parse_document(content).ok());
    let hidden: Vec<_> = hidden.flat_map(|content| content.object().elements("parts").into_owned()).collect();
    let visible = next.elements("parts");
    let parts = json_array(hidden.iter().chain(visible.iter()).map(|part| part.value.raw()));
    let json = with_changed_fields(&next, &[("parts", FieldChange::Set(parts))]);
    Some(vec![RequestEdit::DropMessage(answer + 1), RequestEdit::InsertJson { before: answer + 1, json }])
}
