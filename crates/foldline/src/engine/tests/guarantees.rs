//! The four guarantees as property tests: a rendering fits, is valid, is stable and is recoverable.

pub(crate) use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use proptest::prelude::*;

use crate::conversation::answers_system_note;
use crate::engine::passes::{AT_INGEST, REVERSE_PASS_ORDER};
use crate::engine::stage::Stage;
use crate::engine::{PrefixSummary, StoreError, marker};
use crate::laws::LawProfile;
use crate::testing::{SampleRequest, samples};
use crate::tokens::Tokens;
use crate::wire::Request;
use crate::{
    Conversation, Error, ErrorKind, FoldOptions, FoldSession, FoldState, FoldedRequest, Handle, Ledger, Message, Meter,
    ModelTable, Original, OriginalStore, Part, Policy, Prices, Role, apply, fold, laws, resume,
};

/// A store in memory, which can be made to fail.
#[derive(Default)]
pub(crate) struct InMemoryStore {
    originals: RefCell<HashMap<Handle, Vec<u8>>>,
    fails: bool,
}

impl InMemoryStore {
    pub(crate) fn contains(&self, handle: Handle) -> bool {
        self.originals.borrow().contains_key(&handle)
    }
}

impl OriginalStore for InMemoryStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        if self.fails {
            return Err(StoreError("the disk is full".into()));
        }
        let mut kept = self.originals.borrow_mut();
        kept.extend(originals.iter().map(|original| (original.handle, original.bytes.to_vec())));
        Ok(())
    }
}

pub(crate) fn options(request: &Request<'_>, budget: Tokens) -> FoldOptions {
    let table = ModelTable::builtin();
    let prices = Prices::for_model(table, Some("claude-opus-4-6"));
    // An estimate is fast and monotone; the arithmetic is the same for every counter.
    let meter = Meter::for_model(table, Some("claude-opus-4-6"));
    FoldOptions::new(meter, prices, budget).with_rules(&LawProfile::for_request(request))
}

pub(crate) fn raw_tokens(request: &Request<'_>) -> Tokens {
    options(request, 0).meter.conversation(request.conversation())
}

fn applied(request: &Request<'_>, budget: Tokens, store: Option<&dyn OriginalStore>) -> Result<FoldedRequest, Error> {
    apply(request, &options(request, budget), &Ledger::default(), store, &|_| ())
}

/// Generates up to three summaries: request point and end as shares of the messages, and length in words.
fn summaries() -> impl Strategy<Value = Vec<(f64, f64, usize)>> {
    proptest::collection::vec((0.0..1.0, 0.0..1.0, 1_usize..400), 1..4)
}

fn ledger_with_summaries(places: &[(f64, f64, usize)], messages: usize) -> Ledger {
    let summaries = places.iter().map(|&(at, until, words)| {
        let at = (messages as f64 * at) as usize;
        let text = format!("What was done: {}[folded: x; unfold 000000000000]", "it was read and ".repeat(words));
        (at, PrefixSummary { until: (at as f64 * until) as usize, text: text.into() })
    });
    Ledger { summaries: summaries.collect(), ..Ledger::default() }
}

pub(crate) fn budgets() -> impl Strategy<Value = f64> {
    0.05..1.2
}

