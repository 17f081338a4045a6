//! What is folded, and the rendering that follows from it.
//!
//! A set of folds and the messages give the rendering, both as messages and as edits of a request
//! body. Nothing here decides.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::conversation::{Message, Part, PartId, Role, ToolCall};
use crate::engine::identifiers::index::for_each_value;
use crate::engine::passes::arguments;
use crate::engine::passes::support::round_note;
use crate::engine::planner::Stage;
use crate::tokens::Tokens;
use crate::wire::RequestEdit;

/// What becomes of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartEdit {
    /// It becomes this text.
    Text(String),
    /// Its arguments become these.
    Arguments(String),
    /// It goes.
    Drop,
}

/// One part, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppliedFold {
    pub(crate) edit: PartEdit,
    /// Tokens that stand there now.
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

/// What a handle of a part gives back: its text, or the part as JSON where it has none.
pub(crate) fn original_bytes<'m>(part: &'m Part<'_>) -> Cow<'m, [u8]> {
    match part {
        Part::Text { text } => Cow::Borrowed(text.as_bytes()),
        Part::Reasoning(it) if it.seal.is_none() => Cow::Borrowed(it.text.as_bytes()),
        Part::ToolCall(it) => Cow::Borrowed(it.arguments.as_str().as_bytes()),
        part => Cow::Owned(serde_json::to_vec(part).expect("a part has a JSON form")),
    }
}

/// A message of ours in the place of whole rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundNote {
    pub(crate) text: String,
    /// The rounds that it stands for, first message and the one behind the last.
    pub(crate) rounds: Vec<(usize, usize)>,
    /// How often each tool was called in them.
    pub(crate) tool_counts: BTreeMap<String, usize>,
    pub(crate) stage: Stage,
    /// Said in the user's role where a note speaks in the model's and the model's next words follow.
    pub(crate) continuation: Option<String>,
    /// The message up to which a summary in it tells.
    pub(crate) summarized_until: Option<usize>,
}

impl RoundNote {
    /// What it is called where folds are counted.
    pub(crate) fn pass_name(&self) -> &'static str {
        if self.summarized_until.is_some() { "summary" } else { "rounds" }
    }
}

/// An original on its way out of a request.
pub(crate) struct RemovedOriginal<'m> {
    /// The part that it is, or the message that the note for its rounds stands before.
    pub(crate) at: PartId,
    /// The rounds that it is; none when it is a part.
    pub(crate) rounds: Vec<Range<usize>>,
    pub(crate) bytes: Cow<'m, [u8]>,
}

/// All that is folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldSet {
    /// Shared between the drafts of a crease, of which there are many and all but one are thrown away.
    parts: BTreeMap<PartId, Arc<AppliedFold>>,
    /// Whether each message is gone, up to the last that is.
    dropped: Vec<bool>,
    /// By the message that they stand before.
    notes: BTreeMap<usize, RoundNote>,
}

/// One message of a rendering: one of the conversation, or one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenderedItem<'f> {
    Message(usize),
    Note(Role, &'f str),
}

/// Said after a note where the next message is the model's and the server wants roles to alternate.
pub(crate) const CONTINUATION_TEXT: &str = "[folded: the conversation goes on]";

impl FoldSet {
    /// How far down the ladder a part has come; what is gone has come all the way.
    pub(crate) fn stage(&self, at: PartId) -> Option<Stage> {
        if self.is_visible(at) { self.parts.get(&at).map(|fold| fold.stage) } else { Some(Stage::Truncation) }
    }

    /// Tokens that stand in the place of a part, if it is folded.
    pub(crate) fn part_tokens(&self, at: PartId) -> Option<Tokens> {
        if self.is_visible(at) { self.parts.get(&at).map(|fold| fold.tokens) } else { Some(0) }
    }

    pub(crate) fn set_part(&mut self, at: PartId, fold: AppliedFold) {
        self.parts.insert(at, Arc::new(fold));
    }

    pub(crate) fn is_dropped(&self, message: usize) -> bool {
        self.dropped.get(message).is_some_and(|&gone| gone)
    }

    pub(crate) fn drop_message(&mut self, message: usize) {
        if self.dropped.len() <= message {
            self.dropped.resize(message + 1, false);
        }
        self.dropped[message] = true;
        // What was folded in it does not show any more.
        let parts: Vec<PartId> = self.parts_of_message(message).collect();
        parts.iter().for_each(|at| {
            self.parts.remove(at);
        });
    }

    /// Puts a note before a message, in the place of the notes in `instead_of`.
    pub(crate) fn set_note(&mut self, before: usize, note: RoundNote, instead_of: std::ops::Range<usize>) {
        let old: Vec<usize> = self.notes.range(instead_of).map(|(&at, _)| at).collect();
        old.iter().for_each(|at| {
            self.notes.remove(at);
        });
        self.notes.insert(before, note);
    }

    /// The note before a message.
    pub(crate) fn note(&self, before: usize) -> Option<&RoundNote> {
        self.notes.get(&before)
    }

