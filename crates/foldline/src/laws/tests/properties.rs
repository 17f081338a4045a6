//! The laws over made-up conversations.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::super::{
    Cuts, Law, Place, Profile, Rewriting, Server, Topic, Violation, check, check_conversation, compare, cuts,
    repair_as, repair_edits,
};
use crate::conversation::{Conversation, Message, Part, Reasoning, Role};
use crate::testing::{Sample, samples};
use crate::wire::{Edit, Format, Request};

const SERVERS: [Option<Server>; 4] = [None, Some(Server::Local), Some(Server::LlamaCpp), Some(Server::Mistral)];

const FORMATS: [Format; 3] = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];

fn pairs(found: &[Violation]) -> Vec<String> {
    found.iter().filter(|violation| violation.law.topic() == Topic::Pairing).map(Violation::to_string).collect()
}

/// A sample from which some messages were lost.
fn torn() -> impl Strategy<Value = (Sample, Vec<usize>)> {
    samples().prop_flat_map(|sample| {
        let all: Vec<usize> = (0..sample.conversation.messages.len()).collect();
        let count = all.len();
        (Just(sample), subsequence(all, 0..count))
    })
}

/// Calls, results and words in any order, by anyone.
fn chaos() -> impl Strategy<Value = Conversation<'static>> {
    let id = || (0..4_u8).prop_map(|id| format!("c{id}"));
    let part = prop_oneof![
        3 => id().prop_map(|id| Part::call(id, "sh", "{}")),
        4 => id().prop_map(|id| Part::result(id, "ok")),
        2 => Just(Part::text("x")),
        1 => Just(Part::Reasoning(Reasoning { text: "hm".into(), seal: Some("s".into()) })),
    ];
    let role =
        select(vec![Role::User, Role::User, Role::Assistant, Role::Assistant, Role::Tool, Role::Tool, Role::System]);
    let message = (role, vec(part, 0..4)).prop_map(|(role, parts)| Message::new(role, parts));
    vec(message, 0..12).prop_map(|messages| Conversation { messages, ..Conversation::default() })
}

/// The same, but nobody says what is not theirs to say.
fn disorder() -> impl Strategy<Value = Conversation<'static>> {
    chaos().prop_map(|mut conversation| {
        for message in &mut conversation.messages {
            let role = message.role;
            message.parts.retain(|part| match part {
                Part::ToolCall(_) | Part::Reasoning(_) => role == Role::Assistant,
                Part::ToolResult(_) => matches!(role, Role::User | Role::Tool),
                _ => role != Role::Tool,
            });
        }
        conversation
    })
}

fn without(conversation: &Conversation<'static>, lost: &[usize]) -> Conversation<'static> {
    let kept = conversation.messages.iter().enumerate().filter(|(at, _)| !lost.contains(at));
    Conversation { messages: kept.map(|(_, message)| message.clone()).collect(), ..conversation.clone() }
}

fn drop_run(sample: &Sample, run: std::ops::Range<usize>) -> Vec<u8> {
    let edits: Vec<Edit> = run.map(Edit::DropMessage).collect();
    sample.request().splice(&edits).expect("messages may be dropped").into_owned()
}

/// What is broken in a body, but for the place.
fn broken(format: Format, body: &[u8]) -> Vec<String> {
    let request = Request::parse(format, body).expect("a cut request is one");
    let found = check(&request, &Profile::of_request(&request));
    found.into_iter().map(|it| Violation { at: Place::Request, ..it }.to_string()).collect()
}

/// Items of turns that use an id again: a result that came too early is the first call's, and the turns stay apart.
#[test]
fn turns_that_share_an_id_do_not_meet() {
    let call = || Message::new(Role::Assistant, vec![Part::call("c", "sh", "{}")]);
    let result = |role| Message::new(role, vec![Part::result("c", "ok")]);
    let profile = Profile::of(Format::OpenAiResponses, None);
    let of = |messages: Vec<Message<'static>>| Conversation { messages, ..Conversation::default() };
    let broken = |conversation: &Conversation<'_>| {
        check_conversation(conversation, &profile).into_iter().map(|it| it.law).collect::<Vec<_>>()
    };

    let nothing = || Message::new(Role::Tool, Vec::new());
    let apart = of(vec![result(Role::User), call(), nothing(), call(), result(Role::Tool)]);
    assert_eq!(broken(&apart), [Law::ResultBehindCall]);
    assert!(!Cuts::of(&apart, &profile).may_drop(2..3));

    let unanswered = of(vec![result(Role::User), call(), result(Role::User), call(), Message::text(Role::User, "x")]);
    assert!(broken(&unanswered).contains(&Law::CallAnswered));
}