pub(crate) fn count_tokens(sample: &SampleRequest, body: &[u8]) -> Tokens {
    let request = Request::parse(sample.format, body).unwrap();
    raw_tokens(&request)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The rendering has at most the budgeted tokens, counted on its bytes, or the error states the floor.
    #[test]
    fn rendering_fits(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        match applied(&request, budget, None) {
            Ok(applied) => {
                prop_assert!(count_tokens(&sample, &applied.body) <= budget);
                // If roles alternate, the text between a note and the assistant is counted even where it is not needed.
                let is_exact = !LawProfile::for_request(&request).has(laws::Law::Alternation);
                prop_assert!(!is_exact || count_tokens(&sample, &applied.body) == applied.tokens);
            }
            Err(error) => {
                let is_true = matches!(error.kind(), ErrorKind::CannotFit { floor, .. } if *floor > budget);
                prop_assert!(is_true, "{error}");
            }
        }
    }

    /// The rendering breaks no law that the original request does not break.
    #[test]
    fn rendering_is_valid(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let Ok(applied) = applied(&request, budget, None) else { return Ok(()) };
        let rewritten = Request::parse(sample.format, &applied.body).unwrap();
        let profile = LawProfile::for_request(&request);
        let broken = laws::check(&rewritten, &profile);
        prop_assert!(broken.is_empty(), "{broken:?}\n{}", String::from_utf8_lossy(&applied.body));
        let deepest = applied.folded.as_ref().and_then(|folded| folded.deepest_stage());
        if deepest.is_some_and(|stage| stage < Stage::Protected) {
            let last_crease = applied.creases().last().map(|crease| crease.request_point);
            let thinking = if profile.signs_history() { laws::ThinkingTreatment::Stripped } else { laws::ThinkingTreatment::Kept };
            let context = laws::RewriteContext { thinking_valid_from: last_crease, thinking, ..laws::RewriteContext::new(&profile) };
            let broken = laws::compare(&request, &rewritten, &context);
            prop_assert!(broken.is_empty(), "{broken:?}\n{}", String::from_utf8_lossy(&applied.body));
        }
    }

    /// Every handle in the rendering resolves to an original that hashes to it.
    #[test]
    fn rendering_is_recoverable(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let memory = InMemoryStore::default();
        let Ok(applied) = applied(&request, budget, Some(&memory)) else { return Ok(()) };
        let sent = String::from_utf8(applied.body).unwrap();
        for handle in marker::handles(&sent) {
            let kept = memory.originals.borrow();
            let original = kept.get(&handle);
            prop_assert!(original.is_some(), "{handle} in {sent}");
            prop_assert_eq!(Handle::for_content(original.unwrap()), handle);
        }
    }

    /// If the store fails, the request is sent unfolded if it fits, otherwise folded without handles.
    #[test]
    fn failing_store_leaves_no_handle(sample in samples(), share in budgets()) {
        let request = sample.request();
        let raw = raw_tokens(&request);
        let budget = (raw as f64 * share) as Tokens;
        let memory = InMemoryStore { fails: true, ..InMemoryStore::default() };
        let Ok(applied) = applied(&request, budget, Some(&memory)) else { return Ok(()) };
        let sent = String::from_utf8(applied.body).unwrap();
        prop_assert_eq!(marker::handles(&sent).count(), 0);
        if raw <= budget {
            prop_assert_eq!(sent, sample.body);
        }
    }

    /// The same request gives the same bytes.
    #[test]
    fn rendering_is_deterministic(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let bytes = || applied(&request, budget, None).map(|applied| applied.body).ok();
        prop_assert_eq!(bytes(), bytes());
    }

    /// Each rendering begins with the previous one, unless there is a crease with a cost.
    #[test]
    fn rendering_is_stable(sample in samples(), share in budgets()) {
        let request = sample.request();
        let options = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(request.conversation());
        let mut sent: Option<Vec<Message<'_>>> = None;
        for point in request.conversation().request_points() {
            let prefix = prefix_of(request.conversation(), point);
            let Ok(folded) = fold(&prefix, &options, &Ledger::default()) else { continue };
            let now = folded.messages(&prefix);
            match folded.creases.last().filter(|crease| crease.request_point == point) {
                Some(crease) => prop_assert!(crease.saved_tokens > 0 && crease.rewrite_cost <= 2 * crease.suffix_tokens),
                None => prop_assert!(sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point),
            }
            sent = Some(now);
        }
    }

    /// A session that grows message by message and the fold of the whole conversation give the same rendering.
    #[test]
    fn session_equals_fold(sample in samples(), share in budgets()) {
        let request = sample.request();
        let conversation = request.conversation();
        let options = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let mut session = FoldSession::new(options.clone());
        let points = conversation.request_points();
        for (at, message) in conversation.messages.iter().enumerate() {
            session.push(message.clone().into_owned());
            if points.contains(&(at + 1)) {
                let prefix = prefix_of(conversation, at + 1);
                match (session.plan_request().is_ok(), fold(&prefix, &options, &Ledger::default())) {
                    (true, Ok(folded)) => {
                        prop_assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&prefix));
                        prop_assert_eq!(session.tokens(), folded.tokens);
                    }
                    (planned, folded) => prop_assert_eq!(planned, folded.is_ok()),
                }
            }
        }
    }

    /// The rendering never has more tokens than the original, and folding it again changes nothing.
    #[test]
    fn rendering_never_grows_and_is_idempotent(sample in samples(), share in budgets()) {
        let request = sample.request();
        let conversation = request.conversation();
        let options = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let Ok(folded) = fold(conversation, &options, &Ledger::default()) else { return Ok(()) };
        prop_assert!(folded.tokens <= folded.raw_tokens);
        for stats in folded.fold_stats().into_iter().filter(|stats| stats.pass != "rounds") {
            prop_assert!(stats.tokens_after < stats.tokens_before.max(1), "{stats:?}");
        }
        let once = Conversation { messages: folded.messages(conversation), ..conversation.clone() };
        // If the first fold ended above the trigger, the second fold creases again.
        let below = folded.tokens as f64 <= options.policy.trigger_ratio * options.budget as f64;
        if let Ok(twice) = fold(&once, &options, &Ledger::default()) && below {
            prop_assert_eq!(twice.messages(&once), once.messages);
        }
    }

    /// The task and the newest user message are unchanged at every request, under every policy, or there is an error.
    #[test]
    fn task_and_newest_user_message_are_verbatim(sample in samples(), share in budgets(), which in 1_usize..4, local: bool) {
        let request = sample.request();
        let conversation = request.conversation();
        let profile = LawProfile::for_request(&request);
        let profile = if local { profile.served_by(laws::ServerKind::ChatTemplate) } else { profile };
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let mut options = options(&request, budget).with_rules(&profile).with_overhead_of(conversation);
        options.policy = Policy::ALL[which].clone();
        for point in conversation.request_points() {
            let prefix = prefix_of(conversation, point);
            let Ok(folded) = fold(&prefix, &options, &Ledger::default()) else { continue };
            prop_assert!(folded.tokens <= budget);
            let texts = |message: &Message<'_>| -> Vec<String> {
                message.parts.iter().filter_map(Part::as_text).map(str::to_owned).collect()
            };
            let sent: Vec<Vec<String>> = folded.messages(&prefix).iter().map(texts).collect();
            let is_user = |message: &&Message<'_>| message.role == Role::User && !message.has_results();
            let users: Vec<Vec<String>> = prefix.messages.iter().filter(is_user).map(texts).collect();
            for kept in users.first().into_iter().chain(users.last()) {
                let is_sent = sent.iter().any(|sent| kept.iter().all(|text| sent.contains(text)));
                prop_assert!(is_sent, "at {}: {:?} of {:?}", point, kept, sent);
            }
        }
    }

    /// A result that the model has not seen yet is shortened only if it does not fit.
    #[test]
    fn unseen_results_that_fit_are_whole(sample in samples(), share in budgets(), which in 1_usize..4) {
        let request = sample.request();
        // If roles alternate, notes are counted with a text that may not be needed.
        prop_assume!(!LawProfile::for_request(&request).has(laws::Law::Alternation));
        let conversation = request.conversation();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let mut options = options(&request, budget).with_overhead_of(conversation);
        options.policy = Policy::ALL[which].clone();
        let Ok(folded) = fold(conversation, &options, &Ledger::default()) else { return Ok(()) };
        let newest = folded.newest_round_start();
        let is_new_clip = |stats: &crate::engine::FoldStats| stats.part.message >= newest && stats.pass == "clip";
        for stats in folded.fold_stats().into_iter().filter(is_new_clip) {
            let whole = folded.tokens - stats.tokens_after + stats.tokens_before;
            prop_assert!(whole > budget, "{stats:?} in {} of {}", folded.tokens, budget);
        }
    }

    /// The guarantees do not depend on the order of the passes within a stage.
    #[test]
    fn pass_order_breaks_no_guarantee(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        REVERSE_PASS_ORDER.set(true);
        let reversed = applied(&request, budget, None);
        REVERSE_PASS_ORDER.set(false);
        let Ok(applied) = reversed else { return Ok(()) };
        prop_assert!(count_tokens(&sample, &applied.body) <= budget);
        let rewritten = Request::parse(sample.format, &applied.body).unwrap();
        prop_assert_eq!(laws::check(&rewritten, &LawProfile::for_request(&request)), []);
    }

    /// The floor is tight: a request with all texts cut to markers, which keeps only instructions, the task, the newest
    /// user message, a marker for every other user message and the newest round, is at most a tenth smaller.
    #[test]
    fn reported_floor_is_tight(sample in samples()) {
        let request = sample.request();
        let conversation = request.conversation();
        let options = options(&request, 1).with_overhead_of(conversation);
        // Rounds that start a turn with required reasoning, or answer a system note, cannot be dropped.
        let answers = |round: &Range<usize>| answers_system_note(&conversation.messages, round.start);
        prop_assume!(!options.turn_starts_with_reasoning && !conversation.rounds().iter().any(answers));
        let Err(error) = fold(conversation, &options, &Ledger::default()) else { return Ok(()) };
        let ErrorKind::CannotFit { floor, .. } = error.kind() else { panic!("{error}") };
        let least = minimal_tokens(conversation, &options);
        prop_assert!(*floor * 9 <= least * 10, "the floor is {}, and {} is possible", floor, least);
    }

    /// With summaries in the ledger, the rendering still fits, is valid and is recoverable, and no user text is
    /// removed that would be kept without them.
    #[test]
    fn summary_breaks_no_guarantee(sample in samples(), share in budgets(), places in summaries(), local: bool) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let profile = LawProfile::for_request(&request);
        let profile = if local { profile.served_by(laws::ServerKind::ChatTemplate) } else { profile };
        let options = options(&request, budget).with_rules(&profile);
        let ledger = ledger_with_summaries(&places, request.conversation().messages.len());
        let memory = InMemoryStore::default();
        let Ok(applied) = apply(&request, &options, &ledger, Some(&memory), &|_| ()) else {
            // A summary does not raise the floor.
            prop_assert!(apply(&request, &options, &Ledger::default(), Some(&memory), &|_| ()).is_err());
            return Ok(());
        };
        prop_assert!(count_tokens(&sample, &applied.body) <= budget);
        let alternates = profile.has(laws::Law::Alternation);
        prop_assert!(local || alternates || count_tokens(&sample, &applied.body) == applied.tokens);
        let rewritten = Request::parse(sample.format, &applied.body).unwrap();
        let before = laws::check(&request, &profile);
        let broken = laws::check(&rewritten, &profile);
        prop_assert!(broken.is_empty() || !before.is_empty(), "{broken:?}\n{}", String::from_utf8_lossy(&applied.body));
        let sent = String::from_utf8(applied.body.clone()).unwrap();
        for handle in marker::handles(&sent) {
            prop_assert!(memory.originals.borrow().contains_key(&handle), "{handle} in {sent}");
        }
        let by_assistant = rewritten.conversation().messages.iter().filter(|message| message.is_assistant());
        let texts = by_assistant.flat_map(|message| &message.parts).filter_map(Part::as_text);
        prop_assert!(texts.filter(|text| text.contains("What was done")).count() == 0, "{sent}");
        let deepest = applied.folded.as_ref().and_then(|folded| folded.deepest_stage());
        if deepest.is_none_or(|stage| stage < Stage::Protected) {
            for text in user_texts(request.conversation()) {
                prop_assert!(user_texts(rewritten.conversation()).contains(&text), "{text}");
            }
        }
    }

    /// A summary does not change earlier decisions, and every replica makes the same later decisions.
    #[test]
    fn summary_changes_renderings_only_at_creases(sample in samples(), share in budgets(), places in summaries()) {
        let request = sample.request();
        let conversation = request.conversation();
        let options = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let whole = ledger_with_summaries(&places, conversation.messages.len());
        let mut state = FoldState::default();
        let mut sent: Option<Vec<Message<'_>>> = None;
        for point in conversation.request_points() {
            let prefix = prefix_of(conversation, point);
            // Without the summaries that are not known yet at this point.
            let mut known = whole.clone();
            known.summaries.retain(|&at, _| at < point);
            let (Ok(folded), Ok(again)) = (fold(&prefix, &options, &known), fold(&prefix, &options, &whole)) else {
                (state, sent) = (FoldState::default(), None);
                continue;
            };
            let now = folded.messages(&prefix);
            prop_assert_eq!(&again.messages(&prefix), &now, "a later summary reaches back");
            prop_assert_eq!(resume(state, &prefix, &options, &known).unwrap().messages(&prefix), now.clone());
            let creased = folded.creases.last().is_some_and(|crease| crease.request_point == point);
            prop_assert!(creased || sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point);
            (state, sent) = (again.into_state(), Some(now));
        }
    }

    /// A request within the budget is sent byte for byte, except for what is folded before it is first sent.
    #[test]
    fn request_within_budget_is_unchanged(sample in samples()) {
        let request = sample.request();
        let applied = applied(&request, raw_tokens(&request) * 2, None).unwrap();
        let passes: Vec<&str> = applied.pass_names().collect();
        prop_assert!(passes.iter().all(|pass| AT_INGEST.contains(pass)), "{:?}", passes);
        if passes.is_empty() {
            prop_assert_eq!(String::from_utf8(applied.body).unwrap(), sample.body.clone());
        }
    }
}

