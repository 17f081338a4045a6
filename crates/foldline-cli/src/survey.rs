//! Where the tokens of conversations are: by role, by tool, by age, in which parts, said how often.
//!
//! A survey only looks. It is a plain value that is drawn by `picture` or printed as JSON; surveys of
//! several conversations add up.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use foldline::laws::LawViolation;
use foldline::{CallArguments, Conversation, CountExactness, Message, Meter, Part, PartId, Role, Tokens, ToolCall};
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Texts shorter than this are not worth calling a repeat: "ok" is said often.
const REPEAT_FROM: usize = 64;
/// Lines shorter than this are braces and blanks.
const LINE_FROM: usize = 24;
/// So much of a text is shown to recognise it.
const HEAD: usize = 120;

/// Where the tokens are.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Survey {
    pub(crate) sessions: Vec<Session>,
    /// Tokens of the conversations as they stand at their ends.
    pub(crate) tokens: Tokens,
    pub(crate) messages: usize,
    pub(crate) rounds: usize,
    /// How many requests were sent on the way.
    pub(crate) requests: usize,
    /// Tokens of all those requests together: what stands early was sent often.
    pub(crate) sent: Tokens,
    pub(crate) by_role: Vec<Share>,
    pub(crate) by_tool: Vec<ToolShare>,
    pub(crate) by_age: Vec<Share>,
    pub(crate) largest: Vec<Large>,
    pub(crate) repeats: Repeats,
    pub(crate) lines: RepeatedLines,
    pub(crate) broken_laws: Vec<Broken>,
}

/// One conversation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) format: String,
    pub(crate) model: Option<String>,
    pub(crate) messages: usize,
    pub(crate) rounds: usize,
    pub(crate) tokens: Tokens,
    pub(crate) sent: Tokens,
    /// The window of the model.
    pub(crate) window: Tokens,
    /// How the tokens were counted.
    pub(crate) counted: Counted,
}

/// How far a count can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Counted {
    Exactly,
    /// Scaled to what the provider reported.
    ByCalibration,
    ByEstimate,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Share {
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

/// A part that takes much room.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Large {
    pub(crate) tokens: Tokens,
    /// Which of the sessions.
    pub(crate) session: usize,
    /// Message and part, both from 0.
    pub(crate) place: String,
    /// How many requests ago it was first sent.
    pub(crate) age: usize,
    /// What it is: `result of read_file {"path":..}`.
    pub(crate) what: String,
    /// How it begins.
    pub(crate) head: String,
}

/// Parts that say word for word what an earlier part said.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Repeats {
    pub(crate) parts: usize,
    pub(crate) tokens: Tokens,
    /// The most expensive ones, first said at `place`.
    pub(crate) groups: Vec<Repeat>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Repeat {
    pub(crate) session: usize,
    pub(crate) place: String,
    pub(crate) what: String,
    /// How often it was said again.
    pub(crate) again: usize,
    /// What saying it again took.
    pub(crate) tokens: Tokens,
}

/// Lines of results that stood in an earlier result too, line numbers in front of them apart.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct RepeatedLines {
    /// Bytes of all lines that are long enough to look at.
    pub(crate) bytes: u64,
    pub(crate) repeated_bytes: u64,
    /// About the tokens of the repeated ones.
    pub(crate) tokens: Tokens,
}

/// A law of the provider that a conversation breaks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Broken {
    pub(crate) session: usize,
    pub(crate) law: String,
    pub(crate) place: String,
    pub(crate) detail: String,
}

/// The ages that are told apart, in requests, oldest last.
const AGES: [(usize, &str); 6] = [
    (1, "new in the last request"),
    (4, "1 to 3 requests old"),
    (10, "4 to 9 requests old"),
    (30, "10 to 29 requests old"),
    (100, "30 to 99 requests old"),
    (usize::MAX, "100 requests old, or more"),
];

