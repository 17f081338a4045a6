//! A recorded conversation prepared for scoring: what each recorded action needed, and where it
//! was.
//!
//! Everything that depends only on the recording is computed here, once, for all engines. Identifiers
//! and lines are small numbers, so that the cost of tracking a rendering is proportional to its changes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use foldline::conversation::ToolDefinition;
use foldline::engine::marker::{handles, is_marker};
use foldline::transcript::RecordedSession;
use foldline::wire::Format;
use foldline::{Handle, Meter, Part};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::actions::{action_ranges, for_each_action_line};
use crate::artifact_trail::TrailFacts;
use crate::edit::{self, EditAnchor};
use crate::engine::SharedMessage;
use crate::identifiers::{IdentifierClass, for_each_identifier};
use crate::message_hash::message_hash;
use crate::repeats::{self, RepeatedResult};
use crate::text::{TextOrigin, for_each_text, joined_text};
use crate::whole_strings::{for_each_whole_string, string_hash};
use crate::{CorpusStats, artifact_trail};

/// Number of newest messages of the full request that count as recent. An identifier that appears in none of them
/// is distant: recency alone does not give it.
pub const RECENT_MESSAGES: usize = 6;

/// Uses in code or arguments from which on two hyphenated words are a name.
const MIN_CODE_USES: u8 = 2;

/// Maximum length of a marker; a longer line contains more than a marker.
const MAX_MARKER_BYTES: usize = 256;

/// A recorded conversation prepared for scoring.
pub struct ReplayCase {
    /// The recording's name.
    pub id: String,
    /// The model named in the recording.
    pub model: Option<String>,
    /// The format of its requests.
    pub format: Format,
    /// The tools that every request declares.
    pub tools: Vec<ToolDefinition<'static>>,
    /// Instructions outside the messages.
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
    /// The instructions that a text contains: itself, or those of a message whose texts were joined.
    instructions_by_text: FxHashMap<u64, Box<[u64]>>,
}

impl fmt::Debug for ReplayCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayCase")
            .field("id", &self.id)
            .field("model", &self.model)
            .field("format", &self.format)
            .field("messages", &self.messages.len())
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

/// A recorded request and the model's action after it.
#[derive(Debug)]
pub struct RecordedCall {
    /// The request carried the messages before this index.
    pub start: usize,
    /// The action is the messages from `start` to here.
    pub end: usize,
    /// Tokens of the action.
    pub output_tokens: u64,
    /// The identifiers of the action that were in the full request.
    pub needs: Vec<ContextNeed>,
    /// The distant whole strings of the action that were in the full request.
    pub(crate) distant_strings: Vec<u32>,
    /// The distant identifiers that another conversation's action would have found in the full request.
    pub(crate) foreign_identifiers: Vec<u32>,
    /// The results that repeat an earlier one.
    pub(crate) repeats: Vec<RepeatedResult>,
    /// The replacement edits whose old text was in the full request.
    pub anchors: Vec<EditAnchor>,
}

/// An identifier of an action that was in the full request.
#[derive(Clone, Copy, Debug)]
pub struct ContextNeed {
    pub(crate) identifier: u32,
    /// True if it appears in none of the recent messages.
    pub is_distant: bool,
    /// True if an earlier action used it too.
    pub used_before: bool,
    /// Its last position.
    pub position: TextPosition,
}

/// The position of a line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TextPosition {
    /// Index of the message.
    pub message: usize,
    /// Index of its part.
    pub part: usize,
    /// Origin of the text.
    pub kind: TextOrigin,
    /// Index of the line in that text.
    pub line: usize,
}

/// Metrics of a rendered message.
#[derive(Debug)]
pub(crate) struct MessageMetrics {
    pub(crate) hash: u64,
    pub(crate) tokens: u64,
    /// The needed identifiers and whole strings of its verbatim lines, once for each line.
    pub(crate) identifiers: Box<[u32]>,
    /// The keys of its long results.
    pub(crate) results: Box<[u64]>,
    /// The verbatim instructions in it.
    pub(crate) instructions: Box<[u64]>,
    /// Bytes of lines that are neither verbatim nor in the marker grammar.
    pub(crate) invented_bytes: u64,
    /// The handles in its markers.
    pub(crate) handles: Box<[Handle]>,
    /// The artifact trail's facts in it.
    pub(crate) trail_facts: TrailFacts,
    /// Index of the original message, if it is unchanged.
    pub(crate) original_index: Option<usize>,
}

