//! Where the editable things of a body stand.
//!
//! The dialects fill it while they read; `splice` reads it. Lists know their parents, so that a list
//! which an edit empties goes with its field (`"tool_calls": []` is refused by providers).
//!
//! A long body has tens of thousands of places, and memory that was never touched before is what makes a byte of a
//! long body cost more than one of a short body (docs/decisions/0001). So all of them stand in five lists, each message,
//! list and part knowing where its own end; those of the one before it end where they begin.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use super::scan::{Object, Span, Value};
use crate::conversation::{Message, Opaque, Part, Role, Source};

/// The longest body whose places can be noted.
pub(super) const MAX_BODY: usize = u32::MAX as usize;

/// Places of all messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// Where the list of messages begins; `None` when the input is a lone string.
    pub(super) inside: Option<usize>,
    pub(super) tools: Option<Tools>,
    messages: Vec<MessageLayout>,
    lists: Vec<ListLayout>,
    parts: Vec<PartLayout>,
    /// Of the pieces of results' contents.
    inner: Vec<Slot>,
    /// Of the elements of lists.
    elements: Vec<Place>,
}

/// A range of bytes in the body, in half the room of a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    start: u32,
    end: u32,
}

/// The declarations of tools.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// Behind the opening bracket: where the first one would go.
    pub(super) inside: usize,
    pub(super) elements: Vec<Span>,
}

/// The lists of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListName {
    /// The message's own fields.
    Fields,
    /// The blocks of its content.
    Content,
    /// Its calls, where they stand apart from the content.
    Calls,
}

/// An element of one of a message's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) list: ListName,
    index: u32,
}

#[derive(Clone, Debug)]
struct MessageLayout {
    place: Place,
    /// Where its lists end, and its parts.
    lists: u32,
    parts: u32,
}

#[derive(Clone, Debug)]
struct ListLayout {
    name: ListName,
    /// Where its elements end.
    elements: u32,
    parent: Option<Element>,
}

/// A JSON array, or the fields of an object, as the places of its elements.
pub(super) struct List<'l> {
    elements: &'l [Place],
    /// The element of another list of the same message that holds this one.
    pub(super) parent: Option<Element>,
}

#[derive(Clone, Debug)]
pub(super) struct PartLayout {
    slot: Slot,
    element: Option<Element>,
    /// Where its pieces end.
    inner: u32,
}

/// Where a part stands.
pub(super) struct PartPlaces<'l> {
    pub(super) slot: Slot,
    /// What to remove when the part is dropped; `None` when it can only go with its message.
    pub(super) element: Option<Element>,
    /// The pieces of a tool result's content.
    pub(super) inner: &'l [Slot],
}

/// How the content of a part is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// It can not be.
    Fixed,
    /// A JSON string goes here: a text, or the content of a result.
    Text(Place),
    /// A JSON string goes here: the free text that a custom tool takes.
    FreeArguments(Place),
    /// JSON text wrapped in a JSON string goes here: arguments in OpenAI's way.
    JsonInText(Place),
    /// JSON goes here as it is: arguments in Anthropic's way.
    Json(Place),
    /// A whole text block goes here, in the place of an image or a file.
    Block(Place),
}

impl Layout {
    pub(super) fn messages(&self) -> impl ExactSizeIterator<Item = Span> {
        self.messages.iter().map(|message| message.place.span())
    }

    pub(super) fn message(&self, at: usize) -> Option<Span> {
        Some(self.messages.get(at)?.place.span())
    }

    /// The message in which a byte stands.
    pub(super) fn message_at(&self, byte: usize) -> Option<usize> {
        let at = self.messages.partition_point(|message| message.place.span().end <= byte);
        (self.message(at)?.start <= byte).then_some(at)
    }

    pub(super) fn list(&self, message: usize, name: ListName) -> Option<List<'_>> {
        let at = owned(&self.messages, message, |it| it.lists)?.find(|&at| self.lists[at].name == name)?;
        let elements = &self.elements[owned(&self.lists, at, |it| it.elements)?];
        Some(List { elements, parent: self.lists[at].parent })
    }

    /// The part at a place of its message.
    pub(super) fn part(&self, message: usize, part: usize) -> Option<PartPlaces<'_>> {
        let at = owned(&self.messages, message, |it| it.parts)?.nth(part)?;
        let inner = &self.inner[owned(&self.parts, at, |it| it.inner)?];
        let PartLayout { slot, element, .. } = self.parts[at];
        Some(PartPlaces { slot, element, inner })
    }

    /// How many parts a message has.
    pub(super) fn parts(&self, message: usize) -> usize {
        owned(&self.messages, message, |it| it.parts).map_or(0, |parts| parts.len())
    }

    /// A part with pieces of its own.
    pub(super) fn with_inner(&mut self, slot: Slot, inner: impl Iterator<Item = Slot>) -> PartLayout {
        self.inner.extend(inner);
        PartLayout::new(slot, None)
    }

    /// Makes room for the places of messages to come.
    pub(super) fn make_room(&mut self, share: Share) {
        share.make_room(&mut self.messages);
        share.make_room(&mut self.lists);
        share.make_room(&mut self.parts);
        share.make_room(&mut self.inner);
        share.make_room(&mut self.elements);
    }

    fn push_list(&mut self, name: ListName, elements: impl Iterator<Item = Span>, parent: Option<Element>) {
        self.elements.extend(elements.map(Place::from));
        self.lists.push(ListLayout { name, elements: small(self.elements.len()), parent });
    }
}

