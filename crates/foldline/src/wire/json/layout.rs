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

use crate::conversation::{MediaSource, Message, OpaqueBlock, Part, Role};
use crate::wire::json::scan::{ByteSpan, JsonObject, JsonValue};

/// The longest body whose places can be noted.
pub(crate) const MAX_BODY_BYTES: usize = u32::MAX as usize;

/// Places of all messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyLayout {
    /// Where the list of messages begins; `None` when the input is a lone string.
    pub(crate) messages_start: Option<usize>,
    pub(crate) tools: Option<ToolsLayout>,
    messages: Vec<MessageLayout>,
    lists: Vec<ListLayout>,
    parts: Vec<PartLayout>,
    /// Of the pieces of results' contents.
    inner_slots: Vec<EditSlot>,
    /// Of the elements of lists.
    elements: Vec<CompactSpan>,
}

/// A range of bytes in the body, in half the room of a [`ByteSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactSpan {
    start: u32,
    end: u32,
}

/// The declarations of tools.
#[derive(Clone, Debug)]
pub(crate) struct ToolsLayout {
    /// Behind the opening bracket: where the first one would go.
    pub(crate) list_start: usize,
    pub(crate) elements: Vec<ByteSpan>,
}

/// The lists of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListName {
    /// The message's own fields.
    Fields,
    /// The blocks of its content.
    Content,
    /// Its calls, where they stand apart from the content.
    Calls,
}

/// An element of one of a message's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListElement {
    pub(crate) list: ListName,
    index: u32,
}

#[derive(Clone, Debug)]
struct MessageLayout {
    span: CompactSpan,
    /// Where its lists end, and its parts.
    lists_end: u32,
    parts_end: u32,
}

#[derive(Clone, Debug)]
struct ListLayout {
    name: ListName,
    /// Where its elements end.
    elements_end: u32,
    parent: Option<ListElement>,
}

/// A JSON array, or the fields of an object, as the places of its elements.
pub(crate) struct ListView<'l> {
    elements: &'l [CompactSpan],
    /// The element of another list of the same message that holds this one.
    pub(crate) parent: Option<ListElement>,
}

#[derive(Clone, Debug)]
pub(crate) struct PartLayout {
    slot: EditSlot,
    element: Option<ListElement>,
    /// Where its pieces end.
    inner_end: u32,
}

/// Where a part stands.
pub(crate) struct PartView<'l> {
    pub(crate) slot: EditSlot,
    /// What to remove when the part is dropped; `None` when it can only go with its message.
    pub(crate) element: Option<ListElement>,
    /// The pieces of a tool result's content.
    pub(crate) inner: &'l [EditSlot],
}

/// How the content of a part is replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EditSlot {
    /// It can not be.
    Fixed,
    /// A JSON string goes here: a text, or the content of a result.
    Text(CompactSpan),
    /// A JSON string goes here: the free text that a custom tool takes.
    TextArguments(CompactSpan),
    /// JSON text wrapped in a JSON string goes here: arguments in OpenAI's way.
    JsonInString(CompactSpan),
    /// JSON goes here as it is: arguments in Anthropic's way.
    Json(CompactSpan),
    /// A whole text block goes here, in the place of an image or a file.
    Block(CompactSpan),
}

impl BodyLayout {
    pub(crate) fn messages(&self) -> impl ExactSizeIterator<Item = ByteSpan> {
        self.messages.iter().map(|message| message.span.span())
    }

    pub(crate) fn message(&self, at: usize) -> Option<ByteSpan> {
        Some(self.messages.get(at)?.span.span())
    }

    /// The message in which a byte stands.
    pub(crate) fn message_at_offset(&self, byte: usize) -> Option<usize> {
        let at = self.messages.partition_point(|message| message.span.span().end <= byte);
        (self.message(at)?.start <= byte).then_some(at)
    }

