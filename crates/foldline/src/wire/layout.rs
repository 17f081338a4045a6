//! Where the editable things of a body stand.
//!
//! The dialects fill it while they read; `splice` reads it. Lists know their parents, so that a list
//! which an edit empties goes with its field (`"tool_calls": []` is refused by providers).

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use super::scan::{Object, Span, Value};
use crate::conversation::{Message, Opaque, Part, Role, Source};

/// Places of all messages, each kind in one list: a body has thousands of them, and a list of its own for each
/// message would cost more than reading it.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// The list of messages; `None` when the input is a lone string.
    pub(super) list: Option<List>,
    pub(super) tools: Option<List>,
    pub(super) messages: Vec<MessageLayout>,
    lists: Vec<List>,
    parts: Vec<PartLayout>,
    /// Of the pieces of results' contents.
    inner: Vec<Slot>,
    /// Of the elements of lists.
    spans: Vec<Span>,
}

/// A JSON array, or the fields of an object, as the places of its elements.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// Behind the opening bracket: where the first element of an empty list would go.
    pub(super) inside: usize,
    elements: Range<usize>,
    /// The element of another list of the same message that holds this one.
    pub(super) parent: Option<Element>,
}

/// An element of one of a message's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) list: usize,
    pub(super) index: usize,
}

#[derive(Clone, Debug)]
pub(super) struct MessageLayout {
    pub(super) span: Span,
    lists: Range<usize>,
    parts: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct PartLayout {
    pub(super) slot: Slot,
    /// What to remove when the part is dropped; `None` when it can only go with its message.
    pub(super) element: Option<Element>,
    /// The pieces of a tool result's content.
    pub(super) inner: Range<usize>,
}

/// How the content of a part is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// It can not be.
    Fixed,
    /// A JSON string goes here: a text, or the content of a result.
    Text(Span),
    /// A JSON string goes here: the free text that a custom tool takes.
    FreeArguments(Span),
    /// JSON text wrapped in a JSON string goes here: arguments in OpenAI's way.
    JsonInText(Span),
    /// JSON goes here as it is: arguments in Anthropic's way.
    Json(Span),
    /// A whole text block of this type goes here, in the place of an image or a file.
    Block(Span, &'static str),
}

impl Layout {
    pub(super) fn lists(&self, message: &MessageLayout) -> &[List] {
        &self.lists[message.lists.clone()]
    }

    pub(super) fn parts(&self, message: &MessageLayout) -> &[PartLayout] {
        &self.parts[message.parts.clone()]
    }

    pub(super) fn part(&self, message: usize, part: usize) -> Option<&PartLayout> {
        self.parts(self.messages.get(message)?).get(part)
    }

    pub(super) fn inner(&self, part: &PartLayout) -> &[Slot] {
        &self.inner[part.inner.clone()]
    }

    pub(super) fn elements(&self, list: &List) -> &[Span] {
        &self.spans[list.elements.clone()]
    }

    /// Notes a list whose elements stand there.
    pub(super) fn list(&mut self, value: Value<'_>, elements: impl Iterator<Item = Span>) -> List {
        let from = self.spans.len();
        self.spans.extend(elements);
        List { inside: value.span.start + 1, elements: from..self.spans.len(), parent: None }
    }

    /// Notes the list of all messages, once they are read.
    pub(super) fn list_of_messages(&mut self, value: Value<'_>) {
        let from = self.spans.len();
        self.spans.extend(self.messages.iter().map(|message| message.span));
        self.list = Some(List { inside: value.span.start + 1, elements: from..self.spans.len(), parent: None });
    }