fn user_texts(conversation: &Conversation<'_>) -> Vec<String> {
    let users = conversation.messages.iter().filter(|message| message.role == Role::User);
    users.flat_map(|message| &message.parts).filter_map(Part::as_text).map(str::to_owned).collect()
}

pub(crate) fn prefix_of<'m>(conversation: &Conversation<'m>, point: usize) -> Conversation<'m> {
    Conversation { messages: conversation.messages[..point].to_vec(), ..conversation.clone() }
}

/// Returns the tokens of a conversation cut as far as possible.
fn minimal_tokens(conversation: &Conversation<'_>, options: &FoldOptions) -> Tokens {
    let newest = conversation.rounds().last().map_or(0, |round| round.start);
    let messages = &conversation.messages;
    let cut = |part: &Part<'_>| match part {
        Part::Text { text } if text.len() > 40 => Part::text("[folded: 9 lines, 999 bytes of text]"),
        Part::Image(_) | Part::File(_) => Part::text("[folded: an image]"),
        part => part.clone().into_owned(),
    };
    let inside = |part: &Part<'_>| match part {
        Part::ToolResult(result) => {
            let content = result.content.iter().map(cut).collect();
            let call_id = result.call_id.to_string().into();
            Part::ToolResult(crate::conversation::ToolResult { content, call_id, is_error: result.is_error })
        }
        part => cut(part),
    };
    let is_user = |message: &Message<'_>| message.role == Role::User && !message.has_results();
    let verbatim = [messages.iter().position(is_user), messages.iter().rposition(is_user)];
    let inside_verbatim =
        |part: &Part<'_>| if part.as_text().is_some() { part.clone().into_owned() } else { inside(part) };
    let mut tokens = options.overhead_tokens;
    for (at, message) in messages.iter().enumerate() {
        let has_user_text = message.role == Role::User && message.parts.iter().any(|part| part.as_text().is_some());
        let cut = match message.role {
            Role::System | Role::Developer | Role::Other => message.clone().into_owned(),
            // The newest assistant turn is unchanged.
            Role::Assistant if at >= newest => message.clone().into_owned(),
            Role::User if verbatim.contains(&Some(at)) => {
                Message::new(message.role, message.parts.iter().map(inside_verbatim).collect())
            }
            _ if at >= newest || has_user_text => {
                Message::new(message.role, message.parts.iter().map(inside).collect())
            }
            _ => continue,
        };
        tokens += options.meter.message(&cut);
    }
    tokens
}