    /// The notes that stand before some messages.
    pub(crate) fn notes_in(&self, messages: std::ops::Range<usize>) -> impl Iterator<Item = (usize, &RoundNote)> {
        self.notes.range(messages).map(|(&at, note)| (at, note))
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = (usize, &RoundNote)> {
        self.notes.iter().map(|(&at, note)| (at, note))
    }

    /// All folds, in the order of their places, also those that do not show.
    pub(crate) fn all_parts(&self) -> impl Iterator<Item = (PartId, &AppliedFold)> {
        self.parts.iter().map(|(&at, fold)| (at, &**fold))
    }

    /// The folds that show in the rendering: not those of messages, or inside of parts, that are gone.
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

    /// The rendering of the messages from `from` on, in order.
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
                    let next = (at..messages.len()).find(|&at| !self.is_dropped(at)).map(|at| &messages[at]);
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

    /// Whether all parts of a message are dropped, so that it goes too.
    fn is_emptied(&self, at: usize, message: &Message<'_>) -> bool {
        let dropped = |part: usize| self.edit(PartId::new(at, part)) == Some(&PartEdit::Drop);
        !message.parts.is_empty() && (0..message.parts.len()).all(dropped)
    }

    /// A message as it is rendered.
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
                    for (inner, piece) in result.content.iter_mut().enumerate() {
                        if let Some(PartEdit::Text(text)) = self.edit(id.inner(inner)) {
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
        for (at, fold) in self.visible_parts() {
            if !self.is_emptied(at.message, &messages[at.message]) {
                edits.push(fold.to_wire_edit(at));
            }
        }
        edits
    }

    /// The edits of one message.
    pub(crate) fn message_edits(&self, at: usize) -> Vec<RequestEdit> {
        let folds = self.parts.range(PartId::new(at, 0)..PartId::new(at + 1, 0));
        folds.filter(|(at, _)| self.is_visible(**at)).map(|(&at, fold)| fold.to_wire_edit(at)).collect()
    }

    /// How many parts are folded.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.dropped.is_empty() && self.notes.is_empty()
    }

    /// The originals of all that is folded: what the handles give back.
    pub(crate) fn removed_originals<'m>(&self, messages: &'m [Message<'_>]) -> Vec<RemovedOriginal<'m>> {
        let mut originals = Vec::new();
        for (at, _) in self.visible_parts() {
            let part = messages[at.message].parts.get(at.part);
            let original = match (part, at.inner) {
                (Some(Part::ToolResult(it)), Some(inner)) => it.content.get(inner).map(original_bytes),
                (Some(part), _) => Some(original_bytes(part)),
                (None, _) => None,
            };
            originals.extend(original.map(|bytes| RemovedOriginal { at, rounds: Vec::new(), bytes }));
        }
        for (at, note) in self.notes() {
            let rounds: Vec<Range<usize>> = note.rounds.iter().map(|&(start, end)| start..end).collect();
            let bytes = Cow::Owned(round_note::original_json(messages, &rounds));
            originals.push(RemovedOriginal { at: PartId::new(at, 0), rounds, bytes });
        }
        originals
    }

    /// Whether something of a message is folded.
    pub(crate) fn touches(&self, message: usize) -> bool {
        self.is_dropped(message) || self.parts_of_message(message).next().is_some()
    }

    /// The parts of a message that are folded.
    pub(crate) fn parts_of_message(&self, at: usize) -> impl Iterator<Item = PartId> {
        self.parts.range(PartId::new(at, 0)..PartId::new(at + 1, 0)).map(|(&at, _)| at)
    }

    /// Whether a part stands here as it stands there.
    pub(crate) fn is_same_part(&self, other: &Self, at: PartId) -> bool {
        let same = |at: PartId| match (self.parts.get(&at), other.parts.get(&at)) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        self.is_dropped(at.message) == other.is_dropped(at.message) && same(at) && same(PartId { inner: None, ..at })
    }

    /// The arguments of a call as they stand.
    fn rendered_arguments<'f>(&'f self, at: PartId, call: &'f ToolCall<'_>) -> &'f str {
        match self.edit(at) {
            Some(PartEdit::Arguments(arguments)) => arguments,
            _ => call.arguments.as_str(),
        }
    }

    /// Calls `each` with what stands of a result or a call and would go if it were cut: its text, or its long values.
    pub(crate) fn for_each_cuttable_text(
        &self,
        at: PartId,
        part: &Part<'_>,
        mut each: impl FnMut(Option<PartId>, &str),
    ) {
        match (part, self.edit(at)) {
            (Part::ToolCall(it), _) => {
                for_each_value(self.rendered_arguments(at, it), &it.arguments, |text| {
                    if text.len() >= arguments::MIN_ARGUMENT_BYTES {
                        each(None, text);
                    }
                });
            }
            (_, Some(PartEdit::Text(folded))) => each(None, folded),
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
        let stands = |at: PartId, text: &str, each: &mut dyn FnMut(Option<PartId>, &str)| match self.edit(at) {
            _ if left_out(at) || !self.is_visible(at) => {}
            None => each(at.inner.map(|_| at), text),
            Some(PartEdit::Text(folded)) => each(None, folded),
            Some(PartEdit::Arguments(_) | PartEdit::Drop) => {}
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
                    for_each_value(self.rendered_arguments(at, it), &it.arguments, |text| {
                        if !cut || text.len() < arguments::MIN_ARGUMENT_BYTES {
                            each(None, text);
                        }
                    });
                }
                _ => {}
            }
        }
    }
}
