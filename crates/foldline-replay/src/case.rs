//! A recorded conversation prepared for scoring: what each recorded action needed, and where it
//! stood.
//!
//! Everything that depends on the recording alone is computed here, once, for all engines. Atoms
//! and lines are small numbers, so that following a rendering costs what its changes cost.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use foldline::marker::{handles, is_marker};
use foldline::transcript::RecordedSession;
use foldline::wire::Format;
use foldline::{Handle, Message, Meter, Part, ToolDefinition};
use rustc_hash::FxHashMap;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::CorpusStats;
use crate::artifact_trail;
use crate::artifact_trail::TrailFacts;
use crate::chat;
use crate::edit::{self, EditAnchor};
use crate::engine::SharedMessage;
use crate::identifiers::for_each_identifier;
use crate::text::{TextOrigin, for_each_text};

/// An atom that stands nowhere in this many newest messages of the full request is hard: recency
/// does not give it away.
pub const RECENT_MESSAGES: usize = 6;

/// A line that begins like a marker and is longer than this says more than a marker does.
const MAX_MARKER_BYTES: usize = 256;

/// A recorded conversation prepared for scoring.
pub struct ReplayCase {
    /// The recording's name.
    pub id: String,
    /// The model that the recording names.
    pub model: Option<String>,
    /// The shape that its requests have.
    pub format: Format,
    /// The tools that every request declares.
    pub tools: Vec<ToolDefinition<'static>>,
    /// Instructions that stand outside the messages.
    pub system: Vec<Part<'static>>,
    /// The messages.
    pub messages: Vec<SharedMessage>,
    /// The calls, oldest first.
    pub calls: Vec<RecordedCall>,
    pub(crate) meter: Meter,
    /// Tokens of tools and of instructions outside the messages.
    pub(crate) base_tokens: u64,
    pub(crate) metrics: Vec<Arc<MessageMetrics>>,
    pub(crate) by_hash: FxHashMap<u64, usize>,
    pub(crate) identifiers: Vec<Box<str>>,
    pub(crate) instructions: Vec<(usize, u64)>,
    identifiers_by_line: FxHashMap<u64, Box<[u32]>>,
    /// The instructions that a text says: itself, or those of a message whose texts were joined.
    instructions_by_text: FxHashMap<u64, Box<[u64]>>,
}

/// A request that was sent, and what the model did then.
pub struct RecordedCall {
    /// The request carried the messages before this one.
    pub start: usize,
    /// The action is the messages from `at` to here.
    pub end: usize,
    /// Tokens of the action.
    pub output_tokens: u64,
    /// The atoms of the action that stood in the full request.
    pub needs: Vec<ContextNeed>,
    /// The hard atoms that another conversation's action would have found in the full request.
    pub(crate) foreign_identifiers: Vec<u32>,
    /// The replacement edits whose old text stood in the full request.
    pub anchors: Vec<EditAnchor>,
}

/// An atom of an action that stood in the full request.
#[derive(Clone, Copy, Debug)]
pub struct ContextNeed {
    pub(crate) identifier: u32,
    /// Whether it stands nowhere in the newest messages.
    pub is_distant: bool,
    /// Whether an earlier action had it too.
    pub used_before: bool,
    /// Where it stood last.
    pub position: TextPosition,
}

/// Where a line stood.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TextPosition {
    /// Index of the message.
    pub message: usize,
    /// Index of its part.
    pub part: usize,
    /// What kind of text it is in.
    pub kind: TextOrigin,
    /// Index of the line in that text.
    pub line: usize,
}

/// What the metrics need to know of a rendered message.
#[derive(Debug)]
pub(crate) struct MessageMetrics {
    pub(crate) hash: u64,
    pub(crate) bytes: usize,
    pub(crate) tokens: u64,
    /// The needed atoms of its verbatim lines, once for each line.
    pub(crate) identifiers: Box<[u32]>,
    /// The verbatim instructions in it.
    pub(crate) instructions: Box<[u64]>,
    /// Bytes of lines that are neither verbatim nor in the marker grammar.
    pub(crate) invented_bytes: u64,
    /// The handles in its markers.
    pub(crate) handles: Box<[Handle]>,
    /// What the artifact trail can read off it.
    pub(crate) trail_facts: TrailFacts,
    /// The original message that it is, if it is one.
    pub(crate) original_index: Option<usize>,
}

