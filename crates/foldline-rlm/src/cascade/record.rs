//! What was done in rounds that are about to go: written down by code, so that no model can forget it.
//!
//! An agent that does not know that it has written a file, sent a message or made a commit does it again. The record is a
//! few lines of text, it can be read back from them, and records of several generations become one.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use foldline::content::reports_failure;
use foldline::{ActionKind, Message, Meter, Part, Tokens, ToolAction, ToolCall};

/// The heading under which it stands.
const DONE: &str = "Already done, as recorded by code; do not do it again:";
const LOOKED: &str = "Already looked at: ";
const MORE: &str = "- and more, not listed: ";
/// Most characters of a target.
const WIDTH: usize = 160;

/// What was done, and what was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    done: Vec<Entry>,
    looked: Vec<String>,
    /// Entries of earlier generations for which there was no room.
    omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    verb: Verb,
    target: String,
    times: usize,
    last: Last,
}

/// From the most to the least worth keeping, when not all can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Verb {
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
enum Last {
    Done,
    Failed,
    Unknown,
}

const VERBS: [(Verb, &str); 5] = [
    (Verb::Called, "called"),
    (Verb::Published, "published by"),
    (Verb::Wrote, "wrote"),
    (Verb::Edited, "edited"),
    (Verb::Ran, "ran"),
];