    pub(crate) fn list(&self, message: usize, name: ListName) -> Option<ListView<'_>> {
        let at = owned_range(&self.messages, message, |it| it.lists_end)?.find(|&at| self.lists[at].name == name)?;
        let elements = &self.elements[owned_range(&self.lists, at, |it| it.elements_end)?];
        Some(ListView { elements, parent: self.lists[at].parent })
    }

    /// The part at a place of its message.
    pub(crate) fn part(&self, message: usize, part: usize) -> Option<PartView<'_>> {
        let at = owned_range(&self.messages, message, |it| it.parts_end)?.nth(part)?;
        let inner = &self.inner_slots[owned_range(&self.parts, at, |it| it.inner_end)?];
        let PartLayout { slot, element, .. } = self.parts[at];
        Some(PartView { slot, element, inner })
    }

    /// How many parts a message has.
    pub(crate) fn part_count(&self, message: usize) -> usize {
        owned_range(&self.messages, message, |it| it.parts_end).map_or(0, |parts| parts.len())
    }

    /// A part with pieces of its own.
    pub(crate) fn part_with_inner(&mut self, slot: EditSlot, inner: impl Iterator<Item = EditSlot>) -> PartLayout {
        self.inner_slots.extend(inner);
        PartLayout::new(slot, None)
    }

    /// Makes room for the places of messages to come.
    pub(crate) fn reserve_remaining(&mut self, share: ReadProgress) {
        share.reserve_remaining(&mut self.messages);
        share.reserve_remaining(&mut self.lists);
        share.reserve_remaining(&mut self.parts);
        share.reserve_remaining(&mut self.inner_slots);
        share.reserve_remaining(&mut self.elements);
    }

    fn push_list(&mut self, name: ListName, elements: impl Iterator<Item = ByteSpan>, parent: Option<ListElement>) {
        self.elements.extend(elements.map(CompactSpan::from));
        self.lists.push(ListLayout { name, elements_end: saturating_u32(self.elements.len()), parent });
    }
}

/// How much of the list of messages has been read, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct ReadProgress {
    pub(crate) read_bytes: usize,
    pub(crate) remaining_bytes: usize,
}

impl ReadProgress {
    /// Makes room for what the rest will bring if it is like what was read. Doubling copies a long list again and again,
    /// each time into memory that was never touched.
    pub(crate) fn reserve_remaining<T>(self, list: &mut Vec<T>) {
        let expected = list.len() as u128 * self.remaining_bytes as u128 / self.read_bytes.max(1) as u128;
        // A little more, since it is a guess; and not much more than is there, since it may be a bad one.
        let most = list.len() * 7;
        list.reserve_exact(usize::try_from(expected + expected / 8).map_or(most, |more| more.min(most)));
    }
}

/// What belongs to the entry at `at`, where each entry knows where its own end.
fn owned_range<T>(entries: &[T], at: usize, end: impl Fn(&T) -> u32) -> Option<Range<usize>> {
    let last = end(entries.get(at)?);
    let first = at.checked_sub(1).map_or(0, |before| end(&entries[before]));
    Some(first as usize..last as usize)
}

/// A count or an offset in half a word. A body that has more of them is refused before it is read; of a message of a
/// recording, which may be as long, nobody asks for the places.
fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl From<ByteSpan> for CompactSpan {
    fn from(span: ByteSpan) -> Self {
        Self { start: saturating_u32(span.start), end: saturating_u32(span.end) }
    }
}

impl CompactSpan {
    pub(crate) fn span(self) -> ByteSpan {
        ByteSpan { start: self.start as usize, end: self.end as usize }
    }
}

impl ListElement {
    pub(crate) fn new(list: ListName, index: usize) -> Self {
        Self { list, index: saturating_u32(index) }
    }

    pub(crate) fn index(self) -> usize {
        self.index as usize
    }
}

impl ListView<'_> {
    pub(crate) fn elements(&self) -> impl DoubleEndedIterator<Item = ByteSpan> + ExactSizeIterator {
        self.elements.iter().map(|place| place.span())
    }
}

impl PartLayout {
    pub(crate) fn new(slot: EditSlot, element: Option<ListElement>) -> Self {
        Self { slot, element, inner_end: 0 }
    }

    pub(crate) fn in_list(self, element: ListElement) -> Self {
        Self { element: Some(element), ..self }
    }
}

/// A message while its dialect reads it: the parts and their places grow together.
pub(crate) struct MessageBuilder<'a, 'l> {
    message: Message<'a>,
    pub(crate) layout: &'l mut BodyLayout,
    span: CompactSpan,
}

impl<'a, 'l> MessageBuilder<'a, 'l> {
    /// Begins with the list of the message's own fields.
    pub(crate) fn new(role: Role, message: &JsonObject<'a>, layout: &'l mut BodyLayout) -> Self {
        layout.push_list(ListName::Fields, message.fields().iter().map(|field| field.span), None);
        Self::without_lists(role, message.value.span, layout)
    }