proptest! {
    #[test]
    fn a_sample_breaks_no_law(sample in samples()) {
        let request = sample.request();
        let profile = Profile::of_request(&request);
        prop_assert_eq!(check(&request, &profile), []);
        prop_assert_eq!(check_conversation(&sample.conversation, &profile), []);
        prop_assert_eq!(repair_edits(&request), []);
        prop_assert_eq!(compare(&request, &request, &Rewriting::new(&profile)), []);
    }

    #[test]
    fn a_mended_conversation_has_whole_pairs_and_needs_no_more((sample, lost) in torn()) {
        let profile = Profile::of_request(&sample.request());
        let (mended, _) = repair_as(without(&sample.conversation, &lost), sample.format);
        prop_assert_eq!(pairs(&check_conversation(&mended, &profile)), [] as [String; 0]);
        let (again, repairs) = repair_as(mended.clone(), sample.format);
        prop_assert_eq!(again, mended);
        prop_assert!(repairs.is_empty());
    }

    /// However a conversation is broken, and whatever the format.
    #[test]
    fn chaos_is_mended(conversation in chaos(), format in select(FORMATS.to_vec())) {
        const PAIRS: [Law; 5] =
            [Law::CallAnswered, Law::ResultHasCall, Law::OneResult, Law::ResultsFirst, Law::ResultBehindCall];
        let (mended, _) = repair_as(conversation, format);
        let broken = check_conversation(&mended, &Profile::of(format, None));
        let broken: Vec<_> = broken.into_iter().filter(|it| PAIRS.contains(&it.law)).collect();
        prop_assert_eq!(broken, [], "{:?}", &mended);
        let (again, repairs) = repair_as(mended.clone(), format);
        prop_assert_eq!(again, mended);
        prop_assert!(repairs.is_empty());
    }

    /// What everyone said stays, in order; only results move or go.
    #[test]
    fn mending_keeps_all_that_is_no_result(conversation in chaos(), format in select(FORMATS.to_vec())) {
        let words = |conversation: &Conversation<'_>| {
            let parts = conversation.messages.iter().flat_map(|message| message.parts.iter().map(|it| (message.role, it)));
            let said = parts.filter(|(_, part)| !matches!(part, Part::ToolResult(_)));
            said.map(|(role, part)| format!("{role:?} {part:?}")).filter(|it| !it.contains("without its call")).collect::<Vec<_>>()
        };
        let (mended, _) = repair_as(conversation.clone(), format);
        prop_assert_eq!(words(&mended), words(&conversation));
    }

    #[test]
    fn cuts_of_disorder_break_nothing_new(conversation in disorder(), format in select(FORMATS.to_vec()), server in select(SERVERS.to_vec())) {
        let profile = Profile::of(format, None);
        let profile = match server {
            Some(server) => profile.served_by(server),
            None => profile,
        };
        let count = |conversation: &Conversation<'_>| {
            let mut found: Vec<Law> = check_conversation(conversation, &profile).into_iter().map(|it| it.law).collect();
            found.sort();
            found
        };
        let whole = count(&conversation);
        let cuts = Cuts::of(&conversation, &profile);
        let points: Vec<usize> = cuts.points().collect();
        for (at, &start) in points.iter().enumerate() {
            for &end in points[at + 1..].iter().filter(|end| cuts.may_drop(start..**end)) {
                let mut left = whole.clone();
                let cut = without(&conversation, &(start..end).collect::<Vec<_>>());
                for law in count(&cut) {
                    let known = left.iter().position(|other| *other == law);
                    prop_assert!(known.is_some(), "{}..{}: {}", start, end, law);
                    known.map(|at| left.remove(at));
                }
            }
        }
    }

    #[test]
    fn mending_a_request_gives_what_mending_its_conversation_gives((sample, lost) in torn()) {
        let edits: Vec<Edit> = lost.iter().map(|at| Edit::DropMessage(*at)).collect();
        let body = sample.request().splice(&edits).unwrap();
        let torn = Request::parse(sample.format, &body).unwrap();
        let body = torn.splice(&repair_edits(&torn)).unwrap();
        let request = Request::parse(sample.format, &body).unwrap();
        let (mended, _) = repair_as(without(&sample.conversation, &lost), sample.format);
        prop_assert_eq!(request.conversation(), &mended);
    }

    /// Also conversations whose ids repeat in every round.
    #[test]
    fn mending_does_not_mind_ids_that_are_used_again((sample, lost) in torn()) {
        let mut conversation = without(&sample.conversation, &lost);
        for message in &mut conversation.messages {
            for part in &mut message.parts {
                let id = match part {
                    Part::ToolCall(call) => &mut call.id,
                    Part::ToolResult(result) => &mut result.call_id,
                    _ => continue,
                };
                let number: usize = id.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
                *id = format!("c{}", number % 3).into();
            }
        }
        let profile = Profile::of(sample.format, None).without(Law::CallIdUnique);
        let (mended, _) = repair_as(conversation, sample.format);
        prop_assert_eq!(pairs(&check_conversation(&mended, &profile)), [] as [String; 0]);
        prop_assert!(repair_as(mended, sample.format).1.is_empty());
    }

    #[test]
    fn between_two_cuts_all_messages_may_go(sample in samples(), start in any::<Index>(), end in any::<Index>()) {
        let points = cuts(&sample.conversation, &Profile::of_request(&sample.request()));
        prop_assume!(points.len() > 1);
        let (start, end) = (start.index(points.len()), end.index(points.len()));
        let run = points[start.min(end)]..points[start.max(end)];
        prop_assert_eq!(broken(sample.format, &drop_run(&sample, run)), [] as [String; 0]);
    }

    /// For the model that the sample names, and for stricter servers, whose laws a sample may break itself.
    #[test]
    fn a_run_that_may_go_breaks_nothing_when_it_goes(sample in samples(), server in select(SERVERS.to_vec())) {
        let request = sample.request();
        let profile = Profile::of_request(&request);
        let profile = match server {
            Some(server) => profile.served_by(server),
            None => profile,
        };
        let cuts = Cuts::of(&sample.conversation, &profile);
        let points: Vec<usize> = cuts.points().collect();
        for (at, &start) in points.iter().enumerate() {
            // Nearby ends and the last one, so that long samples stay affordable.
            for &end in points[at + 1..].iter().take(3).chain(points.last()) {
                if cuts.may_drop(start..end) {
                    let body = drop_run(&sample, start..end);
                    let rewritten = Request::parse(sample.format, &body).unwrap();
                    let found = compare(&request, &rewritten, &Rewriting::new(&profile));
                    prop_assert_eq!(found, [], "{}..{}", start, end);
                }
            }
        }
    }

    /// Every round but the newest can be dropped, in every format. In manual thinking the first round of
    /// the unfinished turn stays when the next one does not think.
    #[test]
    fn old_rounds_may_go_one_by_one(sample in samples()) {
        let messages = &sample.conversation.messages;
        let cuts = Cuts::of(&sample.conversation, &Profile::of_request(&sample.request()));
        let rounds = sample.conversation.rounds();
        let thinks = |at: usize| matches!(messages[at].parts.first(), Some(Part::Reasoning(_)));
        for round in rounds.iter().rev().skip(1) {
            // A note of the operator is bound to what stands beside it.
            let is_note = |at: usize| messages.get(at).is_some_and(|message| message.role == Role::System);
            let noted = round.start > 0 && is_note(round.start - 1) || is_note(round.end);
            let manual = thinks(round.start) && !thinks(round.end);
            prop_assert!(cuts.may_drop(round.clone()) || noted || manual, "{:?} of {:?}", round, rounds);
        }
    }

    #[test]
    fn laws_are_judged_on_any_request_without_panic(sample in samples(), noise in ".{0,12}", at in any::<Index>(), end in any::<Index>()) {
        let mut body = sample.body.clone();
        let floor = |at: usize| (0..=at).rev().find(|at| sample.body.is_char_boundary(*at)).unwrap_or(0);
        let (from, to) = (floor(at.index(body.len())), floor(end.index(body.len())));
        body.replace_range(from.min(to)..from.max(to), &noise);
        for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
            if let Ok(request) = Request::parse(format, body.as_bytes()) {
                let profile = Profile::local(format);
                check(&request, &profile);
                compare(&request, &request, &Rewriting::new(&profile));
                cuts(request.conversation(), &profile);
                request.splice(&repair_edits(&request)).unwrap();
            }
        }
    }
}