impl Survey {
    /// Looks at one conversation. `top` is how many of the largest parts and repeats are named.
    pub(crate) fn of(session: Session, conversation: &Conversation<'_>, meter: &Meter, top: usize) -> Survey {
        let mut look = Look::new(conversation, meter);
        for (at, message) in conversation.messages.iter().enumerate() {
            look.message(at, message);
        }
        look.survey(session, top)
    }

    /// The survey of several conversations together.
    pub(crate) fn add(&mut self, other: Survey, top: usize) {
        let sessions = self.sessions.len();
        self.sessions.extend(other.sessions);
        self.tokens += other.tokens;
        self.messages += other.messages;
        self.rounds += other.rounds;
        self.requests += other.requests;
        self.sent += other.sent;
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
        self.largest.extend(other.largest.into_iter().map(|it| Large { session: it.session + sessions, ..it }));
        keep_top(&mut self.largest, top, |it| it.tokens);
        self.repeats.parts += other.repeats.parts;
        self.repeats.tokens += other.repeats.tokens;
        let groups = other.repeats.groups.into_iter();
        self.repeats.groups.extend(groups.map(|it| Repeat { session: it.session + sessions, ..it }));
        keep_top(&mut self.repeats.groups, top, |it| it.tokens);
        self.lines.bytes += other.lines.bytes;
        self.lines.repeated_bytes += other.lines.repeated_bytes;
        self.lines.tokens += other.lines.tokens;
        let broken = other.broken_laws.into_iter();
        self.broken_laws.extend(broken.map(|it| Broken { session: it.session + sessions, ..it }));
    }
}

impl From<LawViolation> for Broken {
    fn from(violation: LawViolation) -> Self {
        let (place, law) = (violation.at.to_string(), violation.law.to_string());
        Self { session: 0, place, law, detail: short(&violation.detail) }
    }
}

impl From<CountExactness> for Counted {
    fn from(exactness: CountExactness) -> Self {
        match exactness {
            CountExactness::Exact => Counted::Exactly,
            CountExactness::Calibrated => Counted::ByCalibration,
            _ => Counted::ByEstimate,
        }
    }
}

/// What is gathered while a conversation is walked through.
struct Look<'c> {
    meter: &'c Meter,
    conversation: &'c Conversation<'c>,
    /// The request points, ascending.
    points: Vec<usize>,
    roles: BTreeMap<&'static str, Tokens>,
    ages: [Tokens; AGES.len()],
    /// What stands outside the messages: instructions, declared tools.
    every_time: Tokens,
    tools: BTreeMap<&'c str, ToolShare>,
    /// The call that an id stands for; the newest one, where ids are used again.
    calls: HashMap<&'c str, &'c ToolCall<'c>>,
    /// The call that each result answers.
    answered: HashMap<PartId, &'c ToolCall<'c>>,
    parts: Vec<(Tokens, PartId)>,
    sent: Tokens,
    seen: HashMap<u128, Seen>,
    lines_seen: HashSet<u64>,
    lines: RepeatedLines,
}

/// A text that was said.
struct Seen {
    first: PartId,
    /// How often again, and for how many tokens.
    again: usize,
    tokens: Tokens,
}

impl<'c> Look<'c> {
    fn new(conversation: &'c Conversation<'c>, meter: &'c Meter) -> Self {
        let points = conversation.request_points();
        let standing = meter.system(&conversation.system);
        let declared = meter.tools(&conversation.tools);
        let every_time = standing + declared + meter.request_overhead();
        Look {
            meter,
            conversation,
            sent: every_time * points.len() as Tokens,
            points,
            roles: BTreeMap::from([
                ("system", standing),
                ("tool declarations", declared),
                ("framing", meter.request_overhead()),
            ]),
            ages: [0; AGES.len()],
            every_time,
            tools: BTreeMap::new(),
            calls: HashMap::new(),
            answered: HashMap::new(),
            parts: Vec::new(),
            seen: HashMap::new(),
            lines_seen: HashSet::new(),
            lines: RepeatedLines::default(),
        }
    }

