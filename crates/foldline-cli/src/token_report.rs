//! Report of where the tokens of conversations are: by role, tool and age, in which parts, and how much is repeated.
//!
//! A report only reads. It is a plain value that `render` formats or that is printed as JSON; reports of
//! several conversations can be merged.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use foldline::conversation::{CallArguments, PartId, ToolCall};
use foldline::laws::LawViolation;
use foldline::tokens::{CountExactness, Tokens};
use foldline::{Conversation, Message, Meter, Part, Role};
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Texts shorter than this do not count as repeats: short answers such as "ok" are frequent.
const MIN_REPEAT_BYTES: usize = 64;
/// Lines shorter than this are mostly braces and blanks.
const MIN_LINE_CHARS: usize = 24;
/// Characters of a text that are shown to recognize it.
const MAX_HEAD_CHARS: usize = 120;

/// Token counts of one or more conversations.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TokenReport {
    pub(crate) sessions: Vec<SessionReport>,
    /// Tokens of the conversations at their ends.
    pub(crate) tokens: Tokens,
    pub(crate) messages: usize,
    pub(crate) rounds: usize,
    /// Requests that were sent in the course of the conversations.
    pub(crate) requests: usize,
    /// Tokens of all those requests together: early parts were sent many times.
    pub(crate) sent_tokens: Tokens,
    pub(crate) by_role: Vec<TokenShare>,
    pub(crate) by_tool: Vec<ToolShare>,
    pub(crate) by_age: Vec<TokenShare>,
    pub(crate) largest: Vec<LargePart>,
    pub(crate) repeats: RepeatedParts,
    pub(crate) lines: RepeatedLines,
    pub(crate) broken_laws: Vec<ViolationReport>,
}

/// One conversation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SessionReport {
    pub(crate) id: String,
    pub(crate) format: String,
    pub(crate) model: Option<String>,
    pub(crate) messages: usize,
    pub(crate) rounds: usize,
    pub(crate) tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Context window of the model.
    pub(crate) window: Tokens,
    /// Method by which the tokens were counted.
    pub(crate) counted: CountAccuracy,
}

/// Accuracy of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CountAccuracy {
    Exactly,
    /// Scaled to the provider's reports.
    ByCalibration,
    ByEstimate,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TokenShare {
    pub(crate) name: String,
    pub(crate) tokens: Tokens,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ToolShare {
    pub(crate) name: String,
    pub(crate) calls: usize,
    /// Results that the client marked as errors.
    pub(crate) failed: usize,
    pub(crate) call_tokens: Tokens,
    pub(crate) result_tokens: Tokens,
}

/// One of the largest parts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LargePart {
    pub(crate) tokens: Tokens,
    /// Index of the session.
    pub(crate) session: usize,
    /// Message and part, both counted from 0.
    pub(crate) part: String,
    /// Number of requests since it was first sent.
    pub(crate) age: usize,
    /// Description, such as `result of read_file {"path":..}`.
    pub(crate) description: String,
    /// Beginning of its text.
    pub(crate) head: String,
}

/// Parts that repeat an earlier part word for word.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RepeatedParts {
    pub(crate) parts: usize,
    pub(crate) tokens: Tokens,
    /// The most expensive repeats; `part` is the first occurrence.
    pub(crate) groups: Vec<RepeatGroup>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RepeatGroup {
    pub(crate) session: usize,
    pub(crate) part: String,
    pub(crate) description: String,
    /// Number of repeats after the first occurrence.
    pub(crate) repeat_count: usize,
    /// Tokens of the repeats.
    pub(crate) tokens: Tokens,
}

/// Lines of results that also appear in an earlier result, ignoring line numbers in front of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct RepeatedLines {
    /// Bytes of all lines that are long enough to be compared.
    pub(crate) bytes: u64,
    pub(crate) repeated_bytes: u64,
    /// Approximate tokens of the repeated lines.
    pub(crate) tokens: Tokens,
}