/// Programs and words after which the world outside knows of it.
const PUBLISHING: [&str; 12] = [
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

impl Record {
    /// What was done in these messages.
    pub fn of(messages: &[&Message<'_>]) -> Self {
        let mut writing = Writing::default();
        let mut open: HashMap<&str, usize> = HashMap::new();
        for message in messages {
            for part in &message.parts {
                match part {
                    Part::ToolCall(call) => {
                        if let Some(at) = writing.note(call) {
                            open.insert(&call.id, at);
                        }
                    }
                    Part::ToolResult(result) => {
                        let Some(at) = open.remove(&*result.call_id) else { continue };
                        let failed = result.is_error || result.texts().any(reports_failure);
                        writing.record.done[at].last = if failed { Last::Failed } else { Last::Done };
                    }
                    _ => {}
                }
            }
        }
        writing.record
    }

    /// This record and a later one.
    pub fn then(self, later: Record) -> Record {
        let mut writing = Writing::default();
        writing.record.omitted = self.omitted + later.omitted;
        self.done.into_iter().chain(later.done).for_each(|entry| {
            writing.add(entry);
        });
        self.looked.into_iter().chain(later.looked).for_each(|target| writing.look(target));
        writing.record
    }

    /// Whether nothing was done and nothing looked at.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.looked.is_empty() && self.omitted == 0
    }

    /// The record as text, in at most so many tokens. What others see and what was written comes before what was run, the
    /// newest before the oldest; the rest is counted.
    pub fn text(&self, at_most: Tokens, meter: &Meter) -> String {
        let mut order: Vec<usize> = (0..self.done.len()).collect();
        order.sort_by_key(|&at| (self.done[at].verb, std::cmp::Reverse(at)));
        let mut room = at_most.saturating_sub(meter.text(DONE) + meter.text(MORE) + 8);
        let mut lines: Vec<(usize, String)> = Vec::new();
        for at in order {
            let line = self.done[at].line();
            let cost = meter.text(&line) + 1;
            if cost > room {
                break;
            }
            room -= cost;
            lines.push((at, line));
        }
        let omitted = self.omitted + self.done.len() - lines.len();
        lines.sort_unstable();
        let mut out = String::new();
        if !lines.is_empty() || omitted > 0 {
            let _ = writeln!(out, "{DONE}");
            lines.iter().for_each(|(_, line)| {
                let _ = writeln!(out, "{line}");
            });
        }
        if omitted > 0 {
            let _ = writeln!(out, "{MORE}{omitted}");
        }
        room = room.saturating_sub(meter.text(LOOKED) + 2);
        let mut looked = Vec::new();
        for target in self.looked.iter().rev() {
            let cost = meter.text(target) + 2;
            if cost > room {
                break;
            }
            room -= cost;
            looked.push(target.as_str());
        }
        if !looked.is_empty() {
            looked.reverse();
            let _ = writeln!(out, "{LOOKED}{}", looked.join("; "));
        }
        out
    }

    /// Reads a record back from the text around it.
    pub fn read(text: &str) -> Self {
        let mut record = Record::default();
        let mut lines = text.lines().skip_while(|line| *line != DONE && !line.starts_with(LOOKED)).peekable();
        if lines.peek() == Some(&DONE) {
            lines.next();
            while let Some(line) = lines.next_if(|line| line.starts_with("- ")) {
                match line.strip_prefix(MORE).and_then(|count| count.parse::<u32>().ok()) {
                    Some(count) => record.omitted += count as usize,
                    None => record.done.extend(Entry::read(line)),
                }
            }
        }
        if let Some(looked) = lines.find_map(|line| line.strip_prefix(LOOKED)) {
            record.looked.extend(looked.split("; ").filter(|target| !target.is_empty()).map(str::to_owned));
        }
        record
    }

    /// The text without the record in it.
    pub(crate) fn stripped(text: &str) -> &str {
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
        let at = [begins(DONE), begins(LOOKED)].into_iter().flatten().min();
        text[..at.unwrap_or(text.len())].trim_end()
    }
}

/// A record while it is written, with what finds an entry again.
#[derive(Default)]
struct Writing {
    record: Record,
    places: HashMap<(Verb, String), usize>,
    looked: HashSet<String>,
}

impl Writing {
    /// Notes a call, and tells where if it did something.
    fn note(&mut self, call: &ToolCall<'_>) -> Option<usize> {
        let deed = ToolAction::from_call(call);
        let target = one_line(&deed.target);
        let views = deed.kind == ActionKind::Edit && call.arguments.as_str().contains("\"view\"");
        let verb = match deed.kind {
            ActionKind::Read | ActionKind::Search => {
                self.look(target);
                return None;
            }
            ActionKind::Edit if views => {
                self.look(target);
                return None;
            }
            ActionKind::Write => Verb::Wrote,
            ActionKind::Edit => Verb::Edited,
            ActionKind::Run if PUBLISHING.iter().any(|words| target.contains(words)) => Verb::Published,
            ActionKind::Run => Verb::Ran,
            _ => Verb::Called,
        };
        let target = match verb {
            Verb::Called if target.is_empty() => one_line(&call.name),
            Verb::Called => one_line(&format!("{} {target}", call.name)),
            _ => target,
        };
        Some(self.add(Entry { verb, target, times: 1, last: Last::Unknown }))
    }

    fn look(&mut self, target: String) {
        if !target.is_empty() && self.looked.insert(target.clone()) {
            self.record.looked.push(target);
        }
    }

    /// Adds an entry. The same deed again is one entry, with the outcome of the last time.
    fn add(&mut self, entry: Entry) -> usize {
        let next = self.record.done.len();
        let at = *self.places.entry((entry.verb, entry.target.clone())).or_insert(next);
        match self.record.done.get_mut(at) {
            Some(known) => (known.times, known.last) = (known.times + entry.times, entry.last),
            None => self.record.done.push(entry),
        }
        at
    }
}

impl Entry {
    fn line(&self) -> String {
        let verb = VERBS.iter().find(|(verb, _)| *verb == self.verb).map_or("", |(_, word)| word);
        let times = if self.times > 1 { format!(" {} times", self.times) } else { String::new() };
        let last = match self.last {
            Last::Done => "",
            Last::Failed => ", and it failed",
            Last::Unknown => ", outcome unknown",
        };
        format!("- {verb}{times}{last}: {}", self.target)
    }

    fn read(line: &str) -> Option<Self> {
        let (head, target) = line.strip_prefix("- ")?.split_once(": ")?;
        let (head, last) = match head.split_once(", ") {
            Some((head, "and it failed")) => (head, Last::Failed),
            Some((head, _)) => (head, Last::Unknown),
            None => (head, Last::Done),
        };
        let (verb, rest) = VERBS.iter().find_map(|(verb, word)| Some((*verb, head.strip_prefix(word)?)))?;
        let times = rest.trim().strip_suffix(" times").and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        Some(Self { verb, target: target.to_owned(), times: times as usize, last })
    }
}

/// Words of others as one short line that can not pass for a line of ours.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        if out.len() >= WIDTH {
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

    fn record() -> Record {
        Record::of(&session().iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_was_done_is_recorded_with_its_outcome() {
        assert_eq!(
            record().text(1_000, &Meter::for_byte_estimate()),
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
    fn it_can_be_read_back_and_goes_on() {
        let meter = Meter::for_byte_estimate();
        let text = format!("Goal: x.\n\n{}\nthe end\n", record().text(1_000, &meter));
        assert_eq!(Record::read(&text), record());
        assert_eq!(Record::stripped(&text), "Goal: x.");
        let twice = record().then(record());
        assert!(twice.text(1_000, &meter).contains("- ran 4 times: cargo test\n"));
        assert_eq!(Record::read("nothing"), Record::default());
    }

    #[test]
    fn without_room_what_others_see_comes_first_and_the_rest_is_counted() {
        let meter = Meter::for_byte_estimate();
        for at_most in [50, 60, 70] {
            let text = record().text(at_most, &meter);
            assert!(meter.text(&text) <= at_most && text.contains("send_email"), "{at_most}: {text}");
            assert!(text.contains("- and more, not listed: "), "{text}");
            assert_eq!(Record::read(&text).done.len() + Record::read(&text).omitted, 5);
        }
    }
}
