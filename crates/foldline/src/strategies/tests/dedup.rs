//! Regression tests of snippets and repeats.

use crate::conversation::{CallArguments, Role, ToolCall};
use crate::engine::handle::Handle;
use crate::strategies::tests::support::*;
use crate::strategies::tests::{assistant, output, round, rounds, user};
use crate::strategies::*;

/// Options under which everything except the last message is old.
const OUTPUT_OPTIONS: DedupToolOutputs = DedupToolOutputs { keep_last: 1, min_bytes: 256, scope: RepeatScope::Lines };
const SNIPPET_OPTIONS: SnippetToolOutputs =
    SnippetToolOutputs { keep_last: 1, min_bytes: 4096, head_bytes: 1024, tail_bytes: 1024 };
const CALL_OPTIONS: DedupToolCalls = DedupToolCalls { keep_last: 1, min_bytes: 64 };

fn log(lines: usize) -> String {
    (0..lines).map(|at| format!("compiling part {at:06}\n")).collect()
}

fn history(outputs: &[&str]) -> Vec<Message<'static>> {
    let rounds = outputs.iter().enumerate().flat_map(|(at, text)| round(&format!("c{at}"), "sh", "make", text));
    rounds.chain([assistant("done")]).collect()
}

#[test]
fn output_quoting_a_marker_is_not_exempt() {
    let quoting = format!(
        "{}[folded: 412 lines, 18.3 kB of read src/main.rs; unfold {}]\n{}",
        log(200),
        Handle::for_content(b""),
        log(100)
    );
    let (messages, tally) = snippet_stale_tool_outputs(history(&[&quoting]), &SNIPPET_OPTIONS);
    assert!(tally.hits == 1 && output(&messages[1]).len() < 3_600);
    let (_, tally) = dedup_tool_outputs(history(&[&quoting, &quoting]), &OUTPUT_OPTIONS);
    assert_eq!(tally.hits, 1);
    // One long line between brackets is not a marker either.
    let forged = format!("[folded: {}]", "x".repeat(9_000));
    assert_eq!(snippet_stale_tool_outputs(history(&[&forged]), &SNIPPET_OPTIONS).1.hits, 1);
    assert_eq!(dedup_tool_outputs(history(&[&forged, &forged]), &OUTPUT_OPTIONS).1.hits, 1);
}

/// Two outputs that differ in the middle leave the same snippet: neither is a copy of the other.
#[test]
fn equal_snippets_are_not_equal_outputs() {
    let output_with = |middle: &str| format!("{}{middle}\n{}", log(300), log(300));
    let [one, other] = ["first", "other"].map(output_with);
    let (cut, tally) = snippet_stale_tool_outputs(history(&[&one, &other]), &SNIPPET_OPTIONS);
    assert_eq!((tally.hits, output(&cut[1])), (2, output(&cut[3])));
    assert_eq!(dedup_tool_outputs(cut.clone(), &OUTPUT_OPTIONS).0, cut);
}

#[test]
fn snippets_cut_between_lines() {
    let text = log(400);
    let (messages, _) = snippet_stale_tool_outputs(history(&[&text]), &SNIPPET_OPTIONS);
    let lines: Vec<&str> = text.lines().collect();
    let kept = output(&messages[1]);
    assert!(kept.lines().all(|line| lines.contains(&line) || marker::is_marker(line)), "{kept}");
    assert!(kept.len() > 2_000 && kept.contains("compiling part 000000") && kept.contains("compiling part 000399"));
}

#[test]
fn snippets_of_json_are_json() {
    let items: Vec<_> = (0..300).map(|at| serde_json::json!({ "id": at, "name": format!("file_{at}.rs") })).collect();
    let text = serde_json::json!({ "total": 300, "items": items }).to_string();
    let (messages, tally) = snippet_stale_tool_outputs(history(&[&text]), &SNIPPET_OPTIONS);
    let kept: serde_json::Value = serde_json::from_str(output(&messages[1])).unwrap();
    assert!(tally.hits == 1 && kept["total"] == 300 && kept["items"][0]["id"] == 0, "{kept}");
}

#[test]
fn error_in_the_middle_is_kept() {
    let text = format!("{}error[E0308]: mismatched types\n  --> src/main.rs:4:7\n{}", log(300), log(300));
    let (messages, _) = snippet_stale_tool_outputs(history(&[&text]), &SNIPPET_OPTIONS);
    assert!(output(&messages[1]).contains("\nerror[E0308]: mismatched types\n"));
}

#[test]
fn first_copy_is_kept_while_referenced() {
    let text = log(400);
    let (messages, _) = dedup_tool_outputs(history(&[&text, &"fine\n".repeat(20), &text]), &OUTPUT_OPTIONS);
    assert_eq!(output(&messages[5]), "[folded: 400 lines, 8.8 kB of sh make; same as result c0]");
    let (snipped, tally) = snippet_stale_tool_outputs(messages.clone(), &SNIPPET_OPTIONS);
    assert_eq!((&snipped, tally.hits), (&messages, 0));

    // Its round is not dropped either as long as the round that refers to it is kept.
    let long = [vec![user("go"), user("on")], messages, vec![user("next")], rounds(7, 320)].concat();
    let (trimmed, tally) =
        trim_middle(long, &TrimMiddle { keep_first: 2, keep_last: 18, min_messages: 20, tokens: None });
    assert!(tally.hits == 2 && output(&trimmed[3]) == text, "{trimmed:?}");
}

