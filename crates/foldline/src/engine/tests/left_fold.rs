//! The left fold as a whole: folding, resuming and sessions agree, and creases come when they should.

use std::collections::BTreeMap;

use crate::conversation::PartId;
use crate::engine::{PinPatterns, PinRules};
use crate::tokens::Tokens;
use crate::{
    Conversation, ErrorKind, FoldOptions, FoldSession, FoldState, Ledger, Message, Meter, ModelTable, Part, Prices,
    Role, fold, resume,
};

fn options(budget: Tokens) -> FoldOptions {
    let table = ModelTable::builtin();
    let meter = Meter::for_model(table, Some("gpt-4o"));
    FoldOptions { handles: true, ..FoldOptions::new(meter, Prices::for_model(table, Some("claude-opus-4-6")), budget) }
}

fn source_text(seed: usize, lines: usize) -> String {
    (0..lines).map(|at| format!("    let value_{seed}_{at} = compute_{at}(input_{seed}, {at});\n")).collect()
}

fn agent_session(rounds: usize, lines: usize) -> Conversation<'static> {
    let mut messages = vec![
        Message::text(Role::System, "You are a careful engineer."),
        Message::text(Role::User, "Please make the parser faster."),
    ];
    for at in 0..rounds {
        let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
        messages.push(Message::new(Role::Assistant, vec![Part::text(format!("Reading file {at}.")), call]));
        messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source_text(at, lines))]));
    }
    Conversation { messages, ..Conversation::default() }
}

#[test]
fn rendering_fits_the_budget() {
    let conversation = agent_session(60, 60);
    for budget in [4_000, 8_000, 16_000, 32_000] {
        let options = options(budget);
        let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
        assert!(folded.tokens <= budget, "{} > {budget}", folded.tokens);
        let sent: Tokens = folded.messages(&conversation).iter().map(|message| options.meter.message(message)).sum();
        assert_eq!(sent, folded.tokens);
        assert!(folded.raw_tokens > 3 * 16_000);
    }
}

/// At every request point, a session and the fold of the whole conversation give the same rendering.
#[test]
fn session_equals_fold() {
    let conversation = agent_session(40, 40);
    let options = options(12_000);
    let mut session = FoldSession::new(options.clone());
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
            session.plan_request().unwrap();
            let whole = Conversation { messages: conversation.messages[..at].to_vec(), ..Conversation::default() };
            let folded = fold(&whole, &options, &Ledger::default()).unwrap();
            assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&whole), "at {at}");
            assert_eq!(session.tokens(), folded.tokens);
        }
        session.push(message.clone());
    }
}

/// Resuming from any request equals folding the whole conversation, also if the request had no answer.
#[test]
fn resume_equals_fold() {
    let conversation = agent_session(40, 40);
    let options = options(12_000);
    let ledger = Ledger { budgets: BTreeMap::from([(41, 9_000)]), ..Ledger::default() };
    let mut state = FoldState::default();
    for end in (1..=conversation.messages.len()).filter(|end| end % 3 != 0) {
        let seen = Conversation { messages: conversation.messages[..end].to_vec(), ..Conversation::default() };
        let resumed = resume(state, &seen, &options, &ledger).unwrap();
        let folded = fold(&seen, &options, &ledger).unwrap();
        assert_eq!(resumed.messages(&seen), folded.messages(&seen), "at {end}");
        assert_eq!((resumed.tokens, &resumed.creases), (folded.tokens, &folded.creases), "at {end}");
        state = resumed.into_state();
        assert_eq!(state.len(), end);
    }
}

/// If system messages alone exceed the budget for a while, a fold of the whole equals a session that planned at every
/// point.
#[test]
fn unfittable_request_points_are_skipped() {
    let mut conversation = agent_session(40, 40);
    conversation.messages[0] = Message::text(Role::System, source_text(0, 100));
    let options = options(16_000);
    let ledger =
        Ledger { budgets: BTreeMap::from([(1, 1_000), (31, 12_000), (61, 1_000), (71, 9_000)]), ..Ledger::default() };
    let mut session = FoldSession::new(options.clone());
    *session.ledger_mut() = ledger.clone();
    let mut refused = 0;
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.opens_round(at.checked_sub(1).map(|before| &conversation.messages[before])) {
            refused += usize::from(session.plan_request().is_err());
        }
        session.push(message.clone());
    }
    session.plan_request().unwrap();
    let folded = fold(&conversation, &options, &ledger).unwrap();
    assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&conversation));
    assert!(refused > 10 && !folded.creases.is_empty(), "{refused}");
}

