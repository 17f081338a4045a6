//! Where the editable things of a body stand.
//!
//! The dialects fill it while they read; `splice` reads it. Lists know their parents, so that a list
//! which an edit empties goes with its field (`"tool_calls": []` is refused by providers).

use std::borrow::Cow;

use super::scan::{Object, Span, Value};
use crate::conversation::{Message, Opaque, Part, Role, Source};

#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// The list of messages; `None` when the input is a lone string.
    pub(super) list: Option<List>,
    pub(super) tools: Option<List>,
    pub(super) messages: Vec<MessageLayout>,
}

/// A JSON array, or the fields of an object, as the places of its elements.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// Behind the opening bracket: where the first element of an empty list would go.
    pub(super) inside: usize,
    pub(super) elements: Vec<Span>,
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
    pub(super) lists: Vec<List>,
    pub(super) parts: Vec<PartLayout>,
}

#[derive(Clone, Debug)]
pub(super) struct PartLayout {
    pub(super) slot: Slot,
    /// What to remove when the part is dropped; `None` when it can only go with its message.
    pub(super) element: Option<Element>,
    /// The pieces of a tool result's content.
    pub(super) inner: Vec<PartLayout>,
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

impl List {
    pub(super) fn of(value: Value<'_>, elements: impl Iterator<Item = Span>) -> Self {
        Self { inside: value.span.start + 1, elements: elements.collect(), parent: None }
    }
}

impl PartLayout {
    pub(super) fn new(slot: Slot, element: Option<Element>) -> Self {
        Self { slot, element, inner: Vec::new() }
    }
}

/// A message while its dialect reads it: the parts and their places grow together.
pub(super) struct Reading<'a> {
    pub(super) message: Message<'a>,
    pub(super) layout: MessageLayout,
}

impl<'a> Reading<'a> {
    /// Begins with the message's own fields as list 0.
    pub(super) fn new(role: Role, message: &Object<'a>) -> Self {
        let fields = List::of(message.value, message.fields().iter().map(|field| field.span));
        // Most messages have one part.
        let (parts, places) = (Vec::with_capacity(1), Vec::with_capacity(1));
        Self {
            message: Message::new(role, parts),
            layout: MessageLayout { span: message.value.span, lists: vec![fields], parts: places },
        }
    }

    /// The field of this key, as an element of list 0. None when the key stands there twice: if the
    /// last one went, the one before it would speak.
    pub(super) fn field(message: &Object<'a>, key: &str) -> Option<Element> {
        message.only_position(key).map(|index| Element { list: 0, index })
    }

    /// Adds a list of the message.
    pub(super) fn list(&mut self, value: Value<'a>, elements: &[Object<'a>], parent: Option<Element>) -> usize {
        let list = List { parent, ..List::of(value, elements.iter().map(|element| element.value.span)) };
        self.layout.lists.push(list);
        self.layout.lists.len() - 1
    }

    pub(super) fn push(&mut self, part: Part<'a>, layout: PartLayout) {
        self.message.parts.push(part);
        self.layout.parts.push(layout);
    }

    pub(super) fn done(self) -> (Message<'a>, MessageLayout) {
        (self.message, self.layout)
    }
}

/// The content of a tool result: a string, or a list of pieces that `piece` reads.
pub(super) fn result_content<'a>(
    result: &Object<'a>,
    key: &str,
    piece: impl Fn(&Object<'a>) -> (Part<'a>, Slot),
) -> (Vec<Part<'a>>, PartLayout) {
    let Some(value) = result.get(key).filter(|value| value.is_string() || value.is_array()) else {
        return (Vec::new(), PartLayout::new(Slot::Fixed, None));
    };
    let whole = Slot::Text(value.span);
    let (parts, inner) = match value.string() {
        Some(text) => (vec![Part::text(text)], vec![PartLayout::new(whole, None)]),
        None => {
            let pieces = result.elements(key);
            let read = pieces.iter().map(piece).map(|(part, slot)| (part, PartLayout::new(slot, None)));
            read.unzip()
        }
    };
    (parts, PartLayout { slot: whole, element: None, inner })
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