/// A provider law that a conversation violates.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ViolationReport {
    pub(crate) session: usize,
    pub(crate) law: String,
    pub(crate) position: String,
    pub(crate) detail: String,
}

/// The age groups, in requests, oldest last.
const AGE_BUCKETS: [(usize, &str); 6] = [
    (1, "new in the last request"),
    (4, "1 to 3 requests old"),
    (10, "4 to 9 requests old"),
    (30, "10 to 29 requests old"),
    (100, "30 to 99 requests old"),
    (usize::MAX, "100 requests old, or more"),
];

impl TokenReport {
    /// Builds the report of one conversation. `top` limits the lists of largest parts and repeats.
    pub(crate) fn from_conversation(
        session: SessionReport,
        conversation: &Conversation<'_>,
        meter: &Meter,
        top: usize,
    ) -> TokenReport {
        let mut builder = ReportBuilder::new(conversation, meter);
        for (at, message) in conversation.messages.iter().enumerate() {
            builder.add_message(at, message);
        }
        builder.build(session, top)
    }

    /// Adds the report of another conversation.
    pub(crate) fn merge(&mut self, other: TokenReport, top: usize) {
        let sessions = self.sessions.len();
        self.sessions.extend(other.sessions);
        self.tokens += other.tokens;
        self.messages += other.messages;
        self.rounds += other.rounds;
        self.requests += other.requests;
        self.sent_tokens += other.sent_tokens;
        add_shares(&mut self.by_role, other.by_role);
        self.by_role.sort_by_key(|share| Reverse(share.tokens));
        add_shares(&mut self.by_age, other.by_age);
        for tool in other.by_tool {
            match self.by_tool.iter_mut().find(|it| it.name == tool.name) {
                Some(it) => {
                    it.calls += tool.calls;
                    it.failed += tool.failed;
                    it.call_tokens += tool.call_tokens;
                    it.result_tokens += tool.result_tokens;
                }
                None => self.by_tool.push(tool),
            }
        }
        self.by_tool.sort_by_key(|tool| Reverse(tool.call_tokens + tool.result_tokens));
        self.largest.extend(other.largest.into_iter().map(|it| LargePart { session: it.session + sessions, ..it }));
        keep_top(&mut self.largest, top, |it| it.tokens);
        self.repeats.parts += other.repeats.parts;
        self.repeats.tokens += other.repeats.tokens;
        let groups = other.repeats.groups.into_iter();
        self.repeats.groups.extend(groups.map(|it| RepeatGroup { session: it.session + sessions, ..it }));
        keep_top(&mut self.repeats.groups, top, |it| it.tokens);
        self.lines.bytes += other.lines.bytes;
        self.lines.repeated_bytes += other.lines.repeated_bytes;
        self.lines.tokens += other.lines.tokens;
        let violations = other.broken_laws.into_iter();
        self.broken_laws.extend(violations.map(|it| ViolationReport { session: it.session + sessions, ..it }));
    }
}

impl From<LawViolation> for ViolationReport {
    fn from(violation: LawViolation) -> Self {
        let (position, law) = (violation.at.to_string(), violation.law.to_string());
        Self { session: 0, position, law, detail: one_line(&violation.detail) }
    }
}

impl From<CountExactness> for CountAccuracy {
    fn from(exactness: CountExactness) -> Self {
        match exactness {
            CountExactness::Exact => CountAccuracy::Exactly,
            CountExactness::Calibrated => CountAccuracy::ByCalibration,
            _ => CountAccuracy::ByEstimate,
        }
    }
}

