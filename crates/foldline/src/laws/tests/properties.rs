//! Properties of the laws over generated conversations.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::super::{
    CutPoints, Law, LawProfile, LawTopic, LawViolation, RequestLocation, RewriteContext, ServerKind, check,
    check_conversation, compare, free_cuts, repair_as, repair_edits,
};
use crate::conversation::{Conversation, Message, Part, ReasoningPart, Role};
use crate::testing::{SampleRequest, samples};
use crate::wire::{Format, Request, RequestEdit};

const SERVERS: [Option<ServerKind>; 4] =
    [None, Some(ServerKind::ChatTemplate), Some(ServerKind::LlamaCpp), Some(ServerKind::Mistral)];

fn pairing_violations(found: &[LawViolation]) -> Vec<String> {
    found.iter().filter(|violation| violation.law.topic() == LawTopic::Pairing).map(LawViolation::to_string).collect()
}

/// Generates a sample and the indices of lost messages.
fn samples_with_losses() -> impl Strategy<Value = (SampleRequest, Vec<usize>)> {
    samples().prop_flat_map(|sample| {
        let all: Vec<usize> = (0..sample.conversation.messages.len()).collect();
        let count = all.len();
        (Just(sample), subsequence(all, 0..count))
    })
}

/// Generates calls, results and texts in any order and role.
fn arbitrary_conversations() -> impl Strategy<Value = Conversation<'static>> {
    let id = || (0..4_u8).prop_map(|id| format!("c{id}"));
    let part = prop_oneof![
        3 => id().prop_map(|id| Part::call(id, "sh", "{}")),
        4 => id().prop_map(|id| Part::result(id, "ok")),
        2 => Just(Part::text("x")),
        1 => Just(Part::Reasoning(ReasoningPart { text: "hm".into(), seal: Some("s".into()), redacted: false })),
    ];
    let role =
        select(vec![Role::User, Role::User, Role::Assistant, Role::Assistant, Role::Tool, Role::Tool, Role::System]);
    let message = (role, vec(part, 0..4)).prop_map(|(role, parts)| Message::new(role, parts));
    vec(message, 0..12).prop_map(|messages| Conversation { messages, ..Conversation::default() })
}

