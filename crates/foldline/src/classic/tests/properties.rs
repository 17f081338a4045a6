//! What holds for any messages.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::super::*;
use crate::conversation::Role;
use crate::laws::{Profile, Topic, Violation, check_conversation};
use crate::testing::{Sample, samples, text};

/// A sample in which results are long and repeat each other, whole and in part, and prose is noisy.
fn agents() -> impl Strategy<Value = Sample> {
    let pool = vec(vec(text(), 1..8), 1..4)
        .prop_map(|pool| pool.into_iter().map(|parts| parts.join("\n").repeat(6)).collect::<Vec<String>>());
    let noise = select(vec!["", "   \n\n\n...\n", "\n```\ncode   \n```\n", "...", "\n\n---\n\n"]);
    (samples(), pool, vec((any::<Index>(), any::<Index>()), 64), noise).prop_map(|(mut sample, pool, picks, noise)| {
        let mut picks = picks.iter().cycle();
        for message in &mut sample.conversation.messages {
            let role = message.role;
            for part in &mut message.parts {
                match part {
                    Part::ToolResult(result) => {
                        for part in &mut result.content {
                            let (one, other) = picks.next().expect("a cycle has no end");
                            if let Part::Text { text } = part {
                                *text = format!("{}\n{text}\n{}", one.get(&pool), other.get(&pool)).into();
                            }
                        }
                    }
                    Part::Text { text } if role == Role::Assistant => *text = format!("{noise}{text}{noise}").into(),
                    _ => {}
                }
            }
        }
        sample
    })
}

/// An agent's messages of which some were lost.
fn torn() -> impl Strategy<Value = (Sample, Vec<usize>)> {
    agents().prop_flat_map(|sample| {
        let all: Vec<usize> = (0..sample.conversation.messages.len()).collect();
        let count = all.len();
        (Just(sample), subsequence(all, 0..count))
    })
}

/// Everything, with thresholds at which a short conversation is touched.
fn strategies() -> impl Strategy<Value = Strategies> {
    let sizes = (0..6_usize, select(vec![0_usize, 16, 64, 256]));
    let middle = (0..3_usize, 0..6_usize, 0..12_usize).prop_map(|(first, last, from)| TrimMiddle { first, last, from });
    (sizes, proptest::option::of(middle), any::<[bool; 3]>()).prop_map(|((keep_last, at_least), middle, asked)| {
        Strategies {
            format: None,
            thinking: PruneThinking { keep_last, ..PruneThinking::default() },
            middle,
            outputs: DedupToolOutputs {
                keep_last,
                at_least,
                repeats: if asked[0] { Repeats::Lines } else { Repeats::Whole },
            },
            calls: asked[1].then_some(DedupToolCalls { keep_last, at_least }),
            snippets: asked[2].then_some(Snippets {
                keep_last,
                at_least: at_least * 4,
                head: at_least,
                tail: at_least,
            }),
            prose: PruneLowEntropy { keep_last, at_least: at_least / 16 },
        }
    })
}