fn long_text(seed: usize, lines: usize) -> String {
    (0..lines).map(|at| format!("value_{seed}_{at} = compute_{at}(input_{seed})\n")).collect()
}

fn folded_tokens(messages: Vec<Message<'static>>, budget: Tokens) -> Result<(Tokens, Vec<Message<'static>>), Error> {
    let conversation = Conversation { messages, ..Conversation::default() };
    let meter = Meter::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
    let prices = Prices::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
    let options = FoldOptions { handles: true, ..FoldOptions::new(meter.clone(), prices, budget) };
    let folded = fold(&conversation, &options, &Ledger::default())?;
    let sent = folded.messages(&conversation);
    assert_eq!(folded.tokens, sent.iter().map(|message| meter.message(message)).sum::<Tokens>());
    assert!(folded.tokens <= budget);
    Ok((folded.tokens, sent))
}

/// A single result of two megabytes.
#[test]
fn one_huge_result_fits() {
    let messages = vec![
        Message::text(Role::User, "look"),
        Message::new(Role::Assistant, vec![Part::call("c", "sh", "{}")]),
        Message::new(Role::Tool, vec![Part::result("c", long_text(0, 60_000))]),
    ];
    let (tokens, sent) = folded_tokens(messages, 8_000).unwrap();
    assert!(tokens > 2_000, "the space is used: {tokens}");
    assert_eq!(sent[0], Message::text(Role::User, "look"));
}

