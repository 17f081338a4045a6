//! The four promises as property tests: what we send fits, is valid, is stable and is recoverable.

pub(crate) use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use proptest::prelude::*;

use crate::conversation::answers_system_note;
use crate::engine::marker;
use crate::engine::passes::REVERSE_PASS_ORDER;
use crate::engine::planner::Stage;
use crate::laws;
use crate::laws::LawProfile;
use crate::testing::{SampleRequest, samples};
use crate::wire::Request;
use crate::{
    Conversation, Error, ErrorKind, FoldOptions, FoldSession, FoldState, FoldedRequest, Handle, Ledger, Message, Meter,
    ModelTable, Original, OriginalStore, Part, Policy, PrefixSummary, Prices, Role, StoreError, Tokens, resume,
};
use crate::{apply, fold};

/// An archive in memory that remembers what it was given.
#[derive(Default)]
struct InMemoryStore {
    originals: RefCell<HashMap<Handle, Vec<u8>>>,
    fails: bool,
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

fn options(request: &Request<'_>, budget: Tokens) -> FoldOptions {
    let table = ModelTable::builtin();
    let prices = Prices::for_model(table, Some("claude-opus-4-6"));
    // An estimate is quick and monotone; the arithmetic is the same for every counter.
    let meter = Meter::for_model(table, Some("claude-opus-4-6"));
    FoldOptions::new(meter, prices, budget).with_rules(&LawProfile::for_request(request))
}

fn raw_tokens(request: &Request<'_>) -> Tokens {
    options(request, 0).meter.conversation(request.conversation())
}

fn applied(request: &Request<'_>, budget: Tokens, keep: Option<&dyn OriginalStore>) -> Result<FoldedRequest, Error> {
    apply(request, &options(request, budget), &Ledger::default(), keep, &|_| ())
}

/// A ledger in which, at up to three places, a summary of some length of what stands before is known.
fn summaries() -> impl Strategy<Value = Vec<(f64, f64, usize)>> {
    proptest::collection::vec((0.0..1.0, 0.0..1.0, 1_usize..400), 1..4)
}

fn ledger_with_summaries(places: &[(f64, f64, usize)], messages: usize) -> Ledger {
    let told = places.iter().map(|&(at, until, words)| {
        let at = (messages as f64 * at) as usize;
        let text = format!("What was done: {}[folded: x; unfold 000000000000]", "it was read and ".repeat(words));
        (at, PrefixSummary { until: (at as f64 * until) as usize, text: text.into() })
    });
    Ledger { summaries: told.collect(), ..Ledger::default() }
}

fn budgets() -> impl Strategy<Value = f64> {
    0.05..1.2
}

fn count_tokens(sample: &SampleRequest, body: &[u8]) -> Tokens {
    let request = Request::parse(sample.format, body).unwrap();
    raw_tokens(&request)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// What is sent has at most the budgeted tokens, counted anew on the bytes; or the floor is told.
    #[test]
    fn rendering_fits(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        match applied(&request, budget, None) {
            Ok(applied) => {
                prop_assert!(count_tokens(&sample, &applied.body) <= budget);
                prop_assert_eq!(count_tokens(&sample, &applied.body), applied.tokens);
            }
            Err(error) => {
                let is_true = matches!(error.kind(), ErrorKind::CannotFit { floor, .. } if *floor > budget);
                prop_assert!(is_true, "{error}");
            }
        }
    }

    /// No law is broken that the client's own request did not break.
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
        if deepest.is_some_and(|rung| rung < Stage::Protected) {
            let settled = applied.creases().last().map(|crease| crease.request_point);
            let thinking = if profile.signs_history() { laws::ThinkingTreatment::Stripped } else { laws::ThinkingTreatment::Kept };
            let rewriting = laws::RewriteContext { thinking_valid_from: settled, thinking, ..laws::RewriteContext::new(&profile) };
            let broken = laws::compare(&request, &rewritten, &rewriting);
            prop_assert!(broken.is_empty(), "{broken:?}\n{}", String::from_utf8_lossy(&applied.body));
        }
    }

    /// Every handle in what is sent gives back bytes that hash to it, and the text that stood there.
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

    /// An archive that fails costs no request: raw if that fits, else folded without handles.
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

    /// Each rendering begins with the one before it, unless a crease is told; and a crease has its price.
    #[test]
    fn rendering_is_stable(sample in samples(), share in budgets()) {
        let request = sample.request();
        let setup = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(request.conversation());
        let mut sent: Option<Vec<Message<'_>>> = None;
        for point in request.conversation().request_points() {
            let prefix = prefix_of(request.conversation(), point);
            let Ok(folded) = fold(&prefix, &setup, &Ledger::default()) else { continue };
            let now = folded.messages(&prefix);
            match folded.creases.last().filter(|crease| crease.request_point == point) {
                Some(crease) => prop_assert!(crease.saved_tokens > 0 && crease.rewrite_cost <= 2 * crease.suffix_tokens),
                None => prop_assert!(sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point),
            }
            sent = Some(now);
        }
    }

