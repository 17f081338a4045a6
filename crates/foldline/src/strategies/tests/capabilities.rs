//! One test for each row of the table of capabilities in docs/reference/strategies.md that this crate provides.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::conversation::{ImagePart, ReasoningPart, Role, ToolDefinition};
use crate::engine::archive::MemoryStore;
use crate::engine::left_fold::fold;
use crate::engine::options::{FoldOptions, Ledger, PinRules};
use crate::engine::session::FoldSession;
use crate::error::ErrorKind;
use crate::event::FoldEvent;
use crate::models::table::ModelTable;
use crate::strategies::chunk::{BoundaryKind, CompressOptions, ContentKind, chunks, compress, render_transcript};
use crate::strategies::tests::support::*;
use crate::strategies::tests::{assistant, output, round, rounds, texts, user};
use crate::strategies::*;
use crate::tokens::{Budget, Tokens};
use crate::wire::{Format, Request, RequestRejection};
use crate::{apply, engine::handle::Handle};

fn options(budget: Tokens) -> FoldOptions {
    FoldOptions::for_model("gpt-4o", budget)
}

#[test]
fn row_01_messages_consist_of_parts() {
    let call = crate::conversation::ToolCall {
        signature: Some("sig".into()),
        ..crate::conversation::ToolCall::new("c1", "read", "{}")
    };
    let reasoning = ReasoningPart { text: "hm".into(), seal: Some("sealed".into()), redacted: false };
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::Reasoning(reasoning),
            Part::text("I look."),
            Part::ToolCall(call),
            Part::Image(ImagePart::default()),
        ],
    );
    let tool = Message::new(Role::Tool, vec![Part::result("c1", "a"), Part::result("c2", "b")]);
    assert_eq!((message.calls().count(), tool.results().count()), (1, 2));
    let json = serde_json::to_string(&[message.clone(), tool.clone()]).unwrap();
    let back: Vec<crate::conversation::OwnedMessage> = serde_json::from_str(&json).unwrap();
    assert_eq!(back, [message, tool]);
}

/// Every strategy keeps the signature of a call, even if it shortens the arguments.
#[test]
fn row_01_thought_signature_of_a_call_survives_every_strategy() {
    let arguments = serde_json::json!({ "path": "a.rs", "content": "fn a() {}\n".repeat(400) }).to_string();
    let mut messages = vec![user("go")];
    for id in ["c1", "c2", "c3"] {
        let mut call = crate::conversation::ToolCall::new(id, "write", arguments.clone());
        call.signature = Some(format!("sig {id}").into());
        messages.push(Message::new(Role::Assistant, vec![Part::ToolCall(call)]));
        messages.push(Message::new(Role::Tool, vec![Part::result(id, "ok")]));
    }
    messages.extend(rounds(3, 320));
    let signatures = |messages: &[Message<'_>]| -> Vec<String> {
        messages
            .iter()
            .flat_map(Message::calls)
            .filter_map(|call| call.signature.as_deref())
            .map(str::to_owned)
            .collect()
    };
    let before = signatures(&messages);
    let calls = Some(DedupToolCalls { keep_last: 1, min_bytes: 64 });
    let (shorter, stats) = shortened(messages.clone(), &StrategyOptions { calls, ..StrategyOptions::default() });
    assert_eq!((stats.calls.hits, signatures(&shorter)), (2, before.clone()));
    let (projected, stats) = compact_to_budget(&messages, 900, &CompactToBudget::default());
    assert!(stats.elided > 0 && signatures(&projected) == before);
    let truncation = terminal_truncate(messages, 1_500, &TerminalTruncate { keep_last: 20, ..Default::default() });
    assert_eq!(signatures(&truncation.messages), before);
}

#[test]
fn row_02_old_reasoning_is_pruned() {
    let thinking = |id: &'static str| {
        let parts = vec![Part::reasoning("let me see"), Part::call(id, "sh", "{}")];
        [Message::new(Role::Assistant, parts), Message::new(Role::Tool, vec![Part::result(id, "ok")])]
    };
    let messages = ["a", "b", "c", "d"].iter().flat_map(|id| thinking(id)).collect();
    let (pruned, stats) = prune_thinking(messages, &PruneThinking::default());
    assert_eq!(stats, StrategyStats { hits: 2, bytes_saved: 20 });
    let has_reasoning = |message: &Message<'_>| matches!(message.parts[0], Part::Reasoning(_));
    assert_eq!(pruned.iter().filter(|message| has_reasoning(message)).count(), 2);
}