#[test]
fn referenced_results_are_elided_last() {
    let text = log(100);
    let others: Vec<String> = (0..4).map(|at| log(100).replace("compiling", &format!("linking {at}"))).collect();
    let all: Vec<&str> = [&text].into_iter().chain(&others).chain([&text]).map(String::as_str).collect();
    let (messages, _) = dedup_tool_outputs(history(&all), &OUTPUT_OPTIONS);
    let (projected, stats) = compact_to_budget(&messages, 3_000, &CompactToBudget::default());
    assert!(stats.fits() && stats.elided > 0);
    assert_eq!(output(&projected[1]), text);
    let (projected, stats) = compact_to_budget(&messages, 300, &CompactToBudget::default());
    // Everything except the last messages.
    assert!(stats.elided == 4 && output(&projected[1]).starts_with("[folded: 100 lines"), "{stats:?}");
}

#[test]
fn no_marker_is_longer_than_what_it_replaces() {
    let words = "a very long name of a target that says much about what was done with it";
    let short = "0123456789".repeat(4);
    let mut messages: Vec<_> = ["c0", "c1"].iter().flat_map(|id| round(id, "sh", words, &short)).collect();
    messages.push(assistant("done"));
    let eager = DedupToolOutputs { min_bytes: 0, ..OUTPUT_OPTIONS };
    assert_eq!(dedup_tool_outputs(messages.clone(), &eager), (messages.clone(), StrategyStats::default()));
    let brief: Vec<_> =
        ["c0", "c1"].iter().flat_map(|id| round(id, "sh", "ls", "ok")).chain([assistant("done")]).collect();
    assert_eq!(dedup_tool_calls(brief.clone(), &DedupToolCalls { min_bytes: 0, ..CALL_OPTIONS }).0, brief);
    let one = brief[2..].to_vec();
    assert_eq!(
        trim_middle(one.clone(), &TrimMiddle { keep_first: 0, keep_last: 1, min_messages: 2, tokens: None }).0,
        one
    );
    let tight = SnippetToolOutputs { min_bytes: 0, head_bytes: 4, tail_bytes: 4, ..SNIPPET_OPTIONS };
    let before: usize = messages.iter().flat_map(|message| &message.parts).map(part_bytes).sum();
    let (snipped, _) = snippet_stale_tool_outputs(messages, &tight);
    assert!(snipped.iter().flat_map(|message| &message.parts).map(part_bytes).sum::<usize>() <= before);
}

#[test]
fn repeated_call_arguments_stay_valid_json() {
    let path = "src/a/very/deep/folder/with/a/long/name/and/a/file/in/it.rs";
    let mut messages: Vec<_> = ["c0", "c1", "c2"].iter().flat_map(|id| round(id, "read", path, "ok")).collect();
    messages.push(assistant("done"));
    let (shorter, tally) = dedup_tool_calls(messages.clone(), &CALL_OPTIONS);
    assert_eq!(tally.hits, 2);
    for call in shorter.iter().flat_map(Message::calls) {
        assert!(serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(call.arguments.as_str()).is_ok());
    }
    assert_eq!(shorter[0], messages[0]);
    assert_eq!(dedup_tool_calls(shorter.clone(), &CALL_OPTIONS), (shorter, StrategyStats::default()));
}

#[test]
fn free_text_arguments_become_a_marker() {
    let patch = |id: &'static str| {
        let arguments = CallArguments::Text("*** Update File: a.rs\n".repeat(9).into());
        let call = Part::ToolCall(ToolCall { id: id.into(), name: "apply_patch".into(), arguments, signature: None });
        [Message::new(Role::Assistant, vec![call]), Message::new(Role::Tool, vec![Part::result(id, "ok")])]
    };
    let messages = [patch("c0"), patch("c1")].concat().into_iter().chain([assistant("done")]).collect();
    let (shorter, _) = dedup_tool_calls(messages, &CALL_OPTIONS);
    assert_eq!(shorter[2].calls().next().unwrap().arguments.as_str(), "[folded: 198 bytes; same as call c0]");
}

#[test]
fn repeated_lines_are_found() {
    let text = log(40);
    let again = format!("a new head\n{text}and a new tail\n");
    let (messages, tally) = dedup_tool_outputs(history(&[&text, &again]), &OUTPUT_OPTIONS);
    assert_eq!(tally.hits, 1);
    assert_eq!(
        output(&messages[3]),
        "a new head\n[folded: 40 lines; same as lines 1 to 40 of result c0]\nand a new tail\n"
    );
    let exact = DedupToolOutputs { scope: RepeatScope::Whole, ..OUTPUT_OPTIONS };
    assert_eq!(dedup_tool_outputs(history(&[&text, &again]), &exact).1.hits, 0);
}

