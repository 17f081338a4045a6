//! Converts edits to sorted, disjoint byte replacements; everything between them is copied.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::conversation::{PartId, Role};
use crate::error::Error;
use crate::wire::json::layout::{BodyLayout, EditSlot, ListName, PartView};
use crate::wire::json::lexer::ByteSpan;
use crate::wire::json::scan::{JsonObject, JsonValue, parse_document_at_depth};
use crate::wire::json::string::encode;

/// One edit of a request. All positions refer to the original request, whatever the other edits do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestEdit {
    /// Replaces a text, the whole content of a result, or one block of it. An image or a file becomes a text block.
    Text {
        /// The part.
        at: PartId,
        /// The new text.
        text: String,
    },
    /// Replaces the arguments of a call by JSON, or by free text where the tool takes free text.
    Arguments {
        /// The call.
        at: PartId,
        /// The new arguments.
        arguments: String,
    },
    /// Removes a part. It cannot be the last one of its message: drop the message instead.
    DropPart(PartId),
    /// Removes a message.
    DropMessage(usize),
    /// Inserts a message of one text before another message, or at the end.
    InsertMessage {
        /// Index of the message to insert before.
        before: usize,
        /// The role of the message.
        role: Role,
        /// The text of the message.
        text: String,
    },
    /// Inserts a message in the provider's own JSON before another message, or at the end.
    InsertJson {
        /// Index of the message to insert before.
        before: usize,
        /// The message as JSON.
        json: String,
    },
    /// Appends a tool after all others.
    AppendTool {
        /// The declaration as JSON.
        json: String,
    },
}

/// The JSON that edits write in a dialect.
#[derive(Debug)]
pub(crate) struct EditSyntax {
    /// Returns the block of a text, which replaces an image or a file.
    pub(crate) text_block: fn(&str) -> String,
    /// Returns an object that contains a result, with this text as its output.
    pub(crate) result_object: fn(&JsonObject<'_>, &str) -> String,
    /// Returns a message of one text; `None` if the role cannot have one.
    pub(crate) text_message: fn(Role, &str) -> Option<String>,
}

/// A byte range of the body and its replacement.
struct ByteReplacement<'e> {
    span: ByteSpan,
    replacement: Cow<'e, str>,
}

/// Removals and insertions in one list; positions refer to the original list.
#[derive(Default)]
struct ListEdits<'e> {
    dropped: BTreeSet<usize>,
    /// Each with the index of the element to insert before; at the same index in the order of the edits.
    inserted: Vec<(usize, Cow<'e, str>)>,
}

pub(crate) fn splice<'a, 'e>(
    body: &'a str,
    syntax: &EditSyntax,
    layout: &BodyLayout,
    edits: impl Iterator<Item = &'e RequestEdit>,
) -> Result<Cow<'a, [u8]>, Error> {
    let mut changes = Vec::new();
    let mut parts: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut messages = ListEdits::default();
    let mut tools = ListEdits::default();

    for edit in edits {
        match edit {
            RequestEdit::Text { at, text } => changes.push(text_replacement(body, syntax, layout, *at, text)?),
            RequestEdit::Arguments { at, arguments } => changes.push(arguments_replacement(layout, *at, arguments)?),
            RequestEdit::DropPart(at) => {
                if part_view(layout, *at)?.element.is_none() || at.inner.is_some() {
                    return Err(Error::bad_edit(format_args!("part {at} can only be dropped with its message")));
                }
                parts.entry(at.message).or_default().insert(at.part);
            }
            RequestEdit::DropMessage(at) => {
                message_span(layout, *at)?;
                messages.dropped.insert(*at);
            }
            RequestEdit::InsertMessage { before, role, text } => {
                let json = (syntax.text_message)(*role, text)
                    .ok_or_else(|| Error::bad_edit(format_args!("role {role:?} cannot have a text-only message")))?;
                messages.inserted.push((*before, Cow::Owned(json)));
            }
            RequestEdit::InsertJson { before, json } => {
                messages.inserted.push((*before, Cow::Borrowed(checked_object(json)?)))
            }
            RequestEdit::AppendTool { json } => tools.inserted.push((usize::MAX, Cow::Borrowed(checked_object(json)?))),
        }
    }

    for (at, dropped) in parts {
        if !messages.dropped.contains(&at) {
            drop_parts(at, layout, &dropped, &mut changes)?;
        }
    }
    if !messages.dropped.is_empty() || !messages.inserted.is_empty() {
        if let Some((before, _)) = messages.inserted.iter().find(|(before, _)| *before > layout.messages().len()) {
            return Err(Error::bad_edit(format_args!("there is no message {before} to insert before")));
        }
        match layout.messages_start {
            Some(inside) => {
                let elements: Vec<ByteSpan> = layout.messages().collect();
                messages.apply(inside, &elements, &mut changes);
            }
            None => messages.apply_to_string_input(layout, &mut changes)?,
        }
    }
    if !tools.inserted.is_empty() {
        let list = layout.tools.as_ref();
        let list = list.ok_or_else(|| Error::bad_edit("the request has no list of tools to append to"))?;
        tools.apply(list.list_start, &list.elements, &mut changes);
    }
    for field in &layout.added_fields {
        let span = ByteSpan { start: field.at, end: field.at };
        changes.push(ByteReplacement { span, replacement: Cow::Owned(field.json.clone()) });
    }
    if changes.is_empty() {
        Ok(Cow::Borrowed(body.as_bytes()))
    } else {
        apply_replacements(body, changes).map(Cow::Owned)
    }
}

