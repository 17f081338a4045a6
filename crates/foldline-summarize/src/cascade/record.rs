//! What was done in rounds that are about to go: written down by code, so that no model can forget it.
//!
//! An agent that does not know that it has written a file, sent a message or made a commit does it again. The record is a
//! few lines of text, it can be read back from them, and records of several generations become one.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use foldline::text_kind::reports_failure;
use foldline::{ActionKind, Message, Meter, Part, Tokens, ToolAction, ToolCall};

/// The heading under which it stands.
const DONE_HEADING: &str = "Already done, as recorded by code; do not do it again:";
const VIEWED_PREFIX: &str = "Already looked at: ";
const OMITTED_PREFIX: &str = "- and more, not listed: ";
/// Most characters of a target.
const MAX_TARGET_BYTES: usize = 160;

/// What was done, and what was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionRecord {
    actions: Vec<RecordEntry>,
    viewed: Vec<String>,
    /// Entries of earlier generations for which there was no room.
    omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordEntry {
    verb: ActionVerb,
    target: String,
    times: usize,
    outcome: LastOutcome,
}

/// From the most to the least worth keeping, when not all can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ActionVerb {
    /// A tool that is no file and no shell: a message sent, a page clicked.
    Called,
    /// A command that others see: a commit, a push, a deployment.
    Published,
    Wrote,
    Edited,
    Ran,
}

/// How it went the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastOutcome {
    Succeeded,
    Failed,
    Unknown,
}

const VERB_WORDS: [(ActionVerb, &str); 5] = [
    (ActionVerb::Called, "called"),
    (ActionVerb::Published, "published by"),
    (ActionVerb::Wrote, "wrote"),
    (ActionVerb::Edited, "edited"),
    (ActionVerb::Ran, "ran"),
];

/// Programs and words after which the world outside knows of it.
const PUBLISHING_COMMANDS: [&str; 12] = [
    "git commit",
    "git push",
    "git tag",
    "git merge",
    "gh pr",
    "gh release",
    "gh issue",
    "npm publish",
    "cargo publish",
    "kubectl apply",
    "terraform apply",
    "docker push",
];

impl ActionRecord {
    /// What was done in these messages.
    pub fn from_messages(messages: &[&Message<'_>]) -> Self {
        let mut writing = RecordBuilder::default();
        let mut open: HashMap<&str, usize> = HashMap::new();
        for message in messages {
            for part in &message.parts {
                match part {
                    Part::ToolCall(call) => {
                        if let Some(at) = writing.add_call(call) {
                            open.insert(&call.id, at);
                        }
                    }
                    Part::ToolResult(result) => {
                        let Some(at) = open.remove(&*result.call_id) else { continue };
                        let failed = result.is_error || result.texts().any(reports_failure);
                        writing.record.actions[at].outcome =
                            if failed { LastOutcome::Failed } else { LastOutcome::Succeeded };
                    }
                    _ => {}
                }
            }
        }
        writing.record
    }

    /// This record and a later one.
    pub fn merged_with(self, later: ActionRecord) -> ActionRecord {
        let mut writing = RecordBuilder::default();
        writing.record.omitted = self.omitted + later.omitted;
        self.actions.into_iter().chain(later.actions).for_each(|entry| {
            writing.add_entry(entry);
        });
        self.viewed.into_iter().chain(later.viewed).for_each(|target| writing.add_viewed(target));
        writing.record
    }

    /// Whether nothing was done and nothing looked at.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty() && self.viewed.is_empty() && self.omitted == 0
    }

    /// The record as text, in at most so many tokens. What others see and what was written comes before what was run, the
    /// newest before the oldest; the rest is counted.
    pub fn to_text(&self, at_most: Tokens, meter: &Meter) -> String {
        let mut order: Vec<usize> = (0..self.actions.len()).collect();
        order.sort_by_key(|&at| (self.actions[at].verb, std::cmp::Reverse(at)));
        let mut room = at_most.saturating_sub(meter.text(DONE_HEADING) + meter.text(OMITTED_PREFIX) + 8);
        let mut lines: Vec<(usize, String)> = Vec::new();
        for at in order {
            let line = self.actions[at].to_line();
            let cost = meter.text(&line) + 1;
            if cost > room {
                break;
            }
            room -= cost;
            lines.push((at, line));
        }
        let omitted = self.omitted + self.actions.len() - lines.len();
        lines.sort_unstable();
        let mut out = String::new();
        if !lines.is_empty() || omitted > 0 {
            let _ = writeln!(out, "{DONE_HEADING}");
            lines.iter().for_each(|(_, line)| {
                let _ = writeln!(out, "{line}");
            });
        }
        if omitted > 0 {
            let _ = writeln!(out, "{OMITTED_PREFIX}{omitted}");
        }
        room = room.saturating_sub(meter.text(VIEWED_PREFIX) + 2);
        let mut looked = Vec::new();
        for target in self.viewed.iter().rev() {
            let cost = meter.text(target) + 2;
            if cost > room {
                break;
            }
            room -= cost;
            looked.push(target.as_str());
        }
        if !looked.is_empty() {
            looked.reverse();
            let _ = writeln!(out, "{VIEWED_PREFIX}{}", looked.join("; "));
        }
        out
    }

