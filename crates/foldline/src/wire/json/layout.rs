//! Byte positions of the editable parts of a body.
//!
//! The dialects fill it while parsing; `splice` reads it. Lists know their parents, so that a list which an edit
//! empties is removed with its field (providers reject `"tool_calls": []`).
//!
//! A long body has tens of thousands of positions, and touching fresh memory is what makes a byte of a long body cost
//! more than one of a short body (docs/decisions/0001). So all positions are in five flat lists. Each message, list and
//! part stores where its own entries end; they begin where those of the previous one end.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use crate::conversation::{MediaSource, Message, OpaqueBlock, Part, Role};
use crate::wire::json::lexer::ByteSpan;
use crate::wire::json::scan::{JsonObject, JsonValue};

/// The longest body whose positions fit.
pub(crate) const MAX_BODY_BYTES: usize = u32::MAX as usize;

/// Positions of all messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyLayout {
    /// Start of the list of messages; `None` if the input is a plain string.
    pub(crate) messages_start: Option<usize>,
    pub(crate) tools: Option<ToolsLayout>,
    /// Fields that every splice adds.
    pub(crate) added_fields: Vec<AddedField>,
    messages: Vec<MessageLayout>,
    lists: Vec<ListLayout>,
    parts: Vec<PartLayout>,
    /// Slots of the blocks in results' contents.
    inner_slots: Vec<EditSlot>,
    /// Elements of all lists.
    elements: Vec<CompactSpan>,
}

/// A range of bytes in the body, half the size of a [`ByteSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactSpan {
    start: u32,
    end: u32,
}

/// A field that is added at the start of an object.
#[derive(Clone, Debug)]
pub(crate) struct AddedField {
    /// After the opening brace.
    pub(crate) at: usize,
    /// The field, and the comma after it if it needs one.
    pub(crate) json: String,
}

impl AddedField {
    /// Creates a field of this name and value for an object.
    pub(crate) fn new(object: &JsonObject<'_>, key: &str, value: &str) -> Self {
        let comma = if object.fields().is_empty() { "" } else { "," };
        Self { at: object.value.span.start + 1, json: format!(r#""{key}":{value}{comma}"#) }
    }
}

/// The declarations of tools.
#[derive(Clone, Debug)]
pub(crate) struct ToolsLayout {
    /// After the opening bracket: the position of a first declaration.
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
    /// The calls, if they are not part of the content.
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
    /// End of its entries in `lists`; the next field is the end of its parts.
    lists_end: u32,
    parts_end: u32,
}

#[derive(Clone, Debug)]
struct ListLayout {
    name: ListName,
    /// End of its entries in `elements`.
    elements_end: u32,
    parent: Option<ListElement>,
}

/// A JSON array, or the fields of an object, as the positions of its elements.
pub(crate) struct ListView<'l> {
    elements: &'l [CompactSpan],
    /// The element of another list of the same message that contains this list.
    pub(crate) parent: Option<ListElement>,
}

#[derive(Clone, Debug)]
pub(crate) struct PartLayout {
    slot: EditSlot,
    element: Option<ListElement>,
    /// End of its entries in `inner_slots`.
    inner_end: u32,
}

/// Position of a part.
pub(crate) struct PartView<'l> {
    pub(crate) slot: EditSlot,
    /// The element to remove when the part is dropped; `None` if it can only be dropped with its message.
    pub(crate) element: Option<ListElement>,
    /// The blocks of a tool result's content.
    pub(crate) inner: &'l [EditSlot],
}

/// The method of replacing a part's content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EditSlot {
    /// Not replaceable.
    Fixed,
    /// Replaced by a JSON string: a text, or the content of a result.
    Text(CompactSpan),
    /// Replaced by a JSON string: the free text that a custom tool takes.
    TextArguments(CompactSpan),
    /// Replaced by JSON text inside a JSON string: OpenAI's arguments.
    JsonInString(CompactSpan),
    /// Replaced by plain JSON: Anthropic's arguments.
    Json(CompactSpan),
    /// Replaced by a whole text block: an image or a file.
    Block(CompactSpan),
    /// Replaced by the same object with another output: a result whose output is a JSON object (Gemini).
    ResultObject(CompactSpan),
}

