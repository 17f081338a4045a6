//! Shortens protected parts when they alone are too large.
//!
//! Instructions, user messages and the newest round, whose results the model has not seen yet, are protected. They are
//! shortened only if the request would exceed the budget otherwise, and only down to the budget. The task and the newest
//! user message must never be shortened.

use crate::conversation::Role;
use crate::engine::marker;
use crate::engine::overlay::PartEdit;
use crate::engine::passes::support::clip;
use crate::engine::passes::support::round_note::NoteDetail;
use crate::engine::passes::view::FoldProposal;
use crate::engine::planner::builder::PlanBuilder;
use crate::engine::segment::{Segment, SegmentKind};
use crate::engine::stage::Stage;
use crate::error::Error;
use crate::tokens::Tokens;

/// Nothing is shortened below this size while there is another way to fit, so short user messages stay whole.
const MIN_EXCERPT_TOKENS: Tokens = 200;

/// A shortened protected text.
struct Shortened<'d> {
    segment: &'d Segment,
    before: Tokens,
    text: String,
    tokens: Tokens,
}

impl<'d> PlanBuilder<'d> {
    /// Shortens protected parts if the request is above the budget: results first, user messages only at truncation.
    pub(crate) fn shorten_protected(&mut self) -> Result<(), Error> {
        let deepest = self.options.policy.max_stage;
        if self.request_tokens <= self.options.message_budget(1.0) || deepest < Stage::Protected {
            return Ok(());
        }
        if self.options.signed_history {
            // The crease drops all reasoning anyway; its space is available to the results.
            self.drop_all_reasoning();
        }
        if !self.shorten_results(Stage::Protected, MIN_EXCERPT_TOKENS)? && deepest >= Stage::Truncation {
            self.truncate()?;
        }
        Ok(())
    }

    /// Truncates to instructions, the task, the newest user message, the newest round and pinned parts.
    fn truncate(&mut self) -> Result<(), Error> {
        self.drop_old_rounds();
        self.shorten_user_messages()?;
        self.restore_unseen();
        Ok(())
    }

    /// Shortens user messages as far as necessary, but the task and the newest one.
    fn shorten_user_messages(&mut self) -> Result<(), Error> {
        if self.shorten_results(Stage::Truncation, MIN_EXCERPT_TOKENS)? {
            return Ok(());
        }
        for least in [MIN_EXCERPT_TOKENS, 0] {
            let all = self.candidates(Stage::Truncation);
            // User messages are shortened to the target, so that the next request does not shorten them again.
            let shortened = self.share(&all, self.max_target(), least)?;
            let of_user = shortened.into_iter().filter(|text| self.is_of_user(text.segment)).collect();
            self.take_all(of_user, Stage::Truncation);
            if self.shorten_results(Stage::Truncation, least)? {
                return Ok(());
            }
        }
        let all = self.candidates(Stage::Truncation);
        let markers = self.share(&all, 0, 0)?;
        self.take_all(self.without_needless(markers, self.options.message_budget(1.0)), Stage::Truncation);
        Ok(())
    }

    /// Restores user texts next to new results if the whole texts fit into the budget: like the results, the model has
    /// not seen them yet.
    fn restore_unseen(&mut self) {
        let mut left = self.options.message_budget(1.0).saturating_sub(self.request_tokens);
        let state = self.state;
        for segment in state.segments.of_messages(self.newest_round_start..state.len()) {
            let whole = state.folds.part_tokens(segment.at).unwrap_or(segment.tokens);
            let more = whole.saturating_sub(self.tokens_of(segment));
            if segment.kind == SegmentKind::InputText && more > 0 && more <= left {
                left -= more;
                self.restore(segment.at, more);
            }
        }
    }

    fn drop_old_rounds(&mut self) {
        if !self.options.may_drop_rounds() {
            return;
        }
        let old = self.keep_reasoning_at_turn_start(self.foldable_rounds());
        if !old.is_empty() {
            self.drop_rounds(&old, Stage::Truncation, NoteDetail::CountsOnly);
        }
        self.write_notes(Stage::Truncation, NoteDetail::CountsOnly);
    }

