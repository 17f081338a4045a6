//! Edits become sorted, disjoint byte ranges; everything between them is copied.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::Format;
use super::layout::{Element, Layout, List, MessageLayout, PartLayout, Slot};
use super::scan::{Span, encode};
use crate::conversation::{PartId, Role};
use crate::error::Error;

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

pub(super) fn splice(body: &str, format: Format, layout: &Layout, edits: &[Edit]) -> Result<Vec<u8>, Error> {
    let mut changes = Vec::new();
    let mut dropped_messages = BTreeSet::new();
    let mut dropped_parts: BTreeSet<(usize, Element)> = BTreeSet::new();
    let mut inserted: Vec<(usize, Cow<'_, str>)> = Vec::new();

    for edit in edits {
        match edit {
            Edit::Text { at, text } => changes.push(text_change(layout, *at, text)?),
            Edit::Arguments { at, arguments } => changes.push(arguments_change(layout, *at, arguments)?),
            Edit::DropPart(at) => {
                let part = part(layout, *at)?;
                let Some(element) = part.element.filter(|_| at.inner.is_none()) else {
                    return Err(Error::bad_edit(format_args!("part {at} can only go with its message")));
                };
                dropped_parts.insert((at.message, element));
            }
            Edit::DropMessage(at) => {
                message(layout, *at)?;
                dropped_messages.insert(*at);
            }
            Edit::InsertMessage { before, role, text } => {
                inserted.push((*before, Cow::Owned(text_message(format, *role, text)?)));
            }
            Edit::InsertJson { before, json } => inserted.push((*before, Cow::Borrowed(json))),
            Edit::AppendTool { json } => {
                let tools = layout.tools.as_ref();
                let tools = tools.ok_or_else(|| Error::bad_edit("the request has no list of tools to append to"))?;
                changes.push(insertion(tools, &BTreeSet::new(), tools.elements.len(), json));
            }
        }
    }

    for at in dropped_parts.iter().map(|(message, _)| *message).collect::<BTreeSet<_>>() {
        if !dropped_messages.contains(&at) {
            let dropped = dropped_parts.iter().filter(|(message, _)| *message == at).map(|(_, element)| *element);
            drop_elements(at, message(layout, at)?, dropped.collect(), &mut changes)?;
        }
    }
    if !dropped_messages.is_empty() || !inserted.is_empty() {
        let list = layout.list.as_ref();
        let list = list.ok_or_else(|| Error::bad_edit("the input is a lone string, not a list of messages"))?;
        // Stable: what is inserted at one place keeps the order in which it was asked for.
        inserted.sort_by_key(|(before, _)| *before);
        for (before, json) in &inserted {
            changes.push(insertion(list, &dropped_messages, *before, json));
        }
        removals(list, &dropped_messages, &mut changes);
    }
    write(body, changes)
}

fn message(layout: &Layout, at: usize) -> Result<&MessageLayout, Error> {
    layout.messages.get(at).ok_or_else(|| Error::bad_edit(format_args!("there is no message {at}")))
}

fn part(layout: &Layout, at: PartId) -> Result<&PartLayout, Error> {
    let none = || Error::bad_edit(format_args!("there is no part {at}"));
    let part = message(layout, at.message)?.parts.get(at.part).ok_or_else(none)?;
    match at.inner {
        None => Ok(part),
        Some(inner) => part.inner.get(inner).ok_or_else(none),
    }
}

fn text_change<'e>(layout: &Layout, at: PartId, text: &'e str) -> Result<Change<'e>, Error> {
    let mut part = part(layout, at)?;
    // A result of one text: the text is replaced where it stands, so that its block keeps the rest
    // of its fields.
    if let [PartLayout { slot: Slot::Text(_), .. }] = part.inner.as_slice() {
        part = &part.inner[0];
    }
    match part.slot {
        Slot::Text(span) => Ok(Change { span, bytes: encode(text).into() }),
        Slot::Block(span, kind) => {
            Ok(Change { span, bytes: format!(r#"{{"type":"{kind}","text":{}}}"#, encode(text)).into() })
        }
        Slot::Fixed | Slot::Json(_) | Slot::JsonInText(_) => {
            Err(Error::bad_edit(format_args!("part {at} has no text that can be replaced")))
        }
    }
}

fn arguments_change<'e>(layout: &Layout, at: PartId, arguments: &'e str) -> Result<Change<'e>, Error> {
    let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
    match part(layout, at)?.slot {
        Slot::Json(_) | Slot::JsonInText(_) if !is_json() => {
            Err(Error::bad_edit(format_args!("the new arguments of part {at} are not JSON")))
        }
        Slot::Json(span) => Ok(Change { span, bytes: arguments.into() }),
        Slot::JsonInText(span) | Slot::Text(span) => Ok(Change { span, bytes: encode(arguments).into() }),
        Slot::Fixed | Slot::Block(..) => {
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

/// Removes elements of a message's lists; a list that is emptied goes with the field that holds it.
fn drop_elements(
    at: usize,
    message: &MessageLayout,
    mut dropped: BTreeSet<Element>,
    changes: &mut Vec<Change<'_>>,
) -> Result<(), Error> {
    // Inner lists stand behind the lists that hold them.
    for (list, places) in message.lists.iter().enumerate().rev() {
        let indices: BTreeSet<usize> =
            dropped.iter().filter(|element| element.list == list).map(|element| element.index).collect();
        if indices.is_empty() {
            continue;
        }
        if indices.len() < places.elements.len() {
            removals(places, &indices, changes);
        } else if let Some(parent) = places.parent {
            dropped.insert(parent);
        } else {
            return Err(Error::bad_edit(format_args!("message {at} would be left empty: drop it instead")));
        }
    }
    Ok(())
}

/// The bytes that go with dropped elements: each with the comma on the side of a kept one.
fn removals(list: &List, dropped: &BTreeSet<usize>, changes: &mut Vec<Change<'_>>) {
    let elements = &list.elements;
    let first_kept = (0..elements.len()).find(|at| !dropped.contains(at));
    for &at in dropped {
        let span = match first_kept {
            Some(kept) if kept < at => Span { start: elements[at - 1].end, end: elements[at].end },
            _ if at + 1 < elements.len() => Span { start: elements[at].start, end: elements[at + 1].start },
            _ => elements[at],
        };
        changes.push(Change { span, bytes: Cow::Borrowed("") });
    }
}

/// An element before another one, with the comma on the side of a kept one.
fn insertion<'e>(list: &List, dropped: &BTreeSet<usize>, before: usize, json: &str) -> Change<'e> {
    let kept = |at: &usize| !dropped.contains(at);
    let at = |at: usize| Span { start: at, end: at };
    let elements = &list.elements;
    if let Some(next) = (before..elements.len()).find(kept) {
        Change { span: at(elements[next].start), bytes: format!("{json},").into() }
    } else if let Some(previous) = (0..before.min(elements.len())).rev().find(kept) {
        Change { span: at(elements[previous].end), bytes: format!(",{json}").into() }
    } else {
        Change { span: at(list.inside), bytes: Cow::Owned(json.to_owned()) }
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
