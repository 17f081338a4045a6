//! Edits become sorted, disjoint byte ranges; everything between them is copied.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::Format;
use super::layout::{Layout, ListName, PartPlaces, Slot};
use super::scan::{Span, document_at};
use crate::conversation::{PartId, Role};
use crate::error::Error;
use crate::literal::encode;

/// One change to a request. Places are those of the request that was read, whatever the other
/// edits do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edit {
    /// A text, a whole result's content, or one piece of it becomes this text. An image or a file
    /// becomes a text block.
    Text {
        /// Which part.
        at: PartId,
        /// What stands there afterwards.
        text: String,
    },
    /// The arguments of a call become these: JSON, or free text where the tool takes free text.
    Arguments {
        /// Which call.
        at: PartId,
        /// What stands there afterwards.
        arguments: String,
    },
    /// The part goes. It can not be the last one of its message: drop the message instead.
    DropPart(PartId),
    /// The message goes.
    DropMessage(usize),
    /// A message of one text comes before this one (or at the end).
    InsertMessage {
        /// Index of the message that it comes before.
        before: usize,
        /// Who speaks.
        role: Role,
        /// What is said.
        text: String,
    },
    /// A message in the provider's own JSON comes before this one (or at the end).
    InsertJson {
        /// Index of the message that it comes before.
        before: usize,
        /// The message.
        json: String,
    },
    /// One more tool, behind all others.
    AppendTool {
        /// Its declaration.
        json: String,
    },
}

/// Bytes of the body and what comes in their place.
struct Change<'e> {
    span: Span,
    bytes: Cow<'e, str>,
}

/// What goes and what comes in one list; places are those of the list as it was read.
#[derive(Default)]
struct ListEdits<'e> {
    dropped: BTreeSet<usize>,
    /// Each before the element of this index; at one place in the order in which they were asked for.
    inserted: Vec<(usize, Cow<'e, str>)>,
}

pub(super) fn splice<'a, 'e>(
    body: &'a str,
    format: Format,
    layout: &Layout,
    edits: impl Iterator<Item = &'e Edit>,
) -> Result<Cow<'a, [u8]>, Error> {
    let mut changes = Vec::new();
    let mut parts: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut messages = ListEdits::default();
    let mut tools = ListEdits::default();

    for edit in edits {
        match edit {
            Edit::Text { at, text } => changes.push(text_change(format, layout, *at, text)?),
            Edit::Arguments { at, arguments } => changes.push(arguments_change(layout, *at, arguments)?),
            Edit::DropPart(at) => {
                if part(layout, *at)?.element.is_none() || at.inner.is_some() {
                    return Err(Error::bad_edit(format_args!("part {at} can only go with its message")));
                }
                parts.entry(at.message).or_default().insert(at.part);
            }
            Edit::DropMessage(at) => {
                message(layout, *at)?;
                messages.dropped.insert(*at);
            }
            Edit::InsertMessage { before, role, text } => {
                messages.inserted.push((*before, Cow::Owned(text_message(format, *role, text)?)));
            }
            Edit::InsertJson { before, json } => messages.inserted.push((*before, Cow::Borrowed(an_object(json)?))),
            Edit::AppendTool { json } => tools.inserted.push((usize::MAX, Cow::Borrowed(an_object(json)?))),
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
        match layout.inside {
            Some(inside) => {
                let elements: Vec<Span> = layout.messages().collect();
                messages.apply(inside, &elements, &mut changes);
            }
            None => messages.apply_to_lone(layout, &mut changes)?,
        }
    }
    if !tools.inserted.is_empty() {
        let list = layout.tools.as_ref();
        let list = list.ok_or_else(|| Error::bad_edit("the request has no list of tools to append to"))?;
        tools.apply(list.inside, &list.elements, &mut changes);
    }
    if changes.is_empty() { Ok(Cow::Borrowed(body.as_bytes())) } else { write(body, changes).map(Cow::Owned) }
}

fn message(layout: &Layout, at: usize) -> Result<Span, Error> {
    layout.message(at).ok_or_else(|| Error::bad_edit(format_args!("there is no message {at}")))
}