    /// How many requests ago a message was first sent: it is in every request behind it.
    fn age(&self, message: usize) -> usize {
        let carried = self.points.len() - self.points.partition_point(|&point| point <= message);
        carried.saturating_sub(1)
    }

    fn message(&mut self, at: usize, message: &'c Message<'c>) {
        let mut whole = self.meter.message(&Message::new(message.role, Vec::new()));
        *self.roles.entry("framing").or_default() += whole;
        for (index, part) in message.parts.iter().enumerate() {
            let id = PartId::new(at, index);
            let tokens = self.meter.part(part);
            whole += tokens;
            self.parts.push((tokens, id));
            *self.roles.entry(share(message.role, part)).or_default() += tokens;
            self.part(id, part, tokens);
        }
        let age = self.age(at);
        self.sent += whole * (age as Tokens + 1);
        let bucket = AGES.iter().position(|(below, _)| age < *below).unwrap_or(AGES.len() - 1);
        self.ages[bucket] += whole;
    }

    fn part(&mut self, id: PartId, part: &'c Part<'c>, tokens: Tokens) {
        match part {
            Part::Text { text } => self.said(id, text),
            Part::ToolCall(call) => {
                self.calls.insert(&call.id, call);
                let tool = self.tool(&call.name);
                tool.calls += 1;
                tool.call_tokens += tokens;
                self.said(id, call.arguments.as_str());
            }
            Part::ToolResult(result) => {
                let call = self.calls.get(&*result.call_id).copied();
                self.answered.extend(call.map(|call| (id, call)));
                let tool = self.tool(call.map_or("(unknown)", |call| &call.name));
                tool.failed += usize::from(result.is_error);
                tool.result_tokens += tokens;
                for text in result.texts() {
                    self.said(id, text);
                    self.look_at_lines(text);
                }
            }
            _ => {}
        }
    }

    fn tool(&mut self, name: &'c str) -> &mut ToolShare {
        self.tools.entry(name).or_insert_with(|| ToolShare { name: name.to_owned(), ..ToolShare::default() })
    }

    /// Notes a text, and whether it was said before.
    fn said(&mut self, id: PartId, text: &str) {
        if text.len() < REPEAT_FROM {
            return;
        }
        match self.seen.entry(xxh3_128(text.as_bytes())) {
            Entry::Vacant(it) => drop(it.insert(Seen { first: id, again: 0, tokens: 0 })),
            Entry::Occupied(mut it) => {
                it.get_mut().again += 1;
                it.get_mut().tokens += self.meter.text(text);
            }
        }
    }

    fn look_at_lines(&mut self, text: &str) {
        let mut repeated = 0;
        for line in text.lines().filter(|line| line.chars().take(LINE_FROM).count() == LINE_FROM) {
            self.lines.bytes += line.len() as u64;
            if !self.lines_seen.insert(xxh3_64(without_number(line).trim_end().as_bytes())) {
                repeated += line.len() as u64;
            }
        }
        self.lines.repeated_bytes += repeated;
        if repeated > 0 {
            self.lines.tokens += (self.meter.text(text) as f64 * repeated as f64 / text.len() as f64) as Tokens;
        }
    }