#[test]
fn row_03_repeated_result_becomes_a_reference_with_its_size() {
    let text = "one line of it\n".repeat(20);
    let mut messages: Vec<_> = ["a", "b"].iter().flat_map(|id| round(id, "ls", "src", &text)).collect();
    messages.extend(rounds(5, 64));
    let (shorter, stats) = dedup_tool_outputs(messages, &DedupToolOutputs::default());
    assert_eq!((output(&shorter[1]), stats.hits), (text.as_str(), 1));
    assert_eq!(output(&shorter[3]), "[folded: 20 lines, 300 bytes of ls src; same as result a]");
}

#[test]
fn row_04_repeated_call_becomes_a_reference_if_enabled() {
    let path = "src/a/very/deep/folder/with/a/long/name/and/a/file/in/it.rs";
    let mut messages: Vec<_> = ["a", "b"].iter().flat_map(|id| round(id, "read", path, "ok")).collect();
    messages.extend(rounds(5, 64));
    assert_eq!(shortened(messages.clone(), &StrategyOptions::default()).1.calls.hits, 0);
    let enabled = StrategyOptions { calls: Some(DedupToolCalls::default()), ..StrategyOptions::default() };
    assert_eq!(shortened(messages, &enabled).1.calls.hits, 1);
}

#[test]
fn row_05_stale_output_keeps_head_and_tail() {
    let text: String = (0..400).map(|at| format!("line {at:04} of it\n")).collect();
    let messages = [round("a", "cat", "a.txt", &text).to_vec(), rounds(5, 64)].concat();
    let (shorter, stats) = snippet_stale_tool_outputs(messages, &SnippetToolOutputs::default());
    let kept = output(&shorter[1]);
    assert!(stats.hits == 1 && kept.starts_with("line 0000") && kept.contains("line 0399"));
    assert!(kept.contains(" of cat a.txt]") && kept.len() < 2_300);
}

#[test]
fn row_06_noise_is_pruned_from_old_prose() {
    let noise = format!("Words.  More words.{}\n\n\n...\nEnd.", " ".repeat(80));
    let messages = [vec![user("go"), assistant(&noise)], rounds(4, 64)].concat();
    let (shorter, stats) = prune_low_entropy(messages, &PruneLowEntropy::default());
    assert_eq!((&shorter[1], stats.hits), (&assistant("Words. More words.\n\nEnd."), 1));
}

#[test]
fn row_07_middle_is_dropped_between_sinks_and_recent() {
    let messages = [vec![Message::text(Role::System, "be brief"), user("go")], rounds(20, 320)].concat();
    let (shorter, stats) = trim_middle(messages.clone(), &TrimMiddle::default());
    assert_eq!((&shorter[..2], &shorter[3..]), (&messages[..2], &messages[messages.len() - (shorter.len() - 3)..]));
    assert!(marker::is_marker(texts(&shorter, Role::User)[1].as_str()) && stats.hits >= 20);
    assert_eq!(trim_middle(messages[..21].to_vec(), &TrimMiddle::default()).1.hits, 0);
}

#[test]
fn row_08_orphans_are_repaired_last() {
    let orphan = Message::new(Role::Tool, vec![Part::result("gone", "x")]);
    let call = Message::new(Role::Assistant, vec![Part::call("c1", "sh", "{}")]);
    let (repaired, stats) = shortened(vec![user("go"), orphan, call, user("stop")], &StrategyOptions::default());
    assert_eq!((stats.repairs.orphans, stats.repairs.unanswered, repaired.len()), (1, 1, 4));
    assert!(repair_orphans(repaired).1.is_empty());
}

#[test]
fn row_09_apply_all_shortens_in_place() {
    let text = "one line of it\n".repeat(20);
    let mut messages: Vec<_> = ["a", "b"].iter().flat_map(|id| round(id, "ls", "src", &text)).collect();
    messages.extend(rounds(5, 64));
    let stats = apply_all(&mut messages);
    assert_eq!((stats.outputs.hits, stats.snippets.hits, stats.middle.hits), (1, 0, 0));
    assert!(apply_all(&mut messages).is_empty());
}

#[test]
fn row_10_statistics_are_values_that_serialize() {
    let stats = CombinedStats { outputs: StrategyStats { hits: 2, bytes_saved: 300 }, ..CombinedStats::default() };
    let json = serde_json::to_value(stats).unwrap();
    assert_eq!((&json["outputs"]["hits"], &json["outputs"]["bytes_saved"]), (&2.into(), &300.into()));
    assert_eq!(serde_json::from_value::<CombinedStats>(json).unwrap(), stats);
    assert_eq!(stats.to_string(), "300 bytes saved, outputs 2 (300 bytes)");
}