fn part(layout: &Layout, at: PartId) -> Result<PartPlaces<'_>, Error> {
    message(layout, at.message)?;
    layout.part(at.message, at.part).ok_or_else(|| no_part(at))
}

fn no_part(at: PartId) -> Error {
    Error::bad_edit(format_args!("there is no part {at}"))
}

/// How a part, or a piece of one, is replaced.
fn slot(layout: &Layout, at: PartId) -> Result<Slot, Error> {
    let part = part(layout, at)?;
    match at.inner {
        None => Ok(part.slot),
        Some(inner) => part.inner.get(inner).copied().ok_or_else(|| no_part(at)),
    }
}

fn text_change<'e>(format: Format, layout: &Layout, at: PartId, text: &'e str) -> Result<Change<'e>, Error> {
    // A result of one text: the text is replaced where it stands, so that its block keeps the rest
    // of its fields.
    let slot = match (at.inner, part(layout, at)?.inner) {
        (None, [only @ Slot::Text(_)]) => *only,
        _ => slot(layout, at)?,
    };
    match slot {
        Slot::Text(place) => Ok(Change { span: place.span(), bytes: encode(text).into() }),
        Slot::Block(place) => {
            let kind = if format == Format::OpenAiResponses { "input_text" } else { "text" };
            let bytes = format!(r#"{{"type":"{kind}","text":{}}}"#, encode(text));
            Ok(Change { span: place.span(), bytes: bytes.into() })
        }
        Slot::Fixed | Slot::Json(_) | Slot::JsonInText(_) | Slot::FreeArguments(_) => {
            Err(Error::bad_edit(format_args!("part {at} has no text that can be replaced")))
        }
    }
}

fn arguments_change<'e>(layout: &Layout, at: PartId, arguments: &'e str) -> Result<Change<'e>, Error> {
    // Arguments that stand in the body as they are must leave it readable: they begin at most so deep.
    const CALL: u32 = 6;
    let not_json = |error| Error::bad_edit(format_args!("the new arguments of part {at} are {error}"));
    match slot(layout, at)? {
        Slot::Json(place) => {
            document_at(CALL, arguments).map_err(not_json)?;
            Ok(Change { span: place.span(), bytes: arguments.into() })
        }
        Slot::JsonInText(place) => {
            document_at(0, arguments).map_err(not_json)?;
            Ok(Change { span: place.span(), bytes: encode(arguments).into() })
        }
        Slot::FreeArguments(place) => Ok(Change { span: place.span(), bytes: encode(arguments).into() }),
        Slot::Fixed | Slot::Text(_) | Slot::Block(..) => {
            Err(Error::bad_edit(format_args!("part {at} has no arguments that can be replaced")))
        }
    }
}

fn text_message(format: Format, role: Role, text: &str) -> Result<String, Error> {
    let name = match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System if format != Format::Anthropic => "system",
        Role::Developer if format != Format::Anthropic => "developer",
        _ => return Err(Error::bad_edit(format_args!("no lone text can be said by the role {role:?}"))),
    };
    Ok(format!(r#"{{"role":"{name}","content":{}}}"#, encode(text)))
}

/// JSON of ours that becomes an element of a list must be an object, and must leave the body readable.
fn an_object(json: &str) -> Result<&str, Error> {
    const LIST: u32 = 2;
    match document_at(LIST, json) {
        Ok(value) if value.is_object() => Ok(json),
        Ok(_) => Err(Error::bad_edit("what is inserted is not a JSON object")),
        Err(error) => Err(Error::bad_edit(format_args!("what is inserted is {error}"))),
    }
}

/// Removes parts of a message; a list that is emptied goes with the field that holds it.
fn drop_parts<'e>(
    at: usize,
    layout: &Layout,
    parts: &BTreeSet<usize>,
    changes: &mut Vec<Change<'e>>,
) -> Result<(), Error> {
    let empty = || Error::bad_edit(format_args!("message {at} would be left empty: drop it instead"));
    if parts.len() == layout.parts(at) {
        return Err(empty());
    }
    let mut dropped: BTreeMap<ListName, BTreeSet<usize>> = BTreeMap::new();
    for element in parts.iter().filter_map(|&part| layout.part(at, part)?.element) {
        dropped.entry(element.list).or_default().insert(element.index());
    }
    // Inner lists stand behind the lists that hold them.
    while let Some((name, indices)) = dropped.pop_last() {
        let Some(list) = layout.list(at, name) else { continue };
        let elements: Vec<Span> = list.elements().collect();
        if indices.len() < elements.len() {
            drop_elements(&elements, &indices, changes);
        } else {
            let parent = list.parent.ok_or_else(empty)?;
            dropped.entry(parent.list).or_default().insert(parent.index());
        }
    }
    Ok(())
}

