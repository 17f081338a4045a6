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

use crate::Survey;
use crate::atom::atoms;
use crate::chat;
use crate::edit::{self, Anchor};
use crate::engine::Shared;
use crate::text::{Kind, texts};
use crate::trail::{self, Facts};

/// An atom that stands nowhere in this many newest messages of the full request is hard: recency
/// does not give it away.
pub const RECENT: usize = 6;

/// A line that begins like a marker and is longer than this says more than a marker does.
const LONGEST_MARKER: usize = 256;

/// A recorded conversation prepared for scoring.
pub struct Case {
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
    pub messages: Vec<Shared>,
    /// The calls, oldest first.
    pub calls: Vec<Call>,
    pub(crate) meter: Meter,
    /// Tokens of tools and of instructions outside the messages.
    pub(crate) base: u64,
    pub(crate) measured: Vec<Arc<Measured>>,
    pub(crate) by_hash: FxHashMap<u64, usize>,
    pub(crate) atoms: Vec<Box<str>>,
    pub(crate) instructions: Vec<(usize, u64)>,
    lines: FxHashMap<u64, Box<[u32]>>,
    /// The instructions that a text says: itself, or those of a message whose texts were joined.
    spoken: FxHashMap<u64, Box<[u64]>>,
}

/// A request that was sent, and what the model did then.
pub struct Call {
    /// The request carried the messages before this one.
    pub at: usize,
    /// The action is the messages from `at` to here.
    pub end: usize,
    /// Tokens of the action.
    pub output: u64,
    /// The atoms of the action that stood in the full request.
    pub needs: Vec<Need>,
    /// The hard atoms that another conversation's action would have found in the full request.
    pub(crate) foreign: Vec<u32>,
    /// The replacement edits whose old text stood in the full request.
    pub anchors: Vec<Anchor>,
}

/// An atom of an action that stood in the full request.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub(crate) atom: u32,
    /// Whether it stands nowhere in the newest messages.
    pub hard: bool,
    /// Whether an earlier action had it too.
    pub used_before: bool,
    /// Where it stood last.
    pub place: Place,
}

/// Where a line stood.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Place {
    /// Index of the message.
    pub message: usize,
    /// Index of its part.
    pub part: usize,
    /// What kind of text it is in.
    pub kind: Kind,
    /// Index of the line in that text.
    pub line: usize,
}

/// What the metrics need to know of a rendered message.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) hash: u64,
    pub(crate) bytes: usize,
    pub(crate) tokens: u64,
    /// The needed atoms of its verbatim lines, once for each line.
    pub(crate) atoms: Box<[u32]>,
    /// The verbatim instructions in it.
    pub(crate) instructions: Box<[u64]>,
    /// Bytes of lines that are neither verbatim nor in the marker grammar.
    pub(crate) invented: u64,
    /// The handles in its markers.
    pub(crate) handles: Box<[Handle]>,
    /// What the artifact trail can read off it.
    pub(crate) facts: Facts,
    /// The original message that it is, if it is one.
    pub(crate) original: Option<usize>,
}

/// A turn of the model, with its atoms and with those of another conversation's turn.
struct Action {
    range: Range<usize>,
    atoms: Vec<u32>,
    foreign: Vec<u32>,
}

/// The atoms that actions have, by small numbers.
#[derive(Default)]
struct Needed {
    ids: FxHashMap<u64, u32>,
    texts: Vec<Box<str>>,
}