impl BodyLayout {
    pub(crate) fn messages(&self) -> impl ExactSizeIterator<Item = ByteSpan> {
        self.messages.iter().map(|message| message.span.span())
    }

    pub(crate) fn message(&self, at: usize) -> Option<ByteSpan> {
        Some(self.messages.get(at)?.span.span())
    }

    /// Returns the index of the message that contains a byte.
    pub(crate) fn message_at_offset(&self, byte: usize) -> Option<usize> {
        let at = self.messages.partition_point(|message| message.span.span().end <= byte);
        (self.message(at)?.start <= byte).then_some(at)
    }

    pub(crate) fn list(&self, message: usize, name: ListName) -> Option<ListView<'_>> {
        let at =
            owned_range(&self.messages, message, |entry| entry.lists_end)?.find(|&at| self.lists[at].name == name)?;
        let elements = &self.elements[owned_range(&self.lists, at, |entry| entry.elements_end)?];
        Some(ListView { elements, parent: self.lists[at].parent })
    }

    /// Returns the part at an index of its message.
    pub(crate) fn part(&self, message: usize, part: usize) -> Option<PartView<'_>> {
        let at = owned_range(&self.messages, message, |entry| entry.parts_end)?.nth(part)?;
        let inner = &self.inner_slots[owned_range(&self.parts, at, |entry| entry.inner_end)?];
        let PartLayout { slot, element, .. } = self.parts[at];
        Some(PartView { slot, element, inner })
    }

    /// Returns the number of parts of a message.
    pub(crate) fn part_count(&self, message: usize) -> usize {
        owned_range(&self.messages, message, |entry| entry.parts_end).map_or(0, |parts| parts.len())
    }

    /// Creates a part with inner blocks.
    pub(crate) fn part_with_inner(&mut self, slot: EditSlot, inner: impl Iterator<Item = EditSlot>) -> PartLayout {
        self.inner_slots.extend(inner);
        PartLayout::new(slot, None)
    }

    /// Reserves memory for the positions of the remaining messages.
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

/// Progress of reading the list of messages, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct ReadProgress {
    pub(crate) read_bytes: usize,
    pub(crate) remaining_bytes: usize,
}

impl ReadProgress {
    /// Reserves memory for the rest, assuming that it resembles what was read. Doubling would copy a long list
    /// repeatedly, each time into fresh memory.
    pub(crate) fn reserve_remaining<T>(self, list: &mut Vec<T>) {
        let expected = list.len() as u128 * self.remaining_bytes as u128 / self.read_bytes.max(1) as u128;
        // Add some slack, since this is an estimate; cap it, since the estimate may be far off.
        let most = list.len() * 7;
        list.reserve_exact(usize::try_from(expected + expected / 8).map_or(most, |more| more.min(most)));
    }
}

/// Returns the range of entries that belong to entry `at`, where each entry stores the end of its own range.
fn owned_range<T>(entries: &[T], at: usize, end: impl Fn(&T) -> u32) -> Option<Range<usize>> {
    let last = end(entries.get(at)?);
    let first = at.checked_sub(1).map_or(0, |before| end(&entries[before]));
    Some(first as usize..last as usize)
}

/// Converts a count or an offset to 32 bits. Longer bodies are rejected before parsing; positions of longer messages in
/// recordings are never used.
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
        self.elements.iter().map(|element| element.span())
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

/// Builds a message while its dialect parses it: parts and positions together.
pub(crate) struct MessageBuilder<'a, 'l> {
    message: Message<'a>,
    pub(crate) layout: &'l mut BodyLayout,
    span: CompactSpan,
}

impl<'a, 'l> MessageBuilder<'a, 'l> {
    /// Creates a builder with the list of the message's own fields.
    pub(crate) fn new(role: Role, message: &JsonObject<'a>, layout: &'l mut BodyLayout) -> Self {
        layout.push_list(ListName::Fields, message.fields().iter().map(|field| field.span), None);
        Self::without_lists(role, message.value.span, layout)
    }