    /// Begins with no lists at all.
    pub(crate) fn without_lists(role: Role, span: ByteSpan, layout: &'l mut BodyLayout) -> Self {
        Self { message: Message::new(role, Vec::new()), layout, span: span.into() }
    }

    /// The field of this key, as an element of the message. None when the key stands there twice: if the
    /// last one went, the one before it would speak.
    pub(crate) fn field_element(message: &JsonObject<'a>, key: &str) -> Option<ListElement> {
        message.unique_position(key).map(|index| ListElement::new(ListName::Fields, index))
    }

    /// Adds a list of the message, of which each element will be a part.
    pub(crate) fn push_list(&mut self, name: ListName, elements: &[JsonObject<'a>], parent: Option<ListElement>) {
        self.message.parts.reserve_exact(elements.len());
        self.layout.push_list(name, elements.iter().map(|element| element.value.span), parent);
    }

    pub(crate) fn push(&mut self, part: Part<'a>, layout: PartLayout) {
        // What stands in no list is alone, or nearly so.
        if self.message.parts.capacity() == 0 {
            self.message.parts.reserve_exact(1);
        }
        self.message.parts.push(part);
        self.layout.parts.push(PartLayout { inner_end: saturating_u32(self.layout.inner_slots.len()), ..layout });
    }

    pub(crate) fn finish(self) -> Message<'a> {
        let Self { message, layout, span: place } = self;
        let (lists, parts) = (saturating_u32(layout.lists.len()), saturating_u32(layout.parts.len()));
        layout.messages.push(MessageLayout { span: place, lists_end: lists, parts_end: parts });
        message
    }
}

/// The content of a tool result: a string, or a list of pieces that `piece` reads.
pub(crate) fn parse_result_content<'a>(
    layout: &mut BodyLayout,
    result: &JsonObject<'a>,
    key: &str,
    piece: impl Fn(&JsonObject<'a>) -> (Part<'a>, EditSlot),
) -> (Vec<Part<'a>>, PartLayout) {
    let Some(value) = result.get(key).filter(|value| value.is_string() || value.is_array()) else {
        return (Vec::new(), PartLayout::new(EditSlot::Fixed, None));
    };
    let whole = EditSlot::Text(value.span.into());
    match value.text() {
        Some(text) => (vec![Part::text(text)], layout.part_with_inner(whole, iter::once(whole))),
        None => {
            let pieces = result.elements(key);
            let mut parts = Vec::with_capacity(pieces.len());
            let slots = pieces.iter().map(|it| {
                let (part, slot) = piece(it);
                parts.push(part);
                slot
            });
            let place = layout.part_with_inner(whole, slots);
            (parts, place)
        }
    }
}

/// A block that is kept as it is.
pub(crate) fn opaque_part<'a>(kind: Option<Cow<'a, str>>, pair: Option<Cow<'a, str>>, raw: JsonValue<'a>) -> Part<'a> {
    Part::Opaque(OpaqueBlock { kind: kind.unwrap_or_default(), pair, raw: Cow::Borrowed(raw.raw()) })
}

/// The source of an image or file behind an address, which may be a `data:` one.
pub(crate) fn source_from_url(url: Cow<'_, str>) -> MediaSource<'_> {
    if !url.starts_with("data:") {
        return MediaSource::Url(url);
    }
    let Some(at) = url.find(";base64,").map(|at| at + ";base64,".len()) else { return MediaSource::Unknown };
    MediaSource::Base64(match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[at..]),
        Cow::Owned(url) => Cow::Owned(url[at..].to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long body has tens of thousands of each.
    #[test]
    fn layout_types_stay_small() {
        assert_eq!(size_of::<CompactSpan>(), 8);
        assert_eq!(size_of::<EditSlot>(), 12);
        assert_eq!(size_of::<MessageLayout>(), 16);
        assert_eq!(size_of::<ListLayout>(), 16);
        assert_eq!(size_of::<PartLayout>(), 24);
    }

    #[test]
    fn reservation_follows_the_estimate_and_is_capped_at_8x() {
        let room = |read, left| {
            let mut list = vec![0; 80];
            ReadProgress { read_bytes: read, remaining_bytes: left }.reserve_remaining(&mut list);
            list.capacity()
        };
        assert_eq!(room(1_000, 2_000), 80 + 180);
        assert_eq!(room(1_000, 0), 80);
        assert_eq!(room(1, usize::MAX), 80 * 8);
        assert_eq!(room(0, 1), 80 + 90);
    }
}
