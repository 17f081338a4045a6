//! The rounds of a conversation, and the messages that must not be dropped or shortened.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::conversation;
use crate::conversation::{Message, Part, Role};

/// The rounds of a conversation and the messages between them.
#[derive(Clone, Default)]
pub(crate) struct RoundTable {
    /// Messages of each round.
    rounds: Vec<Range<usize>>,
    /// Number of messages.
    messages: usize,
    /// First user message: the task.
    task: Option<usize>,
    /// Newest user message without tool results.
    last_user_message: usize,
    after_assistant: bool,
    /// Messages paired with a message of another round, or with an item that only the provider has.
    cross_round_messages: BTreeSet<usize>,
    /// Newest message with each pair of opaque blocks.
    pairs: HashMap<String, usize>,
}

/// The messages with which rounds start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundRule {
    /// The assistant's turns.
    Turns,
    /// All messages: they are results without the turns that requested them.
    Messages,
}

impl RoundTable {
    /// Adds the next message. `message_of_call` returns the earlier message with a call.
    pub(crate) fn push_message(
        &mut self,
        message: &Message<'_>,
        rule: RoundRule,
        message_of_call: impl Fn(&str) -> Option<usize>,
    ) {
        let at = self.messages;
        let opens = match rule {
            RoundRule::Turns => message.is_assistant() && !self.after_assistant,
            RoundRule::Messages => true,
        };
        if opens {
            self.rounds.push(at..at);
        }
        // A round ends at a message that is neither the assistant's nor has results.
        let in_round = message.is_assistant() || message.has_results() || rule == RoundRule::Messages;
        if let Some(round) = self.rounds.last_mut().filter(|round| in_round && round.end == at) {
            round.end = at + 1;
        }
        self.after_assistant = message.is_assistant();
        // User text next to results does not end the turn.
        if message.role == Role::User && !message.has_results() {
            self.task.get_or_insert(at);
            self.last_user_message = at;
        }
        self.link_across_rounds(at, message, message_of_call);
        self.messages += 1;
    }

    /// Records messages that are paired across rounds, which must not be dropped separately.
    fn link_across_rounds(
        &mut self,
        at: usize,
        message: &Message<'_>,
        message_of_call: impl Fn(&str) -> Option<usize>,
    ) {
        let round = self.newest_start();
        for part in &message.parts {
            let partner = match part {
                Part::ToolResult(result) => message_of_call(&result.call_id),
                Part::Opaque(block) if block.is_reference() => {
                    self.cross_round_messages.insert(at);
                    None
                }
                Part::Opaque(block) => block.pair.as_ref().and_then(|pair| self.pairs.insert(pair.to_string(), at)),
                _ => None,
            };
            if let Some(partner) = partner.filter(|&partner| partner < round) {
                self.cross_round_messages.extend([partner, at]);
            }
        }
    }

    /// Returns the rounds, oldest first.
    pub(crate) fn as_slice(&self) -> &[Range<usize>] {
        &self.rounds
    }

    /// Returns the indices of the rounds whose first message is one of these.
    pub(crate) fn starting_in(&self, messages: Range<usize>) -> Range<usize> {
        let index = |message: usize| self.rounds.partition_point(|round| round.start < message);
        index(messages.start)..index(messages.end)
    }

    /// Returns the calls of the model so far, one per round.
    pub(crate) fn calls(&self) -> u32 {
        u32::try_from(self.rounds.len()).unwrap_or(u32::MAX)
    }

    /// Returns the first message of the newest round. The model has not seen its results yet.
    pub(crate) fn newest_start(&self) -> usize {
        self.rounds.last().map_or(0, |round| round.start)
    }

    /// Returns the newest user message without tool results; 0 if there is none.
    pub(crate) fn last_user_message(&self) -> usize {
        self.last_user_message
    }

    /// Returns the messages outside of rounds, oldest first.
    pub(crate) fn messages_between(&self) -> impl Iterator<Item = usize> {
        let starts = self.rounds.iter().map(|round| round.start).chain([self.messages]);
        let ends = std::iter::once(0).chain(self.rounds.iter().map(|round| round.end));
        ends.zip(starts).flat_map(|(from, to)| from..to)
    }

    /// Returns true if the message is the task.
    pub(crate) fn is_task(&self, message: usize) -> bool {
        self.task == Some(message)
    }

    /// Returns true if the message is the task or the newest user message, whose texts are never shortened.
    pub(crate) fn is_verbatim(&self, message: usize) -> bool {
        self.task.is_some_and(|task| message == task || message == self.last_user_message)
    }

    /// Returns true if nothing in a round is paired with something outside of it: a result with its
    /// call, a system note in the conversation with its answer, or a reference with an item that the provider stores.
    pub(crate) fn is_self_contained(&self, round: &Range<usize>, messages: &[Message<'_>]) -> bool {
        !conversation::answers_system_note(messages, round.start)
            && self.cross_round_messages.range(round.clone()).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Conversation;

    fn table(messages: &[Message<'_>]) -> RoundTable {
        let mut table = RoundTable::default();
        for message in messages {
            let call = |id: &str| messages.iter().position(|message| message.calls().any(|call| call.id == id));
            table.push_message(message, RoundRule::Turns, call);
        }
        table
    }

    fn call(id: &'static str) -> Message<'static> {
        Message::new(Role::Assistant, vec![Part::call(id, "read", "{}")])
    }

    fn result(id: &'static str) -> Message<'static> {
        Message::new(Role::Tool, vec![Part::result(id, "text")])
    }

    fn user(text: &'static str) -> Message<'static> {
        Message::text(Role::User, text)
    }

    #[test]
    fn rounds_equal_those_of_the_conversation() {
        let messages =
            vec![user("go"), call("a"), call("b"), result("a"), result("b"), user("on"), call("c"), result("c")];
        let rounds = table(&messages);
        let conversation = Conversation { messages, ..Conversation::default() };
        assert_eq!(rounds.as_slice(), conversation.rounds());
        assert_eq!((rounds.calls(), rounds.newest_start()), (2, 6));
        assert_eq!(rounds.messages_between().collect::<Vec<_>>(), [0, 5]);
    }

    #[test]
    fn task_and_newest_user_message_are_verbatim() {
        let rounds = table(&[user("task"), call("a"), result("a"), user("next"), call("b"), user("newest")]);
        let verbatim: Vec<usize> = (0..6).filter(|&at| rounds.is_verbatim(at)).collect();
        assert_eq!(verbatim, [0, 5]);
        assert!(rounds.is_task(0) && !rounds.is_task(5) && rounds.last_user_message() == 5);
    }

    #[test]
    fn late_result_links_two_rounds() {
        let messages = [user("go"), call("a"), user("wait"), call("b"), result("a"), result("b"), call("c")];
        let rounds = table(&messages);
        let contained: Vec<bool> =
            rounds.as_slice().iter().map(|round| rounds.is_self_contained(round, &messages)).collect();
        assert_eq!(contained, [false, false, true]);
    }
}