/// Commas go and come on the side of an element that stays; tells which do.
fn drop_elements(elements: &[Span], dropped: &BTreeSet<usize>, changes: &mut Vec<Change<'_>>) -> Vec<usize> {
    let kept: Vec<usize> = (0..elements.len()).filter(|at| !dropped.contains(at)).collect();
    for &at in dropped {
        let span = match kept.first() {
            Some(&kept) if kept < at => Span { start: elements[at - 1].end, end: elements[at].end },
            _ if at + 1 < elements.len() => Span { start: elements[at].start, end: elements[at + 1].start },
            _ => elements[at],
        };
        changes.push(Change { span, bytes: Cow::Borrowed("") });
    }
    kept
}

impl<'e> ListEdits<'e> {
    /// Where the input is a lone string, a list comes around it with the message that it stands for.
    fn apply_to_lone(self, layout: &Layout, changes: &mut Vec<Change<'e>>) -> Result<(), Error> {
        let Some(lone) = layout.message(0) else { return Ok(()) };
        if !self.dropped.is_empty() {
            return Err(Error::bad_edit("the input is a lone string, not a list of messages"));
        }
        let (mut before, mut behind) = (String::from("["), String::from("}"));
        for (at, json) in &self.inserted {
            match at {
                0 => before += &format!("{json},"),
                _ => behind += &format!(",{json}"),
            }
        }
        let at = |at: usize| Span { start: at, end: at };
        changes.push(Change { span: at(lone.start), bytes: (before + r#"{"role":"user","content":"#).into() });
        changes.push(Change { span: at(lone.end), bytes: (behind + "]").into() });
        Ok(())
    }

    /// Into a list without elements goes what comes behind its bracket.
    fn apply(mut self, inside: usize, elements: &[Span], changes: &mut Vec<Change<'e>>) {
        let kept = drop_elements(elements, &self.dropped, changes);
        let at = |at: usize| Span { start: at, end: at };
        self.inserted.sort_by_key(|(before, _)| *before);
        let Some(&last) = kept.last() else {
            if !self.inserted.is_empty() {
                let all: Vec<&str> = self.inserted.iter().map(|(_, json)| json.as_ref()).collect();
                changes.push(Change { span: at(inside), bytes: all.join(",").into() });
            }
            return;
        };
        for (before, json) in &self.inserted {
            changes.push(match kept.get(kept.partition_point(|kept| kept < before)) {
                Some(&next) => Change { span: at(elements[next].start), bytes: format!("{json},").into() },
                None => Change { span: at(elements[last].end), bytes: format!(",{json}").into() },
            });
        }
    }
}

fn write(body: &str, mut changes: Vec<Change<'_>>) -> Result<Vec<u8>, Error> {
    // Stable: of an insertion and a removal at one place the insertion, which is empty, comes first
    // because it ends first.
    changes.sort_by_key(|change| (change.span.start, change.span.end));
    let grown: usize = changes.iter().map(|change| change.bytes.len()).sum();
    let mut out = Vec::with_capacity(body.len() + grown);
    let mut at = 0;
    for change in &changes {
        if change.span.start < at {
            return Err(Error::bad_edit(format_args!("two edits change the bytes at {}", change.span.start)));
        }
        out.extend_from_slice(&body.as_bytes()[at..change.span.start]);
        out.extend_from_slice(change.bytes.as_bytes());
        at = change.span.end;
    }
    out.extend_from_slice(&body.as_bytes()[at..]);
    Ok(out)
}
