//! The left fold: a state that grows with the conversation and decides at request points.
//!
//! Decisions at a point depend on the messages before it, the setup and the ledger, and on nothing
//! else. So adding messages can not change what was decided, any replica computes the same bytes,
//! and a conversation first seen at its four hundredth turn is folded as if it had been there from
//! the start.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::clock::Clock;
use crate::conversation::{self, Conversation, Message, Part, PartId, Role};
use crate::error::{Error, ErrorKind};
use crate::folded::Folded;
use crate::folds::{Change, Fold, Folds, Leaving};
use crate::handle::Handle;
use crate::keep::{Keep, KeepError, Original};
use crate::lexicon::Lexicon;
use crate::marker;
use crate::measure::Tokens;
use crate::outdated::Latest;
use crate::pass::again::{Hashes, Said};
use crate::pass::{lines, prose, screen};
use crate::piece::{self, Class, Open, Piece};
use crate::plan::{self, Plan, Reason, Rung};
use crate::policy::Creases;
use crate::setup::{Ledger, Setup};

/// What is known after some messages. Holds no text but that of markers and excerpts.
#[derive(Clone, Default)]
pub struct State {
    pub(crate) pieces: Vec<Piece>,
    /// Index of the first piece of each message.
    pub(crate) first_piece: Vec<usize>,
    pub(crate) folds: Folds,
    pub(crate) lexicon: Lexicon,
    /// Calls made so far.
    pub(crate) calls: u32,
    /// Tokens of the messages as rendered, all and each.
    pub(crate) rendered: Tokens,
    pub(crate) tokens: Vec<Tokens>,
    pub(crate) raw: Tokens,
    /// Tokens of texts that are never shortened: those of the operator's messages, of the task and of the newest user message.
    verbatim: Verbatim,
    /// The messages of each round.
    rounds: Vec<Range<usize>>,
    /// The first message of a user: the task.
    task: Option<usize>,
    /// The last message in which a user says something.
    pub(crate) last_said: usize,
    after_assistant: bool,
    open: Open,
    /// Messages that belong together with one of another round.
    tied: BTreeSet<usize>,
    pairs: HashMap<String, usize>,
    latest: Latest,
    /// The newest result with each text, by its hash.
    texts: HashMap<u128, usize>,
    /// The lines of the pieces that were listened to, and how many these are.
    said: Said,
    heard: usize,
    pub(crate) clock: Clock,
    creases: Vec<Crease>,
    /// After how many creases, with how many folded parts, the originals were last handed to an archive: no fold is made
    /// without either growing.
    pub(crate) kept: (usize, usize),
}

/// Tokens of texts that are never shortened.
#[derive(Clone, Copy, Debug, Default)]
struct Verbatim {
    operator: Tokens,
    task: Tokens,
    /// Nothing while the newest user message is the task.
    newest: Tokens,
}

/// A crease that happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Crease {
    /// At which request point.
    pub at: usize,
    /// Why.
    pub reason: Reason,
    /// Tokens that went away.
    pub saved: Tokens,
    /// Tokens behind the first changed byte that had been sent, before the change: what is left of them is written to the
    /// provider's cache again.
    pub suffix: Tokens,
    /// What writing them again costs, in tokens at base price.
    pub price: Tokens,
    /// First changed message of the conversation.
    pub first: usize,
}

/// What a crease has changed, as it was.
#[derive(Clone)]
pub(crate) struct Before {
    folds: Folds,
    tokens: Vec<Tokens>,
    touched: BTreeSet<usize>,
}

/// What a fold is called that is made at first sight: of what stands above, of what a screen would not show.
const AGAIN: &str = "again";
const SCREEN: &str = "screen";
pub(crate) const AT_FIRST_SIGHT: [&str; 2] = [AGAIN, SCREEN];

/// What tools are called, at the end, by which a model gets back what was folded.
const GIVES_BACK: &str = "unfold";