    /// Reads a record back from the text around it.
    pub fn parse(text: &str) -> Self {
        let mut record = ActionRecord::default();
        let mut lines =
            text.lines().skip_while(|line| *line != DONE_HEADING && !line.starts_with(VIEWED_PREFIX)).peekable();
        if lines.peek() == Some(&DONE_HEADING) {
            lines.next();
            while let Some(line) = lines.next_if(|line| line.starts_with("- ")) {
                match line.strip_prefix(OMITTED_PREFIX).and_then(|count| count.parse::<u32>().ok()) {
                    Some(count) => record.omitted += count as usize,
                    None => record.actions.extend(RecordEntry::parse(line)),
                }
            }
        }
        if let Some(looked) = lines.find_map(|line| line.strip_prefix(VIEWED_PREFIX)) {
            record.viewed.extend(looked.split("; ").filter(|target| !target.is_empty()).map(str::to_owned));
        }
        record
    }

    /// The text without the record in it.
    pub(crate) fn without_record(text: &str) -> &str {
        let begins = |heading: &str| {
            let mut from = 0;
            loop {
                let at = from + text[from..].find(heading)?;
                if at == 0 || text.as_bytes()[at - 1] == b'\n' {
                    return Some(at);
                }
                from = at + heading.len();
            }
        };
        let at = [begins(DONE_HEADING), begins(VIEWED_PREFIX)].into_iter().flatten().min();
        text[..at.unwrap_or(text.len())].trim_end()
    }
}

/// A record while it is written, with what finds an entry again.
#[derive(Default)]
struct RecordBuilder {
    record: ActionRecord,
    entry_indices: HashMap<(ActionVerb, String), usize>,
    viewed: HashSet<String>,
}

impl RecordBuilder {
    /// Notes a call, and tells where if it did something.
    fn add_call(&mut self, call: &ToolCall<'_>) -> Option<usize> {
        let deed = ToolAction::from_call(call);
        let target = one_line(&deed.target);
        let views = deed.kind == ActionKind::Edit && call.arguments.as_str().contains("\"view\"");
        let verb = match deed.kind {
            ActionKind::Read | ActionKind::Search => {
                self.add_viewed(target);
                return None;
            }
            ActionKind::Edit if views => {
                self.add_viewed(target);
                return None;
            }
            ActionKind::Write => ActionVerb::Wrote,
            ActionKind::Edit => ActionVerb::Edited,
            ActionKind::Run if PUBLISHING_COMMANDS.iter().any(|words| target.contains(words)) => ActionVerb::Published,
            ActionKind::Run => ActionVerb::Ran,
            _ => ActionVerb::Called,
        };
        let target = match verb {
            ActionVerb::Called if target.is_empty() => one_line(&call.name),
            ActionVerb::Called => one_line(&format!("{} {target}", call.name)),
            _ => target,
        };
        Some(self.add_entry(RecordEntry { verb, target, times: 1, outcome: LastOutcome::Unknown }))
    }

    fn add_viewed(&mut self, target: String) {
        if !target.is_empty() && self.viewed.insert(target.clone()) {
            self.record.viewed.push(target);
        }
    }

    /// Adds an entry. The same deed again is one entry, with the outcome of the last time.
    fn add_entry(&mut self, entry: RecordEntry) -> usize {
        let next = self.record.actions.len();
        let at = *self.entry_indices.entry((entry.verb, entry.target.clone())).or_insert(next);
        match self.record.actions.get_mut(at) {
            Some(known) => (known.times, known.outcome) = (known.times + entry.times, entry.outcome),
            None => self.record.actions.push(entry),
        }
        at
    }
}