    /// A folder that grows message by message renders what the fold of the whole renders.
    #[test]
    fn session_equals_fold(sample in samples(), share in budgets()) {
        let request = sample.request();
        let conversation = request.conversation();
        let setup = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let mut folder = FoldSession::new(setup.clone());
        let points = conversation.request_points();
        for (at, message) in conversation.messages.iter().enumerate() {
            folder.push(message.clone().into_owned());
            if points.contains(&(at + 1)) {
                let prefix = prefix_of(conversation, at + 1);
                match (folder.plan_request().is_ok(), fold(&prefix, &setup, &Ledger::default())) {
                    (true, Ok(folded)) => {
                        prop_assert_eq!(folder.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&prefix));
                        prop_assert_eq!(folder.tokens(), folded.tokens);
                    }
                    (asked, folded) => prop_assert_eq!(asked, folded.is_ok()),
                }
            }
        }
    }

    /// What is sent is never more than what came, and folding it again changes nothing.
    #[test]
    fn rendering_never_grows_and_is_idempotent(sample in samples(), share in budgets()) {
        let request = sample.request();
        let conversation = request.conversation();
        let setup = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let Ok(folded) = fold(conversation, &setup, &Ledger::default()) else { return Ok(()) };
        prop_assert!(folded.tokens <= folded.raw_tokens);
        for explained in folded.fold_stats().into_iter().filter(|it| it.pass != "rounds") {
            prop_assert!(explained.tokens_after < explained.tokens_before.max(1), "{explained:?}");
        }
        let once = Conversation { messages: folded.messages(conversation), ..conversation.clone() };
        // Where the first ended above the mark at which a crease is due, it is due once more.
        let below = folded.tokens as f64 <= setup.policy.trigger_ratio * setup.budget as f64;
        if let Ok(twice) = fold(&once, &setup, &Ledger::default()) && below {
            prop_assert_eq!(twice.messages(&once), once.messages);
        }
    }

    /// The task and the newest user message are sent as they came, at every request, under every policy; or there is an error.
    #[test]
    fn task_and_newest_user_message_are_verbatim(sample in samples(), share in budgets(), which in 1_usize..4, local: bool) {
        let request = sample.request();
        let conversation = request.conversation();
        let profile = LawProfile::for_request(&request);
        let profile = if local { profile.served_by(laws::ServerKind::ChatTemplate) } else { profile };
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let mut setup = options(&request, budget).with_rules(&profile).with_overhead_of(conversation);
        setup.policy = Policy::ALL[which].clone();
        for point in conversation.request_points() {
            let prefix = prefix_of(conversation, point);
            let Ok(folded) = fold(&prefix, &setup, &Ledger::default()) else { continue };
            prop_assert!(folded.tokens <= budget);
            let texts = |message: &Message<'_>| -> Vec<String> {
                message.parts.iter().filter_map(Part::as_text).map(str::to_owned).collect()
            };
            let sent: Vec<Vec<String>> = folded.messages(&prefix).iter().map(texts).collect();
            let of_users = prefix.messages.iter().filter(|it| it.role == Role::User && !it.has_results());
            let of_users: Vec<Vec<String>> = of_users.map(texts).collect();
            for kept in of_users.first().into_iter().chain(of_users.last()) {
                let is_sent = sent.iter().any(|sent| kept.iter().all(|text| sent.contains(text)));
                prop_assert!(is_sent, "at {}: {:?} of {:?}", point, kept, sent);
            }
        }
    }

    /// A result that the model has not seen yet is shortened only where it does not fit whole.
    #[test]
    fn unseen_results_that_fit_are_whole(sample in samples(), share in budgets(), which in 1_usize..4) {
        let request = sample.request();
        let conversation = request.conversation();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let mut setup = options(&request, budget).with_overhead_of(conversation);
        setup.policy = Policy::ALL[which].clone();
        let Ok(folded) = fold(conversation, &setup, &Ledger::default()) else { return Ok(()) };
        let newest = folded.newest_round_start();
        for explained in folded.fold_stats().into_iter().filter(|it| it.part.message >= newest && it.pass == "clip") {
            let whole = folded.tokens - explained.tokens_after + explained.tokens_before;
            prop_assert!(whole > budget, "{explained:?} in {} of {}", folded.tokens, budget);
        }
    }

    /// In whatever order the passes of a rung take turns, no law is broken and the budget holds.
    #[test]
    fn pass_order_breaks_no_guarantee(sample in samples(), share in budgets()) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        REVERSE_PASS_ORDER.set(true);
        let backwards = applied(&request, budget, None);
        REVERSE_PASS_ORDER.set(false);
        let Ok(applied) = backwards else { return Ok(()) };
        prop_assert!(count_tokens(&sample, &applied.body) <= budget);
        let rewritten = Request::parse(sample.format, &applied.body).unwrap();
        prop_assert_eq!(laws::check(&rewritten, &LawProfile::for_request(&request)), []);
    }

    /// The floor is true: who cuts all texts to markers, and keeps only instructions, the task and the newest user message, a
    /// trace of every other message of a user and the newest round, gets at most a tenth below it.
    #[test]
    fn reported_floor_is_tight(sample in samples()) {
        let request = sample.request();
        let conversation = request.conversation();
        let setup = options(&request, 1).with_overhead_of(conversation);
        // Where a turn has to begin with thinking its first rounds can not go, nor those that answer a note.
        let answers = |round: &Range<usize>| answers_system_note(&conversation.messages, round.start);
        prop_assume!(!setup.turn_starts_with_reasoning && !conversation.rounds().iter().any(answers));
        let Err(error) = fold(conversation, &setup, &Ledger::default()) else { return Ok(()) };
        let ErrorKind::CannotFit { floor, .. } = error.kind() else { panic!("{error}") };
        let least = minimal_tokens(conversation, &setup);
        prop_assert!(*floor * 9 <= least * 10, "the floor is {}, and {} is possible", floor, least);
    }

    /// With summaries in the ledger it fits, is valid and is recoverable all the same, and no word of a user goes
    /// that would not have gone without them.
    #[test]
    fn summary_breaks_no_guarantee(sample in samples(), share in budgets(), places in summaries(), local: bool) {
        let request = sample.request();
        let budget = (raw_tokens(&request) as f64 * share) as Tokens;
        let profile = LawProfile::for_request(&request);
        let profile = if local { profile.served_by(laws::ServerKind::ChatTemplate) } else { profile };
        let setup = options(&request, budget).with_rules(&profile);
        let ledger = ledger_with_summaries(&places, request.conversation().messages.len());
        let memory = InMemoryStore::default();
        let Ok(applied) = apply(&request, &setup, &ledger, Some(&memory), &|_| ()) else {
            // No summary makes the floor higher.
            prop_assert!(apply(&request, &setup, &Ledger::default(), Some(&memory), &|_| ()).is_err());
            return Ok(());
        };
        prop_assert!(count_tokens(&sample, &applied.body) <= budget);
        prop_assert!(local || count_tokens(&sample, &applied.body) == applied.tokens);
        let rewritten = Request::parse(sample.format, &applied.body).unwrap();
        let before = laws::check(&request, &profile);
        let broken = laws::check(&rewritten, &profile);
        prop_assert!(broken.is_empty() || !before.is_empty(), "{broken:?}\n{}", String::from_utf8_lossy(&applied.body));
        let sent = String::from_utf8(applied.body.clone()).unwrap();
        for handle in marker::handles(&sent) {
            prop_assert!(memory.originals.borrow().contains_key(&handle), "{handle} in {sent}");
        }
        let of_model = rewritten.conversation().messages.iter().filter(|message| message.is_assistant());
        let words = of_model.flat_map(|message| &message.parts).filter_map(Part::as_text);
        prop_assert!(words.filter(|text| text.contains("What was done")).count() == 0, "{sent}");
        let deepest = applied.folded.as_ref().and_then(|folded| folded.deepest_stage());
        if deepest.is_none_or(|rung| rung < Stage::Protected) {
            for said in user_texts(request.conversation()) {
                prop_assert!(user_texts(rewritten.conversation()).contains(&said), "{said}");
            }
        }
    }

    /// What was decided before a summary was known stays; what comes after is decided by any replica alike.
    #[test]
    fn summary_changes_renderings_only_at_creases(sample in samples(), share in budgets(), places in summaries()) {
        let request = sample.request();
        let conversation = request.conversation();
        let setup = options(&request, (raw_tokens(&request) as f64 * share) as Tokens).with_overhead_of(conversation);
        let whole = ledger_with_summaries(&places, conversation.messages.len());
        let mut state = FoldState::default();
        let mut sent: Option<Vec<Message<'_>>> = None;
        for point in conversation.request_points() {
            let prefix = prefix_of(conversation, point);
            // What nobody knows yet at this point.
            let mut known = whole.clone();
            known.summaries.retain(|&at, _| at < point);
            let (Ok(folded), Ok(again)) = (fold(&prefix, &setup, &known), fold(&prefix, &setup, &whole)) else {
                (state, sent) = (FoldState::default(), None);
                continue;
            };
            let now = folded.messages(&prefix);
            prop_assert_eq!(&again.messages(&prefix), &now, "a later summary reaches back");
            prop_assert_eq!(resume(state, &prefix, &setup, &known).unwrap().messages(&prefix), now.clone());
            let creased = folded.creases.last().is_some_and(|crease| crease.request_point == point);
            prop_assert!(creased || sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point);
            (state, sent) = (again.into_state(), Some(now));
        }
    }

    /// With room enough the client's very bytes go out.
    #[test]
    fn request_within_budget_is_unchanged(sample in samples()) {
        let request = sample.request();
        let applied = applied(&request, raw_tokens(&request) * 2, None).unwrap();
        prop_assert_eq!(String::from_utf8(applied.body).unwrap(), sample.body.clone());
    }
}