/// How much of the list of messages has been read, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) read: usize,
    pub(super) left: usize,
}

impl Share {
    /// Makes room for what the rest will bring if it is like what was read. Doubling copies a long list again and again,
    /// each time into memory that was never touched.
    pub(super) fn make_room<T>(self, list: &mut Vec<T>) {
        let expected = list.len() as u128 * self.left as u128 / self.read.max(1) as u128;
        // A little more, since it is a guess; and not much more than is there, since it may be a bad one.
        let most = list.len() * 7;
        list.reserve_exact(usize::try_from(expected + expected / 8).map_or(most, |more| more.min(most)));
    }
}

/// What belongs to the entry at `at`, where each entry knows where its own end.
fn owned<T>(entries: &[T], at: usize, end: impl Fn(&T) -> u32) -> Option<Range<usize>> {
    let last = end(entries.get(at)?);
    let first = at.checked_sub(1).map_or(0, |before| end(&entries[before]));
    Some(first as usize..last as usize)
}

/// A count or an offset in half a word. A body that has more of them is refused before it is read; of a message of a
/// recording, which may be as long, nobody asks for the places.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl From<Span> for Place {
    fn from(span: Span) -> Self {
        Self { start: small(span.start), end: small(span.end) }
    }
}

impl Place {
    pub(super) fn span(self) -> Span {
        Span { start: self.start as usize, end: self.end as usize }
    }
}

impl Element {
    pub(super) fn new(list: ListName, index: usize) -> Self {
        Self { list, index: small(index) }
    }

    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

impl List<'_> {
    pub(super) fn elements(&self) -> impl DoubleEndedIterator<Item = Span> + ExactSizeIterator {
        self.elements.iter().map(|place| place.span())
    }
}

impl PartLayout {
    pub(super) fn new(slot: Slot, element: Option<Element>) -> Self {
        Self { slot, element, inner: 0 }
    }

    pub(super) fn in_list(self, element: Element) -> Self {
        Self { element: Some(element), ..self }
    }
}

/// A message while its dialect reads it: the parts and their places grow together.
pub(super) struct Reading<'a, 'l> {
    message: Message<'a>,
    pub(super) layout: &'l mut Layout,
    place: Place,
}

impl<'a, 'l> Reading<'a, 'l> {
    /// Begins with the list of the message's own fields.
    pub(super) fn new(role: Role, message: &Object<'a>, layout: &'l mut Layout) -> Self {
        layout.push_list(ListName::Fields, message.fields().iter().map(|field| field.span), None);
        Self::bare(role, message.value.span, layout)
    }

    /// Begins with no lists at all.
    pub(super) fn bare(role: Role, span: Span, layout: &'l mut Layout) -> Self {
        Self { message: Message::new(role, Vec::new()), layout, place: span.into() }
    }

    /// The field of this key, as an element of the message. None when the key stands there twice: if the
    /// last one went, the one before it would speak.
    pub(super) fn field(message: &Object<'a>, key: &str) -> Option<Element> {
        message.only_position(key).map(|index| Element::new(ListName::Fields, index))
    }

    /// Adds a list of the message, of which each element will be a part.
    pub(super) fn list(&mut self, name: ListName, elements: &[Object<'a>], parent: Option<Element>) {
        self.message.parts.reserve_exact(elements.len());
        self.layout.push_list(name, elements.iter().map(|element| element.value.span), parent);
    }

    pub(super) fn push(&mut self, part: Part<'a>, layout: PartLayout) {
        // What stands in no list is alone, or nearly so.
        if self.message.parts.capacity() == 0 {
            self.message.parts.reserve_exact(1);
        }
        self.message.parts.push(part);
        self.layout.parts.push(PartLayout { inner: small(self.layout.inner.len()), ..layout });
    }

    pub(super) fn done(self) -> Message<'a> {
        let Self { message, layout, place } = self;
        let (lists, parts) = (small(layout.lists.len()), small(layout.parts.len()));
        layout.messages.push(MessageLayout { place, lists, parts });
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
    let whole = Slot::Text(value.span.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A long body has tens of thousands of each.
    #[test]
    fn places_are_small() {
        assert_eq!(size_of::<Place>(), 8);
        assert_eq!(size_of::<Slot>(), 12);
        assert_eq!(size_of::<MessageLayout>(), 16);
        assert_eq!(size_of::<ListLayout>(), 16);
        assert_eq!(size_of::<PartLayout>(), 24);
    }

    #[test]
    fn room_is_made_for_a_little_more_than_what_the_rest_promises_and_for_eight_times_as_much_at_most() {
        let room = |read, left| {
            let mut list = vec![0; 80];
            Share { read, left }.make_room(&mut list);
            list.capacity()
        };
        assert_eq!(room(1_000, 2_000), 80 + 180);
        assert_eq!(room(1_000, 0), 80);
        assert_eq!(room(1, usize::MAX), 80 * 8);
        assert_eq!(room(0, 1), 80 + 90);
    }
}