    /// Shortens the results to the space that everything else leaves in the budget. Returns true if the request then
    /// fits; otherwise changes nothing.
    fn shorten_results(&mut self, stage: Stage, least: Tokens) -> Result<bool, Error> {
        let limit = self.options.message_budget(1.0);
        let results = self.candidates(Stage::Protected);
        let shortened = self.share(&results, limit, least)?;
        if self.request_tokens - saved(&shortened) > limit {
            return Ok(false);
        }
        self.take_all(self.without_needless(shortened, limit), stage);
        Ok(true)
    }

    /// Returns the segments that may be shortened at a stage with their tokens, smallest first.
    fn candidates(&self, stage: Stage) -> Vec<(&'d Segment, Tokens)> {
        let may_be_cut = |segment: &Segment| match segment.kind {
            SegmentKind::InputText => {
                let verbatim = self.state.rounds.is_verbatim(segment.at.message);
                stage == Stage::Truncation && self.is_of_user(segment) && !verbatim
            }
            SegmentKind::Media => self.options.edit_media && (stage == Stage::Truncation || !self.is_of_user(segment)),
            SegmentKind::Result => true,
            SegmentKind::Prose => segment.at.message < self.newest_round_start,
            SegmentKind::Arguments | SegmentKind::Reasoning => false,
        };
        let segments = self.state.segments.as_slice();
        let live = self.live.iter().map(|live| &segments[live.index]);
        let live =
            live.filter(|segment| !self.folds.is_dropped(segment.at.message) && !self.options.pins.matches(segment));
        let mut candidates: Vec<(&Segment, Tokens)> =
            live.filter(|segment| may_be_cut(segment)).map(|segment| (segment, self.tokens_of(segment))).collect();
        candidates.sort_by_key(|&(segment, tokens)| (tokens, segment.at));
        candidates
    }