impl State {
    /// How many messages it has seen.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has seen none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Hands the originals of all that is folded to an archive.
    pub(crate) fn keep(&self, messages: &[Message<'_>], keep: &dyn Keep) -> Result<(), KeepError> {
        let originals = self.folds.originals(messages);
        let with_facts = |leaving: &Leaving<'_>| {
            let piece = self.piece(leaving.at).filter(|_| leaving.rounds.is_empty());
            let done = piece.and_then(|piece| piece.deed.as_ref());
            let inside = leaving.rounds.iter().flat_map(|round| self.pieces_of(round.clone()));
            let tokens = piece.into_iter().chain(inside).map(|piece| piece.tokens).sum();
            (Handle::of(&leaving.bytes), done.map(|done| (done.tool.clone(), done.deed.target.clone())), tokens)
        };
        let facts: Vec<_> = originals.iter().map(with_facts).collect();
        let list: Vec<Original<'_>> = originals
            .iter()
            .zip(&facts)
            .map(|(leaving, (handle, done, tokens))| Original {
                handle: *handle,
                bytes: &leaving.bytes,
                tool: done.as_ref().map(|(tool, _)| tool.as_str()),
                arguments: done.as_ref().map(|(_, target)| target.as_str()),
                message: leaving.rounds.first().map_or(leaving.at.message, |round| round.start),
                tokens: *tokens,
            })
            .collect();
        keep.keep(&list)
    }

    pub(crate) fn piece(&self, at: PartId) -> Option<&Piece> {
        self.pieces_of(at.message..at.message + 1).iter().find(|piece| piece.at == at)
    }

    pub(crate) fn pieces_of(&self, messages: Range<usize>) -> &[Piece] {
        &self.pieces[self.indices_of(messages)]
    }

    /// Which pieces are those of some messages.
    pub(crate) fn indices_of(&self, messages: Range<usize>) -> Range<usize> {
        let index = |message: usize| self.first_piece.get(message).copied().unwrap_or(self.pieces.len());
        index(messages.start)..index(messages.end)
    }

    /// Returns whether the texts of a message of a user are never shortened: those of the task and of the newest.
    pub(crate) fn is_verbatim(&self, message: usize) -> bool {
        self.task.is_some_and(|task| message == task || message == self.last_said)
    }

    /// The first message of the newest round: from it on the model has not answered yet.
    pub(crate) fn newest_round(&self) -> usize {
        self.rounds.last().map_or(0, |round| round.start)
    }

    /// The rounds, oldest first.
    pub(crate) fn rounds(&self) -> &[Range<usize>] {
        &self.rounds
    }