fn bytes(messages: &[Message<'_>]) -> usize {
    messages.iter().flat_map(|message| &message.parts).map(weight).sum()
}

/// What instructions and users say, markers of ours aside.
fn said(messages: &[Message<'_>]) -> Vec<String> {
    let others = messages.iter().filter(|message| !message.is_assistant() && message.role != Role::Tool);
    let texts = others.flat_map(|message| &message.parts).filter_map(Part::as_text);
    texts.filter(|text| marker::dropped(text).is_none()).map(str::to_owned).collect()
}

fn pairs(found: &[Violation]) -> Vec<String> {
    found.iter().filter(|it| it.law.topic() == Topic::Pairing).map(Violation::to_string).collect()
}

type Run = Box<dyn Fn(Vec<Message<'static>>) -> Vec<Message<'static>>>;

fn each(strategies: Strategies) -> Vec<(&'static str, Run)> {
    let Strategies { thinking, middle, outputs, calls, snippets, prose, .. } = strategies;
    let middle = middle.unwrap_or(TrimMiddle { first: 1, last: 3, from: 6 });
    let (calls, snippets) = (calls.unwrap_or_default(), snippets.unwrap_or_default());
    vec![
        ("thinking", Box::new(move |it| prune_thinking(it, &thinking).0)),
        ("middle", Box::new(move |it| trim_middle(it, &middle).0)),
        ("outputs", Box::new(move |it| dedup_tool_outputs(it, &outputs).0)),
        ("calls", Box::new(move |it| dedup_tool_calls(it, &calls).0)),
        ("snippets", Box::new(move |it| snippet_stale_tool_outputs(it, &snippets).0)),
        ("prose", Box::new(move |it| prune_low_entropy(it, &prose).0)),
    ]
}

proptest! {
    #[test]
    fn every_strategy_alone_never_grows_keeps_what_was_said_breaks_no_law_and_is_done_once(
        sample in agents(),
        strategies in strategies(),
    ) {
        let profile = Profile::of_request(&sample.request());
        for (name, run) in each(strategies) {
            let before = sample.conversation.messages.clone();
            let once = run(before.clone());
            prop_assert!(bytes(&once) <= bytes(&before), "{}", name);
            prop_assert_eq!(said(&once), said(&before), "{}", name);
            prop_assert_eq!(check_conversation(&of(once.clone()), &profile), [], "{}", name);
            prop_assert_eq!(run(once.clone()), once, "{}", name);
        }
    }

    #[test]
    fn torn_messages_are_whole_after_apply_all_and_once_is_enough(
        (sample, lost) in torn(),
        strategies in strategies(),
    ) {
        let kept = sample.conversation.messages.iter().enumerate().filter(|(at, _)| !lost.contains(at));
        let messages: Vec<_> = kept.map(|(_, message)| message.clone()).collect();
        let profile = Profile::of_request(&sample.request());
        let strategies = Strategies { format: Some(sample.format), ..strategies };
        let (once, _) = apply_all(messages, &strategies);
        prop_assert_eq!(pairs(&check_conversation(&of(once.clone()), &profile)), [] as [String; 0]);
        prop_assert_eq!(apply_all(once.clone(), &strategies).0, once);
    }

    #[test]
    fn statistics_are_what_was_saved(sample in agents(), strategies in strategies()) {
        let before = sample.conversation.messages.clone();
        let (after, stats) = apply_all(before.clone(), &strategies);
        prop_assert_eq!(stats.bytes_saved(), bytes(&before) - bytes(&after));
        prop_assert_eq!(stats.is_empty(), before == after);
    }

    #[test]
    fn a_history_that_is_trimmed_in_place_is_what_the_whole_one_becomes(
        sample in agents(),
        first in 0..3_usize,
        last in 0..5_usize,
        more in 1..5_usize,
    ) {
        let options = TrimMiddle { first, last, from: first + last + more };
        let mut in_place = Vec::new();
        for message in &sample.conversation.messages {
            in_place.push(message.clone());
            (in_place, _) = trim_middle(in_place, &options);
        }
        prop_assert_eq!(in_place, trim_middle(sample.conversation.messages, &options).0);
    }

    #[test]
    fn a_projection_counts_right_keeps_what_was_said_and_is_stable(
        sample in agents(),
        budget in 0..3000_u64,
        keep_last in 0..6_usize,
        at_least in 0..300_usize,
    ) {
        let messages = &sample.conversation.messages;
        let options = CompactToBudget { keep_last, at_least, ..CompactToBudget::default() };
        let (projected, stats) = compact_to_budget(messages, budget, &options);
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| options.meter.message(message)).sum::<u64>();
        prop_assert_eq!((stats.before, stats.after), (count(messages), count(&projected)));
        prop_assert!(stats.after <= stats.before);
        prop_assert_eq!(said(&projected), said(messages));
        let profile = Profile::of_request(&sample.request());
        prop_assert_eq!(check_conversation(&of(projected.clone()), &profile), []);
        prop_assert_eq!(compact_to_budget(&projected, budget, &options).0, projected);
        let mut sent: (Vec<Message<'_>>, usize) = Default::default();
        for point in sample.conversation.request_points() {
            let (now, stats) = compact_to_budget(&messages[..point], budget, &options);
            prop_assert!(now.starts_with(&sent.0) || stats.elided > sent.1);
            sent = (now, stats.elided);
        }
    }

    #[test]
    fn a_truncation_fits_or_says_so_and_breaks_no_pair(sample in agents(), budget in 0..2000_u64, keep_last in 0..6_usize) {
        let messages = sample.conversation.messages.clone();
        let options = TerminalTruncate { keep_last, ..TerminalTruncate::default() };
        let truncation = terminal_truncate(messages.clone(), budget, &options);
        let count = truncation.messages.iter().map(|message| options.meter.message(message)).sum::<u64>();
        prop_assert_eq!(truncation.after, count);
        prop_assert!(truncation.after <= truncation.before);
        let profile = Profile::of_request(&sample.request());
        prop_assert_eq!(check_conversation(&of(truncation.messages.clone()), &profile), []);
        let again = terminal_truncate(truncation.messages.clone(), budget, &options);
        prop_assert_eq!(again.messages, truncation.messages);
    }

    /// Any messages at all, lawful or not.
    #[test]
    fn nothing_panics(
        messages in vec((0..5_usize, vec((0..6_usize, text(), 0..3_usize), 0..4)), 0..24),
        strategies in strategies(),
        budget in 0..500_u64,
    ) {
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Other];
        let part = |(kind, text, id): (usize, String, usize)| match kind {
            0 => Part::text(text),
            1 => Part::reasoning(text),
            2 => Part::call(format!("c{id}"), "write", text),
            3 => Part::call(format!("c{id}"), "write", serde_json::json!({ "content": text.repeat(40) }).to_string()),
            4 => Part::result(format!("c{id}"), text.repeat(30)),
            _ => Part::Image(crate::Image::default()),
        };
        let messages: Vec<Message<'static>> = messages
            .into_iter()
            .map(|(role, parts)| Message::new(roles[role], parts.into_iter().map(part).collect()))
            .collect();
        for (name, run) in each(strategies) {
            let once = run(messages.clone());
            prop_assert!(bytes(&once) <= bytes(&messages), "{}", name);
            prop_assert_eq!(run(once.clone()), once, "{}", name);
        }
        apply_all(messages.clone(), &strategies);
        compact_to_budget(&messages, budget, &CompactToBudget::default());
        terminal_truncate(messages, budget, &TerminalTruncate::default());
    }
}