#[test]
fn row_11_estimate_counts_text_tools_and_images() {
    let mut conversation = conversation_of(vec![user(&"x".repeat(35))]);
    assert_eq!(total_tokens(&conversation), 10 + 8);
    conversation.messages.push(Message::new(Role::User, vec![Part::Image(ImagePart::default())]));
    assert_eq!(total_tokens(&conversation), 10 + 8 + 512 + 8);
    let definition = format!(r#"{{"name":"sh","description":"{}"}}"#, "y".repeat(350));
    conversation.tools.push(ToolDefinition { name: "sh".into(), definition: definition.into() });
    assert!(total_tokens(&conversation) > 538 + 100);
}

#[test]
fn row_12_budgets_respect_window_reserve_and_input_limit() {
    assert_eq!(Budget::for_cascade(128_000).tokens, (128_000 - 8_192 - 2_048) * 9 / 10);
    for row in ModelTable::builtin().rows() {
        let limit = row.max_input.unwrap_or(row.window);
        let meter = Meter::for_byte_estimate();
        for budget in [
            Budget::for_model(row, None, &meter),
            Budget::for_projection(row.window, None).within_input_limit(row),
            Budget::for_cascade(row.window).within_input_limit(row),
        ] {
            assert!(budget.tokens <= limit && budget.tokens <= row.window, "{}: {budget:?}", row.prefix);
        }
    }
}

#[test]
fn row_13_nothing_happens_under_the_budget() {
    let messages = rounds(10, 640);
    assert_eq!(compact_to_budget(&messages, 100_000, &CompactToBudget::default()).0, messages);
    assert_eq!(terminal_truncate(messages.clone(), 100_000, &TerminalTruncate::default()).messages, messages);
    let conversation = conversation_of(messages);
    assert!(fold(&conversation, &options(100_000), &Ledger::default()).unwrap().is_unchanged());
}

#[test]
fn row_16_chunks_compress_a_session_without_a_model() {
    let transcript = render_transcript(&[vec![user("make it pass")], rounds(40, 960)].concat());
    let compressed = compress(&transcript, 600, &CompressOptions::default());
    assert!(compressed.after <= 600 && compressed.omitted_lines > 100 && compressed.text.contains("make it pass"));
}

#[test]
fn row_17_chunks_begin_at_errors_headings_and_turns() {
    let text = "[user]\ngo\n[result c1]\nfine\nerror: no disk\n[assistant]\n## Plan\nwords\n";
    let kinds: Vec<BoundaryKind> = chunks(text, 2048).iter().map(|chunk| chunk.boundary).collect();
    for kind in [BoundaryKind::Turn, BoundaryKind::Tool, BoundaryKind::Error, BoundaryKind::Heading] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(BoundaryKind::Error.priority() == 8 && BoundaryKind::Tool.priority() == 3);
}

#[test]
fn row_18_content_kind_is_detected_from_samples() {
    for (text, kind) in [
        ("[user]\nhi\n[assistant]\nhello\n", ContentKind::Conversation),
        ("2026-01-02T03:04:05Z starting\n2026-01-02T03:04:06Z ready\n", ContentKind::Log),
        ("fn main() {\n    call();\n}\n", ContentKind::Code),
        ("This is a sentence that has quite a few plain words in it.\n", ContentKind::Document),
    ] {
        assert_eq!(ContentKind::detect(text), kind, "{text}");
    }
}

#[test]
fn row_19_terminal_truncation_keeps_the_last_four_and_a_marker() {
    let messages = [vec![user("go")], rounds(20, 960)].concat();
    let truncation = terminal_truncate(messages.clone(), 1_500, &TerminalTruncate::default());
    assert!(truncation.fits() && truncation.messages.ends_with(&messages[messages.len() - 4..]));
    assert_eq!((truncation.messages.len(), truncation.dropped.len()), (6, 36));
}

fn chat_body(files: usize) -> String {
    let mut list = vec![serde_json::json!({ "role": "user", "content": "read them all" })];
    for at in 0..files {
        let function = serde_json::json!({ "name": "read", "arguments": format!(r#"{{"path":"{at}.rs"}}"#) });
        let call = serde_json::json!({ "id": format!("c{at}"), "type": "function", "function": function });
        list.push(serde_json::json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        let text: String = (0..40).map(|line| format!("let value_{at}_{line} = parse({line});\n")).collect();
        list.push(serde_json::json!({ "role": "tool", "tool_call_id": format!("c{at}"), "content": text }));
    }
    serde_json::json!({ "model": "gpt-4o", "messages": list }).to_string()
}

#[test]
fn rows_20_and_21_events_carry_counts_and_the_handle_of_dropped_rounds() {
    let body = chat_body(120);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let store = MemoryStore::default();
    let mut events = Vec::new();
    // The smallest budgets leave room for the newest rounds only.
    for limit in [4_000, 1_000, 800, 500] {
        let run = RefCell::new(Vec::new());
        let listener = |event| run.borrow_mut().push(event);
        apply(&request, &options(limit), &Ledger::default(), Some(&store), &listener).unwrap();
        let run = run.into_inner();
        assert!(matches!(run[0], FoldEvent::Started { budget, .. } if budget == limit), "{run:?}");
        let fits =
            |event: &FoldEvent| matches!(event, FoldEvent::Completed { sent_tokens, .. } if *sent_tokens <= limit);
        assert!(run.last().is_some_and(fits), "{run:?}");
        events.extend(run);
    }
    let has_handle = |event: &FoldEvent| matches!(event, FoldEvent::Truncated { handle: Some(_), .. });
    assert!(events.iter().any(has_handle), "{events:?}");
    for event in &events {
        let json = serde_json::to_string(event).unwrap();
        assert_eq!(serde_json::from_str::<FoldEvent>(&json).unwrap(), *event);
        if let FoldEvent::Truncated { handle, .. } = event {
            assert!(handle.is_none_or(|handle| store.get(handle).is_some()));
        }
    }
}

#[test]
fn row_21_no_handle_is_reported_without_a_store() {
    let body = chat_body(120);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let without = FoldOptions { handles: false, ..options(3_000) };
    let listener = |event| assert!(!matches!(event, FoldEvent::Truncated { handle: Some(_), .. }), "{event:?}");
    let folded = apply(&request, &without, &Ledger::default(), None, &listener).unwrap();
    assert_eq!(marker::handles(std::str::from_utf8(&folded.body).unwrap()).count(), 0);
}

#[test]
fn row_22_a_budget_that_cannot_hold_is_an_explicit_outcome() {
    let messages = vec![user(&"a task that is far too long\n".repeat(900))];
    assert!(!compact_to_budget(&messages, 100, &CompactToBudget::default()).1.fits());
    assert!(!terminal_truncate(messages.clone(), 100, &TerminalTruncate::default()).fits());
    let error = fold(&conversation_of(messages), &options(100), &Ledger::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CannotFit { budget: 100, .. }));
}

#[test]
fn row_27_projection_leaves_the_history_alone() {
    let history = rounds(20, 960);
    let before = history.clone();
    let (projected, stats) = compact_to_budget(&history, 2_000, &CompactToBudget::default());
    assert!(stats.fits() && projected != history && history == before);
}

#[test]
fn row_28_system_users_and_tail_are_protected() {
    let long = "keep this whole\n".repeat(60);
    let mut messages = vec![Message::text(Role::System, long.clone()), user(&long)];
    messages.extend(rounds(10, 960));
    messages.insert(9, user(&long));
    let (projected, _) = compact_to_budget(&messages, 1, &CompactToBudget::default());
    for at in [0, 1, 9, messages.len() - 4, messages.len() - 1] {
        assert_eq!(projected[at], messages[at], "{at}");
    }
}

#[test]
fn row_29_results_are_elided_before_prose_oldest_first() {
    let mut messages = vec![user("go"), assistant(&"old prose of the model\n".repeat(40))];
    messages.extend(rounds(8, 960));
    let (projected, _) = compact_to_budget(&messages, 2_300, &CompactToBudget::default());
    assert_eq!(projected[1], messages[1]);
    assert!(marker::is_marker(output(&projected[3])) && !marker::is_marker(output(&projected[11])));
    let (projected, _) = compact_to_budget(&messages, 1, &CompactToBudget::default());
    assert_ne!(projected[1], messages[1]);
}

#[test]
fn row_30_markers_keep_pairs_and_small_payloads_are_skipped() {
    let messages = [round("small", "sh", "ls", "ok").to_vec(), rounds(10, 960)].concat();
    let (projected, _) = compact_to_budget(&messages, 1, &CompactToBudget::default());
    assert_eq!(projected[..2], messages[..2]);
    assert!(repair_orphans(projected.clone()).1.is_empty());
    let names = |messages: &[Message<'_>]| -> Vec<String> {
        messages
            .iter()
            .flat_map(Message::calls)
            .map(|call| format!("{} {} {}", call.id, call.name, call.arguments.as_str()))
            .collect()
    };
    assert_eq!(names(&projected), names(&messages));
    assert!(output(&projected[3]).contains("960 bytes"), "{}", output(&projected[3]));
}

#[test]
fn row_31_best_effort_has_statistics() {
    let (_, stats) = compact_to_budget(&rounds(10, 960), 10, &CompactToBudget::default());
    assert!(!stats.fits() && stats.elided == 8 && stats.after < stats.before && stats.budget == 10);
    assert!(serde_json::to_string(&stats).unwrap().contains("\"elided\":8"));
}

#[test]
fn row_32_endpoint_budget_saturates() {
    assert_eq!(Budget::for_projection(8_192, None).tokens, 8_192 - 2_048 - 512);
    assert_eq!(Budget::for_projection(8_192, Some(1_000)).tokens, 8_192 - 1_000 - 512);
    assert_eq!(Budget::for_projection(1_000, Some(Tokens::MAX)).tokens, 0);
}

#[test]
fn row_33_overflow_error_lowers_the_budget_of_later_requests() {
    let body = br#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
    assert!(matches!(RequestRejection::from_body(400, body), RequestRejection::Overflow(_)));
    let mut session = FoldSession::for_model("gpt-4o", 100_000);
    session.push(user("read them all"));
    rounds(60, 960).into_iter().for_each(|message| session.push(message));
    let point = session.messages().len();
    session.ledger_mut().budgets.insert(point, 4_000);
    session.plan_request().unwrap();
    assert!(session.tokens() <= 4_000, "{}", session.tokens());
}

#[test]
fn row_34_view_is_derived_from_append_only_history() {
    let conversation = conversation_of([vec![user("read them all")], rounds(60, 960)].concat());
    let folded = fold(&conversation, &options(4_000), &Ledger::default()).unwrap();
    let before = conversation.clone();
    assert!(folded.tokens <= 4_000 && !folded.creases.is_empty() && conversation == before);
    // Every fold states which part it replaces, by which pass and stage.
    assert!(folded.fold_stats().iter().all(|fold| fold.tokens_before >= fold.tokens_after && !fold.pass.is_empty()));
    assert!(folded.messages(&conversation).len() < conversation.messages.len());
}

#[test]
fn row_35_task_and_pins_stay_and_dropped_rounds_are_listed() {
    let conversation = conversation_of([vec![user("port the parser to C")], rounds(80, 960)].concat());
    let mut options = options(4_000);
    options.pins = PinRules { targets: vec!["3.txt".into()], ..PinRules::default() };
    let folded = fold(&conversation, &options, &Ledger::default()).unwrap();
    let sent = folded.messages(&conversation);
    assert_eq!(sent[0], user("port the parser to C"));
    assert!(sent.contains(&conversation.messages[8]), "the result of 3.txt is pinned");
    assert!(
        texts(&sent, Role::User)
            .iter()
            .any(|text| text.starts_with("[folded: ") && text.contains(" rounds") && text.contains("read"))
    );
}

#[test]
fn row_36_every_handle_ever_rendered_restores_its_original() {
    let mut session = FoldSession::for_model("gpt-4o", 4_000);
    session.push(user("read them all"));
    let mut rendered: HashMap<Handle, usize> = HashMap::new();
    for [call, result] in (0..90).map(|at| {
        let text: String = (0..30).map(|line| format!("value_{at}_{line} = parse({line})\n")).collect();
        round(&format!("c{at}"), "read", &format!("{at}.rs"), &text)
    }) {
        session.push(call);
        session.push(result);
        session.plan_request().unwrap();
        let sent: Vec<Message<'_>> = session.rendered_messages(0).collect();
        let json = serde_json::to_string(&sent).unwrap();
        marker::handles(&json).for_each(|handle| *rendered.entry(handle).or_default() += 1);
    }
    assert!(rendered.len() > 10, "{}", rendered.len());
    let last = serde_json::to_string(&session.rendered_messages(0).collect::<Vec<_>>()).unwrap();
    assert!(rendered.keys().any(|handle| !last.contains(handle.as_str())), "some handles have left the rendering");
    for handle in rendered.keys() {
        let original = session.unfold(*handle).unwrap_or_else(|| panic!("{handle} is unknown"));
        assert_eq!(Handle::for_content(&original), *handle);
    }
    assert_eq!(session.unfold(Handle::for_content(b"never rendered")), None);
}