    /// A part with pieces of its own.
    pub(super) fn with_inner(&mut self, slot: Slot, inner: impl Iterator<Item = Slot>) -> PartLayout {
        let from = self.inner.len();
        self.inner.extend(inner);
        PartLayout { slot, element: None, inner: from..self.inner.len() }
    }
}

impl PartLayout {
    pub(super) fn new(slot: Slot, element: Option<Element>) -> Self {
        Self { slot, element, inner: 0..0 }
    }
}

/// A message while its dialect reads it: the parts and their places grow together.
pub(super) struct Reading<'a, 'l> {
    message: Message<'a>,
    pub(super) layout: &'l mut Layout,
    span: Span,
    /// Where its own places begin.
    lists: usize,
    parts: usize,
}

impl<'a, 'l> Reading<'a, 'l> {
    /// Begins with the message's own fields as list 0.
    pub(super) fn new(role: Role, message: &Object<'a>, layout: &'l mut Layout) -> Self {
        let reading = Self::bare(role, message.value.span, layout);
        let fields = reading.layout.list(message.value, message.fields().iter().map(|field| field.span));
        reading.layout.lists.push(fields);
        reading
    }

    /// Begins with no lists at all.
    pub(super) fn bare(role: Role, span: Span, layout: &'l mut Layout) -> Self {
        let (lists, parts) = (layout.lists.len(), layout.parts.len());
        Self { message: Message::new(role, Vec::new()), layout, span, lists, parts }
    }

    /// The field of this key, as an element of list 0. None when the key stands there twice: if the
    /// last one went, the one before it would speak.
    pub(super) fn field(message: &Object<'a>, key: &str) -> Option<Element> {
        message.only_position(key).map(|index| Element { list: 0, index })
    }

    /// Adds a list of the message, of which each element will be a part.
    pub(super) fn list(&mut self, value: Value<'a>, elements: &[Object<'a>], parent: Option<Element>) -> usize {
        self.message.parts.reserve_exact(elements.len());
        let list = self.layout.list(value, elements.iter().map(|element| element.value.span));
        self.layout.lists.push(List { parent, ..list });
        self.layout.lists.len() - 1 - self.lists
    }

    pub(super) fn push(&mut self, part: Part<'a>, layout: PartLayout) {
        // What stands in no list is alone, or nearly so.
        if self.message.parts.capacity() == 0 {
            self.message.parts.reserve_exact(1);
        }
        self.message.parts.push(part);
        self.layout.parts.push(layout);
    }

    pub(super) fn done(self) -> Message<'a> {
        let Self { message, layout, span, lists, parts } = self;
        let places = MessageLayout { span, lists: lists..layout.lists.len(), parts: parts..layout.parts.len() };
        layout.messages.push(places);
        message
    }
}

/// The content of a tool result: a string, or a list of pieces that `piece` reads.
pub(super) fn result_content<'a>(
    layout: &mut Layout,
    result: &Object<'a>,
    key: &str,
    piece: impl Fn(&Object<'a>) -> (Part<'a>, Slot),
) -> (Vec<Part<'a>>, PartLayout) {
    let Some(value) = result.get(key).filter(|value| value.is_string() || value.is_array()) else {
        return (Vec::new(), PartLayout::new(Slot::Fixed, None));
    };
    let whole = Slot::Text(value.span);
    match value.text() {
        Some(text) => (vec![Part::text(text)], layout.with_inner(whole, iter::once(whole))),
        None => {
            let pieces = result.elements(key);
            let mut parts = Vec::with_capacity(pieces.len());
            let slots = pieces.iter().map(|it| {
                let (part, slot) = piece(it);
                parts.push(part);
                slot
            });
            let place = layout.with_inner(whole, slots);
            (parts, place)
        }
    }
}

/// A block that is kept as it is.
pub(super) fn opaque<'a>(kind: Option<Cow<'a, str>>, pair: Option<Cow<'a, str>>, raw: Value<'a>) -> Part<'a> {
    Part::Opaque(Opaque { kind: kind.unwrap_or_default(), pair, raw: Cow::Borrowed(raw.raw()) })
}

/// The source of an image or file behind an address, which may be a `data:` one.
pub(super) fn source_of_url(url: Cow<'_, str>) -> Source<'_> {
    if !url.starts_with("data:") {
        return Source::Url(url);
    }
    let Some(at) = url.find(";base64,").map(|at| at + ";base64,".len()) else { return Source::Unknown };
    Source::Base64(match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[at..]),
        Cow::Owned(url) => Cow::Owned(url[at..].to_owned()),
    })
}