/// Counts that are collected while walking through a conversation.
struct ReportBuilder<'c> {
    meter: &'c Meter,
    conversation: &'c Conversation<'c>,
    /// The request points, ascending.
    request_points: Vec<usize>,
    role_tokens: BTreeMap<&'static str, Tokens>,
    age_tokens: [Tokens; AGE_BUCKETS.len()],
    /// Tokens outside the messages: instructions, declared tools.
    fixed_tokens: Tokens,
    tools: BTreeMap<&'c str, ToolShare>,
    /// The call of each id; the newest one if ids are reused.
    calls_by_id: HashMap<&'c str, &'c ToolCall<'c>>,
    /// The call that each result answers.
    calls_by_result: HashMap<PartId, &'c ToolCall<'c>>,
    part_tokens: Vec<(Tokens, PartId)>,
    sent_tokens: Tokens,
    texts_seen: HashMap<u128, TextOccurrence>,
    lines_seen: HashSet<u64>,
    lines: RepeatedLines,
}

/// First occurrence of a text and its repeats.
struct TextOccurrence {
    first: PartId,
    /// Number and tokens of the repeats.
    repeat_count: usize,
    repeat_tokens: Tokens,
}

impl<'c> ReportBuilder<'c> {
    fn new(conversation: &'c Conversation<'c>, meter: &'c Meter) -> Self {
        let request_points = conversation.request_points();
        let system = meter.system(&conversation.system);
        let declared = meter.tools(&conversation.tools);
        let fixed_tokens = system + declared + meter.request_overhead();
        ReportBuilder {
            meter,
            conversation,
            sent_tokens: fixed_tokens * request_points.len() as Tokens,
            request_points,
            role_tokens: BTreeMap::from([
                ("system", system),
                ("tool declarations", declared),
                ("framing", meter.request_overhead()),
            ]),
            age_tokens: [0; AGE_BUCKETS.len()],
            fixed_tokens,
            tools: BTreeMap::new(),
            calls_by_id: HashMap::new(),
            calls_by_result: HashMap::new(),
            part_tokens: Vec::new(),
            texts_seen: HashMap::new(),
            lines_seen: HashSet::new(),
            lines: RepeatedLines::default(),
        }
    }

    /// Returns how many requests ago a message was first sent: every request after it contains it.
    fn age(&self, message: usize) -> usize {
        let carried = self.request_points.len() - self.request_points.partition_point(|&point| point <= message);
        carried.saturating_sub(1)
    }

    fn add_message(&mut self, at: usize, message: &'c Message<'c>) {
        let mut message_tokens = self.meter.message(&Message::new(message.role, Vec::new()));
        *self.role_tokens.entry("framing").or_default() += message_tokens;
        for (index, part) in message.parts.iter().enumerate() {
            let id = PartId::new(at, index);
            let tokens = self.meter.part(part);
            message_tokens += tokens;
            self.part_tokens.push((tokens, id));
            *self.role_tokens.entry(share_name(message.role, part)).or_default() += tokens;
            self.add_part(id, part, tokens);
        }
        let age = self.age(at);
        self.sent_tokens += message_tokens * (age as Tokens + 1);
        let bucket = AGE_BUCKETS.iter().position(|(below, _)| age < *below).unwrap_or(AGE_BUCKETS.len() - 1);
        self.age_tokens[bucket] += message_tokens;
    }

    fn add_part(&mut self, id: PartId, part: &'c Part<'c>, tokens: Tokens) {
        match part {
            Part::Text { text } => self.record_text(id, text),
            Part::ToolCall(call) => {
                self.calls_by_id.insert(&call.id, call);
                let tool = self.tool_share(&call.name);
                tool.calls += 1;
                tool.call_tokens += tokens;
                self.record_text(id, call.arguments.as_str());
            }
            Part::ToolResult(result) => {
                let call = self.calls_by_id.get(&*result.call_id).copied();
                self.calls_by_result.extend(call.map(|call| (id, call)));
                let tool = self.tool_share(call.map_or("(unknown)", |call| &call.name));
                tool.failed += usize::from(result.is_error);
                tool.result_tokens += tokens;
                for text in result.texts() {
                    self.record_text(id, text);
                    self.count_repeated_lines(text);
                }
            }
            _ => {}
        }
    }