    /// Whether nothing of a round belongs together with something outside of it: a result with its
    /// call, a note of the operator inside the conversation with the answer to it.
    pub(crate) fn is_closed(&self, round: &Range<usize>, messages: &[Message<'_>]) -> bool {
        !conversation::answers_a_note(messages, round.start) && self.tied.range(round.clone()).next().is_none()
    }

    /// Returns the message before which all are old, because younger ones fill their share of the room that protected parts
    /// leave.
    pub(crate) fn crowded(&self, setup: &Setup, newest: usize, protected: Tokens) -> usize {
        let room = setup.room_at(1.0).saturating_sub(protected);
        let mut room = (room as f64 * setup.policy.keep_share) as Tokens;
        for at in (0..newest).rev() {
            match room.checked_sub(self.tokens[at]) {
                Some(left) => room = left,
                None => return at + 1,
            }
        }
        0
    }

    /// Tokens from a message on that were sent before. What the newest round brought is written in any case.
    pub(crate) fn suffix(&self, first: usize) -> Tokens {
        let newest = self.newest_round();
        self.tokens[first.min(newest)..newest].iter().sum()
    }

    /// Takes note of a message at first sight.
    pub(crate) fn ingest(&mut self, setup: &Setup, message: &Message<'_>) {
        let at = self.tokens.len();
        if message.is_assistant() && !self.after_assistant {
            self.calls += 1;
            self.rounds.push(at..at);
        }
        // A round goes on until somebody else says something.
        let in_round = message.is_assistant() || message.has_results();
        if let Some(round) = self.rounds.last_mut().filter(|round| in_round && round.end == at) {
            round.end = at + 1;
        }
        self.after_assistant = message.is_assistant();
        // What a user says beside results does not end the turn.
        if message.role == Role::User && !message.has_results() {
            self.task.get_or_insert(at);
            self.last_said = at;
        }
        self.tie(at, message);
        let first = self.pieces.len();
        self.first_piece.push(first);
        self.pieces.extend(piece::pieces(at, message, self.calls, &mut self.open, &setup.meter));
        let in_pieces: Tokens = self.pieces[first..].iter().map(|piece| piece.tokens).sum();
        let tokens = in_pieces + piece::tokens_beside(message, &setup.meter);
        debug_assert_eq!(tokens, setup.meter.message(message));
        self.tokens.push(tokens);
        self.rendered += tokens;
        self.raw += tokens;
        if !message.has_results() {
            let texts = self.pieces[first..].iter().filter(|piece| piece.class == Class::Said);
            let texts: Tokens = texts.map(|piece| piece.tokens).sum();
            match message.role {
                Role::System | Role::Developer => self.verbatim.operator += texts,
                Role::User if self.task == Some(at) => self.verbatim.task = texts,
                Role::User => self.verbatim.newest = texts,
                _ => {}
            }
        }
        for index in first..self.pieces.len() {
            if let Some(before) = self.latest.note(&self.pieces, index) {
                self.pieces[before].outdated = true;
            }
            if setup.policy.creases != Creases::Never {
                self.at_first_sight(setup, message, index);
            }
        }
    }

    /// Folds what is certain before any byte of it is sent: a result that stands above as it is, and what a screen
    /// would not have shown. Nothing else of what the model has not seen yet is touched.
    fn at_first_sight(&mut self, setup: &Setup, message: &Message<'_>, index: usize) {
        let piece = &self.pieces[index];
        if piece.class != Class::Result || piece.tokens < piece::WORTH_COUNTING || setup.pins.holds(piece) {
            return;
        }
        // Whoever asks for an original and gets a marker asks again.
        if piece.deed.as_ref().is_some_and(|done| done.tool.ends_with(GIVES_BACK)) {
            return;
        }
        let text = piece::text_of(message, piece.at);
        let handle = || setup.handles.then(|| Handle::of(text.as_bytes()));
        let above =
            self.texts.insert(piece.hash, index).filter(|&above| self.folds.rung(self.pieces[above].at).is_none());
        let (folded, rung, pass) = if let Some(above) = above {
            self.texts.insert(piece.hash, above);
            (marker::again(text, handle()), Rung::Repeats, AGAIN)
        } else if let Some(shown) = screen::shown(text) {
            (screen::marked(&shown, handle()), Rung::Repack, SCREEN)
        } else {
            return;
        };
        let tokens = setup.meter.text(&folded);
        let Some(saved) = piece.tokens.checked_sub(tokens).filter(|&saved| saved > 0) else { return };
        let at = piece.at;
        if let Some(above) = above {
            // It was asked for again: from now on it is as young as the question.
            self.pieces[above].call = self.calls;
            self.pieces[above].outdated = false;
        }
        self.tokens[at.message] -= saved;
        self.rendered -= saved;
        self.folds.set(at, Fold { change: Change::Text(folded), tokens, rung, pass });
    }

    /// Remembers what belongs together across rounds: it is never dropped apart.
    fn tie(&mut self, at: usize, message: &Message<'_>) {
        let round = self.newest_round();
        for part in &message.parts {
            let partner = match part {
                Part::ToolResult(it) => self.open.get(it.call_id.as_ref()).map(|(_, call)| *call),
                Part::Opaque(it) => it.pair.as_ref().and_then(|pair| self.pairs.insert(pair.to_string(), at)),
                _ => None,
            };
            if let Some(partner) = partner.filter(|&partner| partner < round) {
                self.tied.extend([partner, at]);
            }
        }
    }

    /// Takes note of what passes ask at every look and what never changes: which results since the last look say again
    /// what an earlier one has said, and in which prose there is noise.
    fn listen(&mut self, setup: &Setup, messages: &[Message<'_>]) -> Result<(), Error> {
        let for_lines = lines::is_wanted(&setup.policy);
        for index in self.heard..self.pieces.len() {
            self.heard = index;
            setup.cancel.check()?;
            let piece = &self.pieces[index];
            let text = piece::text(messages, piece.at);
            match piece.class {
                Class::Result if for_lines && piece.tokens >= lines::SHORTEST => {
                    let hashes = Hashes::of(text);
                    self.said.note(index as u32, &hashes, |before| {
                        let before = &mut self.pieces[before as usize];
                        before.hashes.get_or_insert_with(|| Hashes::of(piece::text(messages, before.at)));
                        before.said_again = true;
                        self.pieces[index].echoes = true;
                    });
                    self.pieces[index].hashes = self.pieces[index].echoes.then_some(hashes);
                }
                Class::Prose if piece.tokens >= prose::SHORTEST => {
                    self.pieces[index].noisy = prose::without_noise(text).is_some();
                }
                _ => {}
            }
        }
        self.heard = self.pieces.len();
        Ok(())
    }

    /// Decides at a request point of the past. A request that could not fit was refused or went out raw; the fold goes on.
    pub(crate) fn decide_past(&mut self, setup: &Setup, ledger: &Ledger, messages: &[Message<'_>]) -> Option<Crease> {
        let setup = at_point(setup, ledger, messages.len());
        // Texts that are never shortened are too much already: no plan has to be made to see that there is none.
        let Verbatim { operator, task, newest } = self.verbatim;
        if operator + task + newest > setup.room_at(1.0) {
            self.wait(&setup);
            return None;
        }
        self.decide(&setup, ledger, messages).ok().flatten()
    }

    /// Decides at the request point behind the last message that was taken note of.
    pub(crate) fn decide(
        &mut self,
        setup: &Setup,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<Crease>, Error> {
        let planned = self.plan(setup, ledger, messages)?;
        Ok(planned.map(|(plan, reason)| self.crease(setup, messages, plan, reason).0))
    }

    /// What a crease at this request point would do, if it is to be one. Only the clock moves.
    pub(crate) fn plan(
        &mut self,
        setup: &Setup,
        ledger: &Ledger,
        messages: &[Message<'_>],
    ) -> Result<Option<(Plan, Reason)>, Error> {
        setup.cancel.check()?;
        let at = messages.len();
        let setup = &*at_point(setup, ledger, at);
        self.wait(setup);
        let Some(reason) = self.reason(setup, ledger.cold.contains(&at), messages) else { return Ok(None) };
        self.listen(setup, messages)?;
        let mut lexicon = std::mem::take(&mut self.lexicon);
        let kind_of = |at| self.piece(at).and_then(|piece| piece.kind);
        let from = self.begins_at(setup, reason);
        let plan = lexicon
            .read(messages, &self.folds, &setup.cancel, kind_of)
            .and_then(|()| plan::choose(self, &mut lexicon, setup, messages, reason, from, ledger.summary(at)));
        self.lexicon = lexicon;
        let plan = plan?;
        if reason == Reason::Must {
            let left = plan.as_ref().map_or(self.rendered, |plan| self.rendered - plan.saved);
            if left > setup.room_at(1.0) {
                return Err(self.cannot_fit(setup, left, plan.as_ref()));
            }
            self.clock.settle(left);
        }
        match plan {
            Some(plan) if reason == Reason::Must || plan.gain > 0.0 => Ok(Some((plan, reason))),
            _ => {
                self.clock.looked_in_vain(self.calls, plan.as_ref(), setup);
                Ok(None)
            }
        }
    }

    /// Does what was planned. Gives what was there before, for [`State::undo`].
    pub(crate) fn crease(
        &mut self,
        setup: &Setup,
        messages: &[Message<'_>],
        plan: Plan,
        reason: Reason,
    ) -> (Crease, Before) {
        let price = match reason {
            Reason::Free => 0,
            _ => setup.prices.rewrite(plan.suffix, plan.saved).round() as Tokens,
        };
        let at = self.tokens.len();
        for &at in &plan.touched {
            self.lexicon.changed(at, &messages[at], &self.folds, &plan.folds);
            // No more of what is cut is left to be added up by lines, or to be compared.
            let end = self.first_piece.get(at + 1).copied().unwrap_or(self.pieces.len());
            let pieces = &mut self.pieces[self.first_piece[at]..end];
            for piece in pieces {
                let rung = plan.folds.rung(piece.at);
                piece.hashes.take_if(|_| rung.is_some());
                piece.lines.take_if(|_| rung >= Some(Rung::Excerpts));
            }
        }
        let folds = std::mem::replace(&mut self.folds, plan.folds);
        let tokens = std::mem::replace(&mut self.tokens, plan.tokens);
        self.rendered -= plan.saved;
        self.clock.creased(plan.saved);
        let crease = Crease { at, reason, saved: plan.saved, suffix: plan.suffix, price, first: plan.first };
        (crease, Before { folds, tokens, touched: plan.touched })
    }

    /// Takes the last crease back, all but the clock.
    pub(crate) fn undo(&mut self, messages: &[Message<'_>], crease: &Crease, before: Before) {
        for &at in &before.touched {
            self.lexicon.changed(at, &messages[at], &self.folds, &before.folds);
        }
        self.folds = before.folds;
        self.tokens = before.tokens;
        self.rendered += crease.saved;
    }

    fn cannot_fit(&self, setup: &Setup, left: Tokens, plan: Option<&Plan>) -> Error {
        let (floor, budget) = (left + setup.fixed, setup.budget);
        let folds = plan.map_or(&self.folds, |plan| &plan.folds);
        let left = self.pieces.iter().filter(|piece| !folds.is_gone(piece.at.message));
        let sizes = left.map(|piece| (piece.at, folds.tokens(piece.at).unwrap_or(piece.tokens)));
        let largest = sizes.max_by_key(|(_, tokens)| *tokens);
        let what = match largest {
            Some((at, tokens)) if tokens > setup.fixed => format!("the largest part left is {at} with {tokens} tokens"),
            _ => format!("system and tools alone are {} tokens", setup.fixed),
        };
        let message = format!(
            "cannot fit: the floor is {floor} tokens and the budget is {budget}; {what}; use a larger window or send less"
        );
        Error::new(ErrorKind::CannotFit { floor, budget, largest }, message)
    }
}

/// The setup with the budget of a request point.
fn at_point<'s>(setup: &'s Setup, ledger: &Ledger, at: usize) -> Cow<'s, Setup> {
    match ledger.budget(at, setup) {
        budget if budget == setup.budget => Cow::Borrowed(setup),
        budget => Cow::Owned(Setup { budget, ..setup.clone() }),
    }
}

/// Folds a conversation as it is to be sent now.
pub fn fold(conversation: &Conversation<'_>, setup: &Setup, ledger: &Ledger) -> Result<Folded, Error> {
    resume(State::default(), conversation, setup, ledger)
}

/// Folds a conversation whose first messages were folded before, at the price of its new messages. The
/// state is that of [`Folded::into_state`] after those messages, under the same setup and ledger; the
/// outcome is that of [`fold`].
pub fn resume(
    mut state: State,
    conversation: &Conversation<'_>,
    setup: &Setup,
    ledger: &Ledger,
) -> Result<Folded, Error> {
    let messages = &conversation.messages;
    let mut decided = state.len();
    let answered = |next: &Message<'_>| next.opens_round(messages[..decided].last());
    if decided > 0 && !messages.get(decided).is_none_or(answered) {
        // What was decided counted on an answer that never came.
        (state, decided) = (State::default(), 0);
    }
    for (at, message) in messages.iter().enumerate().skip(decided) {
        setup.cancel.check()?;
        if at > decided && message.opens_round(Some(&messages[at - 1])) {
            let crease = state.decide_past(setup, ledger, &messages[..at]);
            state.creases.extend(crease);
        }
        state.ingest(setup, message);
    }
    if messages.len() > decided || decided == 0 {
        let crease = state.decide(setup, ledger, messages)?;
        state.creases.extend(crease);
    }
    Ok(Folded {
        tokens: state.rendered + setup.fixed,
        raw_tokens: state.raw + setup.fixed,
        creases: state.creases.clone(),
        state,
        alternate: setup.alternate,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Folder, Meter, ModelTable, Prices};

    fn setup(budget: Tokens) -> Setup {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some("gpt-4o"));
        Setup { handles: true, ..Setup::new(meter, Prices::for_model(table, Some("claude-opus-4-6")), budget) }
    }

    fn source(seed: usize, lines: usize) -> String {
        (0..lines).map(|at| format!("    let value_{seed}_{at} = compute_{at}(input_{seed}, {at});\n")).collect()
    }

    fn agent(rounds: usize, lines: usize) -> Conversation<'static> {
        let mut messages = vec![
            Message::text(Role::System, "You are a careful engineer."),
            Message::text(Role::User, "Please make the parser faster."),
        ];
        for at in 0..rounds {
            let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
            messages.push(Message::new(Role::Assistant, vec![Part::text(format!("Reading file {at}.")), call]));
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source(at, lines))]));
        }
        Conversation { messages, ..Conversation::default() }
    }

