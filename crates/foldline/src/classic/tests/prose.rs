//! What went wrong with reasoning and prose.

use super::super::*;
use super::{rounds, says, user};
use crate::conversation::{Reasoning, Role};
use crate::setup::Thoughts;

const PROSE: PruneLowEntropy = PruneLowEntropy { keep_last: 1, at_least: 1 };

fn thinking(id: &str, seal: Option<&'static str>) -> [Message<'static>; 2] {
    let reasoning = Part::Reasoning(Reasoning { text: "let me see".into(), seal: seal.map(Into::into) });
    [
        Message::new(Role::Assistant, vec![reasoning, Part::call(id.to_owned(), "sh", "{}")]),
        Message::new(Role::Tool, vec![Part::result(id.to_owned(), "ok")]),
    ]
}

fn thoughts(messages: &[Message<'_>]) -> usize {
    messages.iter().flat_map(|message| &message.parts).filter(|part| matches!(part, Part::Reasoning(_))).count()
}

#[test]
fn reasoning_of_a_call_in_flight_stays() {
    let calls = (0..6).map(|at| Part::call(format!("p{at}"), "sh", "{}"));
    let newest = Message::new(Role::Assistant, [Part::reasoning("in flight")].into_iter().chain(calls).collect());
    let results = (0..6).map(|at| Message::new(Role::Tool, vec![Part::result(format!("p{at}"), "ok")]));
    let messages: Vec<_> =
        [user("go")].into_iter().chain(thinking("c0", None)).chain([newest]).chain(results).collect();
    let (pruned, tally) = prune_thinking(messages, &PruneThinking::default());
    assert_eq!((tally.hits, thoughts(&pruned)), (1, 1));
    assert_eq!(pruned[3].parts[0], Part::reasoning("in flight"));
}

#[test]
fn sealed_reasoning_of_an_open_turn_stays_all_of_it() {
    let turn = |seal| [vec![user("go")], (0..6).flat_map(|at| thinking(&format!("c{at}"), seal)).collect()].concat();
    let (pruned, tally) = prune_thinking(turn(Some("sig")), &PruneThinking::default());
    assert_eq!((tally.hits, thoughts(&pruned)), (0, 6));
    assert_eq!(prune_thinking(turn(None), &PruneThinking::default()).1.hits, 4);
    let finished = [turn(Some("sig")), vec![says("done"), user("and now?")]].concat();
    assert_eq!(prune_thinking(finished.clone(), &PruneThinking::default()).1.hits, 5);
    let stay = PruneThinking { thoughts: Thoughts::Stay, ..PruneThinking::default() };
    assert_eq!(prune_thinking(finished, &stay).1.hits, 0);
}

#[test]
fn a_message_of_reasoning_alone_goes_and_an_empty_one_stays() {
    let alone = Message::new(Role::Assistant, vec![Part::reasoning("hm")]);
    let empty = Message::new(Role::Assistant, Vec::new());
    let messages = [vec![user("go"), alone, user("so?"), empty.clone(), user("hello?")], rounds(3, 64)].concat();
    let (pruned, tally) = prune_thinking(messages.clone(), &PruneThinking::default());
    assert_eq!((tally.hits, pruned.len()), (1, messages.len() - 1));
    assert_eq!(pruned[2], empty);
}

#[test]
fn dots_never_become_a_blank_text() {
    let messages = vec![says("..."), user("?"), says("   \n...\n\n"), user("?"), says("done")];
    assert_eq!(prune_low_entropy(messages.clone(), &PROSE), (messages, Tally::default()));
}

#[test]
fn indentation_rules_and_code_stay() {
    let text = "Title\n=====\n\n- one\n  - two\n\n---\n\n```x = 1```\n    indented   \n```\ncode   \n\n\n...\n```";
    let messages = vec![says(text), user("?"), says("done")];
    assert_eq!(prune_low_entropy(messages.clone(), &PROSE), (messages, Tally::default()));
}

/// Each step one more message grows old. To take a blank from it would cost the prompt cache behind it.
#[test]
fn tiny_savings_are_left_alone() {
    let messages: Vec<_> =
        (0..20).map(|at| if at % 2 == 0 { user("?") } else { says("I will look at it.  \n\n\nDone.") }).collect();
    assert_eq!(prune_low_entropy(messages.clone(), &PruneLowEntropy::default()), (messages, Tally::default()));
}

#[test]
fn only_the_prose_of_the_assistant_is_touched() {
    let noise = format!("words{}\n\n\n\n...", " ".repeat(99));
    let messages =
        vec![Message::text(Role::System, noise.clone()), user(&noise), says(&noise), user("?"), says("done")];
    let (pruned, tally) = prune_low_entropy(messages.clone(), &PROSE);
    assert_eq!((tally.hits, &pruned[..2]), (1, &messages[..2]));
    assert_eq!(pruned[2], says("words"));
}