/// A turn of the model, with its identifiers and those of another conversation's turn.
struct RecordedAction {
    range: Range<usize>,
    identifiers: Vec<u32>,
    strings: Vec<u32>,
    foreign_identifiers: Vec<u32>,
}

/// The identifiers and whole strings of actions, interned as small numbers.
#[derive(Default)]
struct IdentifierTable {
    ids: FxHashMap<u64, u32>,
    texts: Vec<Box<str>>,
    /// True for hyphenated words, which are a name only if code uses them.
    hyphenated: Vec<bool>,
    /// Words in capitals that were looked up before: true for a constant.
    constants: FxHashMap<u64, bool>,
}

impl IdentifierTable {
    /// Interns the identifiers of an action, and its whole strings.
    fn intern_action(
        &mut self,
        messages: &[SharedMessage],
        corpus: &CorpusStats,
        meter: &Meter,
    ) -> (Vec<u32>, Vec<u32>) {
        let (mut found, mut strings) = (Vec::new(), Vec::new());
        for message in messages {
            for_each_action_line(message, |line| {
                for_each_identifier(line, |identifier, class| {
                    let hash = xxh3_64(identifier.as_bytes());
                    let is_english = class == IdentifierClass::Capitals
                        && !*self.constants.entry(hash).or_insert_with(|| !is_english(identifier, meter));
                    if !is_english && !corpus.is_common(hash) {
                        found.push(self.intern(hash, identifier, is_hyphenated(class)));
                    }
                });
                for_each_whole_string(line, |text| {
                    let hash = string_hash(text);
                    if !corpus.is_common(hash) {
                        strings.push(self.intern(hash, text, false));
                    }
                });
            });
        }
        for ids in [&mut found, &mut strings] {
            ids.sort_unstable();
            ids.dedup();
        }
        (found, strings)
    }

    fn intern_foreign(&mut self, hashes: &[u64], corpus: &CorpusStats) -> Vec<u32> {
        hashes.iter().filter(|&&hash| !corpus.is_common(hash)).map(|&hash| self.intern(hash, "", false)).collect()
    }

    fn intern(&mut self, hash: u64, text: &str, hyphenated: bool) -> u32 {
        let next = self.texts.len() as u32;
        let id = *self.ids.entry(hash).or_insert(next);
        if id == next {
            self.texts.push(text.into());
            self.hyphenated.push(hyphenated);
        } else if self.texts[id as usize].is_empty() {
            self.texts[id as usize] = text.into();
        }
        id
    }
}

fn is_hyphenated(class: IdentifierClass) -> bool {
    matches!(class, IdentifierClass::HyphenatedInCode | IdentifierClass::HyphenatedInProse)
}

/// Returns true for a common word in capitals: in lower case and after a blank it is one token.
fn is_english(capitals: &str, meter: &Meter) -> bool {
    meter.text(&format!(" {}", capitals.to_ascii_lowercase())) == 1
}

/// The positions of identifiers in the messages so far.
struct PositionIndex<'t> {
    table: &'t IdentifierTable,
    last: Vec<Option<TextPosition>>,
    /// Uses of hyphenated words in code or arguments.
    code_uses: Vec<u8>,
}

impl PositionIndex<'_> {
    /// Returns true if an identifier is in the messages before `at`, and in none of the recent ones.
    fn is_distant(&self, id: u32, at: usize) -> bool {
        self.last[id as usize].is_some_and(|position| position.message + RECENT_MESSAGES < at)
    }

    /// Returns the needed identifiers and whole strings of a line, and counts uses in code.
    fn line_identifiers(&mut self, kind: TextOrigin, line: &str) -> Box<[u32]> {
        let mut found = Vec::new();
        for_each_identifier(line, |identifier, class| {
            if let Some(&id) = self.table.ids.get(&xxh3_64(identifier.as_bytes())) {
                let in_code = kind == TextOrigin::Argument || class == IdentifierClass::HyphenatedInCode;
                if in_code && is_hyphenated(class) {
                    self.code_uses[id as usize] = self.code_uses[id as usize].saturating_add(1);
                }
                found.push(id);
            }
        });
        for_each_whole_string(line, |text| found.extend(self.table.ids.get(&string_hash(text))));
        found.sort_unstable();
        found.dedup();
        found.into()
    }
}

