//! The set of folds and its rendering.
//!
//! Folds and messages together give the rendering, both as messages and as edits of a request body.
//! No fold may be decided here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::conversation::{Message, Part, PartId, Role, ToolCall};
use crate::engine::argument_values::{MIN_ARGUMENT_BYTES, for_each_value};
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::message_ranges::MessageRanges;
use crate::engine::original;
use crate::engine::original::RoundsHash;
use crate::engine::stage::Stage;
use crate::tokens::{Meter, Tokens};
use crate::wire::RequestEdit;

/// The edit of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartEdit {
    /// Replaces the part with this text.
    Text(String),
    /// Replaces the arguments of a call.
    Arguments(String),
    /// Removes the part.
    Drop,
}

/// The fold of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppliedFold {
    pub(crate) edit: PartEdit,
    /// Tokens of the replacement.
    pub(crate) tokens: Tokens,
    pub(crate) stage: Stage,
    pub(crate) pass_name: &'static str,
}

impl AppliedFold {
    fn to_wire_edit(&self, at: PartId) -> RequestEdit {
        match &self.edit {
            PartEdit::Text(text) => RequestEdit::Text { at, text: text.clone() },
            PartEdit::Arguments(arguments) => RequestEdit::Arguments { at, arguments: arguments.clone() },
            PartEdit::Drop => RequestEdit::DropPart(at),
        }
    }
}

/// A message that replaces whole rounds.
#[derive(Clone, Debug)]
pub(crate) struct RoundNote {
    pub(crate) text: String,
    /// Messages of the replaced rounds, which are adjacent.
    pub(crate) messages: Range<usize>,
    /// Number of replaced rounds.
    pub(crate) round_count: usize,
    /// Hash of their original, if markers carry handles.
    pub(crate) hash: Option<RoundsHash>,
    /// Calls of each tool in these rounds.
    pub(crate) tool_counts: BTreeMap<String, usize>,
    /// Handles of the results of its newest rounds that were folded before.
    pub(crate) result_handles: BTreeMap<PartId, Handle>,
    pub(crate) stage: Stage,
    /// Text of a user message between the note and an assistant message, if roles must alternate and the note
    /// has the assistant's role.
    pub(crate) continuation: Option<String>,
    /// Message before which the rounds covered by the included summary end.
    pub(crate) summarized_until: Option<usize>,
}

impl RoundNote {
    /// Returns its tokens, with those of the text after it if roles must alternate.
    pub(crate) fn tokens(&self, meter: &Meter, alternate: bool) -> Tokens {
        note_tokens(meter, alternate, &self.text, self.continuation.as_deref())
    }

    /// Returns the pass name under which the note is counted.
    pub(crate) fn pass_name(&self) -> &'static str {
        if self.summarized_until.is_some() { "summary" } else { "rounds" }
    }
}

/// Returns the tokens of a note, with those of the text after it if roles must alternate.
pub(crate) fn note_tokens(meter: &Meter, alternate: bool, text: &str, continuation: Option<&str>) -> Tokens {
    let note = |role, text: &str| meter.message(&Message::text(role, text.to_owned()));
    let continuation = continuation.unwrap_or(CONTINUATION_TEXT);
    note(Role::User, text) + if alternate { note(Role::User, continuation) } else { 0 }
}

/// Parts that have to stay in the rendering, because a store refuses their originals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusedParts {
    parts: BTreeSet<PartId>,
    /// Messages of refused rounds.
    messages: BTreeSet<usize>,
}

impl RefusedParts {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.messages.is_empty()
    }

    pub(crate) fn add(&mut self, original: &RemovedOriginal<'_>) {
        match &original.rounds {
            None => drop(self.parts.insert(original.at)),
            Some(messages) => self.messages.extend(messages.clone()),
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.messages.extend(other.messages);
    }

    /// Returns true if this part has to stay.
    pub(crate) fn contains(&self, at: PartId) -> bool {
        self.parts.contains(&at) || self.messages.contains(&at.message)
    }
}

