//! What is folded, and the rendering that follows from it.
//!
//! A set of folds and the messages give the rendering, both as messages and as edits of a request
//! body. Nothing here decides.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::conversation::{Message, Part, PartId, Role, ToolCall};
use crate::lexicon::each_value;
use crate::measure::Tokens;
use crate::pass::{arguments, rounds};
use crate::plan::Rung;
use crate::wire::Edit;

/// What becomes of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It becomes this text.
    Text(String),
    /// Its arguments become these.
    Arguments(String),
    /// It goes.
    Drop,
}

/// One part, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) change: Change,
    /// Tokens that stand there now.
    pub(crate) tokens: Tokens,
    pub(crate) rung: Rung,
    pub(crate) pass: &'static str,
}

impl Fold {
    fn edit(&self, at: PartId) -> Edit {
        match &self.change {
            Change::Text(text) => Edit::Text { at, text: text.clone() },
            Change::Arguments(arguments) => Edit::Arguments { at, arguments: arguments.clone() },
            Change::Drop => Edit::DropPart(at),
        }
    }
}

/// What a handle of a part gives back: its text, or the part as JSON where it has none.
pub(crate) fn original<'m>(part: &'m Part<'_>) -> Cow<'m, [u8]> {
    match part {
        Part::Text { text } => Cow::Borrowed(text.as_bytes()),
        Part::Reasoning(it) if it.seal.is_none() => Cow::Borrowed(it.text.as_bytes()),
        Part::ToolCall(it) => Cow::Borrowed(it.arguments.as_str().as_bytes()),
        part => Cow::Owned(serde_json::to_vec(part).expect("a part has a JSON form")),
    }
}

/// A message of ours in the place of whole rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) text: String,
    /// The rounds that it stands for, first message and the one behind the last.
    pub(crate) rounds: Vec<(usize, usize)>,
    /// How often each tool was called in them.
    pub(crate) tools: BTreeMap<String, usize>,
    pub(crate) rung: Rung,
    /// Said in the user's role where a note speaks in the model's and the model's next words follow.
    pub(crate) go_on: Option<String>,
    /// The message up to which a summary in it tells.
    pub(crate) told: Option<usize>,
}

impl Note {
    /// What it is called where folds are counted.
    pub(crate) fn pass(&self) -> &'static str {
        if self.told.is_some() { "summary" } else { "rounds" }
    }
}

/// An original on its way out of a request.
pub(crate) struct Leaving<'m> {
    /// The part that it is, or the message that the note for its rounds stands before.
    pub(crate) at: PartId,
    /// The rounds that it is; none when it is a part.
    pub(crate) rounds: Vec<Range<usize>>,
    pub(crate) bytes: Cow<'m, [u8]>,
}

/// All that is folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Folds {
    /// Shared between the drafts of a crease, of which there are many and all but one are thrown away.
    parts: BTreeMap<PartId, Arc<Fold>>,
    /// Whether each message is gone, up to the last that is.
    gone: Vec<bool>,
    /// By the message that they stand before.
    notes: BTreeMap<usize, Note>,
}

/// One message of a rendering: one of the conversation, or one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rendered<'f> {
    Message(usize),
    Note(Role, &'f str),
}

/// Said after a note where the next message is the model's and the server wants roles to alternate.
pub(crate) const GO_ON: &str = "[folded: the conversation goes on]";

impl Folds {
    /// How far down the ladder a part has come; what is gone has come all the way.
    pub(crate) fn rung(&self, at: PartId) -> Option<Rung> {
        if self.shows(at) { self.parts.get(&at).map(|fold| fold.rung) } else { Some(Rung::Truncation) }
    }

    /// Tokens that stand in the place of a part, if it is folded.
    pub(crate) fn tokens(&self, at: PartId) -> Option<Tokens> {
        if self.shows(at) { self.parts.get(&at).map(|fold| fold.tokens) } else { Some(0) }
    }

    pub(crate) fn set(&mut self, at: PartId, fold: Fold) {
        self.parts.insert(at, Arc::new(fold));
    }

    pub(crate) fn is_gone(&self, message: usize) -> bool {
        self.gone.get(message).is_some_and(|&gone| gone)
    }

    pub(crate) fn drop_message(&mut self, message: usize) {
        if self.gone.len() <= message {
            self.gone.resize(message + 1, false);
        }
        self.gone[message] = true;
        // What was folded in it does not show any more.
        let parts: Vec<PartId> = self.of_message(message).collect();
        parts.iter().for_each(|at| {
            self.parts.remove(at);
        });
    }