    fn tool_share(&mut self, name: &'c str) -> &mut ToolShare {
        self.tools.entry(name).or_insert_with(|| ToolShare { name: name.to_owned(), ..ToolShare::default() })
    }

    /// Records a text and counts it if it is a repeat.
    fn record_text(&mut self, id: PartId, text: &str) {
        if text.len() < MIN_REPEAT_BYTES {
            return;
        }
        match self.texts_seen.entry(xxh3_128(text.as_bytes())) {
            Entry::Vacant(it) => drop(it.insert(TextOccurrence { first: id, repeat_count: 0, repeat_tokens: 0 })),
            Entry::Occupied(mut it) => {
                it.get_mut().repeat_count += 1;
                it.get_mut().repeat_tokens += self.meter.text(text);
            }
        }
    }

    fn count_repeated_lines(&mut self, text: &str) {
        let mut repeated = 0;
        for line in text.lines().filter(|line| line.chars().take(MIN_LINE_CHARS).count() == MIN_LINE_CHARS) {
            self.lines.bytes += line.len() as u64;
            if !self.lines_seen.insert(xxh3_64(strip_line_number(line).trim_end().as_bytes())) {
                repeated += line.len() as u64;
            }
        }
        self.lines.repeated_bytes += repeated;
        if repeated > 0 {
            self.lines.tokens += (self.meter.text(text) as f64 * repeated as f64 / text.len() as f64) as Tokens;
        }
    }

    fn build(mut self, session: SessionReport, top: usize) -> TokenReport {
        keep_top(&mut self.part_tokens, top, |(tokens, _)| *tokens);
        let large = |&(tokens, id): &(Tokens, PartId)| {
            let head = self.conversation.part(id).map(part_text).map(one_line).unwrap_or_default();
            LargePart {
                tokens,
                session: 0,
                part: id.to_string(),
                age: self.age(id.message),
                description: self.describe_part(id),
                head,
            }
        };
        let largest = self.part_tokens.iter().map(large).collect();

        let mut groups: Vec<&TextOccurrence> = self.texts_seen.values().filter(|seen| seen.repeat_count > 0).collect();
        let (parts, tokens) =
            groups.iter().fold((0, 0), |(parts, sum), it| (parts + it.repeat_count, sum + it.repeat_tokens));
        groups.sort_by_key(|it| it.first);
        keep_top(&mut groups, top, |it| it.repeat_tokens);
        let group = |it: &&TextOccurrence| {
            let (part, description) = (it.first.to_string(), self.describe_part(it.first));
            RepeatGroup { session: 0, part, description, repeat_count: it.repeat_count, tokens: it.repeat_tokens }
        };
        let repeats = RepeatedParts { parts, tokens, groups: groups.iter().map(group).collect() };

        let mut by_tool: Vec<ToolShare> = self.tools.into_values().collect();
        by_tool.sort_by_key(|tool| Reverse(tool.call_tokens + tool.result_tokens));
        let mut by_role: Vec<TokenShare> =
            self.role_tokens.iter().map(|(name, tokens)| TokenShare::new(name, *tokens)).collect();
        by_role.retain(|share| share.tokens > 0);
        by_role.sort_by_key(|share| Reverse(share.tokens));
        let ages = AGE_BUCKETS.iter().zip(self.age_tokens).map(|((_, name), tokens)| TokenShare::new(name, tokens));
        let by_age = ages.chain([TokenShare::new("in every request", self.fixed_tokens)]).collect();
        TokenReport {
            tokens: session.tokens,
            messages: session.messages,
            rounds: session.rounds,
            requests: self.request_points.len(),
            sent_tokens: self.sent_tokens,
            sessions: vec![SessionReport { sent_tokens: self.sent_tokens, ..session }],
            by_role,
            by_tool,
            by_age,
            largest,
            repeats,
            lines: self.lines,
            broken_laws: Vec::new(),
        }
    }