fn message_span(layout: &BodyLayout, at: usize) -> Result<ByteSpan, Error> {
    layout.message(at).ok_or_else(|| Error::bad_edit(format_args!("there is no message {at}")))
}

fn part_view(layout: &BodyLayout, at: PartId) -> Result<PartView<'_>, Error> {
    message_span(layout, at.message)?;
    layout.part(at.message, at.part).ok_or_else(|| missing_part(at))
}

fn missing_part(at: PartId) -> Error {
    Error::bad_edit(format_args!("there is no part {at}"))
}

/// Returns the edit slot of a part, or of one block of it.
fn edit_slot(layout: &BodyLayout, at: PartId) -> Result<EditSlot, Error> {
    let part = part_view(layout, at)?;
    match at.inner {
        None => Ok(part.slot),
        Some(inner) => part.inner.get(inner).copied().ok_or_else(|| missing_part(at)),
    }
}

fn text_replacement<'e>(
    body: &str,
    syntax: &EditSyntax,
    layout: &BodyLayout,
    at: PartId,
    text: &'e str,
) -> Result<ByteReplacement<'e>, Error> {
    // A result of one text: only the text is replaced, so that its block keeps its other fields.
    let slot = match (at.inner, part_view(layout, at)?.inner) {
        (None, [only @ EditSlot::Text(_)]) => *only,
        _ => edit_slot(layout, at)?,
    };
    match slot {
        EditSlot::Text(slot_span) => Ok(ByteReplacement { span: slot_span.span(), replacement: encode(text).into() }),
        EditSlot::Block(slot_span) => {
            Ok(ByteReplacement { span: slot_span.span(), replacement: (syntax.text_block)(text).into() })
        }
        EditSlot::ResultObject(slot_span) => {
            let object = JsonValue { body, span: slot_span.span() }.object();
            Ok(ByteReplacement { span: slot_span.span(), replacement: (syntax.result_object)(&object, text).into() })
        }
        EditSlot::Fixed | EditSlot::Json(_) | EditSlot::JsonInString(_) | EditSlot::TextArguments(_) => {
            Err(Error::bad_edit(format_args!("part {at} has no text that can be replaced")))
        }
    }
}

fn arguments_replacement<'e>(
    layout: &BodyLayout,
    at: PartId,
    arguments: &'e str,
) -> Result<ByteReplacement<'e>, Error> {
    // Arguments are written into the body unescaped, so they must stay within the depth limit; they begin at most this
    // deep.
    const MAX_ARGUMENTS_DEPTH: u32 = 6;
    let not_json = |error| Error::bad_edit(format_args!("the new arguments of part {at} are {error}"));
    match edit_slot(layout, at)? {
        EditSlot::Json(slot_span) => {
            parse_document_at_depth(MAX_ARGUMENTS_DEPTH, arguments).map_err(not_json)?;
            Ok(ByteReplacement { span: slot_span.span(), replacement: arguments.into() })
        }
        EditSlot::JsonInString(slot_span) => {
            parse_document_at_depth(0, arguments).map_err(not_json)?;
            Ok(ByteReplacement { span: slot_span.span(), replacement: encode(arguments).into() })
        }
        EditSlot::TextArguments(slot_span) => {
            Ok(ByteReplacement { span: slot_span.span(), replacement: encode(arguments).into() })
        }
        EditSlot::Fixed | EditSlot::Text(_) | EditSlot::Block(..) | EditSlot::ResultObject(_) => {
            Err(Error::bad_edit(format_args!("part {at} has no arguments that can be replaced")))
        }
    }
}

/// Checks that inserted JSON is an object and keeps the body within the depth limit.
fn checked_object(json: &str) -> Result<&str, Error> {
    const LIST_ELEMENT_DEPTH: u32 = 2;
    match parse_document_at_depth(LIST_ELEMENT_DEPTH, json) {
        Ok(value) if value.is_object() => Ok(json),
        Ok(_) => Err(Error::bad_edit("the inserted text is not a JSON object")),
        Err(error) => Err(Error::bad_edit(format_args!("the inserted text is {error}"))),
    }
}

