//! The tokens of a conversation: as received, as rendered, and those that are never shortened.

use std::collections::BTreeMap;

use crate::conversation::Role;
use crate::engine::options::FoldOptions;
use crate::engine::prefix_sums::PrefixSums;
use crate::tokens::Tokens;

/// Tokens of some rendered messages, by message.
pub(crate) type MessageTokens = BTreeMap<usize, Tokens>;

/// The token counts of a conversation.
#[derive(Clone, Default)]
pub(crate) struct TokenTotals {
    /// Tokens of all messages as received.
    raw: Tokens,
    /// Tokens of all rendered messages.
    rendered: Tokens,
    /// Tokens of each rendered message; those of a note are counted with the message after it.
    by_message: Vec<Tokens>,
    /// Sums over `by_message`.
    sums: PrefixSums,
    verbatim: VerbatimTokens,
}

/// Tokens of texts that are never shortened.
#[derive(Clone, Copy, Debug, Default)]
struct VerbatimTokens {
    /// System and developer messages.
    operator: Tokens,
    /// First user message.
    task: Tokens,
    /// Newest user message; 0 while it is the task.
    newest: Tokens,
}

impl TokenTotals {
    /// Adds the next message.
    pub(crate) fn push_message(&mut self, tokens: Tokens) {
        self.by_message.push(tokens);
        self.sums.push(tokens);
        self.rendered += tokens;
        self.raw += tokens;
    }

    /// Records the input texts of a message without tool results.
    pub(crate) fn record_input_texts(&mut self, role: Role, is_task: bool, texts: Tokens) {
        match role {
            Role::System | Role::Developer => self.verbatim.operator += texts,
            Role::User if is_task => self.verbatim.task = texts,
            Role::User => self.verbatim.newest = texts,
            _ => {}
        }
    }

    /// Subtracts tokens that a fold saves in a message.
    pub(crate) fn subtract(&mut self, message: usize, saved: Tokens) {
        self.replace(message, self.by_message[message] - saved);
    }

    /// Replaces the tokens of some rendered messages, and returns the previous ones.
    pub(crate) fn replace_all(&mut self, tokens: &MessageTokens) -> MessageTokens {
        tokens.iter().map(|(&message, &tokens)| (message, self.replace(message, tokens))).collect()
    }

    /// Replaces the tokens of a rendered message, and returns the previous ones.
    fn replace(&mut self, message: usize, tokens: Tokens) -> Tokens {
        let old = std::mem::replace(&mut self.by_message[message], tokens);
        self.sums.replace(message, old, tokens);
        self.rendered = self.rendered - old + tokens;
        old
    }

    /// Returns the tokens of all messages as received.
    pub(crate) fn raw(&self) -> Tokens {
        self.raw
    }

    /// Returns the tokens of all rendered messages.
    pub(crate) fn rendered(&self) -> Tokens {
        self.rendered
    }

    /// Returns the tokens of each rendered message.
    pub(crate) fn by_message(&self) -> &[Tokens] {
        &self.by_message
    }

    /// Returns the tokens of texts that are never shortened.
    pub(crate) fn verbatim(&self) -> Tokens {
        let VerbatimTokens { operator, task, newest } = self.verbatim;
        operator + task + newest
    }

    /// Returns the tokens from message `first` to the newest round, which were sent before. The newest round is written
    /// in any case.
    pub(crate) fn suffix(&self, first: usize, newest_round: usize) -> Tokens {
        self.sums.sum(newest_round) - self.sums.sum(first.min(newest_round))
    }

    /// Returns the message before which all messages are old, because newer ones before the newest round fill the policy's
    /// `keep_share` of the space left by protected parts.
    pub(crate) fn keep_share_start(&self, options: &FoldOptions, newest_round: usize, protected: Tokens) -> usize {
        let space = options.message_budget(1.0).saturating_sub(protected);
        let space = (space as f64 * options.policy.keep_share) as Tokens;
        self.sums.count_with_sum(self.sums.sum(newest_round).saturating_sub(space))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Meter, ModelTable, Prices};

    fn totals(tokens: &[Tokens]) -> TokenTotals {
        let mut totals = TokenTotals::default();
        tokens.iter().for_each(|&tokens| totals.push_message(tokens));
        totals
    }

    #[test]
    fn folds_lower_the_rendered_tokens_only() {
        let mut totals = totals(&[10, 20, 30]);
        totals.subtract(1, 15);
        assert_eq!((totals.raw(), totals.rendered(), totals.by_message()), (60, 45, &[10, 5, 30][..]));
        let before = totals.replace_all(&MessageTokens::from([(0, 1), (2, 3)]));
        assert_eq!((&before, totals.rendered()), (&MessageTokens::from([(0, 10), (2, 30)]), 9));
        totals.replace_all(&before);
        assert_eq!((totals.rendered(), totals.by_message()), (45, &[10, 5, 30][..]));
    }

    #[test]
    fn suffix_ends_at_the_newest_round() {
        let totals = totals(&[1, 2, 4, 8, 16]);
        assert_eq!((totals.suffix(1, 3), totals.suffix(3, 3), totals.suffix(4, 3)), (6, 0, 0));
    }

    #[test]
    fn only_the_newest_user_message_is_verbatim_besides_the_task() {
        let mut totals = TokenTotals::default();
        for (role, is_task, texts) in
            [(Role::System, false, 1), (Role::User, true, 2), (Role::User, false, 4), (Role::User, false, 8)]
        {
            totals.record_input_texts(role, is_task, texts);
        }
        assert_eq!(totals.verbatim(), 1 + 2 + 8);
    }

    #[test]
    fn keep_share_counts_back_from_the_newest_round() {
        let table = ModelTable::builtin();
        let mut options = FoldOptions::new(Meter::for_model(table, None), Prices::for_model(table, None), 120);
        options.policy.keep_share = 0.5;
        let totals = totals(&[30, 30, 30, 500]);
        assert_eq!(totals.keep_share_start(&options, 3, 0), 1);
        assert_eq!(totals.keep_share_start(&options, 3, 60), 2);
        assert_eq!(totals.keep_share_start(&options, 1, 0), 0);
    }
}