/// An original that the rendering no longer contains.
pub(crate) struct RemovedOriginal<'m> {
    /// Position of the part, or of the note that replaces the rounds.
    pub(crate) at: PartId,
    /// Messages of the original if it is whole rounds.
    pub(crate) rounds: Option<Range<usize>>,
    pub(crate) bytes: Cow<'m, [u8]>,
}

/// All folds of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoldSet {
    /// Folds of parts. `Arc` because most plans of a crease are discarded.
    parts: BTreeMap<PartId, Arc<AppliedFold>>,
    dropped: MessageRanges,
    /// Notes by the message after each. `Arc` for the same reason.
    notes: BTreeMap<usize, Arc<RoundNote>>,
}

/// One message of a rendering: a message of the conversation, or a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenderedItem<'f> {
    Message(usize),
    Note(Role, &'f str),
}

/// Returns the positions of the parts of a message.
fn parts_of(message: usize) -> Range<PartId> {
    PartId::new(message, 0)..PartId::new(message + 1, 0)
}

/// Text of the user message between a note and an assistant message, if roles must alternate.
pub(crate) const CONTINUATION_TEXT: &str = "[folded: the conversation goes on]";

impl FoldSet {
    /// Returns the stage at which a part was folded; [`Stage::Truncation`] for parts that are not visible.
    pub(crate) fn stage(&self, at: PartId) -> Option<Stage> {
        if self.is_visible(at) { self.parts.get(&at).map(|fold| fold.stage) } else { Some(Stage::Truncation) }
    }

    /// Returns the tokens of the replacement of a part, if it is folded; 0 for parts that are not visible.
    pub(crate) fn part_tokens(&self, at: PartId) -> Option<Tokens> {
        if self.is_visible(at) { self.parts.get(&at).map(|fold| fold.tokens) } else { Some(0) }
    }

    pub(crate) fn set_part(&mut self, at: PartId, fold: AppliedFold) {
        self.parts.insert(at, Arc::new(fold));
    }

    /// Renders a part as another set does.
    pub(crate) fn copy_part(&mut self, from: &Self, at: PartId) {
        match from.parts.get(&at) {
            Some(fold) => drop(self.parts.insert(at, fold.clone())),
            None => drop(self.parts.remove(&at)),
        }
    }

    pub(crate) fn is_dropped(&self, message: usize) -> bool {
        self.dropped.contains(message)
    }

    /// Returns the dropped messages.
    pub(crate) fn dropped_messages(&self) -> &MessageRanges {
        &self.dropped
    }

    pub(crate) fn drop_message(&mut self, message: usize) {
        self.dropped.insert(message);
        // Folds inside a dropped message have no effect.
        self.remove_parts(message);
    }

    fn remove_parts(&mut self, message: usize) {
        let parts: Vec<PartId> = self.parts_of_message(message).collect();
        parts.iter().for_each(|at| {
            self.parts.remove(at);
        });
    }

    /// Returns the handles of the folded results of a message.
    pub(crate) fn result_handles(&self, at: usize, message: &Message<'_>) -> Vec<(PartId, Handle)> {
        let results = self.parts.range(parts_of(at)).filter(|(at, _)| at.inner.is_some());
        let with_handle = results.filter_map(|(&at, fold)| {
            let PartEdit::Text(text) = &fold.edit else { return None };
            let mut handles = marker::handles(text).peekable();
            handles.peek()?;
            // Foreign text can look like a marker, so the handle is computed.
            let handle = Handle::for_content(&original::bytes_of(message, at)?);
            handles.any(|other| other == handle).then_some((at, handle))
        });
        with_handle.collect()
    }

    /// Inserts a note before a message, and removes the notes in `replaced`.
    pub(crate) fn set_note(&mut self, before: usize, note: RoundNote, replaced: Range<usize>) {
        let old: Vec<usize> = self.notes.range(replaced).map(|(&at, _)| at).collect();
        old.iter().for_each(|at| {
            self.notes.remove(at);
        });
        self.notes.insert(before, Arc::new(note));
    }

    /// Returns the note before a message.
    pub(crate) fn note(&self, before: usize) -> Option<&RoundNote> {
        self.notes.get(&before).map(Arc::as_ref)
    }