fn user_texts(conversation: &Conversation<'_>) -> Vec<String> {
    let said = conversation.messages.iter().filter(|message| message.role == Role::User);
    said.flat_map(|message| &message.parts).filter_map(Part::as_text).map(str::to_owned).collect()
}

fn prefix_of<'m>(conversation: &Conversation<'m>, point: usize) -> Conversation<'m> {
    Conversation { messages: conversation.messages[..point].to_vec(), ..conversation.clone() }
}

/// Tokens of a conversation of which as much is cut as can be.
fn minimal_tokens(conversation: &Conversation<'_>, setup: &FoldOptions) -> Tokens {
    let newest = conversation.rounds().last().map_or(0, |round| round.start);
    let messages = &conversation.messages;
    let cut = |part: &Part<'_>| match part {
        Part::Text { text } if text.len() > 40 => Part::text("[folded: 9 lines, 999 bytes of text]"),
        Part::Image(_) | Part::File(_) => Part::text("[folded: an image]"),
        part => part.clone().into_owned(),
    };
    let inside = |part: &Part<'_>| match part {
        Part::ToolResult(it) => {
            let content = it.content.iter().map(cut).collect();
            let call_id = it.call_id.to_string().into();
            Part::ToolResult(crate::ToolResult { content, call_id, is_error: it.is_error })
        }
        part => cut(part),
    };
    let is_said = |message: &Message<'_>| message.role == Role::User && !message.has_results();
    let verbatim = [messages.iter().position(is_said), messages.iter().rposition(is_said)];
    let inside_verbatim =
        |part: &Part<'_>| if part.as_text().is_some() { part.clone().into_owned() } else { inside(part) };
    let mut tokens = setup.overhead_tokens;
    for (at, message) in messages.iter().enumerate() {
        let said = message.role == Role::User && message.parts.iter().any(|part| part.as_text().is_some());
        let cut = match message.role {
            Role::System | Role::Developer | Role::Other => message.clone().into_owned(),
            // What the model wrote last stays as it is.
            Role::Assistant if at >= newest => message.clone().into_owned(),
            Role::User if verbatim.contains(&Some(at)) => {
                Message::new(message.role, message.parts.iter().map(inside_verbatim).collect())
            }
            _ if at >= newest || said => Message::new(message.role, message.parts.iter().map(inside).collect()),
            _ => continue,
        };
        tokens += setup.meter.message(&cut);
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
    let setup = FoldOptions { handles: true, ..FoldOptions::new(meter.clone(), prices, budget) };
    let folded = fold(&conversation, &setup, &Ledger::default())?;
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
    assert!(tokens > 2_000, "the room is used: {tokens}");
    assert_eq!(sent[0], Message::text(Role::User, "look"));
}

