//! Regression tests of calls and their results.

use crate::conversation::Role;
use crate::laws::{Law, LawProfile, check_conversation};
use crate::strategies::tests::support::*;
use crate::strategies::tests::{round, user};
use crate::strategies::*;
use crate::wire::Format;

fn call(ids: &[&'static str]) -> Message<'static> {
    Message::new(Role::Assistant, ids.iter().map(|&id| Part::call(id, "sh", "{}")).collect())
}

fn result(ids: &[&'static str]) -> Message<'static> {
    Message::new(Role::Tool, ids.iter().map(|&id| Part::result(id, format!("of {id}"))).collect())
}

/// Repairs the messages through `apply_all`, and checks that calls and results match and that a second run changes
/// nothing.
fn repair(messages: Vec<Message<'static>>, format: Format) -> (Vec<Message<'static>>, RepairCounts) {
    let (repaired, stats) = shortened(messages, &StrategyOptions::default());
    let profile = LawProfile::for_model(format, None).without(Law::CallIdUnique);
    assert_eq!(check_conversation(&conversation_of(repaired.clone()), &profile), []);
    let (again, stats_again) = shortened(repaired.clone(), &StrategyOptions::default());
    assert_eq!((&again, stats_again), (&repaired, CombinedStats::default()));
    (repaired, stats.repairs)
}

#[test]
fn result_before_its_call_is_moved_after_it() {
    let (repaired, repairs) = repair(vec![user("go"), result(&["a"]), call(&["a"]), user("so?")], Format::OpenAiChat);
    assert_eq!(repaired, [user("go"), call(&["a"]), result(&["a"]), user("so?")]);
    assert_eq!(repairs.moved, 1);
}

#[test]
fn only_the_orphan_of_a_mixed_message_is_removed() {
    let (repaired, repairs) = repair(vec![user("go"), call(&["a"]), result(&["gone", "a"])], Format::OpenAiChat);
    assert_eq!(repaired, [user("go"), call(&["a"]), result(&["a"])]);
    assert_eq!(repairs.orphans, 1);
}

#[test]
fn reused_ids_are_paired_per_turn() {
    let messages: Vec<_> = [user("go")].into_iter().chain((0..8).flat_map(|_| round("c0", "sh", "ls", "ok"))).collect();
    let (repaired, repairs) = repair(messages.clone(), Format::OpenAiChat);
    assert_eq!((repaired, repairs), (messages, RepairCounts::default()));
}

#[test]
fn nonadjacent_result_is_moved_to_its_call() {
    let (repaired, repairs) =
        repair(vec![call(&["a"]), user("wait"), result(&["a"]), user("go on")], Format::OpenAiChat);
    assert_eq!(repaired, [call(&["a"]), result(&["a"]), user("wait"), user("go on")]);
    assert_eq!(repairs.moved, 1);
}

#[test]
fn last_of_two_results_for_a_call_is_kept() {
    let late = Message::new(Role::Tool, vec![Part::result("a", "the last word")]);
    let (repaired, repairs) = repair(vec![user("go"), call(&["a"]), result(&["a"]), late.clone()], Format::OpenAiChat);
    assert_eq!(repaired, [user("go"), call(&["a"]), late]);
    assert_eq!(repairs.duplicates, 1);
}

#[test]
fn results_inside_user_messages_are_repaired() {
    let inside = |ids: &[&'static str]| Message { role: Role::User, ..result(ids) };
    let messages = vec![user("go"), call(&["a", "b"]), inside(&["a", "gone"]), call(&["c"]), inside(&["c"])];
    let (repaired, repairs) = repair(messages, Format::Anthropic);
    assert_eq!((repairs.orphans, repairs.unanswered), (1, 1));
    assert!(repaired.iter().all(|message| message.role != Role::Tool));
}

#[test]
fn placeholder_for_unanswered_call_is_not_a_marker() {
    let (repaired, repairs) = repair(vec![user("go"), call(&["a"]), user("stop")], Format::OpenAiChat);
    assert_eq!(repaired[2].parts, [Part::result("a", "[no result was recorded for this call]")]);
    assert!(!marker::is_marker("[no result was recorded for this call]") && repairs.unanswered == 1);
}