    /// Puts a note before a message, in the place of the notes in `instead_of`.
    pub(crate) fn set_note(&mut self, before: usize, note: Note, instead_of: std::ops::Range<usize>) {
        let old: Vec<usize> = self.notes.range(instead_of).map(|(&at, _)| at).collect();
        old.iter().for_each(|at| {
            self.notes.remove(at);
        });
        self.notes.insert(before, note);
    }

    /// The note before a message.
    pub(crate) fn note(&self, before: usize) -> Option<&Note> {
        self.notes.get(&before)
    }

    /// The notes that stand before some messages.
    pub(crate) fn notes_of(&self, messages: std::ops::Range<usize>) -> impl Iterator<Item = (usize, &Note)> {
        self.notes.range(messages).map(|(&at, note)| (at, note))
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = (usize, &Note)> {
        self.notes.iter().map(|(&at, note)| (at, note))
    }

    /// All folds, in the order of their places, also those that do not show.
    pub(crate) fn all_parts(&self) -> impl Iterator<Item = (PartId, &Fold)> {
        self.parts.iter().map(|(&at, fold)| (at, &**fold))
    }

    /// The folds that show in the rendering: not those of messages, or inside of parts, that are gone.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (PartId, &Fold)> {
        self.all_parts().filter(|(at, _)| self.shows(*at))
    }

    fn shows(&self, at: PartId) -> bool {
        let outer = PartId { inner: None, ..at };
        !self.is_gone(at.message) && (at.inner.is_none() || !self.parts.contains_key(&outer))
    }

    fn change(&self, at: PartId) -> Option<&Change> {
        self.parts.get(&at).map(|fold| &fold.change)
    }

