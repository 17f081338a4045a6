//! What must hold for the messages that a strategy returns.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use foldline::conversation::{OwnedMessage, ToolResult};
use foldline::engine::marker;
use foldline::laws::{LawProfile, check_conversation};
use foldline::{Conversation, Handle, Message, Meter, ModelTable, Part, Role};

use crate::output::print_line;

/// The model whose exact counter judges every count.
pub(super) const MODEL: &str = "gpt-4o";

/// A recorded session.
pub(crate) struct CheckedSession {
    pub(crate) id: String,
    pub(crate) profile: LawProfile,
    pub(crate) messages: Vec<OwnedMessage>,
}

/// Faults of one strategy over all sessions.
pub(crate) struct Findings {
    name: &'static str,
    budget: Option<u64>,
    sessions: usize,
    fits: usize,
    references: usize,
    dangling: usize,
    broken_laws: BTreeMap<&'static str, usize>,
    user_texts: usize,
    lost_user_texts: usize,
    low_counts: usize,
    handles: HashSet<Handle>,
    handle_count: usize,
    unresolved: usize,
}

impl Findings {
    pub(crate) const HEADER: &'static str = "| strategy | budget | sessions | fit | references | dangling | laws broken | \
         user texts | lost | counts below exact | handles | unresolved |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

    pub(crate) fn new(name: &'static str, budget: Option<u64>) -> Self {
        Self {
            name,
            budget,
            sessions: 0,
            fits: 0,
            references: 0,
            dangling: 0,
            broken_laws: BTreeMap::new(),
            user_texts: 0,
            lost_user_texts: 0,
            low_counts: 0,
            handles: HashSet::new(),
            handle_count: 0,
            unresolved: 0,
        }
    }

    pub(crate) fn faults(&self) -> usize {
        let laws: usize = self.broken_laws.values().sum();
        self.dangling + laws + self.lost_user_texts + self.low_counts + self.unresolved
    }

    /// Checks the result of a strategy; texts of users may be among the dropped messages.
    pub(crate) fn check(&mut self, session: &CheckedSession, messages: &[Message<'_>], dropped: &[Message<'_>]) {
        let dropped: HashSet<&str> = user_texts(dropped).collect();
        self.check_with(session, messages, |text| dropped.contains(text));
    }