    /// Divides the space that everything else leaves below `limit` among segments sorted by size: small ones stay whole,
    /// and the others get equal shares of the rest, but at least `least` tokens.
    fn share(
        &self,
        segments: &[(&'d Segment, Tokens)],
        limit: Tokens,
        least: Tokens,
    ) -> Result<Vec<Shortened<'d>>, Error> {
        let others = self.request_tokens - segments.iter().map(|(_, tokens)| tokens).sum::<Tokens>();
        let mut space = limit.saturating_sub(others);
        let mut shortened = Vec::new();
        for (count, &(segment, before)) in (1..=segments.len() as Tokens).rev().zip(segments) {
            self.options.cancel.check()?;
            let share = (space / count).max(least);
            let short = (before > share).then(|| self.shortened(segment, share)).filter(|(_, tokens)| *tokens < before);
            space = space.saturating_sub(short.as_ref().map_or(before, |(_, tokens)| *tokens));
            shortened.extend(short.map(|(text, tokens)| Shortened { segment, before, text, tokens }));
        }
        Ok(shortened)
    }

    fn shortened(&self, segment: &Segment, share: Tokens) -> (String, Tokens) {
        let view = self.pass_view(1.0);
        let text = view.text(segment);
        let text = match segment.kind {
            SegmentKind::Media => view.media_marker(segment),
            _ => clip::clip_to_tokens(text, share, &self.options.meter, &marker::whole_text(text, view.handle(text))),
        };
        let tokens = self.options.meter.text(&text);
        (text, tokens)
    }

    /// Removes the shortened texts whose originals fit into the remaining space.
    fn without_needless(&self, mut shortened: Vec<Shortened<'d>>, limit: Tokens) -> Vec<Shortened<'d>> {
        let mut left = limit.saturating_sub(self.request_tokens - saved(&shortened));
        shortened.retain(|text| {
            let more = text.before - text.tokens;
            let is_needed = more > left;
            left -= if is_needed { 0 } else { more };
            is_needed
        });
        shortened
    }

    fn take_all(&mut self, shortened: Vec<Shortened<'d>>, stage: Stage) {
        for Shortened { segment, text, tokens, .. } in shortened {
            self.accept(
                FoldProposal { at: segment.at, edit: PartEdit::Text(text), tokens, expected_unfold_cost: 0.0 },
                stage,
                "clip",
            );
        }
    }

    /// Returns true if a segment is a user's own content and not part of a result in a user message.
    fn is_of_user(&self, segment: &Segment) -> bool {
        segment.at.inner.is_none() && self.messages[segment.at.message].role == Role::User
    }
}

fn saved(shortened: &[Shortened<'_>]) -> Tokens {
    shortened.iter().map(|text| text.before - text.tokens).sum()
}

#[cfg(test)]
mod tests {
    use crate::conversation::{Message, Part, PartId, Role};
    use crate::engine::{Trigger, marker};
    use crate::tokens::Tokens;
    use crate::{
        Conversation, Error, ErrorKind, FoldOptions, FoldSession, FoldedConversation, Ledger, Meter, ModelTable,
        Policy, Prices, fold,
    };

    /// 53 bytes, as in the reported session.
    const TASK: &str = "Find out why the import of large files is so slow now";

    /// Options with a budget of which system and tools take `fixed` tokens.
    fn options(budget: Tokens, fixed: Tokens) -> FoldOptions {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some("claude-opus-4-6"));
        let prices = Prices::for_model(table, Some("claude-opus-4-6"));
        FoldOptions { handles: true, overhead_tokens: fixed, ..FoldOptions::new(meter, prices, budget) }
    }

    fn meter() -> Meter {
        options(0, 0).meter
    }

    /// Returns source code of about this many tokens.
    fn source(seed: usize, tokens: Tokens) -> String {
        let line = |at: usize| format!("    let value_{seed}_{at} = compute_{at}(input_{seed}, {at});\n");
        let line_tokens = meter().text(&line(100)).max(1);
        (0..(tokens / line_tokens) as usize).map(line).collect()
    }

    fn user(text: impl Into<String>) -> Message<'static> {
        Message::text(Role::User, text.into())
    }

    /// Returns one round of parallel reads with these results.
    fn reads(name: &str, results: &[String]) -> Vec<Message<'static>> {
        let call =
            |at: usize| Part::call(format!("{name}_{at}"), "read_file", format!(r#"{{"path":"src/{name}_{at}.rs"}}"#));
        let mut messages = vec![Message::new(Role::Assistant, (0..results.len()).map(call).collect())];
        for (at, text) in results.iter().enumerate() {
            messages.push(Message::new(Role::Tool, vec![Part::result(format!("{name}_{at}"), text.clone())]));
        }
        messages
    }

    fn conversation(messages: Vec<Message<'static>>) -> Conversation<'static> {
        Conversation { messages, ..Conversation::default() }
    }

    fn folded(conversation: &Conversation<'static>, options: &FoldOptions) -> Result<FoldedConversation, Error> {
        let folded = fold(conversation, options, &Ledger::default())?;
        let sent = folded.messages(conversation);
        let tokens =
            options.overhead_tokens + sent.iter().map(|message| options.meter.message(message)).sum::<Tokens>();
        assert_eq!(tokens, folded.tokens);
        assert!(tokens <= options.budget, "{tokens} > {}", options.budget);
        Ok(folded)
    }

    fn result_text<'m>(messages: &'m [Message<'_>], id: &str) -> Option<&'m str> {
        messages
            .iter()
            .flat_map(Message::results)
            .find(|result| result.call_id == id)
            .and_then(|result| result.only_text())
    }

    /// Asserts that a shortened text consists of whole lines of the original and markers, with the original's handle.
    fn assert_excerpt(shortened: &str, original: &str) {
        let originals: std::collections::HashSet<&str> = original.lines().collect();
        let is_gap = |line: &str| marker::gap_lines(line).is_some();
        assert!(shortened.lines().all(|line| marker::is_marker(line) || is_gap(line) || originals.contains(line)));
        assert!(marker::handles(shortened).eq([crate::Handle::for_content(original.as_bytes())]));
    }

    /// A window of 64,000, half of it system and tools, and three parallel reads that exceed the rest.
    #[test]
    fn parallel_reads_share_the_remaining_space() {
        let texts: Vec<String> = (0..3).map(|at| source(at, 25_000)).collect();
        let mut messages = vec![user(TASK)];
        for at in 0..4 {
            messages.extend(reads(&format!("old{at}"), &[source(10 + at, 1_000)]));
        }
        messages.extend(reads("new", &texts));
        let (conversation, options) = (conversation(messages), options(50_000, 30_000));
        let folded = folded(&conversation, &options).unwrap();
        let sent = folded.messages(&conversation);
        assert_eq!(sent[0], user(TASK));
        assert!(folded.tokens > 48_500, "the space is used: {}", folded.tokens);
        for (at, text) in texts.iter().enumerate() {
            let shown = result_text(&sent, &format!("new_{at}")).unwrap();
            assert_excerpt(shown, text);
            assert!(meter().text(shown) > 5_500, "{} tokens of result {at}", meter().text(shown));
        }
    }

    /// A window of 100,000: the new results fit once old text is folded.
    #[test]
    fn new_results_that_fit_are_whole() {
        let texts: Vec<String> = (0..3).map(|at| source(at, 12_000)).collect();
        let mut messages = vec![user(TASK)];
        for at in 0..20 {
            messages.extend(reads(&format!("old{at}"), &[source(10 + at, 2_000)]));
        }
        messages.extend(reads("new", &texts));
        let conversation = conversation(messages);
        let sent = folded(&conversation, &options(86_000, 45_000)).unwrap().messages(&conversation);
        for (at, text) in texts.iter().enumerate() {
            assert_eq!(result_text(&sent, &format!("new_{at}")), Some(text.as_str()));
        }
        assert_eq!(sent[0], user(TASK));
    }

    #[test]
    fn task_and_newest_user_message_are_always_verbatim() {
        for policy in [Policy::balanced(), Policy::tight()] {
            let mut session = FoldSession::new(FoldOptions { policy, ..options(50_000, 30_000) });
            let mut newest = TASK.to_owned();
            session.push(user(TASK));
            for at in 0..31 {
                session.plan_request().unwrap();
                let sent: Vec<_> = session.rendered_messages(0).collect();
                assert!(session.tokens() <= 50_000 && sent[0] == user(TASK), "request {at}");
                assert!(sent.contains(&user(newest.clone())), "request {at}");
                let texts: Vec<String> = (0..3).map(|part| source(3 * at + part, 8_000)).collect();
                reads(&format!("r{at}"), &texts).into_iter().for_each(|message| session.push(message));
                if at % 7 == 6 {
                    session.plan_request().unwrap();
                    newest = format!("Now look at part {at}. {}", source(900 + at, 4_000));
                    session.push(Message::text(Role::Assistant, "Done."));
                    session.push(user(newest.clone()));
                }
            }
        }
    }

    /// Short user messages stay whole while there is anything else to shorten; the task always does.
    #[test]
    fn short_user_messages_are_shortened_last() {
        let short =
            |at: usize| user(format!("Point {at}: keep the public interface as it is. {}", "Please. ".repeat(12)));
        let long = source(50, 15_000);
        let mut messages = vec![user(TASK)];
        for at in 0..30 {
            messages.extend(reads(&format!("r{at}"), &[source(at, 300)]));
            messages.push(short(at));
        }
        messages.push(Message::text(Role::Assistant, "I see."));
        messages.push(user(long.clone()));
        messages.extend(reads("mid", &[source(40, 300)]));
        messages.push(user("Go on."));
        messages.extend(reads("new", &[source(41, 20_000), source(42, 20_000)]));
        let conversation = conversation(messages);
        let sent = |budget| folded(&conversation, &options(budget, 0)).unwrap().messages(&conversation);
        // Results are shortened before user messages.
        let roomy = sent(24_000);
        assert!((0..30).all(|at| roomy.contains(&short(at))) && roomy.contains(&user(long.clone())));
        // Then the long user messages.
        let narrow = sent(8_000);
        assert!((0..30).all(|at| narrow.contains(&short(at))) && !narrow.contains(&user(long)));
        assert!(result_text(&narrow, "new_0").is_some_and(|text| text.lines().count() > 5));
        // Then all user messages except the task and the newest.
        let least = sent(2_000);
        assert!(!(0..30).any(|at| least.contains(&short(at))));
        for sent in [roomy, narrow, least] {
            assert!(sent.contains(&user(TASK)) && sent.contains(&user("Go on.")));
        }
    }

    #[test]
    fn unequal_new_results_share_the_space() {
        let sizes: [Tokens; 5] = [500, 30_000, 2_000, 60_000, 100];
        let texts: Vec<String> = sizes.iter().enumerate().map(|(at, &size)| source(at, size)).collect();
        let mut messages = vec![user(TASK)];
        messages.extend(reads("new", &texts));
        let conversation = conversation(messages);
        let folded = folded(&conversation, &options(20_000, 0)).unwrap();
        let sent = folded.messages(&conversation);
        let shown = |at: usize| result_text(&sent, &format!("new_{at}")).unwrap();
        for small in [0, 2, 4] {
            assert_eq!(shown(small), texts[small]);
        }
        let large = [1, 3].map(|at| {
            assert_excerpt(shown(at), &texts[at]);
            meter().text(shown(at)) as f64
        });
        assert!((0.9..1.1).contains(&(large[0] / large[1])), "{large:?}");
        assert!(folded.tokens > 19_500, "{}", folded.tokens);
    }

    #[test]
    fn error_names_a_task_above_the_budget() {
        let messages = vec![user(source(0, 9_000))];
        let error = folded(&conversation(messages), &options(10_000, 3_000)).err().unwrap();
        let ErrorKind::CannotFit { floor, budget: 10_000, largest: Some((at, _)) } = error.kind() else {
            panic!("{error}")
        };
        assert!(*floor > 11_000 && *at == PartId::new(0, 0), "{error}");
    }

    /// A result shortened while new becomes an excerpt at the next crease; its round is not dropped.
    #[test]
    fn shortened_result_becomes_an_excerpt_once_seen() {
        let mut session = FoldSession::new(options(50_000, 30_000));
        session.push(user(TASK));
        reads("big", &[source(0, 40_000)]).into_iter().for_each(|message| session.push(message));
        session.plan_request().unwrap();
        for at in 0..3 {
            reads(&format!("small{at}"), &[source(10 + at, 500)]).into_iter().for_each(|message| session.push(message));
            session.plan_request().unwrap();
            let sent: Vec<_> = session.rendered_messages(0).collect();
            let shown = result_text(&sent, "big_0").expect("the round is there");
            assert_excerpt(shown, &source(0, 40_000));
        }
        assert!(session.tokens() < 45_000, "{}", session.tokens());
    }

    /// If a crease drops all reasoning, its space is available to the new results.
    #[test]
    fn new_results_get_the_space_of_dropped_reasoning() {
        let thought = Part::reasoning("It may be slow because it copies. ".repeat(600));
        let [call, result] = &reads("new", &[source(0, 8_000)])[..] else { panic!("one round") };
        let call = Message::new(Role::Assistant, [vec![thought], call.parts.clone()].concat());
        let conversation = conversation(vec![user(TASK), call, result.clone()]);
        let options = FoldOptions { signed_history: true, ..options(9_500, 0) };
        let sent = folded(&conversation, &options).unwrap().messages(&conversation);
        assert_eq!(result_text(&sent, "new_0"), Some(source(0, 8_000).as_str()));
    }

    /// A user text next to the newest results is not shortened by a few tokens while there is room for all of it.
    #[test]
    fn unseen_user_text_that_fits_is_whole() {
        let note = source(2, 3_000);
        let mut messages = vec![user(TASK), Message::text(Role::Assistant, "I see."), user(source(1, 4_000))];
        messages.extend([Message::text(Role::Assistant, "Noted."), user("Go on.")]);
        messages.push(Message::new(Role::Assistant, vec![Part::call("c", "read_file", r#"{"path":"a.rs"}"#)]));
        messages.push(Message::new(Role::User, vec![Part::result("c", "ok"), Part::text(note.clone())]));
        let conversation = conversation(messages);
        let folded = folded(&conversation, &options(6_000, 0)).unwrap();
        let sent = folded.messages(&conversation);
        assert_eq!(sent.last().and_then(|message| message.parts[1].as_text()), Some(note.as_str()));
    }

    #[test]
    fn truncation_keeps_pinned_results() {
        let mut messages = vec![user(TASK)];
        for at in 0..6 {
            messages.extend(reads(&format!("old{at}"), &[source(at, 500)]));
        }
        messages.extend(reads("new", &[source(9, 9_000)]));
        let conversation = conversation(messages);
        let pins = crate::engine::PinRules { targets: vec!["old2_0".into()], ..crate::engine::PinRules::default() };
        let options = FoldOptions { pins, ..options(900, 0) };
        let sent = folded(&conversation, &options).unwrap().messages(&conversation);
        assert_eq!(result_text(&sent, "old2_0"), Some(source(2, 500).as_str()));
        assert_eq!(result_text(&sent, "old3_0"), None);
    }

    /// Counts the forced creases in a loop of small reads after these messages.
    fn creases(options: FoldOptions, opening: Vec<Message<'static>>, steps: usize) -> usize {
        let mut session = FoldSession::new(options.clone());
        opening.into_iter().for_each(|message| session.push(message));
        let mut creases = 0;
        for at in 0..steps {
            let creased = session.plan_request().unwrap();
            creases += usize::from(creased.is_some_and(|crease| crease.trigger == Trigger::OverBudget));
            assert!(session.tokens() <= options.budget);
            reads(&format!("r{at}"), &[source(at, 150)]).into_iter().for_each(|message| session.push(message));
        }
        creases
    }

    /// If system and tools, the task or other user messages fill the window, a loop does not crease at every request.
    #[test]
    fn large_protected_parts_do_not_crease_every_request() {
        for share in [0.5, 0.7, 0.85, 0.9] {
            let filled = (60_000.0 * share) as Tokens;
            let by_system = creases(options(60_000, filled), vec![user(TASK)], 120);
            assert!(by_system <= 30, "system {share}: {by_system}");
            let by_task = creases(options(60_000, 0), vec![user(source(0, filled))], 120);
            assert!(by_task <= 30, "task {share}: {by_task}");
        }
        let pasted = |at: usize| [user(source(900 + at, 8_000)), Message::text(Role::Assistant, "Noted.")];
        let opening = (0..9).flat_map(pasted).chain([user("Go on.")]).collect();
        let by_users = creases(options(60_000, 0), opening, 120);
        assert!(by_users <= 40, "users: {by_users}");
    }

    /// Recent rounds keep a share of the space even if system and tools are above the target ratio of the budget.
    #[test]
    fn large_system_leaves_space_for_recent_rounds() {
        let mut session = FoldSession::new(options(50_000, 35_000));
        session.push(user(TASK));
        let mut creased = 0;
        for at in 0..60 {
            reads(&format!("r{at}"), &[source(at, 800)]).into_iter().for_each(|message| session.push(message));
            if session.plan_request().unwrap().is_some_and(|crease| crease.trigger == Trigger::OverBudget) {
                creased += 1;
                let sent: Vec<_> = session.rendered_messages(0).collect();
                let whole = |back: &usize| {
                    result_text(&sent, &format!("r{}_0", at - back)) == Some(source(at - back, 800).as_str())
                };
                assert!((0..3).all(|back| whole(&back)), "request {at}");
            }
        }
        assert!((2..20).contains(&creased), "{creased}");
    }
}