impl ReplayCase {
    /// Prepares a recording.
    pub fn new(recording: RecordedSession, corpus: &CorpusStats, meter: &Meter) -> Self {
        let RecordedSession { id, conversation, format, .. } = recording;
        let base = meter.tools(&conversation.tools) + meter.system(&conversation.system) + meter.request_overhead();
        let messages: Vec<SharedMessage> = conversation.messages.into_iter().map(Arc::new).collect();
        let mut needed = IdentifierTable::default();
        let foreign = corpus.foreign_actions(&id);
        let actions: Vec<RecordedAction> = action_ranges(&messages)
            .into_iter()
            .enumerate()
            .map(|(index, range)| {
                let (identifiers, strings) = needed.intern_action(&messages[range.clone()], corpus, meter);
                let foreign_identifiers = foreign
                    .as_deref()
                    .map_or_else(Vec::new, |actions| needed.intern_foreign(&actions[index % actions.len()], corpus));
                RecordedAction { identifiers, strings, foreign_identifiers, range }
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
            identifiers: Vec::new(),
            instructions: Vec::new(),
            identifiers_by_line: FxHashMap::default(),
            instructions_by_text: FxHashMap::default(),
        };
        case.index_messages(&needed, actions);
        case.identifiers = needed.texts;
        case
    }

    /// Indexes the messages in order; an action can only need what was before it.
    fn index_messages(&mut self, table: &IdentifierTable, actions: Vec<RecordedAction>) {
        let count = table.texts.len();
        let mut index = PositionIndex { table, last: vec![None; count], code_uses: vec![0; count] };
        let mut used = vec![false; count];
        let ranges = || actions.iter().map(|action| action.range.clone());
        let mut anchors = edit::find_anchors(&self.messages, ranges()).into_iter();
        let mut repeats = repeats::find_repeats(&self.messages, ranges()).into_iter();
        let mut actions = actions.into_iter().peekable();
        for at in 0..self.messages.len() {
            if let Some(action) = actions.next_if(|action| action.range.start == at) {
                let needs = action.identifiers.iter().filter_map(|&id| {
                    Some(ContextNeed {
                        identifier: id,
                        is_distant: index.is_distant(id, at),
                        used_before: used[id as usize],
                        position: index.last[id as usize]?,
                    })
                });
                let needs = needs.collect();
                action.identifiers.iter().for_each(|&id| used[id as usize] = true);
                let distant = |ids: Vec<u32>| ids.into_iter().filter(|&id| index.is_distant(id, at)).collect();
                let output_tokens =
                    self.messages[action.range.clone()].iter().map(|message| self.meter.message(message)).sum();
                self.calls.push(RecordedCall {
                    start: at,
                    end: action.range.end,
                    output_tokens,
                    needs,
                    distant_strings: distant(action.strings),
                    foreign_identifiers: distant(action.foreign_identifiers),
                    repeats: repeats.next().expect("one list of repeats for each action"),
                    anchors: anchors.next().expect("one list of anchors for each action"),
                });
            }
            self.index_message(at, &mut index);
        }
        let is_name = |id: u32| !table.hyphenated[id as usize] || index.code_uses[id as usize] >= MIN_CODE_USES;
        self.calls.iter_mut().for_each(|call| call.needs.retain(|need| is_name(need.identifier)));
    }

    fn index_message(&mut self, at: usize, index: &mut PositionIndex<'_>) {
        let message = Arc::clone(&self.messages[at]);
        let mut keys = Vec::new();
        for_each_text(&message, |kind, part, text| {
            for (line_at, line) in text.lines().enumerate() {
                let known = self
                    .identifiers_by_line
                    .entry(kind.line_key(line))
                    .or_insert_with(|| index.line_identifiers(kind, line));
                for &id in known.iter() {
                    index.last[id as usize] = Some(TextPosition { message: at, part, kind, line: line_at });
                }
            }
            if kind == TextOrigin::Instruction && !text.is_empty() {
                let key = xxh3_64(text.as_bytes());
                self.instructions.push((at, key));
                self.instructions_by_text.insert(key, [key].into());
                keys.push(key);
            }
        });
        if keys.len() > 1
            && let Some(joined) = joined_text(&message)
        {
            self.instructions_by_text.insert(xxh3_64(joined.as_bytes()), keys.into());
        }
        let mut metrics = self.measure(&message);
        metrics.original_index = Some(at);
        self.by_hash.entry(metrics.hash).or_insert(at);
        self.metrics.push(Arc::new(metrics));
    }

    /// Measures a rendered message against the originals.
    pub(crate) fn measure(&self, message: &foldline::Message<'_>) -> MessageMetrics {
        let mut identifiers = Vec::new();
        let mut instructions = Vec::new();
        let mut invented_bytes = 0;
        let mut folded_handles = Vec::new();
        for_each_text(message, |kind, _, text| {
            for line in text.lines() {
                match self.identifiers_by_line.get(&kind.line_key(line)) {
                    Some(ids) => identifiers.extend_from_slice(ids),
                    None if line.len() <= MAX_MARKER_BYTES && is_marker(line) => folded_handles.extend(handles(line)),
                    None => invented_bytes += line.len() as u64 - marker_bytes(line),
                }
            }
            if kind == TextOrigin::Instruction {
                let keys = self.instructions_by_text.get(&xxh3_64(text.as_bytes()));
                instructions.extend(keys.into_iter().flatten().copied());
            }
        });
        let results = message.parts.iter().filter_map(|part| match part {
            Part::ToolResult(result) => repeats::result_key(result),
            _ => None,
        });
        MessageMetrics {
            results: results.collect(),
            hash: message_hash(message),
            tokens: self.meter.message(message),
            identifiers: identifiers.into(),
            instructions: instructions.into(),
            invented_bytes,
            handles: folded_handles.into(),
            trail_facts: artifact_trail::extract_facts(message),
            original_index: None,
        }
    }

    /// Returns the needed identifiers of a line, if it is verbatim in the original.
    pub(crate) fn line_identifiers(&self, kind: TextOrigin, line: &str) -> Option<&[u32]> {
        self.identifiers_by_line.get(&kind.line_key(line)).map(|ids| &**ids)
    }

    /// Returns the metrics of a rendered message; those of the originals are precomputed.
    pub(crate) fn metrics_for(&self, message: &SharedMessage) -> Arc<MessageMetrics> {
        match self.by_hash.get(&message_hash(message)) {
            Some(&at) => Arc::clone(&self.metrics[at]),
            None => Arc::new(self.measure(message)),
        }
    }

    /// Returns the tokens of the full request with the messages before `at`.
    pub(crate) fn tokens_before(&self, at: usize) -> u64 {
        self.base_tokens + self.metrics[..at].iter().map(|metrics| metrics.tokens).sum::<u64>()
    }

    /// Returns the text of a needed identifier.
    pub fn identifier_text(&self, need: &ContextNeed) -> &str {
        &self.identifiers[need.identifier as usize]
    }
}

/// Returns the bytes of a marker inside a line, such as a string value in JSON.
fn marker_bytes(line: &str) -> u64 {
    let marker = line.find("[folded: ").and_then(|at| Some(&line[at..=at + line[at..].find(']')?]));
    marker.filter(|it| it.len() <= MAX_MARKER_BYTES && is_marker(it)).map_or(0, |it| it.len() as u64)
}

impl ReplayCase {
    /// Returns the tool of the call or result at a position; empty elsewhere.
    pub fn tool_at(&self, position: TextPosition) -> &str {
        self.call_at(position).map_or("", |call| &call.name)
    }