#[test]
fn repeated_lines_of_json_are_kept() {
    let pretty =
        serde_json::to_string_pretty(&(0..60).map(|at| format!("item number {at}")).collect::<Vec<_>>()).unwrap();
    let more = pretty.replacen("[\n", "[\n  \"one more\",\n", 1);
    assert_eq!(dedup_tool_outputs(history(&[&pretty, &more]), &OUTPUT_OPTIONS).1.hits, 0);
}

/// A reference by a reused id would point to another result.
#[test]
fn reused_ids_are_not_referenced() {
    let text = log(40);
    let mut messages: Vec<_> = (0..3).flat_map(|_| round("c0", "sh", "make", &text)).collect();
    messages.push(assistant("done"));
    assert_eq!(dedup_tool_outputs(messages.clone(), &OUTPUT_OPTIONS), (messages, StrategyStats::default()));
}

#[test]
fn multi_part_result_is_shortened_but_not_referenced() {
    let text = log(40);
    let mut messages = history(&[&text, &text, &text]);
    let Part::ToolResult(first) = &mut messages[1].parts[0] else { panic!("expected a tool result") };
    first.content.push(Part::text("and more"));
    let (messages, tally) = dedup_tool_outputs(messages, &OUTPUT_OPTIONS);
    assert_eq!(tally.hits, 1);
    assert!(output(&messages[3]) == text && output(&messages[5]).ends_with("; same as result c1]"));
}

#[test]
fn result_that_begins_with_a_quoted_marker_is_deduplicated() {
    let quoting = format!("[folded: 412 lines, 18.3 kB of read src/main.rs]\n{}", log(40));
    assert_eq!(dedup_tool_outputs(history(&[&quoting, &quoting]), &OUTPUT_OPTIONS).1.hits, 1);
}

#[test]
fn results_without_calls_are_deduplicated() {
    let text = log(40);
    let result = |id: &'static str| Message::new(Role::Tool, vec![Part::result(id, text.clone())]);
    let messages = vec![user("go"), result("lost"), result("gone"), assistant("done")];
    let (shorter, stats) = dedup_tool_outputs(messages, &OUTPUT_OPTIONS);
    assert_eq!(stats.hits, 1);
    assert_eq!(output(&shorter[2]), "[folded: 40 lines, 880 bytes of text; same as result lost]");
}

#[test]
fn uncommon_failures_in_the_middle_are_kept() {
    for failure in
        ["npm ERR! code ELIFECYCLE", "Segmentation fault (core dumped)", "Fehler: Datei fehlt", "错误：没有文件"]
    {
        let text = format!("{}{failure}\n{}", log(300), log(300));
        let (messages, _) = snippet_stale_tool_outputs(history(&[&text]), &SNIPPET_OPTIONS);
        assert!(output(&messages[1]).contains(&format!("\n{failure}\n")), "{failure}");
    }
}

#[test]
fn snippet_marker_replaces_the_text_that_was_cut() {
    let text = log(400);
    let (messages, _) = snippet_stale_tool_outputs(history(&[&text]), &SNIPPET_OPTIONS);
    let kept: Vec<&str> = output(&messages[1]).lines().collect();
    let at = kept.iter().position(|line| marker::is_marker(line)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((&kept[..at], &kept[at + 1..]), (&lines[..at], &lines[lines.len() - (kept.len() - at - 1)..]));
    let omitted = lines.len() + 1 - kept.len();
    assert!(kept[at].starts_with(&format!("[folded: {omitted} lines, ")), "{}", kept[at]);
    // One long line has its marker between its two ends.
    let line = "x".repeat(9_000);
    let (messages, _) = snippet_stale_tool_outputs(history(&[&line]), &SNIPPET_OPTIONS);
    let kept: Vec<&str> = output(&messages[1]).lines().collect();
    assert_eq!((kept.len(), kept[1]), (3, "[folded: 6.9 kB of sh make]"));
}

/// The first copy is elided or cut by a later step: no marker may claim that it is still there.
#[test]
fn references_to_elided_or_cut_results_are_detached() {
    let text = log(100);
    let (messages, _) = dedup_tool_outputs(history(&[&text, &text]), &OUTPUT_OPTIONS);
    let messages = [messages, rounds(3, 64)].concat();
    let (projected, stats) = compact_to_budget(&messages, 200, &CompactToBudget::default());
    assert_eq!(stats.elided, 1);
    assert_eq!(output(&projected[3]), "[folded: 100 lines, 2.2 kB of sh make]");
    let truncation =
        terminal_truncate(messages, 300, &TerminalTruncate { keep_last: 20, ..TerminalTruncate::default() });
    assert!(
        truncation
            .messages
            .iter()
            .flat_map(Message::results)
            .all(|result| !result.only_text().unwrap().contains("same as"))
    );
}
