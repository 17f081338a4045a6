//! Properties that hold for any messages.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use crate::conversation::Role;
use crate::laws::{Law, LawProfile, LawTopic, LawViolation, check_conversation};
use crate::strategies::tests::support::*;
use crate::strategies::*;
use crate::testing::{SampleRequest, sample_text, samples};

/// Samples in which results are long and repeat each other, whole and in part, and prose is noisy.
fn agent_samples() -> impl Strategy<Value = SampleRequest> {
    let pool = vec(vec(sample_text(), 1..8), 1..4)
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
                            let (one, other) = picks.next().expect("the iterator is endless");
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

/// Samples of which some messages were lost.
fn torn_samples() -> impl Strategy<Value = (SampleRequest, Vec<usize>)> {
    agent_samples().prop_flat_map(|sample| {
        let all: Vec<usize> = (0..sample.conversation.messages.len()).collect();
        let count = all.len();
        (Just(sample), subsequence(all, 0..count))
    })
}

/// Generates options of all strategies, with thresholds that affect a short conversation.
fn strategies() -> impl Strategy<Value = StrategyOptions> {
    let sizes = (0..6_usize, select(vec![0_usize, 16, 64, 256]));
    let middle = (0..3_usize, 0..6_usize, 0..12_usize).prop_map(|(keep_first, keep_last, min_messages)| TrimMiddle {
        keep_first,
        keep_last,
        min_messages,
        tokens: None,
    });
    (sizes, proptest::option::of(middle), any::<[bool; 3]>()).prop_map(|((keep_last, min_bytes), middle, enabled)| {
        StrategyOptions {
            format: None,
            thinking: PruneThinking { keep_last, ..PruneThinking::default() },
            middle,
            outputs: DedupToolOutputs {
                keep_last,
                min_bytes,
                scope: if enabled[0] { RepeatScope::Lines } else { RepeatScope::Whole },
            },
            calls: enabled[1].then_some(DedupToolCalls { keep_last, min_bytes }),
            snippets: enabled[2].then_some(SnippetToolOutputs {
                keep_last,
                min_bytes: min_bytes * 4,
                head_bytes: min_bytes,
                tail_bytes: min_bytes,
            }),
            prose: PruneLowEntropy { keep_last, min_saved_bytes: min_bytes / 16 },
        }
    })
}

fn total_bytes(messages: &[Message<'_>]) -> usize {
    messages.iter().flat_map(|message| &message.parts).map(part_bytes).sum()
}

/// Returns the texts of instructions and users, without markers.
fn input_texts(messages: &[Message<'_>]) -> Vec<String> {
    let others = messages.iter().filter(|message| !message.is_assistant() && message.role != Role::Tool);
    let texts = others.flat_map(|message| &message.parts).filter_map(Part::as_text);
    texts.filter(|text| marker::parse_dropped_messages(text).is_none()).map(str::to_owned).collect()
}

/// Returns the laws that messages break. Where roles must alternate, neighbors of one role are merged when a request is
/// composed, so that law does not apply to messages.
fn violations(messages: Vec<Message<'static>>, profile: &LawProfile) -> Vec<LawViolation> {
    let mut found = check_conversation(&conversation_of(messages), profile);
    found.retain(|violation| violation.law != Law::Alternation);
    found
}

fn pairing_violations(violations: &[LawViolation]) -> Vec<String> {
    violations
        .iter()
        .filter(|violation| violation.law.topic() == LawTopic::Pairing)
        .map(LawViolation::to_string)
        .collect()
}

type StrategyFn = Box<dyn Fn(Vec<Message<'static>>) -> Vec<Message<'static>>>;

fn strategy_functions(strategies: StrategyOptions) -> Vec<(&'static str, StrategyFn)> {
    let StrategyOptions { thinking, middle, outputs, calls, snippets, prose, .. } = strategies;
    let middle = middle.unwrap_or(TrimMiddle { keep_first: 1, keep_last: 3, min_messages: 6, tokens: None });
    let (calls, snippets) = (calls.unwrap_or_default(), snippets.unwrap_or_default());
    vec![
        ("thinking", Box::new(move |messages| prune_thinking(messages, &thinking).0)),
        ("middle", Box::new(move |messages| trim_middle(messages, &middle).0)),
        ("outputs", Box::new(move |messages| dedup_tool_outputs(messages, &outputs).0)),
        ("calls", Box::new(move |messages| dedup_tool_calls(messages, &calls).0)),
        ("snippets", Box::new(move |messages| snippet_stale_tool_outputs(messages, &snippets).0)),
        ("prose", Box::new(move |messages| prune_low_entropy(messages, &prose).0)),
    ]
}

proptest! {
    #[test]
    fn each_strategy_shrinks_keeps_input_and_is_idempotent(
        sample in agent_samples(),
        strategies in strategies(),
    ) {
        let profile = LawProfile::for_request(&sample.request());
        for (name, run) in strategy_functions(strategies) {
            let before = sample.conversation.messages.clone();
            let once = run(before.clone());
            prop_assert!(total_bytes(&once) <= total_bytes(&before), "{}", name);
            prop_assert_eq!(input_texts(&once), input_texts(&before), "{}", name);
            prop_assert_eq!(violations(once.clone(), &profile), [], "{}", name);
            prop_assert_eq!(run(once.clone()), once, "{}", name);
        }
    }

    #[test]
    fn apply_all_repairs_torn_messages_and_is_idempotent(
        (sample, lost) in torn_samples(),
        strategies in strategies(),
    ) {
        let kept = sample.conversation.messages.iter().enumerate().filter(|(at, _)| !lost.contains(at));
        let messages: Vec<_> = kept.map(|(_, message)| message.clone()).collect();
        let profile = LawProfile::for_request(&sample.request());
        let strategies = StrategyOptions { format: Some(sample.format), ..strategies };
        let (once, _) = shortened(messages, &strategies);
        prop_assert_eq!(pairing_violations(&check_conversation(&conversation_of(once.clone()), &profile)), [] as [String; 0]);
        prop_assert_eq!(shortened(once.clone(), &strategies).0, once);
    }

    #[test]
    fn stats_equal_saved_bytes(sample in agent_samples(), strategies in strategies()) {
        let before = sample.conversation.messages.clone();
        let (after, stats) = shortened(before.clone(), &strategies);
        prop_assert_eq!(stats.bytes_saved(), total_bytes(&before) - total_bytes(&after));
        prop_assert_eq!(stats.is_empty(), before == after);
    }

    #[test]
    fn trimming_in_place_equals_trimming_the_whole(
        sample in agent_samples(),
        keep_first in 0..3_usize,
        keep_last in 0..5_usize,
        more in 1..5_usize,
    ) {
        let options = TrimMiddle { keep_first, keep_last, min_messages: keep_first + keep_last + more, tokens: None };
        let mut in_place = Vec::new();
        for message in &sample.conversation.messages {
            in_place.push(message.clone());
            (in_place, _) = trim_middle(in_place, &options);
        }
        prop_assert_eq!(in_place, trim_middle(sample.conversation.messages, &options).0);
    }

    #[test]
    fn projection_counts_correctly_keeps_input_and_is_stable(
        sample in agent_samples(),
        budget in 0..3000_u64,
        keep_last in 0..6_usize,
        min_chars in 0..300_usize,
    ) {
        let messages = &sample.conversation.messages;
        let options = CompactToBudget { keep_last, min_chars, ..CompactToBudget::default() };
        let (projected, stats) = compact_to_budget(messages, budget, &options);
        let count = |messages: &[Message<'_>]| messages.iter().map(|message| options.meter.message(message)).sum::<u64>();
        prop_assert_eq!((stats.before, stats.after), (count(messages), count(&projected)));
        prop_assert!(stats.after <= stats.before);
        prop_assert_eq!(input_texts(&projected), input_texts(messages));
        let profile = LawProfile::for_request(&sample.request());
        prop_assert_eq!(violations(projected.clone(), &profile), []);
        prop_assert_eq!(compact_to_budget(&projected, budget, &options).0, projected);
        let mut sent: (Vec<Message<'_>>, usize) = Default::default();
        for point in sample.conversation.request_points() {
            let (now, stats) = compact_to_budget(&messages[..point], budget, &options);
            prop_assert!(now.starts_with(&sent.0) || stats.elided > sent.1);
            sent = (now, stats.elided);
        }
    }

    #[test]
    fn truncation_fits_or_reports_and_keeps_pairs(sample in agent_samples(), budget in 0..2000_u64, keep_last in 0..6_usize) {
        let messages = sample.conversation.messages.clone();
        let options = TerminalTruncate { keep_last, ..TerminalTruncate::default() };
        let truncation = terminal_truncate(messages.clone(), budget, &options);
        let count = truncation.messages.iter().map(|message| options.meter.message(message)).sum::<u64>();
        prop_assert_eq!(truncation.after, count);
        prop_assert!(truncation.after <= truncation.before);
        let profile = LawProfile::for_request(&sample.request());
        prop_assert_eq!(violations(truncation.messages.clone(), &profile), []);
        let again = terminal_truncate(truncation.messages.clone(), budget, &options);
        prop_assert_eq!(again.messages, truncation.messages);
    }

    /// Arbitrary messages, valid or not.
    #[test]
    fn arbitrary_messages_do_not_panic(
        messages in vec((0..5_usize, vec((0..6_usize, sample_text(), 0..3_usize), 0..4)), 0..24),
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
            _ => Part::Image(crate::conversation::ImagePart::default()),
        };
        let messages: Vec<Message<'static>> = messages
            .into_iter()
            .map(|(role, parts)| Message::new(roles[role], parts.into_iter().map(part).collect()))
            .collect();
        for (name, run) in strategy_functions(strategies) {
            let once = run(messages.clone());
            prop_assert!(total_bytes(&once) <= total_bytes(&messages), "{}", name);
            prop_assert_eq!(run(once.clone()), once, "{}", name);
        }
        shortened(messages.clone(), &strategies);
        compact_to_budget(&messages, budget, &CompactToBudget::default());
        terminal_truncate(messages, budget, &TerminalTruncate::default());
    }
}