    /// Describes a part in words.
    fn describe_part(&self, id: PartId) -> String {
        let Some(part) = self.conversation.part(id) else { return String::new() };
        let role = self.conversation.messages[id.message].role;
        match part {
            Part::Text { .. } if role == Role::Assistant => "assistant text".to_owned(),
            Part::Text { .. } => format!("{} text", share_name(role, part)),
            Part::Reasoning(_) => "reasoning".to_owned(),
            Part::ToolCall(call) => format!("call of {} {}", call.name, call_target(&call.arguments)),
            Part::ToolResult(_) => match self.calls_by_result.get(&id) {
                Some(call) => format!("result of {} {}", call.name, call_target(&call.arguments)),
                None => "result of an unknown call".to_owned(),
            },
            Part::Image(_) => "image".to_owned(),
            Part::File(file) => format!("file {}", file.name.as_deref().unwrap_or_default()),
            Part::Opaque(it) => it.kind.to_string(),
            _ => "other".to_owned(),
        }
    }
}

/// Returns the name of the role group that a part belongs to.
fn share_name(role: Role, part: &Part<'_>) -> &'static str {
    match (part, role) {
        (Part::Text { .. }, Role::System | Role::Developer) => "system",
        (Part::Text { .. }, Role::User) => "user",
        (Part::Text { .. }, Role::Assistant) => "assistant text",
        (Part::Text { .. }, Role::Tool) => "results",
        (Part::Reasoning(_), _) => "reasoning",
        (Part::ToolCall(_), _) => "calls",
        (Part::ToolResult(_), _) => "results",
        (Part::Image(_) | Part::File(_), _) => "images and files",
        _ => "other",
    }
}

impl TokenShare {
    fn new(name: &str, tokens: Tokens) -> Self {
        Self { name: name.to_owned(), tokens }
    }
}

fn add_shares(shares: &mut Vec<TokenShare>, others: Vec<TokenShare>) {
    for other in others {
        match shares.iter_mut().find(|share| share.name == other.name) {
            Some(share) => share.tokens += other.tokens,
            None => shares.push(other),
        }
    }
}

fn keep_top<T>(all: &mut Vec<T>, top: usize, tokens: impl Fn(&T) -> Tokens) {
    all.sort_by_key(|it| Reverse(tokens(it)));
    all.truncate(top);
}

/// Returns the text of a part; calls and results are described by their target instead.
fn part_text<'p>(part: &'p Part<'_>) -> &'p str {
    match part {
        Part::Text { text } => text,
        Part::Reasoning(it) => &it.text,
        _ => "",
    }
}

/// Returns the target of a call: the argument that distinguishes it from other calls of its tool.
fn call_target(arguments: &CallArguments<'_>) -> String {
    const TARGET_KEYS: [&str; 8] = ["file_path", "path", "command", "cmd", "query", "pattern", "url", "name"];
    let CallArguments::Json(json) = arguments else { return one_line(arguments.as_str()) };
    let Ok(Value::Object(fields)) = serde_json::from_str(json) else { return one_line(json) };
    let named = TARGET_KEYS.iter().find_map(|key| fields.get(*key));
    match named.or_else(|| fields.values().find(|value| value.is_string())) {
        Some(Value::String(text)) => one_line(text),
        Some(Value::Array(words)) => one_line(&words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => one_line(json),
    }
}

/// Returns the start of a text on one line, without control characters.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().take(MAX_HEAD_CHARS));
        if line.len() >= MAX_HEAD_CHARS {
            break;
        }
    }
    line.chars().take(MAX_HEAD_CHARS).collect()
}

/// Strips the number that a listing puts in front of a line: `  12→text`, `12: text`, `12|text`.
fn strip_line_number(line: &str) -> &str {
    let digits = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = digits.len() < line.trim_start().len();
    let rest = digits.trim_start_matches(' ').strip_prefix(['→', '\t', ':', '|']);
    rest.filter(|_| numbered).unwrap_or(line)
}
