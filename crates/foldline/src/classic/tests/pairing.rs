//! What went wrong with calls and their results.

use super::super::*;
use super::{round, user};
use crate::conversation::Role;
use crate::laws::{Law, Profile, check_conversation};
use crate::wire::Format;

fn call(ids: &[&'static str]) -> Message<'static> {
    Message::new(Role::Assistant, ids.iter().map(|&id| Part::call(id, "sh", "{}")).collect())
}

fn result(ids: &[&'static str]) -> Message<'static> {
    Message::new(Role::Tool, ids.iter().map(|&id| Part::result(id, format!("of {id}"))).collect())
}

/// Mends the messages through `apply_all`, and checks that pairs are whole and that once was enough.
fn mended(messages: Vec<Message<'static>>, format: Format) -> (Vec<Message<'static>>, Repairs) {
    let (mended, stats) = apply_all(messages, &Strategies::default());
    let profile = Profile::of(format, None).without(Law::CallIdUnique);
    assert_eq!(check_conversation(&of(mended.clone()), &profile), []);
    let (again, stats_again) = apply_all(mended.clone(), &Strategies::default());
    assert_eq!((&again, stats_again), (&mended, Stats::default()));
    (mended, stats.repairs)
}

#[test]
fn a_result_before_its_call_moves_behind_it() {
    let (mended, repairs) = mended(vec![user("go"), result(&["a"]), call(&["a"]), user("so?")], Format::OpenAiChat);
    assert_eq!(mended, [user("go"), call(&["a"]), result(&["a"]), user("so?")]);
    assert_eq!(repairs.strays, 1);
}

#[test]
fn of_a_mixed_tool_message_only_the_orphan_goes() {
    let (mended, repairs) = mended(vec![user("go"), call(&["a"]), result(&["gone", "a"])], Format::OpenAiChat);
    assert_eq!(mended, [user("go"), call(&["a"]), result(&["a"])]);
    assert_eq!(repairs.orphans, 1);
}

#[test]
fn ids_that_are_used_again_pair_turn_by_turn() {
    let messages: Vec<_> = [user("go")].into_iter().chain((0..8).flat_map(|_| round("c0", "sh", "ls", "ok"))).collect();
    let (mended, repairs) = mended(messages.clone(), Format::OpenAiChat);
    assert_eq!((mended, repairs), (messages, Repairs::default()));
}

#[test]
fn a_result_that_is_not_adjacent_moves_to_its_call() {
    let (mended, repairs) = mended(vec![call(&["a"]), user("wait"), result(&["a"]), user("go on")], Format::OpenAiChat);
    assert_eq!(mended, [call(&["a"]), result(&["a"]), user("wait"), user("go on")]);
    assert_eq!(repairs.strays, 1);
}

#[test]
fn of_two_results_for_one_call_the_last_stays() {
    let late = Message::new(Role::Tool, vec![Part::result("a", "the last word")]);
    let (mended, repairs) = mended(vec![user("go"), call(&["a"]), result(&["a"]), late.clone()], Format::OpenAiChat);
    assert_eq!(mended, [user("go"), call(&["a"]), late]);
    assert_eq!(repairs.doubles, 1);
}

#[test]
fn results_inside_user_messages_are_results() {
    let inside = |ids: &[&'static str]| Message { role: Role::User, ..result(ids) };
    let messages = vec![user("go"), call(&["a", "b"]), inside(&["a", "gone"]), call(&["c"]), inside(&["c"])];
    let (mended, repairs) = mended(messages, Format::Anthropic);
    assert_eq!((repairs.orphans, repairs.unanswered), (1, 1));
    assert!(mended.iter().all(|message| message.role != Role::Tool));
}

#[test]
fn a_placeholder_claims_no_elision_for_a_call_that_never_ran() {
    let (mended, repairs) = mended(vec![user("go"), call(&["a"]), user("stop")], Format::OpenAiChat);
    assert_eq!(mended[2].parts, [Part::result("a", "[no result was recorded for this call]")]);
    assert!(!marker::is_marker("[no result was recorded for this call]") && repairs.unanswered == 1);
}