    /// Returns the arguments of the call at a position, or of the call answered there; empty elsewhere.
    pub fn arguments_at(&self, position: TextPosition) -> String {
        self.call_at(position).map_or_else(String::new, |call| call.arguments.as_str().to_owned())
    }

    /// Returns the line at a position.
    pub fn line_at(&self, position: TextPosition) -> String {
        let mut found = String::new();
        for_each_text(&self.messages[position.message], |kind, part, text| {
            if kind == position.kind
                && part == position.part
                && found.is_empty()
                && let Some(line) = text.lines().nth(position.line)
            {
                found = line.to_owned();
            }
        });
        found
    }

    /// Returns the handles that the texts at a position would have if they were folded.
    pub(crate) fn original_handles_at(&self, position: TextPosition) -> impl Iterator<Item = Handle> + '_ {
        let part = &self.messages[position.message].parts[position.part];
        let (own, inner) = match part {
            Part::ToolCall(call) => (Some(call.arguments.as_str()), &[][..]),
            Part::Reasoning(reasoning) => (Some(&*reasoning.text), &[][..]),
            Part::ToolResult(result) => (None, &result.content[..]),
            part => (part.as_text(), &[][..]),
        };
        own.into_iter().chain(inner.iter().filter_map(Part::as_text)).map(|text| Handle::for_content(text.as_bytes()))
    }

    fn call_at(&self, position: TextPosition) -> Option<&foldline::conversation::ToolCall<'static>> {
        match &self.messages[position.message].parts[position.part] {
            Part::ToolCall(call) => Some(call),
            Part::ToolResult(result) => self.messages[..position.message]
                .iter()
                .rev()
                .flat_map(|message| message.calls())
                .find(|call| call.id == result.call_id),
            _ => None,
        }
    }
}