/// A user message of two megabytes is the task, which is not shortened.
#[test]
fn one_huge_user_message_is_an_error() {
    let error = folded_tokens(vec![Message::text(Role::User, long_text(0, 60_000))], 8_000).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CannotFit { budget: 8_000, largest: Some(_), .. }), "{error}");
}

/// Two messages of two megabytes between the task and the newest: truncation shortens them.
#[test]
fn huge_user_messages_between_task_and_newest_fit() {
    let user = |text: String| Message::text(Role::User, text);
    let messages =
        vec![user("look".into()), user(long_text(0, 60_000)), user(long_text(1, 60_000)), user("go on".into())];
    let (tokens, sent) = folded_tokens(messages, 8_000).unwrap();
    assert!(tokens > 6_000, "the space is used: {tokens}");
    assert_eq!((&sent[0], &sent[3]), (&user("look".into()), &user("go on".into())));
}

/// Two hundred parallel calls in the newest round: none of them is dropped.
#[test]
fn two_hundred_parallel_calls_fit() {
    let calls = (0..200).map(|at| Part::call(format!("c{at}"), "read", format!(r#"{{"path":"f{at}.rs"}}"#))).collect();
    let results = (0..200).map(|at| Message::new(Role::Tool, vec![Part::result(format!("c{at}"), long_text(at, 200))]));
    let mut messages = vec![Message::text(Role::User, "read all"), Message::new(Role::Assistant, calls)];
    messages.extend(results);
    let (_, sent) = folded_tokens(messages, 32_000).unwrap();
    assert_eq!(sent.len(), 202);
}

/// Five hundred images in one message.
#[test]
fn five_hundred_images_fit() {
    let images = (0..500).map(|_| Part::Image(crate::conversation::ImagePart::default()));
    let parts = std::iter::once(Part::text("compare these")).chain(images).collect();
    folded_tokens(vec![Message::new(Role::User, parts)], 32_000).unwrap();
}

/// No user message at all.
#[test]
fn conversation_without_user_messages_fits() {
    let mut messages = Vec::new();
    for at in 0..40 {
        messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "read", "{}")]));
        messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), long_text(at, 100))]));
    }
    folded_tokens(messages, 8_000).unwrap();
}

/// A floor above the budget gives an error after one attempt, not endless compaction.
#[test]
fn unshrinkable_request_reports_its_floor() {
    let instructions = Message::text(Role::System, long_text(0, 2_000));
    let error = folded_tokens(vec![instructions, Message::text(Role::User, "go")], 8_000).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CannotFit { floor, budget: 8_000, .. } if *floor > 8_000));
}

/// The policy `none` folds nothing; a request over the budget is an error.
#[test]
fn policy_none_folds_nothing() {
    let conversation =
        Conversation { messages: vec![Message::text(Role::User, long_text(0, 2_000))], ..Conversation::default() };
    let meter = Meter::for_model(ModelTable::builtin(), None);
    let mut options = FoldOptions::new(meter, Prices::for_model(ModelTable::builtin(), None), 1_000_000);
    options.policy = Policy::none();
    assert!(fold(&conversation, &options, &Ledger::default()).unwrap().is_unchanged());
    options.budget = 1_000;
    assert!(fold(&conversation, &options, &Ledger::default()).is_err());
}