    /// Returns the notes before some messages.
    pub(crate) fn notes_in(&self, messages: Range<usize>) -> impl Iterator<Item = (usize, &RoundNote)> {
        self.notes.range(messages).map(|(&at, note)| (at, &**note))
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = (usize, &RoundNote)> {
        self.notes.iter().map(|(&at, note)| (at, &**note))
    }

    /// Returns all folds of parts by position, including those that are not visible.
    pub(crate) fn all_parts(&self) -> impl Iterator<Item = (PartId, &AppliedFold)> {
        self.parts.iter().map(|(&at, fold)| (at, &**fold))
    }

    /// Returns the folds visible in the rendering: without those in dropped messages or inside folded parts.
    pub(crate) fn visible_parts(&self) -> impl Iterator<Item = (PartId, &AppliedFold)> {
        self.all_parts().filter(|(at, _)| self.is_visible(*at))
    }

    fn is_visible(&self, at: PartId) -> bool {
        let outer = PartId { inner: None, ..at };
        !self.is_dropped(at.message) && (at.inner.is_none() || !self.parts.contains_key(&outer))
    }

    fn edit(&self, at: PartId) -> Option<&PartEdit> {
        self.parts.get(&at).map(|fold| &fold.edit)
    }

    /// Returns the rendered items from message `from` on, in order.
    pub(crate) fn render_order<'f>(
        &'f self,
        messages: &[Message<'_>],
        from: usize,
        alternate: bool,
    ) -> Vec<RenderedItem<'f>> {
        let mut sequence = Vec::with_capacity(messages.len() - from);
        for (at, message) in messages.iter().enumerate().skip(from) {
            if let Some(note) = self.notes.get(&at) {
                if alternate {
                    sequence.push(RenderedItem::Note(Role::Assistant, &note.text));
                    let next = messages.get(self.dropped.first_outside(at));
                    if next.is_some_and(Message::is_assistant) {
                        sequence.push(RenderedItem::Note(
                            Role::User,
                            note.continuation.as_deref().unwrap_or(CONTINUATION_TEXT),
                        ));
                    }
                } else {
                    sequence.push(RenderedItem::Note(Role::User, &note.text));
                }
            }
            if !self.is_dropped(at) && !self.is_emptied(at, message) {
                sequence.push(RenderedItem::Message(at));
            }
        }
        sequence
    }

    /// Returns true if all parts of a message are dropped, so that the message is dropped too.
    fn is_emptied(&self, at: usize, message: &Message<'_>) -> bool {
        let dropped = |part: usize| self.edit(PartId::new(at, part)) == Some(&PartEdit::Drop);
        !message.parts.is_empty() && (0..message.parts.len()).all(dropped)
    }

