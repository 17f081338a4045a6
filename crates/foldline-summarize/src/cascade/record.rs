//! The record of actions in dropped rounds, written by code, so that no model can forget them.
//!
//! An agent that does not know that it has written a file, sent a message or made a commit does it again. The
//! record is a few lines of text that can be parsed again, and records of several generations are merged into one.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use foldline::conversation::ToolCall;
use foldline::engine::ToolAction;
use foldline::engine::text_kind::reports_failure;
use foldline::tokens::Tokens;
use foldline::{Message, Meter, Part};

use crate::tool_table::{ToolClass, ToolTable};

/// The heading of the record.
const DONE_HEADING: &str = "Already done, as recorded by code; do not do it again:";
const VIEWED_PREFIX: &str = "Already looked at: ";
const OMITTED_PREFIX: &str = "- and more, not listed: ";
/// Maximum length of a target.
const MAX_TARGET_BYTES: usize = 160;

/// Actions that were done, and targets that were viewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionRecord {
    actions: Vec<RecordEntry>,
    viewed: Vec<String>,
    /// Entries of earlier generations that did not fit.
    omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordEntry {
    verb: ActionVerb,
    target: String,
    times: usize,
    outcome: LastOutcome,
}

/// The kind of an action, in descending order of importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ActionVerb {
    /// A tool that is not a file or shell tool: a message sent, a page clicked.
    Called,
    /// A command with effects outside: a commit, a push, a deployment.
    Published,
    Wrote,
    Edited,
    Ran,
}

/// The outcome of the last time.
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

/// Commands with effects outside the machine or repository.
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
    /// Collects the actions in these messages; the table decides which calls are actions.
    pub fn from_messages(messages: &[&Message<'_>], tools: &ToolTable) -> Self {
        let mut builder = RecordBuilder::default();
        let mut open: HashMap<&str, usize> = HashMap::new();
        for message in messages {
            for part in &message.parts {
                match part {
                    Part::ToolCall(call) => {
                        if let Some(at) = builder.add_call(call, tools) {
                            open.insert(&call.id, at);
                        }
                    }
                    Part::ToolResult(result) => {
                        let Some(at) = open.remove(&*result.call_id) else { continue };
                        let failed = result.is_error || result.texts().any(reports_failure);
                        builder.record.actions[at].outcome =
                            if failed { LastOutcome::Failed } else { LastOutcome::Succeeded };
                    }
                    _ => {}
                }
            }
        }
        builder.record
    }

    /// Returns this record merged with a later one.
    pub fn merged_with(self, later: ActionRecord) -> ActionRecord {
        let mut builder = RecordBuilder::default();
        builder.record.omitted = self.omitted + later.omitted;
        self.actions.into_iter().chain(later.actions).for_each(|entry| {
            builder.add_entry(entry);
        });
        self.viewed.into_iter().chain(later.viewed).for_each(|target| builder.add_viewed(target));
        builder.record
    }

    /// Returns true if there are no actions and no views.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty() && self.viewed.is_empty() && self.omitted == 0
    }

    /// Returns the record as text, in at most this many tokens. Published and written entries come before commands, the
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
        let mut viewed = Vec::new();
        for target in self.viewed.iter().rev() {
            let cost = meter.text(target) + 2;
            if cost > room {
                break;
            }
            room -= cost;
            viewed.push(target.as_str());
        }
        if !viewed.is_empty() {
            viewed.reverse();
            let _ = writeln!(out, "{VIEWED_PREFIX}{}", viewed.join("; "));
        }
        out
    }

    /// Parses a record from the text around it.
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
        if let Some(viewed) = lines.find_map(|line| line.strip_prefix(VIEWED_PREFIX)) {
            record.viewed.extend(viewed.split("; ").filter(|target| !target.is_empty()).map(str::to_owned));
        }
        record
    }
}

/// A record under construction, with an index of its entries.
#[derive(Default)]
struct RecordBuilder {
    record: ActionRecord,
    entry_indices: HashMap<(ActionVerb, String), usize>,
    viewed: HashSet<String>,
}