/// A turn of the model, with its atoms and with those of another conversation's turn.
struct RecordedAction {
    range: Range<usize>,
    identifiers: Vec<u32>,
    foreign_identifiers: Vec<u32>,
}

/// The atoms that actions have, by small numbers.
#[derive(Default)]
struct IdentifierTable {
    ids: FxHashMap<u64, u32>,
    texts: Vec<Box<str>>,
}

impl IdentifierTable {
    fn intern_action(&mut self, messages: &[SharedMessage], survey: &CorpusStats) -> Vec<u32> {
        let mut found = Vec::new();
        for message in messages {
            for_each_action_identifier(message, |atom| {
                let hash = xxh3_64(atom.as_bytes());
                if !survey.is_common(hash) {
                    found.push(self.intern(hash, atom));
                }
            });
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn intern_foreign(&mut self, atoms: &[u64], survey: &CorpusStats) -> Vec<u32> {
        atoms.iter().filter(|&&hash| !survey.is_common(hash)).map(|&hash| self.intern(hash, "")).collect()
    }

    fn intern(&mut self, hash: u64, text: &str) -> u32 {
        let next = self.texts.len() as u32;
        let id = *self.ids.entry(hash).or_insert(next);
        if id == next {
            self.texts.push(text.into());
        } else if self.texts[id as usize].is_empty() {
            self.texts[id as usize] = text.into();
        }
        id
    }
}

impl ReplayCase {
    /// Prepares a recording.
    pub fn new(recording: RecordedSession, survey: &CorpusStats, meter: &Meter) -> Self {
        let RecordedSession { id, conversation, format, .. } = recording;
        let base = meter.tools(&conversation.tools) + meter.system(&conversation.system) + meter.request_overhead();
        let messages: Vec<SharedMessage> = conversation.messages.into_iter().map(Arc::new).collect();
        let mut needed = IdentifierTable::default();
        let foreign = survey.foreign_actions(&id);
        let actions: Vec<RecordedAction> = action_ranges(&messages)
            .into_iter()
            .enumerate()
            .map(|(index, range)| RecordedAction {
                identifiers: needed.intern_action(&messages[range.clone()], survey),
                foreign_identifiers: foreign
                    .as_deref()
                    .map_or_else(Vec::new, |future| needed.intern_foreign(&future[index % future.len()], survey)),
                range,
            })
            .collect();

        let mut case = Self {
            id,
            model: conversation.model.map(|model| model.into_owned()),
            format: format.wire_format(),
            tools: conversation.tools,
            system: conversation.system,
            messages,
            calls: Vec::new(),
            meter: meter.clone(),
            base_tokens: base,
            metrics: Vec::new(),
            by_hash: FxHashMap::default(),
            identifiers: needed.texts,
            instructions: Vec::new(),
            identifiers_by_line: FxHashMap::default(),
            instructions_by_text: FxHashMap::default(),
        };
        case.index_messages(&needed.ids, actions);
        case
    }

    /// Reads the messages in order; what stood before an action is what it could lean on.
    fn index_messages(&mut self, atoms_by_hash: &FxHashMap<u64, u32>, actions: Vec<RecordedAction>) {
        let mut last: Vec<Option<TextPosition>> = vec![None; self.identifiers.len()];
        let mut used = vec![false; self.identifiers.len()];
        let mut anchors =
            edit::find_anchors(&self.messages, actions.iter().map(|action| action.range.clone())).into_iter();
        let mut actions = actions.into_iter().peekable();
        for at in 0..self.messages.len() {
            if let Some(action) = actions.next_if(|action| action.range.start == at) {
                let needs = action
                    .identifiers
                    .iter()
                    .filter_map(|&atom| {
                        let place = last[atom as usize]?;
                        let used_before = used[atom as usize];
                        Some(ContextNeed {
                            identifier: atom,
                            is_distant: place.message + RECENT_MESSAGES < at,
                            used_before,
                            position: place,
                        })
                    })
                    .collect();
                action.identifiers.iter().for_each(|&atom| used[atom as usize] = true);
                let hard = |atom: &u32| last[*atom as usize].is_some_and(|place| place.message + RECENT_MESSAGES < at);
                let foreign = action.foreign_identifiers.into_iter().filter(hard).collect();
                let output =
                    self.messages[action.range.clone()].iter().map(|message| self.meter.message(message)).sum();
                let anchors = anchors.next().expect("one list of anchors for each action");
                self.calls.push(RecordedCall {
                    start: at,
                    end: action.range.end,
                    output_tokens: output,
                    needs,
                    foreign_identifiers: foreign,
                    anchors,
                });
            }
            self.index_message(at, atoms_by_hash, &mut last);
        }
    }

    fn index_message(&mut self, at: usize, atoms_by_hash: &FxHashMap<u64, u32>, last: &mut [Option<TextPosition>]) {
        let message = Arc::clone(&self.messages[at]);
        let mut found = Vec::new();
        let mut spoken = Vec::new();
        for_each_text(&message, |kind, part, text| {
            for (line_at, line) in text.lines().enumerate() {
                let known = self.identifiers_by_line.entry(kind.line_key(line)).or_insert_with(|| {
                    found.clear();
                    for_each_identifier(line, |atom| {
                        if let Some(&id) = atoms_by_hash.get(&xxh3_64(atom.as_bytes()))
                            && !found.contains(&id)
                        {
                            found.push(id);
                        }
                    });
                    found.as_slice().into()
                });
                for &atom in known.iter() {
                    last[atom as usize] = Some(TextPosition { message: at, part, kind, line: line_at });
                }
            }
            if kind == TextOrigin::Instruction && !text.is_empty() {
                let key = xxh3_64(text.as_bytes());
                self.instructions.push((at, key));
                self.instructions_by_text.insert(key, [key].into());
                spoken.push(key);
            }
        });
        if spoken.len() > 1
            && let Some(said) = chat::joined_text(&message)
        {
            self.instructions_by_text.insert(xxh3_64(said.as_bytes()), spoken.into());
        }
        let mut measured = self.measure(&message);
        measured.original_index = Some(at);
        self.by_hash.entry(measured.hash).or_insert(at);
        self.metrics.push(Arc::new(measured));
    }

    /// Measures a rendered message against the originals.
    pub(crate) fn measure(&self, message: &foldline::Message<'_>) -> MessageMetrics {
        let form = canonical_bytes(message);
        let mut standing = Vec::new();
        let mut instructions = Vec::new();
        let mut invented = 0;
        let mut offered = Vec::new();
        for_each_text(message, |kind, _, text| {
            for line in text.lines() {
                match self.identifiers_by_line.get(&kind.line_key(line)) {
                    Some(atoms) => standing.extend_from_slice(atoms),
                    None if line.len() <= MAX_MARKER_BYTES && is_marker(line) => offered.extend(handles(line)),
                    None => invented += line.len() as u64 - marker_bytes(line),
                }
            }
            if kind == TextOrigin::Instruction {
                let spoken = self.instructions_by_text.get(&xxh3_64(text.as_bytes()));
                instructions.extend(spoken.into_iter().flatten().copied());
            }
        });
        MessageMetrics {
            hash: xxh3_64(&form),
            bytes: form.len(),
            tokens: self.meter.message(message),
            identifiers: standing.into(),
            instructions: instructions.into(),
            invented_bytes: invented,
            handles: offered.into(),
            trail_facts: artifact_trail::extract_facts(message),
            original_index: None,
        }
    }

    /// The needed atoms of a line, if it is verbatim the original's.
    pub(crate) fn line_identifiers(&self, kind: TextOrigin, line: &str) -> Option<&[u32]> {
        self.identifiers_by_line.get(&kind.line_key(line)).map(|atoms| &**atoms)
    }

    /// What a rendered message measures; the originals are known already.
    pub(crate) fn metrics_for(&self, message: &SharedMessage) -> Arc<MessageMetrics> {
        let hash = xxh3_64(&canonical_bytes(message));
        match self.by_hash.get(&hash) {
            Some(&at) => Arc::clone(&self.metrics[at]),
            None => Arc::new(self.measure(message)),
        }
    }

    /// Tokens of the full request that carries the messages before this one.
    pub(crate) fn tokens_before(&self, at: usize) -> u64 {
        self.base_tokens + self.metrics[..at].iter().map(|measured| measured.tokens).sum::<u64>()
    }

    /// The text of an atom.
    pub fn identifier_text(&self, need: &ContextNeed) -> &str {
        &self.identifiers[need.identifier as usize]
    }
}

/// The bytes of a marker inside a line: the value of a string in JSON.
fn marker_bytes(line: &str) -> u64 {
    let marker = line.find("[folded: ").and_then(|at| Some(&line[at..=at + line[at..].find(']')?]));
    marker.filter(|it| it.len() <= MAX_MARKER_BYTES && is_marker(it)).map_or(0, |it| it.len() as u64)
}

/// The byte form of a message, by which renderings are compared. Any fixed form gives the same
/// prefix but for a few bytes.
pub(crate) fn canonical_bytes(message: &foldline::Message<'_>) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is plain data")
}

/// The turns of the model that follow a request, as ranges of messages.
pub(crate) fn action_ranges<M: Borrow<Message<'static>>>(messages: &[M]) -> Vec<Range<usize>> {
    let mut actions: Vec<Range<usize>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| messages[before].borrow());
        if message.borrow().opens_round(before) {
            actions.push(at..at + 1);
        } else if let Some(action) = actions.last_mut().filter(|action| action.end == at) {
            action.end += usize::from(message.borrow().is_assistant());
        }
    }
    // A conversation that begins with the model has no request before that.
    actions.retain(|action| action.start > 0);
    actions
}