impl RecordEntry {
    fn to_line(&self) -> String {
        let verb = VERB_WORDS.iter().find(|(verb, _)| *verb == self.verb).map_or("", |(_, word)| word);
        let times = if self.times > 1 { format!(" {} times", self.times) } else { String::new() };
        let last = match self.outcome {
            LastOutcome::Succeeded => "",
            LastOutcome::Failed => ", and it failed",
            LastOutcome::Unknown => ", outcome unknown",
        };
        format!("- {verb}{times}{last}: {}", self.target)
    }

    fn parse(line: &str) -> Option<Self> {
        let (head, target) = line.strip_prefix("- ")?.split_once(": ")?;
        let (head, last) = match head.split_once(", ") {
            Some((head, "and it failed")) => (head, LastOutcome::Failed),
            Some((head, _)) => (head, LastOutcome::Unknown),
            None => (head, LastOutcome::Succeeded),
        };
        let (verb, rest) = VERB_WORDS.iter().find_map(|(verb, word)| Some((*verb, head.strip_prefix(word)?)))?;
        let times = rest.trim().strip_suffix(" times").and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        Some(Self { verb, target: target.to_owned(), times: times as usize, outcome: last })
    }
}

/// Words of others as one short line that can not pass for a line of ours.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        if out.len() >= MAX_TARGET_BYTES {
            out.push_str("..");
            break;
        }
        out.push(match character {
            ';' => ',',
            it if it.is_control() || it.is_whitespace() => ' ',
            it => it,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use foldline::Role;

    use super::*;

    fn round(
        id: &'static str,
        tool: &'static str,
        arguments: &'static str,
        result: &'static str,
    ) -> Vec<Message<'static>> {
        vec![
            Message::new(Role::Assistant, vec![Part::call(id, tool, arguments)]),
            Message::new(Role::Tool, vec![Part::result(id, result)]),
        ]
    }

    fn session() -> Vec<Message<'static>> {
        [
            round("a", "read_file", r#"{"path":"src/a.rs"}"#, "fn a() {}"),
            round("b", "edit_file", r#"{"path":"src/a.rs","old":"x","new":"y"}"#, "ok"),
            round("c", "bash", r#"{"command":"cargo test"}"#, "Exit code 1\nerror: it broke"),
            round("c", "bash", r#"{"command":"cargo test"}"#, "test result: ok"),
            round("d", "bash", r#"{"command":"git commit -m 'mend: a; b'"}"#, "ok"),
            round("e", "send_email", r#"{"to":"a@b.c","description":"report"}"#, "sent"),
            round("f", "str_replace_editor", r#"{"command":"view","path":"src/b.rs"}"#, "fn b() {}"),
            vec![Message::new(Role::Assistant, vec![Part::call("g", "write_file", r#"{"path":"new.txt"}"#)])],
        ]
        .concat()
    }

    fn record() -> ActionRecord {
        ActionRecord::from_messages(&session().iter().collect::<Vec<_>>())
    }

    #[test]
    fn actions_are_recorded_with_their_outcome() {
        assert_eq!(
            record().to_text(1_000, &Meter::for_byte_estimate()),
            "Already done, as recorded by code; do not do it again:\n\
             - edited: src/a.rs\n\
             - ran 2 times: cargo test\n\
             - published by: git commit -m 'mend: a, b'\n\
             - called: send_email report\n\
             - wrote, outcome unknown: new.txt\n\
             Already looked at: src/a.rs; src/b.rs\n"
        );
    }

    #[test]
    fn record_round_trips_and_merges() {
        let meter = Meter::for_byte_estimate();
        let text = format!("Goal: x.\n\n{}\nthe end\n", record().to_text(1_000, &meter));
        assert_eq!(ActionRecord::parse(&text), record());
        assert_eq!(ActionRecord::without_record(&text), "Goal: x.");
        let twice = record().merged_with(record());
        assert!(twice.to_text(1_000, &meter).contains("- ran 4 times: cargo test\n"));
        assert_eq!(ActionRecord::parse("nothing"), ActionRecord::default());
    }

    #[test]
    fn tight_budget_lists_published_actions_first() {
        let meter = Meter::for_byte_estimate();
        for at_most in [50, 60, 70] {
            let text = record().to_text(at_most, &meter);
            assert!(meter.text(&text) <= at_most && text.contains("send_email"), "{at_most}: {text}");
            assert!(text.contains("- and more, not listed: "), "{text}");
            assert_eq!(ActionRecord::parse(&text).actions.len() + ActionRecord::parse(&text).omitted, 5);
        }
    }
}
