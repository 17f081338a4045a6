//! Regression tests of reasoning and prose.

use crate::conversation::{ReasoningPart, Role};
use crate::engine::options::ReasoningRetention;
use crate::strategies::tests::support::*;
use crate::strategies::tests::{assistant, rounds, user};
use crate::strategies::*;

const PROSE_OPTIONS: PruneLowEntropy = PruneLowEntropy { keep_last: 1, min_saved_bytes: 1 };

fn reasoning_round(id: &str, seal: Option<&'static str>) -> [Message<'static>; 2] {
    let reasoning =
        Part::Reasoning(ReasoningPart { text: "let me see".into(), seal: seal.map(Into::into), redacted: false });
    [
        Message::new(Role::Assistant, vec![reasoning, Part::call(id.to_owned(), "sh", "{}")]),
        Message::new(Role::Tool, vec![Part::result(id.to_owned(), "ok")]),
    ]
}

fn reasoning_count(messages: &[Message<'_>]) -> usize {
    messages.iter().flat_map(|message| &message.parts).filter(|part| matches!(part, Part::Reasoning(_))).count()
}

#[test]
fn reasoning_of_a_pending_call_is_kept() {
    let calls = (0..6).map(|at| Part::call(format!("p{at}"), "sh", "{}"));
    let newest = Message::new(Role::Assistant, [Part::reasoning("in flight")].into_iter().chain(calls).collect());
    let results = (0..6).map(|at| Message::new(Role::Tool, vec![Part::result(format!("p{at}"), "ok")]));
    let messages: Vec<_> =
        [user("go")].into_iter().chain(reasoning_round("c0", None)).chain([newest]).chain(results).collect();
    let (pruned, tally) = prune_thinking(messages, &PruneThinking::default());
    assert_eq!((tally.hits, reasoning_count(&pruned)), (1, 1));
    assert_eq!(pruned[3].parts[0], Part::reasoning("in flight"));
}

#[test]
fn signed_reasoning_of_an_open_turn_is_kept() {
    let turn =
        |seal| [vec![user("go")], (0..6).flat_map(|at| reasoning_round(&format!("c{at}"), seal)).collect()].concat();
    let (pruned, tally) = prune_thinking(turn(Some("sig")), &PruneThinking::default());
    assert_eq!((tally.hits, reasoning_count(&pruned)), (0, 6));
    assert_eq!(prune_thinking(turn(None), &PruneThinking::default()).1.hits, 4);
    let finished = [turn(Some("sig")), vec![assistant("done"), user("and now?")]].concat();
    assert_eq!(prune_thinking(finished.clone(), &PruneThinking::default()).1.hits, 5);
    let stay = PruneThinking { retention: ReasoningRetention::KeepAll, ..PruneThinking::default() };
    assert_eq!(prune_thinking(finished, &stay).1.hits, 0);
}

#[test]
fn reasoning_only_message_is_dropped_empty_one_kept() {
    let alone = Message::new(Role::Assistant, vec![Part::reasoning("hm")]);
    let empty = Message::new(Role::Assistant, Vec::new());
    let messages = [vec![user("go"), alone, user("so?"), empty.clone(), user("hello?")], rounds(3, 64)].concat();
    let (pruned, tally) = prune_thinking(messages.clone(), &PruneThinking::default());
    assert_eq!((tally.hits, pruned.len()), (1, messages.len() - 1));
    assert_eq!(pruned[2], empty);
}

#[test]
fn text_of_dots_is_not_blanked() {
    let messages = vec![assistant("..."), user("?"), assistant("   \n...\n\n"), user("?"), assistant("done")];
    assert_eq!(prune_low_entropy(messages.clone(), &PROSE_OPTIONS), (messages, StrategyStats::default()));
}

#[test]
fn indentation_rules_and_code_are_kept() {
    let text = "Title\n=====\n\n- one\n  - two\n\n---\n\n```x = 1```\n    indented   \n```\ncode   \n\n\n...\n```";
    let messages = vec![assistant(text), user("?"), assistant("done")];
    assert_eq!(prune_low_entropy(messages.clone(), &PROSE_OPTIONS), (messages, StrategyStats::default()));
}

/// One more message becomes old at each step. Removing a single space from it would invalidate the prompt cache after
/// it.
#[test]
fn small_savings_are_ignored() {
    let messages: Vec<_> =
        (0..20).map(|at| if at % 2 == 0 { user("?") } else { assistant("I will look at it.  \n\n\nDone.") }).collect();
    assert_eq!(prune_low_entropy(messages.clone(), &PruneLowEntropy::default()), (messages, StrategyStats::default()));
}

#[test]
fn only_assistant_prose_is_changed() {
    let noise = format!("words{}\n\n\n\n...", " ".repeat(99));
    let messages =
        vec![Message::text(Role::System, noise.clone()), user(&noise), assistant(&noise), user("?"), assistant("done")];
    let (pruned, tally) = prune_low_entropy(messages.clone(), &PROSE_OPTIONS);
    assert_eq!((tally.hits, &pruned[..2]), (1, &messages[..2]));
    assert_eq!(pruned[2], assistant("words"));
}

/// Every step would otherwise rewrite the messages that have just become old.
#[test]
fn pruning_in_steps_keeps_the_prefix() {
    let options = PruneThinking { step_messages: 16, ..PruneThinking::default() };
    let mut history = vec![user("go")];
    for at in 0..40 {
        history.extend(reasoning_round(&format!("c{at}"), (at % 3 == 0).then_some("sig")));
        history.extend((at % 10 == 9).then(|| user("and now?")));
    }
    let (mut rewrites, mut sent) = (0, Vec::new());
    for length in 1..=history.len() {
        let (now, _) = prune_thinking(history[..length].to_vec(), &options);
        rewrites += usize::from(!now.starts_with(&sent));
        sent = now;
    }
    assert!((3..=history.len() / 16).contains(&rewrites), "{rewrites}");
    assert!(reasoning_count(&sent) < 20);
}

/// Noise of single texts is small: the original rule had hits in most conversations, a minimum for each text had none.
#[test]
fn small_savings_are_made_together() {
    let prose = "I will look at it.  Then I fix it.  \n\n\n...\nDone.";
    let messages: Vec<_> = (0..60).map(|at| if at % 2 == 0 { user("?") } else { assistant(prose) }).collect();
    let (pruned, stats) = prune_low_entropy(messages.clone(), &PruneLowEntropy::default());
    assert!(stats.hits >= 20, "{stats:?}");
    assert_eq!(pruned[1], assistant("I will look at it. Then I fix it.\n\nDone."));
    let (mut rewrites, mut sent) = (0, Vec::new());
    for length in 1..=messages.len() {
        let (now, _) = prune_low_entropy(messages[..length].to_vec(), &PruneLowEntropy::default());
        rewrites += usize::from(!now.starts_with(&sent));
        sent = now;
    }
    assert!(rewrites <= 8, "{rewrites}");
}