/// Generates the same with each part only in a role that may have it.
fn role_correct_conversations() -> impl Strategy<Value = Conversation<'static>> {
    arbitrary_conversations().prop_map(|mut conversation| {
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

fn drop_run(sample: &SampleRequest, run: std::ops::Range<usize>) -> Vec<u8> {
    let edits: Vec<RequestEdit> = run.map(RequestEdit::DropMessage).collect();
    sample.request().splice(&edits).expect("messages may be dropped").into_owned()
}

/// Returns the violations of a body without their locations.
fn violations_without_location(format: Format, body: &[u8]) -> Vec<String> {
    let request = Request::parse(format, body).expect("a cut body is a request");
    let found = check(&request, &LawProfile::for_request(&request));
    found.into_iter().map(|violation| LawViolation { at: RequestLocation::Request, ..violation }.to_string()).collect()
}

/// A result before its call belongs to the first call with the id, and the turns stay separate.
#[test]
fn turns_sharing_an_id_stay_separate() {
    let call = || Message::new(Role::Assistant, vec![Part::call("c", "sh", "{}")]);
    let result = |role| Message::new(role, vec![Part::result("c", "ok")]);
    let profile = LawProfile::for_model(Format::OpenAiResponses, None);
    let conversation = |messages: Vec<Message<'static>>| Conversation { messages, ..Conversation::default() };
    let broken = |conversation: &Conversation<'_>| {
        check_conversation(conversation, &profile).into_iter().map(|violation| violation.law).collect::<Vec<_>>()
    };

    let nothing = || Message::new(Role::Tool, Vec::new());
    let separate = conversation(vec![result(Role::User), call(), nothing(), call(), result(Role::Tool)]);
    assert_eq!(broken(&separate), [Law::ResultAfterCall]);
    assert!(!CutPoints::for_conversation(&separate, &profile).may_drop(2..3));

    let unanswered =
        conversation(vec![result(Role::User), call(), result(Role::User), call(), Message::text(Role::User, "x")]);
    assert!(broken(&unanswered).contains(&Law::CallAnswered));
}

proptest! {
    #[test]
    fn sample_breaks_no_law(sample in samples()) {
        let request = sample.request();
        let profile = LawProfile::for_request(&request);
        prop_assert_eq!(check(&request, &profile), []);
        prop_assert_eq!(check_conversation(&sample.conversation, &profile), []);
        prop_assert_eq!(repair_edits(&request), []);
        prop_assert_eq!(compare(&request, &request, &RewriteContext::new(&profile)), []);
    }

    #[test]
    fn repaired_conversation_is_paired_and_repair_is_idempotent((sample, lost) in samples_with_losses()) {
        let profile = LawProfile::for_request(&sample.request());
        let (repaired, _) = repair_as(without(&sample.conversation, &lost), sample.format);
        prop_assert_eq!(pairing_violations(&check_conversation(&repaired, &profile)), [] as [String; 0]);
        let (again, repairs) = repair_as(repaired.clone(), sample.format);
        prop_assert_eq!(again, repaired);
        prop_assert!(repairs.is_empty());
    }

    #[test]
    fn arbitrary_conversation_is_repaired(conversation in arbitrary_conversations(), format in select(Format::all().collect::<Vec<_>>())) {
        const PAIRING_LAWS: [Law; 5] =
            [Law::CallAnswered, Law::ResultHasCall, Law::OneResult, Law::ResultsFirst, Law::ResultAfterCall];
        let (repaired, _) = repair_as(conversation, format);
        let broken = check_conversation(&repaired, &LawProfile::for_model(format, None));
        let broken: Vec<_> = broken.into_iter().filter(|violation| PAIRING_LAWS.contains(&violation.law)).collect();
        prop_assert_eq!(broken, [], "{:?}", &repaired);
        let (again, repairs) = repair_as(repaired.clone(), format);
        prop_assert_eq!(again, repaired);
        prop_assert!(repairs.is_empty());
    }

    /// All parts stay in order; only results are moved or removed.
    #[test]
    fn repair_keeps_everything_but_results(conversation in arbitrary_conversations(), format in select(Format::all().collect::<Vec<_>>())) {
        let other_parts = |conversation: &Conversation<'_>| {
            let parts = conversation.messages.iter().flat_map(|message| message.parts.iter().map(|part| (message.role, part)));
            let others = parts.filter(|(_, part)| !matches!(part, Part::ToolResult(_)));
            others.map(|(role, part)| format!("{role:?} {part:?}")).filter(|text| !text.contains("without its call")).collect::<Vec<_>>()
        };
        let (repaired, _) = repair_as(conversation.clone(), format);
        prop_assert_eq!(other_parts(&repaired), other_parts(&conversation));
    }

    #[test]
    fn cuts_of_any_conversation_add_no_violation(conversation in role_correct_conversations(), format in select(Format::all().collect::<Vec<_>>()), server in select(SERVERS.to_vec())) {
        let profile = LawProfile::for_model(format, None);
        let profile = match server {
            Some(server) => profile.served_by(server),
            None => profile,
        };
        let broken_laws = |conversation: &Conversation<'_>| {
            let mut found: Vec<Law> = check_conversation(conversation, &profile).into_iter().map(|violation| violation.law).collect();
            found.sort();
            found
        };
        let before = broken_laws(&conversation);
        let cuts = CutPoints::for_conversation(&conversation, &profile);
        let points: Vec<usize> = cuts.points().collect();
        for (at, &start) in points.iter().enumerate() {
            for &end in points[at + 1..].iter().filter(|end| cuts.may_drop(start..**end)) {
                let mut known_laws = before.clone();
                let cut = without(&conversation, &(start..end).collect::<Vec<_>>());
                for law in broken_laws(&cut) {
                    let known = known_laws.iter().position(|other| *other == law);
                    prop_assert!(known.is_some(), "{}..{}: {}", start, end, law);
                    known.map(|at| known_laws.remove(at));
                }
            }
        }
    }

    #[test]
    fn repairing_request_and_conversation_agree((sample, lost) in samples_with_losses()) {
        let edits: Vec<RequestEdit> = lost.iter().map(|at| RequestEdit::DropMessage(*at)).collect();
        let body = sample.request().splice(&edits).unwrap();
        let damaged = Request::parse(sample.format, &body).unwrap();
        let body = damaged.splice(&repair_edits(&damaged)).unwrap();
        let request = Request::parse(sample.format, &body).unwrap();
        let (repaired, _) = repair_as(without(&sample.conversation, &lost), sample.format);
        prop_assert_eq!(request.conversation(), &repaired);
    }

    /// Ids may repeat in every round.
    #[test]
    fn repair_handles_reused_ids((sample, lost) in samples_with_losses()) {
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
        let profile = LawProfile::for_model(sample.format, None).without(Law::CallIdUnique);
        let (repaired, _) = repair_as(conversation, sample.format);
        prop_assert_eq!(pairing_violations(&check_conversation(&repaired, &profile)), [] as [String; 0]);
        prop_assert!(repair_as(repaired, sample.format).1.is_empty());
    }

    #[test]
    fn messages_between_two_cuts_can_be_dropped(sample in samples(), start in any::<Index>(), end in any::<Index>()) {
        let points = free_cuts(&sample.conversation, &LawProfile::for_request(&sample.request()));
        prop_assume!(points.len() > 1);
        let (start, end) = (start.index(points.len()), end.index(points.len()));
        let run = points[start.min(end)]..points[start.max(end)];
        prop_assert_eq!(violations_without_location(sample.format, &drop_run(&sample, run)), [] as [String; 0]);
    }

    /// Holds for the sample's model and for stricter servers, whose laws the sample itself may break.
    #[test]
    fn droppable_run_breaks_no_law_when_dropped(sample in samples(), server in select(SERVERS.to_vec())) {
        let request = sample.request();
        let profile = LawProfile::for_request(&request);
        let profile = match server {
            Some(server) => profile.served_by(server),
            None => profile,
        };
        let cuts = CutPoints::for_conversation(&sample.conversation, &profile);
        let points: Vec<usize> = cuts.points().collect();
        for (at, &start) in points.iter().enumerate() {
            // Only nearby ends and the last one, to limit the time for long samples.
            for &end in points[at + 1..].iter().take(3).chain(points.last()) {
                if cuts.may_drop(start..end) {
                    let body = drop_run(&sample, start..end);
                    let rewritten = Request::parse(sample.format, &body).unwrap();
                    let found = compare(&request, &rewritten, &RewriteContext::new(&profile));
                    prop_assert_eq!(found, [], "{}..{}", start, end);
                }
            }
        }
    }

    /// Every round but the newest can be dropped, in every format. With manual thinking the first round of
    /// the unfinished turn stays if the next one does not begin with thinking.
    #[test]
    fn old_rounds_can_be_dropped_one_by_one(sample in samples()) {
        let messages = &sample.conversation.messages;
        let profile = LawProfile::for_request(&sample.request());
        let cuts = CutPoints::for_conversation(&sample.conversation, &profile);
        let rounds = sample.conversation.rounds();
        let starts_with_thinking = |at: usize| matches!(messages[at].parts.first(), Some(Part::Reasoning(_)));
        for round in rounds.iter().rev().skip(1) {
            // A system message restricts the messages next to it.
            let is_system = |at: usize| messages.get(at).is_some_and(|message| message.role == Role::System);
            let next_to_system = round.start > 0 && is_system(round.start - 1) || is_system(round.end);
            let is_manual = starts_with_thinking(round.start) && !starts_with_thinking(round.end);
            // Where roles alternate, a round leaves only together with the user message after it, unless that is the
            // prompt of the turn whose calls must be signed.
            let with_user = || cuts.may_drop(round.start..round.end + 1) || profile.has(Law::ThoughtSignature);
            let may_drop = cuts.may_drop(round.clone()) || profile.has(Law::Alternation) && with_user();
            prop_assert!(may_drop || next_to_system || is_manual, "{:?} of {:?}", round, rounds);
        }
    }

    #[test]
    fn checks_never_panic_on_any_request(sample in samples(), noise in ".{0,12}", at in any::<Index>(), end in any::<Index>()) {
        let mut body = sample.body.clone();
        let floor = |at: usize| (0..=at).rev().find(|at| sample.body.is_char_boundary(*at)).unwrap_or(0);
        let (from, to) = (floor(at.index(body.len())), floor(end.index(body.len())));
        body.replace_range(from.min(to)..from.max(to), &noise);
        for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
            if let Ok(request) = Request::parse(format, body.as_bytes()) {
                let profile = LawProfile::for_chat_template(format);
                check(&request, &profile);
                compare(&request, &request, &RewriteContext::new(&profile));
                free_cuts(request.conversation(), &profile);
                request.splice(&repair_edits(&request)).unwrap();
            }
        }
    }
}