impl RecordBuilder {
    /// Adds a call; returns the index of its entry, if it is an action.
    fn add_call(&mut self, call: &ToolCall<'_>, tools: &ToolTable) -> Option<usize> {
        let target = one_line(&ToolAction::from_call(call).target);
        let verb = match tools.call_class(call) {
            ToolClass::Look | ToolClass::WebLook => {
                self.add_viewed(target);
                return None;
            }
            ToolClass::Write => ActionVerb::Wrote,
            ToolClass::Edit => ActionVerb::Edited,
            ToolClass::Run if PUBLISHING_COMMANDS.iter().any(|words| target.contains(words)) => ActionVerb::Published,
            ToolClass::Run => ActionVerb::Ran,
            ToolClass::Action => ActionVerb::Called,
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

    /// Adds an entry. A repeated action is one entry, with the last outcome.
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
        let (head, outcome) = match head.split_once(", ") {
            Some((head, "and it failed")) => (head, LastOutcome::Failed),
            Some((head, _)) => (head, LastOutcome::Unknown),
            None => (head, LastOutcome::Succeeded),
        };
        let (verb, rest) = VERB_WORDS.iter().find_map(|(verb, word)| Some((*verb, head.strip_prefix(word)?)))?;
        let times = rest.trim().strip_suffix(" times").and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        Some(Self { verb, target: target.to_owned(), times: times as usize, outcome })
    }
}

/// Returns untrusted text as one short line that cannot be mistaken for a line of the record.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        if out.len() >= MAX_TARGET_BYTES {
            out.push_str("..");
            break;
        }
        out.push(match character {
            ';' => ',',
            other if other.is_control() || other.is_whitespace() => ' ',
            other => other,
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
            round("d", "bash", r#"{"command":"git commit -m 'fix: a; b'"}"#, "ok"),
            round("e", "send_email", r#"{"to":"a@b.c","description":"report"}"#, "sent"),
            round("f", "str_replace_editor", r#"{"command":"view","path":"src/b.rs"}"#, "fn b() {}"),
            vec![Message::new(Role::Assistant, vec![Part::call("g", "write_file", r#"{"path":"new.txt"}"#)])],
        ]
        .concat()
    }

    fn record() -> ActionRecord {
        ActionRecord::from_messages(&session().iter().collect::<Vec<_>>(), &ToolTable::default())
    }

    #[test]
    fn actions_are_recorded_with_their_outcome() {
        assert_eq!(
            record().to_text(1_000, &Meter::for_byte_estimate()),
            "Already done, as recorded by code; do not do it again:\n\
             - edited: src/a.rs\n\
             - ran 2 times: cargo test\n\
             - published by: git commit -m 'fix: a, b'\n\
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

    /// These were once listed as looks, because their names contain "open", "cat" and "view".
    #[test]
    fn side_effects_are_never_listed_as_views() {
        let calls = [
            round("a", "open_pull_request", r#"{"title":"Fix it"}"#, "ok"),
            round("b", "send_notification", r#"{"name":"ops"}"#, "ok"),
            round("c", "submit_review", r#"{"name":"lgtm"}"#, "ok"),
            round("d", "truncate_table", r#"{"name":"orders"}"#, "ok"),
            round("e", "bash", r#"{"command":"find . -name x -delete"}"#, ""),
            round("f", "brew_coffee", r#"{"name":"espresso"}"#, "ok"),
        ]
        .concat();
        let record = ActionRecord::from_messages(&calls.iter().collect::<Vec<_>>(), &ToolTable::default());
        assert_eq!((record.actions.len(), record.viewed.len()), (6, 0), "{record:?}");
        let text = record.to_text(1_000, &Meter::for_byte_estimate());
        assert!(text.contains("- called: open_pull_request Fix it\n"), "{text}");
        assert!(text.contains("- ran: find . -name x -delete\n"), "{text}");
    }
}