    /// Three windows of history end inside the budget, without any model.
    #[test]
    fn what_is_sent_fits() {
        let conversation = agent(60, 60);
        for budget in [4_000, 8_000, 16_000, 32_000] {
            let setup = setup(budget);
            let folded = fold(&conversation, &setup, &Ledger::default()).unwrap();
            assert!(folded.tokens <= budget, "{} > {budget}", folded.tokens);
            let sent: Tokens = folded.messages(&conversation).iter().map(|message| setup.meter.message(message)).sum();
            assert_eq!(sent, folded.tokens);
            assert!(folded.raw_tokens > 3 * 16_000);
        }
    }

    /// A growing conversation and its whole at once give the same rendering, at every request.
    #[test]
    fn folder_equals_fold() {
        let conversation = agent(40, 40);
        let setup = setup(12_000);
        let mut folder = Folder::new(setup.clone());
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
                folder.request().unwrap();
                let whole = Conversation { messages: conversation.messages[..at].to_vec(), ..Conversation::default() };
                let folded = fold(&whole, &setup, &Ledger::default()).unwrap();
                assert_eq!(folder.rendered(0).collect::<Vec<_>>(), folded.messages(&whole), "at {at}");
                assert_eq!(folder.tokens(), folded.tokens);
            }
            folder.push(message.clone());
        }
    }

    /// Going on from any request is the same as folding the whole, also when the answer never came.
    #[test]
    fn resume_equals_fold() {
        let conversation = agent(40, 40);
        let setup = setup(12_000);
        let ledger = Ledger { budgets: BTreeMap::from([(41, 9_000)]), ..Ledger::default() };
        let mut state = State::default();
        for end in (1..=conversation.messages.len()).filter(|end| end % 3 != 0) {
            let seen = Conversation { messages: conversation.messages[..end].to_vec(), ..Conversation::default() };
            let resumed = resume(state, &seen, &setup, &ledger).unwrap();
            let folded = fold(&seen, &setup, &ledger).unwrap();
            assert_eq!(resumed.messages(&seen), folded.messages(&seen), "at {end}");
            assert_eq!((resumed.tokens, &resumed.creases), (folded.tokens, &folded.creases), "at {end}");
            state = resumed.into_state();
            assert_eq!(state.len(), end);
        }
    }

    /// Where the operator's words alone were too much for a while, the fold goes on as for one who asked all the time.
    #[test]
    fn points_at_which_nothing_could_fit_are_passed_over() {
        let mut conversation = agent(40, 40);
        conversation.messages[0] = Message::text(Role::System, source(0, 100));
        let setup = setup(16_000);
        let ledger = Ledger {
            budgets: BTreeMap::from([(1, 1_000), (31, 12_000), (61, 1_000), (71, 9_000)]),
            ..Ledger::default()
        };
        let mut folder = Folder::new(setup.clone());
        *folder.ledger_mut() = ledger.clone();
        let mut refused = 0;
        for (at, message) in conversation.messages.iter().enumerate() {
            if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
                refused += usize::from(folder.request().is_err());
            }
            folder.push(message.clone());
        }
        folder.request().unwrap();
        let folded = fold(&conversation, &setup, &ledger).unwrap();
        assert_eq!(folder.rendered(0).collect::<Vec<_>>(), folded.messages(&conversation));
        assert!(refused > 10 && !folded.creases.is_empty(), "{refused}");
    }

    /// Asking, adding a message and asking again is the same as asking once.
    #[test]
    fn a_question_without_an_answer_leaves_no_trace() {
        let conversation = agent(40, 40);
        let setup = setup(12_000);
        let mut folder = Folder::new(setup.clone());
        for message in &conversation.messages {
            drop(folder.request());
            folder.push(message.clone());
        }
        folder.request().unwrap();
        let folded = fold(&conversation, &setup, &Ledger::default()).unwrap();
        assert_eq!(folder.rendered(0).collect::<Vec<_>>(), folded.messages(&conversation));
    }

    /// A look that found a crease too dear is taken again when more calls are to be expected, though nothing has grown.
    #[test]
    fn what_did_not_pay_yet_is_looked_at_again() {
        let mut conversation = agent(0, 0);
        for at in 0..80 {
            let (call, said) = (format!("c{at}"), if at < 4 { source(at, 400) } else { at.to_string() });
            let run = Part::call(call.clone(), "run", format!(r#"{{"command":"make {at}"}}"#));
            conversation.messages.push(Message::new(Role::Assistant, vec![run]));
            conversation.messages.push(Message::new(Role::Tool, vec![Part::result(call, said)]));
        }
        let after = |rounds: usize| {
            let messages = conversation.messages[..2 + 2 * rounds].to_vec();
            fold(&Conversation { messages, ..Conversation::default() }, &setup(200_000), &Ledger::default()).unwrap()
        };
        let looked = |rounds: &usize| after(*rounds).into_state().clock.due > 0;
        let first = (1..80).find(looked).expect("a look that finds it too dear");
        assert_eq!(after(first).creases, []);
        let end = after(80);
        assert_eq!(end.creases.len(), 1);
        assert!(end.tokens < end.raw_tokens / 2, "{} of {}", end.tokens, end.raw_tokens);
    }

    /// Round by round: what each is asked for, and how many lines come back.
    fn rounds(rounds: impl Iterator<Item = (&'static str, usize)>) -> Conversation<'static> {
        let mut conversation = agent(0, 0);
        for (at, (tool, lines)) in rounds.enumerate() {
            let call = Part::call(format!("c{at}"), tool, format!(r#"{{"path":"src/file_{at}.rs"}}"#));
            conversation.messages.push(Message::new(Role::Assistant, vec![call]));
            let said = if lines == 0 { at.to_string() } else { source(at, lines) };
            conversation.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), said)]));
        }
        conversation
    }

    /// A paid crease leaves what stands before it as the last one left it, so that it is not written again.
    #[test]
    fn a_paid_crease_begins_with_what_has_grown_old_since_the_last() {
        let lines = |at: usize| if at.is_multiple_of(40) { 1_200 } else { 0 };
        let folded = fold(&rounds((0..160).map(|at| ("run", lines(at)))), &setup(200_000), &Ledger::default()).unwrap();
        let firsts: Vec<usize> = folded.creases.iter().map(|crease| crease.first).collect();
        assert!(firsts.len() > 2 && firsts.is_sorted_by(|one, next| one < next), "{firsts:?}");
    }

    /// A file that will be old in a few calls is waited for: one crease folds it and what is old already.
    #[test]
    fn what_grows_old_soon_is_waited_for() {
        let creases = |read_at: usize| {
            let round = |at: usize| match at {
                30 => ("run", 1_200),
                at if at == read_at => ("read_file", 1_200),
                _ => ("run", 0),
            };
            fold(&rounds((0..80).map(round)), &setup(200_000), &Ledger::default()).unwrap().creases
        };
        let (alone, waited) = (creases(usize::MAX), creases(28));
        assert_eq!((alone.len(), waited.len()), (1, 1));
        assert!(waited[0].at > alone[0].at, "{} {}", waited[0].at, alone[0].at);
    }

    /// Each rendering begins with the one before it, unless a crease is told.
    #[test]
    fn what_was_sent_stays_as_it_was() {
        let conversation = agent(60, 40);
        let mut folder = Folder::new(setup(16_000));
        let mut sent: Vec<Message<'static>> = Vec::new();
        let mut creases = 0;
        for (at, message) in conversation.messages.iter().enumerate() {
            if at > 0 && message.is_assistant() {
                let creased = folder.request().unwrap().is_some();
                let now: Vec<_> = folder.rendered(0).collect();
                assert!(creased || now.starts_with(&sent), "at {at}");
                creases += usize::from(creased);
                sent = now;
            }
            folder.push(message.clone());
        }
        assert!((2..20).contains(&creases), "{creases}");
    }

    #[test]
    fn what_can_not_fit_says_how_far_it_is_from_it() {
        let mut conversation = agent(1, 10);
        conversation.messages[0] = Message::text(Role::System, source(0, 400));
        let error = fold(&conversation, &setup(2_000), &Ledger::default()).err().unwrap();
        let ErrorKind::CannotFit { floor, budget, largest } = error.kind() else { panic!("{error}") };
        assert_eq!((*budget, largest.unwrap().0), (2_000, PartId::new(0, 0)));
        assert!(*floor > 2_000, "{error}");
    }
}