/// One message of a user of two megabytes: the task is not shortened.
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
    assert!(tokens > 6_000, "the room is used: {tokens}");
    assert_eq!((&sent[0], &sent[3]), (&user("look".into()), &user("go on".into())));
}

/// Two hundred parallel calls in the newest round: none of them vanishes.
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
    let images = (0..500).map(|_| Part::Image(crate::ImagePart::default()));
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

/// A floor above the threshold: one attempt, then a clear error; never endless compaction.
#[test]
fn unshrinkable_request_reports_its_floor() {
    let instructions = Message::text(Role::System, long_text(0, 2_000));
    let error = folded_tokens(vec![instructions, Message::text(Role::User, "go")], 8_000).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CannotFit { floor, budget: 8_000, .. } if *floor > 8_000));
}

/// Under the policy `none` nothing is folded, and what is too large is an error.
#[test]
fn policy_none_folds_nothing() {
    let conversation =
        Conversation { messages: vec![Message::text(Role::User, long_text(0, 2_000))], ..Conversation::default() };
    let meter = Meter::for_model(ModelTable::builtin(), None);
    let mut setup = FoldOptions::new(meter, Prices::for_model(ModelTable::builtin(), None), 1_000_000);
    setup.policy = Policy::none();
    assert!(fold(&conversation, &setup, &Ledger::default()).unwrap().is_unchanged());
    setup.budget = 1_000;
    assert!(fold(&conversation, &setup, &Ledger::default()).is_err());
}