    /// The rendering of the messages from `from` on, in order.
    pub(crate) fn sequence<'f>(&'f self, messages: &[Message<'_>], from: usize, alternate: bool) -> Vec<Rendered<'f>> {
        let mut sequence = Vec::with_capacity(messages.len() - from);
        for (at, message) in messages.iter().enumerate().skip(from) {
            if let Some(note) = self.notes.get(&at) {
                if alternate {
                    sequence.push(Rendered::Note(Role::Assistant, &note.text));
                    let next = (at..messages.len()).find(|&at| !self.is_gone(at)).map(|at| &messages[at]);
                    if next.is_some_and(Message::is_assistant) {
                        sequence.push(Rendered::Note(Role::User, note.go_on.as_deref().unwrap_or(GO_ON)));
                    }
                } else {
                    sequence.push(Rendered::Note(Role::User, &note.text));
                }
            }
            if !self.is_gone(at) && !self.is_emptied(at, message) {
                sequence.push(Rendered::Message(at));
            }
        }
        sequence
    }

    /// Whether all parts of a message are dropped, so that it goes too.
    fn is_emptied(&self, at: usize, message: &Message<'_>) -> bool {
        let dropped = |part: usize| self.change(PartId::new(at, part)) == Some(&Change::Drop);
        !message.parts.is_empty() && (0..message.parts.len()).all(dropped)
    }

    /// A message as it is rendered.
    pub(crate) fn render<'m>(&self, at: usize, message: &Message<'m>) -> Message<'m> {
        if self.of_message(at).next().is_none() {
            return message.clone();
        }
        let mut parts = Vec::with_capacity(message.parts.len());
        for (index, part) in message.parts.iter().enumerate() {
            let id = PartId::new(at, index);
            let mut part = part.clone();
            match (&mut part, self.change(id)) {
                (_, Some(Change::Drop)) => continue,
                (Part::ToolCall(call), Some(Change::Arguments(arguments))) => call.arguments.set(arguments.clone()),
                (part, Some(Change::Text(text))) => *part = Part::text(text.clone()),
                (Part::ToolResult(result), None) => {
                    for (inner, piece) in result.content.iter_mut().enumerate() {
                        if let Some(Change::Text(text)) = self.change(id.inner(inner)) {
                            *piece = Part::text(text.clone());
                        }
                    }
                }
                _ => {}
            }
            parts.push(part);
        }
        Message::new(message.role, parts)
    }

    /// The same rendering as edits of the request that the messages were read from.
    pub(crate) fn edits(&self, messages: &[Message<'_>], alternate: bool) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut before = 0;
        for rendered in self.sequence(messages, 0, alternate) {
            match rendered {
                Rendered::Message(at) => {
                    edits.extend((before..at).map(Edit::DropMessage));
                    before = at + 1;
                }
                Rendered::Note(role, text) => edits.push(Edit::InsertMessage { before, role, text: text.to_owned() }),
            }
        }
        edits.extend((before..messages.len()).map(Edit::DropMessage));
        for (at, fold) in self.parts() {
            if !self.is_emptied(at.message, &messages[at.message]) {
                edits.push(fold.edit(at));
            }
        }
        edits
    }

    /// The edits of one message.
    pub(crate) fn message_edits(&self, at: usize) -> Vec<Edit> {
        let folds = self.parts.range(PartId::new(at, 0)..PartId::new(at + 1, 0));
        folds.filter(|(at, _)| self.shows(**at)).map(|(&at, fold)| fold.edit(at)).collect()
    }

    /// How many parts are folded.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.gone.is_empty() && self.notes.is_empty()
    }

    /// The originals of all that is folded: what the handles give back.
    pub(crate) fn originals<'m>(&self, messages: &'m [Message<'_>]) -> Vec<Leaving<'m>> {
        let mut originals = Vec::new();
        for (at, _) in self.parts() {
            let part = messages[at.message].parts.get(at.part);
            let original = match (part, at.inner) {
                (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner).map(original),
                (Some(part), _) => Some(original(part)),
                (None, _) => None,
            };
            originals.extend(original.map(|bytes| Leaving { at, rounds: Vec::new(), bytes }));
        }
        for (at, note) in self.notes() {
            let rounds: Vec<Range<usize>> = note.rounds.iter().map(|&(start, end)| start..end).collect();
            let bytes = Cow::Owned(rounds::original(messages, &rounds));
            originals.push(Leaving { at: PartId::new(at, 0), rounds, bytes });
        }
        originals
    }

    /// Whether something of a message is folded.
    pub(crate) fn touches(&self, message: usize) -> bool {
        self.is_gone(message) || self.of_message(message).next().is_some()
    }

    /// The parts of a message that are folded.
    pub(crate) fn of_message(&self, at: usize) -> impl Iterator<Item = PartId> {
        self.parts.range(PartId::new(at, 0)..PartId::new(at + 1, 0)).map(|(&at, _)| at)
    }

    /// Whether a part stands here as it stands there.
    pub(crate) fn is_same(&self, other: &Self, at: PartId) -> bool {
        let same = |at: PartId| match (self.parts.get(&at), other.parts.get(&at)) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        self.is_gone(at.message) == other.is_gone(at.message) && same(at) && same(PartId { inner: None, ..at })
    }

    /// The arguments of a call as they stand.
    fn standing_arguments<'f>(&'f self, at: PartId, call: &'f ToolCall<'_>) -> &'f str {
        match self.change(at) {
            Some(Change::Arguments(arguments)) => arguments,
            _ => call.arguments.as_str(),
        }
    }

    /// Calls `each` with what stands of a result or a call and would go if it were cut: its text, or its long values.
    pub(crate) fn each_text_to_cut(&self, at: PartId, part: &Part<'_>, mut each: impl FnMut(Option<PartId>, &str)) {
        match (part, self.change(at)) {
            (Part::ToolCall(it), _) => {
                each_value(self.standing_arguments(at, it), &it.arguments, |text| {
                    if text.len() >= arguments::SHORTEST {
                        each(None, text);
                    }
                });
            }
            (_, Some(Change::Text(folded))) => each(None, folded),
            (Part::ToolResult(it), None) => {
                let text = at.inner.and_then(|inner| it.content.get(inner)).and_then(Part::as_text);
                text.into_iter().for_each(|text| each(Some(at), text));
            }
            _ => {}
        }
    }

    /// Calls `each` with every text of a message that stands in the rendering, and with the place of a result's that
    /// stands as it came, without the parts that are left out. Of a call that is left out the short values still stand:
    /// folding spares them.
    pub(crate) fn each_standing_text(
        &self,
        at: usize,
        message: &Message<'_>,
        left_out: impl Fn(PartId) -> bool,
        mut each: impl FnMut(Option<PartId>, &str),
    ) {
        if self.is_gone(at) {
            return;
        }
        let stands = |at: PartId, text: &str, each: &mut dyn FnMut(Option<PartId>, &str)| match self.change(at) {
            _ if left_out(at) || !self.shows(at) => {}
            None => each(at.inner.map(|_| at), text),
            Some(Change::Text(folded)) => each(None, folded),
            Some(Change::Arguments(_) | Change::Drop) => {}
        };
        for (part, content) in message.parts.iter().enumerate() {
            let at = PartId::new(at, part);
            match content {
                Part::ToolResult(it) => {
                    for (inner, part) in it.content.iter().enumerate() {
                        part.as_text().into_iter().for_each(|text| stands(at.inner(inner), text, &mut each));
                    }
                }
                Part::Text { text } => stands(at, text, &mut each),
                Part::Reasoning(it) => stands(at, &it.text, &mut each),
                Part::ToolCall(it) => {
                    let cut = left_out(at);
                    each_value(self.standing_arguments(at, it), &it.arguments, |text| {
                        if !cut || text.len() < arguments::SHORTEST {
                            each(None, text);
                        }
                    });
                }
                _ => {}
            }
        }
    }
}