impl Needed {
    fn own(&mut self, messages: &[Shared], survey: &Survey) -> Vec<u32> {
        let mut found = Vec::new();
        for message in messages {
            action_atoms(message, |atom| {
                let hash = xxh3_64(atom.as_bytes());
                if !survey.is_common(hash) {
                    found.push(self.id(hash, atom));
                }
            });
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn foreign(&mut self, atoms: &[u64], survey: &Survey) -> Vec<u32> {
        atoms.iter().filter(|&&hash| !survey.is_common(hash)).map(|&hash| self.id(hash, "")).collect()
    }

    fn id(&mut self, hash: u64, text: &str) -> u32 {
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

impl Case {
    /// Prepares a recording.
    pub fn new(recording: RecordedSession, survey: &Survey, meter: &Meter) -> Self {
        let RecordedSession { id, conversation, format, .. } = recording;
        let base = meter.tools(&conversation.tools) + meter.system(&conversation.system) + meter.request_overhead();
        let messages: Vec<Shared> = conversation.messages.into_iter().map(Arc::new).collect();
        let mut needed = Needed::default();
        let foreign = survey.foreign(&id);
        let actions: Vec<Action> = actions(&messages)
            .into_iter()
            .enumerate()
            .map(|(index, range)| Action {
                atoms: needed.own(&messages[range.clone()], survey),
                foreign: foreign
                    .as_deref()
                    .map_or_else(Vec::new, |future| needed.foreign(&future[index % future.len()], survey)),
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
            base,
            measured: Vec::new(),
            by_hash: FxHashMap::default(),
            atoms: needed.texts,
            instructions: Vec::new(),
            lines: FxHashMap::default(),
            spoken: FxHashMap::default(),
        };
        case.index(&needed.ids, actions);
        case
    }

    /// Reads the messages in order; what stood before an action is what it could lean on.
    fn index(&mut self, atoms_by_hash: &FxHashMap<u64, u32>, actions: Vec<Action>) {
        let mut last: Vec<Option<Place>> = vec![None; self.atoms.len()];
        let mut used = vec![false; self.atoms.len()];
        let mut anchors = edit::anchors(&self.messages, actions.iter().map(|action| action.range.clone())).into_iter();
        let mut actions = actions.into_iter().peekable();
        for at in 0..self.messages.len() {
            if let Some(action) = actions.next_if(|action| action.range.start == at) {
                let needs = action
                    .atoms
                    .iter()
                    .filter_map(|&atom| {
                        let place = last[atom as usize]?;
                        let used_before = used[atom as usize];
                        Some(Need { atom, hard: place.message + RECENT < at, used_before, place })
                    })
                    .collect();
                action.atoms.iter().for_each(|&atom| used[atom as usize] = true);
                let hard = |atom: &u32| last[*atom as usize].is_some_and(|place| place.message + RECENT < at);
                let foreign = action.foreign.into_iter().filter(hard).collect();
                let output =
                    self.messages[action.range.clone()].iter().map(|message| self.meter.message(message)).sum();
                let anchors = anchors.next().expect("one list of anchors for each action");
                self.calls.push(Call { at, end: action.range.end, output, needs, foreign, anchors });
            }
            self.index_message(at, atoms_by_hash, &mut last);
        }
    }

    fn index_message(&mut self, at: usize, atoms_by_hash: &FxHashMap<u64, u32>, last: &mut [Option<Place>]) {
        let message = Arc::clone(&self.messages[at]);
        let mut found = Vec::new();
        let mut spoken = Vec::new();
        texts(&message, |kind, part, text| {
            for (line_at, line) in text.lines().enumerate() {
                let known = self.lines.entry(kind.line_key(line)).or_insert_with(|| {
                    found.clear();
                    atoms(line, |atom| {
                        if let Some(&id) = atoms_by_hash.get(&xxh3_64(atom.as_bytes()))
                            && !found.contains(&id)
                        {
                            found.push(id);
                        }
                    });
                    found.as_slice().into()
                });
                for &atom in known.iter() {
                    last[atom as usize] = Some(Place { message: at, part, kind, line: line_at });
                }
            }
            if kind == Kind::Instruction && !text.is_empty() {
                let key = xxh3_64(text.as_bytes());
                self.instructions.push((at, key));
                self.spoken.insert(key, [key].into());
                spoken.push(key);
            }
        });
        if spoken.len() > 1
            && let Some(said) = chat::said(&message)
        {
            self.spoken.insert(xxh3_64(said.as_bytes()), spoken.into());
        }
        let mut measured = self.measure(&message);
        measured.original = Some(at);
        self.by_hash.entry(measured.hash).or_insert(at);
        self.measured.push(Arc::new(measured));
    }

    /// Measures a rendered message against the originals.
    pub(crate) fn measure(&self, message: &foldline::Message<'_>) -> Measured {
        let form = form(message);
        let mut standing = Vec::new();
        let mut instructions = Vec::new();
        let mut invented = 0;
        let mut offered = Vec::new();
        texts(message, |kind, _, text| {
            for line in text.lines() {
                match self.lines.get(&kind.line_key(line)) {
                    Some(atoms) => standing.extend_from_slice(atoms),
                    None if line.len() <= LONGEST_MARKER && is_marker(line) => offered.extend(handles(line)),
                    None => invented += line.len() as u64 - marked(line),
                }
            }
            if kind == Kind::Instruction {
                let spoken = self.spoken.get(&xxh3_64(text.as_bytes()));
                instructions.extend(spoken.into_iter().flatten().copied());
            }
        });
        Measured {
            hash: xxh3_64(&form),
            bytes: form.len(),
            tokens: self.meter.message(message),
            atoms: standing.into(),
            instructions: instructions.into(),
            invented,
            handles: offered.into(),
            facts: trail::facts(message),
            original: None,
        }
    }

    /// The needed atoms of a line, if it is verbatim the original's.
    pub(crate) fn line_atoms(&self, kind: Kind, line: &str) -> Option<&[u32]> {
        self.lines.get(&kind.line_key(line)).map(|atoms| &**atoms)
    }

    /// What a rendered message measures; the originals are known already.
    pub(crate) fn measured(&self, message: &Shared) -> Arc<Measured> {
        let hash = xxh3_64(&form(message));
        match self.by_hash.get(&hash) {
            Some(&at) => Arc::clone(&self.measured[at]),
            None => Arc::new(self.measure(message)),
        }
    }

    /// Tokens of the full request that carries the messages before this one.
    pub(crate) fn tokens_before(&self, at: usize) -> u64 {
        self.base + self.measured[..at].iter().map(|measured| measured.tokens).sum::<u64>()
    }

    /// The text of an atom.
    pub fn atom(&self, need: &Need) -> &str {
        &self.atoms[need.atom as usize]
    }
}

/// The bytes of a marker inside a line: the value of a string in JSON.
fn marked(line: &str) -> u64 {
    let marker = line.find("[folded: ").and_then(|at| Some(&line[at..=at + line[at..].find(']')?]));
    marker.filter(|it| it.len() <= LONGEST_MARKER && is_marker(it)).map_or(0, |it| it.len() as u64)
}

/// The byte form of a message, by which renderings are compared. Any fixed form gives the same
/// prefix but for a few bytes.
pub(crate) fn form(message: &foldline::Message<'_>) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is plain data")
}

/// The turns of the model that follow a request, as ranges of messages.
pub(crate) fn actions<M: Borrow<Message<'static>>>(messages: &[M]) -> Vec<Range<usize>> {
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
pub(crate) fn action_atoms(message: &Message<'_>, mut visit: impl FnMut(&str)) {
    texts(message, |kind, _, text| {
        if !matches!(kind, Kind::Reasoning | Kind::CallId) {
            text.lines().for_each(|line| atoms(line, &mut visit));
        }
    });
}

impl Case {
    /// The tool whose call or result stands at a place; empty elsewhere.
    pub fn tool_at(&self, place: Place) -> &str {
        self.call_at(place).map_or("", |call| &call.name)
    }

    /// The arguments of the call that stands, or is answered, at a place; empty elsewhere.
    pub fn asked_at(&self, place: Place) -> String {
        self.call_at(place).map_or_else(String::new, |call| call.arguments.as_str().to_owned())
    }

    /// The line at a place.
    pub fn line_at(&self, place: Place) -> String {
        let mut found = String::new();
        texts(&self.messages[place.message], |kind, part, text| {
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
    pub(crate) fn originals_at(&self, place: Place) -> impl Iterator<Item = Handle> + '_ {
        let part = &self.messages[place.message].parts[place.part];
        let (own, inner) = match part {
            Part::ToolCall(call) => (Some(call.arguments.as_str()), &[][..]),
            Part::Reasoning(reasoning) => (Some(&*reasoning.text), &[][..]),
            Part::ToolResult(result) => (None, &result.content[..]),
            part => (part.as_text(), &[][..]),
        };
        own.into_iter().chain(inner.iter().filter_map(Part::as_text)).map(|text| Handle::for_content(text.as_bytes()))
    }

    fn call_at(&self, place: Place) -> Option<&foldline::ToolCall<'static>> {
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