/// The atoms of an action: of what the model said, and of its calls.
pub(crate) fn for_each_action_identifier(message: &Message<'_>, mut visit: impl FnMut(&str)) {
    for_each_text(message, |kind, _, text| {
        if !matches!(kind, TextOrigin::Reasoning | TextOrigin::CallId) {
            text.lines().for_each(|line| for_each_identifier(line, &mut visit));
        }
    });
}

impl ReplayCase {
    /// The tool whose call or result stands at a place; empty elsewhere.
    pub fn tool_at(&self, place: TextPosition) -> &str {
        self.call_at(place).map_or("", |call| &call.name)
    }

    /// The arguments of the call that stands, or is answered, at a place; empty elsewhere.
    pub fn arguments_at(&self, place: TextPosition) -> String {
        self.call_at(place).map_or_else(String::new, |call| call.arguments.as_str().to_owned())
    }

    /// The line at a place.
    pub fn line_at(&self, place: TextPosition) -> String {
        let mut found = String::new();
        for_each_text(&self.messages[place.message], |kind, part, text| {
            if kind == place.kind
                && part == place.part
                && found.is_empty()
                && let Some(line) = text.lines().nth(place.line)
            {
                found = line.to_owned();
            }
        });
        found
    }

    /// The handles that what stands at a place would have, were it folded: those of its texts.
    pub(crate) fn original_handles_at(&self, place: TextPosition) -> impl Iterator<Item = Handle> + '_ {
        let part = &self.messages[place.message].parts[place.part];
        let (own, inner) = match part {
            Part::ToolCall(call) => (Some(call.arguments.as_str()), &[][..]),
            Part::Reasoning(reasoning) => (Some(&*reasoning.text), &[][..]),
            Part::ToolResult(result) => (None, &result.content[..]),
            part => (part.as_text(), &[][..]),
        };
        own.into_iter().chain(inner.iter().filter_map(Part::as_text)).map(|text| Handle::for_content(text.as_bytes()))
    }

    fn call_at(&self, place: TextPosition) -> Option<&foldline::ToolCall<'static>> {
        match &self.messages[place.message].parts[place.part] {
            Part::ToolCall(call) => Some(call),
            Part::ToolResult(result) => self.messages[..place.message]
                .iter()
                .rev()
                .flat_map(|message| message.calls())
                .find(|call| call.id == result.call_id),
            _ => None,
        }
    }
}