/// Planning, adding a message and planning again equals planning once.
#[test]
fn unanswered_request_leaves_no_trace() {
    let conversation = agent_session(40, 40);
    let options = options(12_000);
    let mut session = FoldSession::new(options.clone());
    for message in &conversation.messages {
        drop(session.plan_request());
        session.push(message.clone());
    }
    session.plan_request().unwrap();
    let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
    assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&conversation));
}

/// A crease that was unprofitable is planned again once more calls are expected, although no text grew old.
#[test]
fn unprofitable_crease_is_retried_later() {
    let mut conversation = agent_session(0, 0);
    for at in 0..80 {
        let (call, output) = (format!("c{at}"), if at < 4 { source_text(at, 400) } else { at.to_string() });
        let run = Part::call(call.clone(), "run", format!(r#"{{"command":"make {at}"}}"#));
        conversation.messages.push(Message::new(Role::Assistant, vec![run]));
        conversation.messages.push(Message::new(Role::Tool, vec![Part::result(call, output)]));
    }
    let after = |rounds: usize| {
        let messages = conversation.messages[..2 + 2 * rounds].to_vec();
        fold(&Conversation { messages, ..Conversation::default() }, &options(200_000), &Ledger::default()).unwrap()
    };
    let was_unprofitable = |rounds: &usize| after(*rounds).into_state().schedule.has_unprofitable_plan();
    let first = (1..80).find(was_unprofitable).expect("a planning run without a profitable crease");
    assert_eq!(after(first).creases, []);
    let end = after(80);
    assert_eq!(end.creases.len(), 1);
    assert!(end.tokens < end.raw_tokens / 2, "{} of {}", end.tokens, end.raw_tokens);
}

/// Builds a conversation from the tool and the result lines of each round.
fn rounds(rounds: impl Iterator<Item = (&'static str, usize)>) -> Conversation<'static> {
    let mut conversation = agent_session(0, 0);
    for (at, (tool, lines)) in rounds.enumerate() {
        let call = Part::call(format!("c{at}"), tool, format!(r#"{{"path":"src/file_{at}.rs"}}"#));
        conversation.messages.push(Message::new(Role::Assistant, vec![call]));
        let output = if lines == 0 { at.to_string() } else { source_text(at, lines) };
        conversation.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), output)]));
    }
    conversation
}

/// A profitable crease leaves everything before it unchanged, so that it is not written again.
#[test]
fn profitable_crease_starts_after_the_previous_one() {
    let lines = |at: usize| if at.is_multiple_of(40) { 1_200 } else { 0 };
    let folded = fold(&rounds((0..160).map(|at| ("run", lines(at)))), &options(200_000), &Ledger::default()).unwrap();
    let firsts: Vec<usize> = folded.creases.iter().map(|crease| crease.first_message).collect();
    assert!(firsts.len() > 2 && firsts.is_sorted_by(|one, next| one < next), "{firsts:?}");
}

/// A crease waits for a file that will be old within a few calls, and folds it together with older text.
#[test]
fn crease_waits_for_segments_about_to_age() {
    let creases = |read_at: usize| {
        let round = |at: usize| match at {
            30 => ("run", 1_200),
            at if at == read_at => ("read_file", 1_200),
            _ => ("run", 0),
        };
        fold(&rounds((0..80).map(round)), &options(200_000), &Ledger::default()).unwrap().creases
    };
    let (alone, waited) = (creases(usize::MAX), creases(28));
    assert_eq!((alone.len(), waited.len()), (1, 1));
    assert!(waited[0].request_point > alone[0].request_point, "{} {}", waited[0].request_point, alone[0].request_point);
}

/// Each rendering begins with the previous one, unless there is a crease.
#[test]
fn rendering_is_stable_between_creases() {
    let conversation = agent_session(60, 40);
    let mut session = FoldSession::new(options(16_000));
    let mut sent: Vec<Message<'static>> = Vec::new();
    let mut creases = 0;
    for (at, message) in conversation.messages.iter().enumerate() {
        if at > 0 && message.is_assistant() {
            let creased = session.plan_request().unwrap().is_some();
            let now: Vec<_> = session.rendered_messages(0).collect();
            assert!(creased || now.starts_with(&sent), "at {at}");
            creases += usize::from(creased);
            sent = now;
        }
        session.push(message.clone());
    }
    assert!((2..20).contains(&creases), "{creases}");
}

#[test]
fn cannot_fit_error_states_the_floor() {
    let mut conversation = agent_session(1, 10);
    conversation.messages[0] = Message::text(Role::System, source_text(0, 400));
    let error = fold(&conversation, &options(2_000), &Ledger::default()).err().unwrap();
    let ErrorKind::CannotFit { floor, budget, largest } = error.kind() else { panic!("{error}") };
    assert_eq!((*budget, largest.unwrap().0), (2_000, PartId::new(0, 0)));
    assert!(*floor > 2_000, "{error}");
}

/// A crease of signed history drops all reasoning, also that before the first fold.
#[test]
fn crease_starts_at_the_first_dropped_reasoning() {
    let mut conversation = agent_session(20, 40);
    conversation.messages[2].parts.insert(0, Part::reasoning("I should read the file first."));
    let pins = PinRules { targets: vec!["file_0.rs".into()], ..PinRules::default() };
    let options = FoldOptions { signed_history: true, pins, ..options(12_000) };
    let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
    let crease = &folded.creases[0];
    assert_eq!(crease.first_message, 2);
    let sent_before = &conversation.messages[2..crease.request_point - 2];
    assert_eq!(crease.suffix_tokens, sent_before.iter().map(|message| options.meter.message(message)).sum::<Tokens>());
}

/// A request that cannot fit leaves no trace in a session: the point is decided once.
#[test]
fn failed_plan_is_not_counted_twice() {
    let conversation = agent_session(60, 20);
    let ledger = Ledger { budgets: (21..60).map(|at| (at, 20)).chain([(60, 12_000)]).collect(), ..Ledger::default() };
    let mut session = FoldSession::new(options(12_000));
    *session.ledger_mut() = ledger.clone();
    let mut refused = 0;
    for message in &conversation.messages {
        if message.is_assistant() {
            refused += (0..5).filter(|_| session.plan_request().is_err()).count();
        }
        session.push(message.clone());
    }
    session.plan_request().unwrap();
    let folded = fold(&conversation, &options(12_000), &ledger).unwrap();
    assert_eq!(session.rendered_messages(0).collect::<Vec<_>>(), folded.messages(&conversation));
    assert!(refused > 50 && !folded.creases.is_empty(), "{refused} {:?}", folded.creases);
}

/// A pin moves no byte that was sent before, and from its request point on its target stays whole, which would otherwise
/// be folded at a later crease.
#[test]
fn pin_in_the_ledger_holds_from_its_point_on() {
    let conversation = agent_session(60, 20);
    let (result, pinned_at) = (2 + 2 * 18 + 1, 2 + 2 * 19);
    let pins = PinPatterns { targets: vec!["file_18.rs".into()], ..PinPatterns::default() };
    let pinned = Ledger { pins: BTreeMap::from([(pinned_at, pins)]), ..Ledger::default() };
    let render = |messages: usize, ledger: &Ledger| {
        let sent = Conversation { messages: conversation.messages[..messages].to_vec(), ..Conversation::default() };
        fold(&sent, &options(12_000), ledger).unwrap().messages(&sent)
    };
    let (plain, all) = (Ledger::default(), conversation.messages.len());
    assert_eq!(render(pinned_at - 2, &plain), render(pinned_at - 2, &pinned), "no byte moves before the pin");
    let whole = &conversation.messages[result];
    assert!(!render(all, &plain).contains(whole), "it is folded without the pin");
    assert!(render(all, &pinned).contains(whole), "it stays whole with the pin");
}