    fn survey(mut self, session: Session, top: usize) -> Survey {
        keep_top(&mut self.parts, top, |(tokens, _)| *tokens);
        let large = |&(tokens, id): &(Tokens, PartId)| {
            let head = self.conversation.part(id).map(text_of).map(short).unwrap_or_default();
            Large { tokens, session: 0, place: id.to_string(), age: self.age(id.message), what: self.what(id), head }
        };
        let largest = self.parts.iter().map(large).collect();

        let mut groups: Vec<&Seen> = self.seen.values().filter(|seen| seen.again > 0).collect();
        let (parts, tokens) = groups.iter().fold((0, 0), |(parts, sum), it| (parts + it.again, sum + it.tokens));
        groups.sort_by_key(|it| it.first);
        keep_top(&mut groups, top, |it| it.tokens);
        let group = |it: &&Seen| {
            let (place, what) = (it.first.to_string(), self.what(it.first));
            Repeat { session: 0, place, what, again: it.again, tokens: it.tokens }
        };
        let repeats = Repeats { parts, tokens, groups: groups.iter().map(group).collect() };

        let mut by_tool: Vec<ToolShare> = self.tools.into_values().collect();
        by_tool.sort_by_key(|tool| Reverse(tool.call_tokens + tool.result_tokens));
        let mut by_role: Vec<Share> = self.roles.iter().map(|(name, tokens)| Share::new(name, *tokens)).collect();
        by_role.retain(|share| share.tokens > 0);
        by_role.sort_by_key(|share| Reverse(share.tokens));
        let ages = AGES.iter().zip(self.ages).map(|((_, name), tokens)| Share::new(name, tokens));
        let by_age = ages.chain([Share::new("in every request", self.every_time)]).collect();
        Survey {
            tokens: session.tokens,
            messages: session.messages,
            rounds: session.rounds,
            requests: self.points.len(),
            sent: self.sent,
            sessions: vec![Session { sent: self.sent, ..session }],
            by_role,
            by_tool,
            by_age,
            largest,
            repeats,
            lines: self.lines,
            broken_laws: Vec::new(),
        }
    }

    /// What a part is, in words.
    fn what(&self, id: PartId) -> String {
        let Some(part) = self.conversation.part(id) else { return String::new() };
        let role = self.conversation.messages[id.message].role;
        match part {
            Part::Text { .. } if role == Role::Assistant => "assistant text".to_owned(),
            Part::Text { .. } => format!("{} text", share(role, part)),
            Part::Reasoning(_) => "reasoning".to_owned(),
            Part::ToolCall(call) => format!("call of {} {}", call.name, aim(&call.arguments)),
            Part::ToolResult(_) => match self.answered.get(&id) {
                Some(call) => format!("result of {} {}", call.name, aim(&call.arguments)),
                None => "result of an unknown call".to_owned(),
            },
            Part::Image(_) => "image".to_owned(),
            Part::File(file) => format!("file {}", file.name.as_deref().unwrap_or_default()),
            Part::Opaque(it) => it.kind.to_string(),
            _ => "other".to_owned(),
        }
    }
}

/// Under which name the tokens of a part are booked.
fn share(role: Role, part: &Part<'_>) -> &'static str {
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

impl Share {
    fn new(name: &str, tokens: Tokens) -> Self {
        Self { name: name.to_owned(), tokens }
    }
}

fn add_shares(shares: &mut Vec<Share>, others: Vec<Share>) {
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

/// What a person said, or the model: a call and its result are told by what they aim at.
fn text_of<'p>(part: &'p Part<'_>) -> &'p str {
    match part {
        Part::Text { text } => text,
        Part::Reasoning(it) => &it.text,
        _ => "",
    }
}

/// What a call aims at: the argument that tells it from the other calls of its tool.
fn aim(arguments: &CallArguments<'_>) -> String {
    const TELLING: [&str; 8] = ["file_path", "path", "command", "cmd", "query", "pattern", "url", "name"];
    let CallArguments::Json(json) = arguments else { return short(arguments.as_str()) };
    let Ok(Value::Object(fields)) = serde_json::from_str(json) else { return short(json) };
    let named = TELLING.iter().find_map(|key| fields.get(*key));
    match named.or_else(|| fields.values().find(|value| value.is_string())) {
        Some(Value::String(text)) => short(text),
        Some(Value::Array(words)) => short(&words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => short(json),
    }
}

/// The start of a text on one line, with nothing in it that a terminal would obey.
fn short(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().take(HEAD));
        if line.len() >= HEAD {
            break;
        }
    }
    line.chars().take(HEAD).collect()
}

/// A line without the number that a listing puts in front of it: `  12→text`, `12: text`, `12|text`.
fn without_number(line: &str) -> &str {
    let digits = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = digits.len() < line.trim_start().len();
    let rest = digits.trim_start_matches(' ').strip_prefix(['→', '\t', ':', '|']);
    rest.filter(|_| numbered).unwrap_or(line)
}