    /// Checks the result of a strategy; `resolves` returns true if a text of a user can be restored.
    pub(crate) fn check_with(
        &mut self,
        session: &CheckedSession,
        messages: &[Message<'_>],
        resolves: impl Fn(&str) -> bool,
    ) {
        self.sessions += 1;
        self.check_references(session, messages);
        for (law, count) in new_violations(session, messages) {
            print_line(&format!("{} {:?}: {}: {count} x {law}", self.name, self.budget, session.id));
            *self.broken_laws.entry(law).or_default() += count;
        }
        let sent: HashSet<&str> = user_texts(messages).collect();
        for text in user_texts(&session.messages) {
            self.user_texts += 1;
            if !sent.contains(text) && !resolves(text) {
                self.lost_user_texts += 1;
                let start: String = text.chars().take(60).collect();
                print_line(&format!("{} {:?}: {}: lost user text {start:?}", self.name, self.budget, session.id));
            }
        }
    }

    /// Checks that references point to results and calls that are whole.
    fn check_references(&mut self, session: &CheckedSession, messages: &[Message<'_>]) {
        let originals: HashMap<&str, &ToolResult<'_>> =
            session.messages.iter().flat_map(Message::results).map(|result| (&*result.call_id, result)).collect();
        let mut targets: BTreeSet<String> = BTreeSet::new();
        for message in messages {
            targets.extend(message.calls().map(|call| format!("call {}", call.id)));
            for result in message.results() {
                let original = originals.get(&*result.call_id);
                if original.is_none_or(|original| original.content == result.content) || !is_elided(result) {
                    targets.insert(format!("result {}", result.call_id));
                }
            }
        }
        let known: HashSet<&str> = all_texts(&session.messages).collect();
        for text in all_texts(messages).filter(|text| !known.contains(text)) {
            for reference in references(text) {
                self.references += 1;
                if !targets.contains(reference) {
                    self.dangling += 1;
                    print_line(&format!("{} {:?}: {}: dangling {reference}", self.name, self.budget, session.id));
                }
            }
        }
    }

    /// Checks a reported count against a fresh, exact count.
    pub(crate) fn check_count(
        &mut self,
        session: &CheckedSession,
        messages: &[Message<'_>],
        reported: u64,
        fits: bool,
    ) {
        let meter = Meter::for_model(ModelTable::builtin(), Some(MODEL));
        let exact: u64 = messages.iter().map(|message| meter.message(message)).sum();
        self.fits += usize::from(fits);
        let is_over = fits && self.budget.is_some_and(|budget| exact > budget);
        if reported < exact || is_over {
            self.low_counts += 1;
            print_line(&format!(
                "{} {:?}: {}: counted {reported}, exactly {exact}",
                self.name, self.budget, session.id
            ));
        }
    }

    /// Records the handles in messages that are sent.
    pub(crate) fn record_handles(&mut self, messages: impl Iterator<Item = OwnedMessage>) {
        for message in messages {
            self.handles.extend(all_texts(std::slice::from_ref(&message)).flat_map(marker::handles));
        }
    }

    /// Checks that every recorded handle restores its original.
    pub(crate) fn check_handles(&mut self, session: &CheckedSession, unfold: impl Fn(Handle) -> Option<Vec<u8>>) {
        let known: HashSet<Handle> = all_texts(&session.messages).flat_map(marker::handles).collect();
        for handle in std::mem::take(&mut self.handles).into_iter().filter(|handle| !known.contains(handle)) {
            self.handle_count += 1;
            if unfold(handle).is_none_or(|bytes| Handle::for_content(&bytes) != handle) {
                self.unresolved += 1;
                print_line(&format!("{} {:?}: {}: {handle} does not resolve", self.name, self.budget, session.id));
            }
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = self.budget.map_or_else(String::new, |budget| budget.to_string());
        let fits = self.budget.map_or_else(String::new, |_| self.fits.to_string());
        write!(
            f,
            "| {} | {budget} | {} | {fits} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.name,
            self.sessions,
            self.references,
            self.dangling,
            self.broken_laws.values().sum::<usize>(),
            self.user_texts,
            self.lost_user_texts,
            self.low_counts,
            self.handle_count,
            self.unresolved
        )
    }
}

/// Returns the laws that messages break more often than the recorded session.
pub(crate) fn new_violations(session: &CheckedSession, messages: &[Message<'_>]) -> Vec<(&'static str, usize)> {
    let recorded = violations(&session.messages, &session.profile);
    let mut new = violations(messages, &session.profile);
    for (law, count) in &mut new {
        *count = count.saturating_sub(recorded.get(law).copied().unwrap_or_default());
    }
    new.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn violations(messages: &[Message<'_>], profile: &LawProfile) -> BTreeMap<&'static str, usize> {
    let conversation = Conversation { messages: messages.to_vec(), ..Conversation::default() };
    let mut counts = BTreeMap::new();
    for violation in check_conversation(&conversation, profile) {
        *counts.entry(violation.law.name()).or_default() += 1;
    }
    counts
}

/// Returns true if a result is only a marker.
fn is_elided(result: &ToolResult<'_>) -> bool {
    result.only_text().is_some_and(|text| marker::is_marker(text.trim()))
}

/// Returns the targets of the references in a text.
fn references(text: &str) -> impl Iterator<Item = &str> {
    text.split("; same as ").skip(1).filter_map(|rest| {
        let target = rest.split(']').next()?;
        match target.split_once(" of result ") {
            Some((lines, _)) if lines.starts_with("lines ") => Some(&target[lines.len() + " of ".len()..]),
            _ => Some(target),
        }
    })
}

fn user_texts<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = &'m str> {
    let users = messages.iter().filter(|message| message.role == Role::User);
    users.flat_map(|message| &message.parts).filter_map(Part::as_text).filter(|text| !text.trim().is_empty())
}

/// Returns the texts, results and arguments of messages.
fn all_texts<'m>(messages: &'m [Message<'_>]) -> impl Iterator<Item = &'m str> {
    messages.iter().flat_map(|message| &message.parts).flat_map(|part| match part {
        Part::Text { text } => vec![&**text],
        Part::ToolCall(call) => vec![call.arguments.as_str()],
        Part::ToolResult(result) => result.texts().collect(),
        _ => Vec::new(),
    })
}