/// Removes parts of a message; a list that becomes empty is removed with its field.
fn drop_parts<'e>(
    at: usize,
    layout: &BodyLayout,
    parts: &BTreeSet<usize>,
    changes: &mut Vec<ByteReplacement<'e>>,
) -> Result<(), Error> {
    let empty = || Error::bad_edit(format_args!("message {at} would be left empty: drop it instead"));
    if parts.len() == layout.part_count(at) {
        return Err(empty());
    }
    let mut dropped: BTreeMap<ListName, BTreeSet<usize>> = BTreeMap::new();
    for element in parts.iter().filter_map(|&part| layout.part(at, part)?.element) {
        dropped.entry(element.list).or_default().insert(element.index());
    }
    // Inner lists come after the lists that contain them.
    while let Some((name, indices)) = dropped.pop_last() {
        let Some(list) = layout.list(at, name) else { continue };
        let elements: Vec<ByteSpan> = list.elements().collect();
        if indices.len() < elements.len() {
            drop_elements(&elements, &indices, changes);
        } else {
            let parent = list.parent.ok_or_else(empty)?;
            dropped.entry(parent.list).or_default().insert(parent.index());
        }
    }
    Ok(())
}

/// Removes elements with their commas; returns which elements remain.
fn drop_elements(
    elements: &[ByteSpan],
    dropped: &BTreeSet<usize>,
    changes: &mut Vec<ByteReplacement<'_>>,
) -> Vec<usize> {
    let kept: Vec<usize> = (0..elements.len()).filter(|at| !dropped.contains(at)).collect();
    for &at in dropped {
        let span = match kept.first() {
            Some(&kept) if kept < at => ByteSpan { start: elements[at - 1].end, end: elements[at].end },
            _ if at + 1 < elements.len() => ByteSpan { start: elements[at].start, end: elements[at + 1].start },
            _ => elements[at],
        };
        changes.push(ByteReplacement { span, replacement: Cow::Borrowed("") });
    }
    kept
}

impl<'e> ListEdits<'e> {
    /// Wraps a plain string input in a list, with the message that it represents.
    fn apply_to_string_input(self, layout: &BodyLayout, changes: &mut Vec<ByteReplacement<'e>>) -> Result<(), Error> {
        let Some(input) = layout.message(0) else { return Ok(()) };
        if !self.dropped.is_empty() {
            return Err(Error::bad_edit("the input is a plain string, not a list of messages"));
        }
        let (mut before, mut after) = (String::from("["), String::from("}"));
        for (at, json) in &self.inserted {
            match at {
                0 => before += &format!("{json},"),
                _ => after += &format!(",{json}"),
            }
        }
        let empty_span = |at: usize| ByteSpan { start: at, end: at };
        changes.push(ByteReplacement {
            span: empty_span(input.start),
            replacement: (before + r#"{"role":"user","content":"#).into(),
        });
        changes.push(ByteReplacement { span: empty_span(input.end), replacement: (after + "]").into() });
        Ok(())
    }

    /// Writes the edits of a list. Insertions into an empty list go after its bracket.
    fn apply(mut self, inside: usize, elements: &[ByteSpan], changes: &mut Vec<ByteReplacement<'e>>) {
        let kept = drop_elements(elements, &self.dropped, changes);
        let empty_span = |at: usize| ByteSpan { start: at, end: at };
        self.inserted.sort_by_key(|(before, _)| *before);
        let Some(&last) = kept.last() else {
            if !self.inserted.is_empty() {
                let all: Vec<&str> = self.inserted.iter().map(|(_, json)| json.as_ref()).collect();
                changes.push(ByteReplacement { span: empty_span(inside), replacement: all.join(",").into() });
            }
            return;
        };
        for (before, json) in &self.inserted {
            changes.push(match kept.get(kept.partition_point(|kept| kept < before)) {
                Some(&next) => {
                    ByteReplacement { span: empty_span(elements[next].start), replacement: format!("{json},").into() }
                }
                None => {
                    ByteReplacement { span: empty_span(elements[last].end), replacement: format!(",{json}").into() }
                }
            });
        }
    }
}

fn apply_replacements(body: &str, mut changes: Vec<ByteReplacement<'_>>) -> Result<Vec<u8>, Error> {
    // Stable sort: of an insertion and a removal at one position, the insertion comes first because its span is empty.
    changes.sort_by_key(|change| (change.span.start, change.span.end));
    let added_bytes: usize = changes.iter().map(|change| change.replacement.len()).sum();
    let mut out = Vec::with_capacity(body.len() + added_bytes);
    let mut at = 0;
    for change in &changes {
        if change.span.start < at {
            return Err(Error::bad_edit(format_args!("two edits change the bytes at {}", change.span.start)));
        }
        out.extend_from_slice(&body.as_bytes()[at..change.span.start]);
        out.extend_from_slice(change.replacement.as_bytes());
        at = change.span.end;
    }
    out.extend_from_slice(&body.as_bytes()[at..]);
    Ok(out)
}