    /// Creates a builder without lists.
    pub(crate) fn without_lists(role: Role, span: ByteSpan, layout: &'l mut BodyLayout) -> Self {
        Self { message: Message::new(role, Vec::new()), layout, span: span.into() }
    }

    /// Returns the role of the message.
    pub(crate) fn role(&self) -> Role {
        self.message.role
    }

    /// Returns the field of this key as an element of the message. Returns `None` if the key appears twice: removing
    /// the last one would make the earlier one effective.
    pub(crate) fn field_element(message: &JsonObject<'a>, key: &str) -> Option<ListElement> {
        message.unique_position(key).map(|index| ListElement::new(ListName::Fields, index))
    }

    /// Adds a list of the message, each element of which will be a part.
    pub(crate) fn push_list(&mut self, name: ListName, elements: &[JsonObject<'a>], parent: Option<ListElement>) {
        self.message.parts.reserve_exact(elements.len());
        self.layout.push_list(name, elements.iter().map(|element| element.value.span), parent);
    }

    pub(crate) fn push(&mut self, part: Part<'a>, layout: PartLayout) {
        // A part outside of lists is usually the only one.
        if self.message.parts.capacity() == 0 {
            self.message.parts.reserve_exact(1);
        }
        self.message.parts.push(part);
        self.layout.parts.push(PartLayout { inner_end: saturating_u32(self.layout.inner_slots.len()), ..layout });
    }

    pub(crate) fn finish(self) -> Message<'a> {
        let Self { message, layout, span } = self;
        let (lists_end, parts_end) = (saturating_u32(layout.lists.len()), saturating_u32(layout.parts.len()));
        layout.messages.push(MessageLayout { span, lists_end, parts_end });
        message
    }
}

/// Parses the content of a tool result: a string, or a list of blocks parsed by `parse_block`.
pub(crate) fn parse_result_content<'a>(
    layout: &mut BodyLayout,
    result: &JsonObject<'a>,
    key: &str,
    parse_block: impl Fn(&JsonObject<'a>) -> (Part<'a>, EditSlot),
) -> (Vec<Part<'a>>, PartLayout) {
    let Some(value) = result.get(key).filter(|value| value.is_string() || value.is_array()) else {
        return (Vec::new(), PartLayout::new(EditSlot::Fixed, None));
    };
    let content_slot = EditSlot::Text(value.span.into());
    match value.text() {
        Some(text) => (vec![Part::text(text)], layout.part_with_inner(content_slot, iter::once(content_slot))),
        None => {
            let blocks = result.elements(key);
            let mut parts = Vec::with_capacity(blocks.len());
            let slots = blocks.iter().map(|block| {
                let (part, slot) = parse_block(block);
                parts.push(part);
                slot
            });
            let part_layout = layout.part_with_inner(content_slot, slots);
            (parts, part_layout)
        }
    }
}

/// Creates a part for a block that is kept unchanged.
pub(crate) fn opaque_part<'a>(kind: Option<Cow<'a, str>>, pair: Option<Cow<'a, str>>, raw: JsonValue<'a>) -> Part<'a> {
    Part::Opaque(OpaqueBlock { kind: kind.unwrap_or_default(), pair, raw: Cow::Borrowed(raw.raw()) })
}

/// Returns the source of an image or file at a URL, which may be a `data:` URL.
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
        let capacity_after = |read_bytes, remaining_bytes| {
            let mut list = vec![0; 80];
            ReadProgress { read_bytes, remaining_bytes }.reserve_remaining(&mut list);
            list.capacity()
        };
        assert_eq!(capacity_after(1_000, 2_000), 80 + 180);
        assert_eq!(capacity_after(1_000, 0), 80);
        assert_eq!(capacity_after(1, usize::MAX), 80 * 8);
        assert_eq!(capacity_after(0, 1), 80 + 90);
    }
}