    /// Returns the rendering of a message.
    pub(crate) fn render_message<'m>(&self, at: usize, message: &Message<'m>) -> Message<'m> {
        if self.parts_of_message(at).next().is_none() {
            return message.clone();
        }
        let mut parts = Vec::with_capacity(message.parts.len());
        for (index, part) in message.parts.iter().enumerate() {
            let id = PartId::new(at, index);
            let mut part = part.clone();
            match (&mut part, self.edit(id)) {
                (_, Some(PartEdit::Drop)) => continue,
                (Part::ToolCall(call), Some(PartEdit::Arguments(arguments))) => call.arguments.set(arguments.clone()),
                (part, Some(PartEdit::Text(text))) => *part = Part::text(text.clone()),
                (Part::ToolResult(result), None) => {
                    for (inner, content) in result.content.iter_mut().enumerate() {
                        if let Some(PartEdit::Text(text)) = self.edit(id.inner(inner)) {
                            *content = Part::text(text.clone());
                        }
                    }
                }
                _ => {}
            }
            parts.push(part);
        }
        Message::new(message.role, parts)
    }

    /// Returns the rendering as edits of the request from which the messages were parsed.
    pub(crate) fn request_edits(&self, messages: &[Message<'_>], alternate: bool) -> Vec<RequestEdit> {
        let mut edits = Vec::new();
        let mut before = 0;
        for rendered in self.render_order(messages, 0, alternate) {
            match rendered {
                RenderedItem::Message(at) => {
                    edits.extend((before..at).map(RequestEdit::DropMessage));
                    before = at + 1;
                }
                RenderedItem::Note(role, text) => {
                    edits.push(RequestEdit::InsertMessage { before, role, text: text.to_owned() })
                }
            }
        }
        edits.extend((before..messages.len()).map(RequestEdit::DropMessage));
        // Folds are sorted by message, so each message is checked once.
        let mut checked = None;
        for (at, fold) in self.visible_parts() {
            let is_emptied = match checked {
                Some((message, is_emptied)) if message == at.message => is_emptied,
                _ => self.is_emptied(at.message, &messages[at.message]),
            };
            checked = Some((at.message, is_emptied));
            if !is_emptied {
                edits.push(fold.to_wire_edit(at));
            }
        }
        edits
    }

    /// Returns the edits of one message.
    pub(crate) fn message_edits(&self, at: usize) -> Vec<RequestEdit> {
        let folds = self.parts.range(parts_of(at));
        folds.filter(|(at, _)| self.is_visible(**at)).map(|(&at, fold)| fold.to_wire_edit(at)).collect()
    }

    /// Returns the number of folded parts.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.dropped.is_empty() && self.notes.is_empty()
    }

    /// Returns the originals of all folds, which their handles restore.
    pub(crate) fn removed_originals<'m>(&self, messages: &'m [Message<'_>]) -> Vec<RemovedOriginal<'m>> {
        let mut originals = Vec::new();
        let noted = self.notes.values().flat_map(|note| note.result_handles.keys().copied());
        let parts = self.visible_parts().map(|(at, _)| at).chain(noted);
        for at in parts {
            let original = original::bytes_of(&messages[at.message], at);
            originals.extend(original.map(|bytes| RemovedOriginal { at, rounds: None, bytes }));
        }
        for (at, note) in self.notes() {
            let bytes = Cow::Owned(original::rounds_bytes(&messages[note.messages.clone()]));
            originals.push(RemovedOriginal { at: PartId::new(at, 0), rounds: Some(note.messages.clone()), bytes });
        }
        originals
    }

    /// Returns true if any part of a message is folded.
    pub(crate) fn touches(&self, message: usize) -> bool {
        self.is_dropped(message) || self.parts_of_message(message).next().is_some()
    }

    /// Returns the folded parts of a message.
    pub(crate) fn parts_of_message(&self, at: usize) -> impl Iterator<Item = PartId> {
        self.parts.range(parts_of(at)).map(|(&at, _)| at)
    }

    /// Returns the folds of the parts of a message.
    pub(crate) fn folds_of_message(&self, at: usize) -> impl Iterator<Item = (PartId, &AppliedFold)> {
        self.parts.range(parts_of(at)).map(|(&at, fold)| (at, &**fold))
    }

    /// Renders a message, and the note before it, as another set does.
    pub(crate) fn copy_message(&mut self, from: &Self, at: usize) {
        self.remove_parts(at);
        self.parts.extend(from.parts.range(parts_of(at)).map(|(&at, fold)| (at, fold.clone())));
        if from.is_dropped(at) {
            self.dropped.insert(at)
        } else {
            self.dropped.remove(at)
        }
        match from.notes.get(&at) {
            Some(note) => drop(self.notes.insert(at, note.clone())),
            None => drop(self.notes.remove(&at)),
        }
    }

    /// Returns true if both sets render a message, and the note before it, in the same way.
    pub(crate) fn is_same_message(&self, other: &Self, at: usize) -> bool {
        let [my_note, other_note] = [self, other].map(|folds| {
            let note = folds.notes.get(&at);
            note.map(|note| (&note.text, &note.continuation, &note.messages))
        });
        let my_edits = self.folds_of_message(at).map(|(at, fold)| (at, &fold.edit));
        let other_edits = other.folds_of_message(at).map(|(at, fold)| (at, &fold.edit));
        my_note == other_note && self.is_dropped(at) == other.is_dropped(at) && my_edits.eq(other_edits)
    }

    /// Returns the note that covers a message.
    pub(crate) fn note_over(&self, message: usize) -> Option<&RoundNote> {
        let (_, note) = self.notes.range(..=message).next_back()?;
        note.messages.contains(&message).then_some(note)
    }

    /// Returns the tokens of the rendering of a message; those of a note are counted with the message after it.
    pub(crate) fn message_tokens(&self, at: usize, message: &Message<'_>, meter: &Meter, alternate: bool) -> Tokens {
        let note = self.notes.get(&at).map_or(0, |note| note.tokens(meter, alternate));
        let is_left_out = self.is_dropped(at) || self.is_emptied(at, message);
        note + if is_left_out { 0 } else { meter.message(&self.render_message(at, message)) }
    }

    /// Returns true if both sets render a part in the same way.
    pub(crate) fn is_same_part(&self, other: &Self, at: PartId) -> bool {
        let same = |at: PartId| match (self.parts.get(&at), other.parts.get(&at)) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        self.is_dropped(at.message) == other.is_dropped(at.message) && same(at) && same(PartId { inner: None, ..at })
    }

    /// Returns the rendered arguments of a call.
    fn rendered_arguments<'f>(&'f self, at: PartId, call: &'f ToolCall<'_>) -> &'f str {
        match self.edit(at) {
            Some(PartEdit::Arguments(arguments)) => arguments,
            _ => call.arguments.as_str(),
        }
    }

    /// Calls `each` with the rendered text of a result or call that a cut would remove: its text, or its long values.
    pub(crate) fn for_each_cuttable_text(
        &self,
        at: PartId,
        part: &Part<'_>,
        mut each: impl FnMut(Option<PartId>, &str),
    ) {
        match (part, self.edit(at)) {
            (Part::ToolCall(call), _) => {
                for_each_value(self.rendered_arguments(at, call), &call.arguments, |text| {
                    if text.len() >= MIN_ARGUMENT_BYTES {
                        each(None, text);
                    }
                });
            }
            (_, Some(PartEdit::Text(folded))) => each(None, folded),
            (Part::ToolResult(result), None) => {
                let text = at.inner.and_then(|inner| result.content.get(inner)).and_then(Part::as_text);
                text.into_iter().for_each(|text| each(Some(at), text));
            }
            _ => {}
        }
    }

    /// Calls `each` with every rendered text of a message, except those of the parts that `left_out` selects. The
    /// position is given for unchanged results only. The short values of a call that is left out are included, because
    /// folding keeps them.
    pub(crate) fn for_each_rendered_text(
        &self,
        at: usize,
        message: &Message<'_>,
        left_out: impl Fn(PartId) -> bool,
        mut each: impl FnMut(Option<PartId>, &str),
    ) {
        if self.is_dropped(at) {
            return;
        }
        let visit = |at: PartId, text: &str, each: &mut dyn FnMut(Option<PartId>, &str)| match self.edit(at) {
            _ if left_out(at) || !self.is_visible(at) => {}
            None => each(at.inner.map(|_| at), text),
            Some(PartEdit::Text(folded)) => each(None, folded),
            Some(PartEdit::Arguments(_) | PartEdit::Drop) => {}
        };
        for (part, content) in message.parts.iter().enumerate() {
            let at = PartId::new(at, part);
            match content {
                Part::ToolResult(result) => {
                    for (inner, part) in result.content.iter().enumerate() {
                        part.as_text().into_iter().for_each(|text| visit(at.inner(inner), text, &mut each));
                    }
                }
                Part::Text { text } => visit(at, text, &mut each),
                Part::Reasoning(reasoning) => visit(at, &reasoning.text, &mut each),
                Part::ToolCall(call) => {
                    let cut = left_out(at);
                    for_each_value(self.rendered_arguments(at, call), &call.arguments, |text| {
                        if !cut || text.len() < MIN_ARGUMENT_BYTES {
                            each(None, text);
                        }
                    });
                }
                _ => {}
            }
        }
    }
}
