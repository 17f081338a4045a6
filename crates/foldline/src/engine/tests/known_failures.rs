//! Known failures of other compactors, one test each.
//!
//! Failures of single modules are tested there: pairing in `laws`, counting in `tokens`, prose in `engine::passes::prose`,
//! functions over messages in `strategies`. This file tests the fold as a whole.

use crate::conversation::{CallArguments, Conversation, ImagePart, MediaSource, Message, Part, Role};
use crate::engine::{Crease, ReasoningRetention, Trigger, marker, text_kind};
use crate::laws::{LawProfile, RewriteContext, check_conversation, compare};
use crate::tokens::Tokens;
use crate::wire::{Format, Request};
use crate::{FoldOptions, FoldSession, Ledger, MemoryStore, Meter, ModelTable, Policy, Prices, apply, fold};

fn options(budget: Tokens) -> FoldOptions {
    let table = ModelTable::builtin();
    let prices = Prices::for_model(table, Some("claude-opus-4-6"));
    FoldOptions { handles: true, ..FoldOptions::new(Meter::for_byte_estimate(), prices, budget) }
}

fn source_text(seed: usize, lines: usize) -> String {
    (0..lines).map(|at| format!("    let value_{seed}_{at} = compute_{at}(input_{seed}, {at});\n")).collect()
}

fn user(text: &str) -> Message<'static> {
    Message::text(Role::User, text.to_owned())
}

fn call(id: &str, tool: &str, arguments: &str) -> Message<'static> {
    Message::new(Role::Assistant, vec![Part::call(id.to_owned(), tool.to_owned(), arguments.to_owned())])
}

fn result(id: &str, text: &str) -> Message<'static> {
    Message::new(Role::Tool, vec![Part::result(id.to_owned(), text.to_owned())])
}

fn read(at: usize, lines: usize) -> [Message<'static>; 2] {
    let id = format!("c{at}");
    [call(&id, "read_file", &format!(r#"{{"path":"src/file_{at}.rs"}}"#)), result(&id, &source_text(at, lines))]
}

/// Returns a task and rounds of file reads.
fn session(rounds: usize, lines: usize) -> Vec<Message<'static>> {
    let mut messages = vec![Message::text(Role::System, "You are careful."), user("Make the parser faster.")];
    messages.extend((0..rounds).flat_map(|at| read(at, lines)));
    messages
}

fn conversation_of(messages: Vec<Message<'static>>) -> Conversation<'static> {
    Conversation { messages, ..Conversation::default() }
}

fn fold_messages(messages: Vec<Message<'static>>, options: &FoldOptions) -> Vec<Message<'static>> {
    let conversation = conversation_of(messages);
    let folded = fold(&conversation, options, &Ledger::default()).unwrap();
    assert!(folded.tokens <= options.budget);
    folded.messages(&conversation)
}

fn result_text<'m>(messages: &'m [Message<'_>], id: &str) -> &'m str {
    let mut results = messages.iter().flat_map(Message::results);
    let text = results.find(|result| result.call_id == id).and_then(|result| result.only_text());
    text.unwrap_or_else(|| panic!("no result {id}"))
}

fn all_text(messages: &[Message<'_>]) -> String {
    let mut all = String::new();
    for message in messages {
        crate::engine::identifiers::index::for_each_text(message, 0, |_, text| {
            all.push_str(text);
            all.push('\n');
        });
    }
    all
}

// Text that was never sent

/// A file with the line ends of old systems is read, and a build shows its progress; everything fits. An edit quotes the
/// file, so only the progress is reduced to what a terminal shows.
#[test]
fn file_with_carriage_returns_is_whole() {
    let file: String = (0..80).map(|at| format!("let value_{at} = compute_{at}(input);\r")).collect();
    let colors: String = (0..80).map(|at| format!("print(\"\u{1b}[1;3{at}mvalue {at}\u{1b}[0m\")\n")).collect();
    let progress: String = (0..80).map(|at| format!("\rCompiling {at} of 80 crates")).collect();
    let messages = vec![
        user("Make it faster."),
        call("a", "read_file", r#"{"path":"src/old.pas"}"#),
        result("a", &file),
        call("b", "read_file", r#"{"path":"src/colors.py"}"#),
        result("b", &colors),
        call("c", "bash", r#"{"command":"cargo build"}"#),
        result("c", &progress),
    ];
    let sent = fold_messages(messages, &options(100_000));
    assert_eq!(result_text(&sent, "a"), file);
    assert_eq!(result_text(&sent, "b"), colors);
    assert!(result_text(&sent, "c").ends_with("Compiling 79 of 80 crates"));
    assert!(!result_text(&sent, "c").contains("Compiling 78"));
}

// Cutting

#[test]
fn marker_is_stable_across_steps() {
    let mut fold_session = FoldSession::new(options(6_000));
    let mut markers: Vec<String> = Vec::new();
    for message in session(60, 30) {
        let creased = message.is_assistant() && fold_session.plan_request().unwrap().is_some();
        let now: Vec<String> = all_text(&fold_session.rendered_messages(0).collect::<Vec<_>>())
            .lines()
            .filter(|line| marker::is_marker(line))
            .map(str::to_owned)
            .collect();
        assert!(creased || now.starts_with(&markers));
        markers = now;
        fold_session.push(message);
    }
    assert!(!markers.is_empty());
}

#[test]
fn parallel_results_at_the_end_are_kept() {
    let mut messages = session(30, 60);
    let calls = (0..20).map(|at| Part::call(format!("p{at}"), "read_file", format!(r#"{{"path":"p{at}.rs"}}"#)));
    messages.push(Message::new(Role::Assistant, calls.collect()));
    messages.extend((0..20).map(|at| result(&format!("p{at}"), &source_text(100 + at, 20))));
    let sent = fold_messages(messages, &options(24_000));
    for at in 0..20 {
        assert_eq!(result_text(&sent, &format!("p{at}")), source_text(100 + at, 20));
    }
}

#[test]
fn unanswered_call_at_the_boundary_drops_no_user_message() {
    let mut messages = session(20, 60);
    messages.push(call("lost", "bash", r#"{"command":"sleep 100"}"#));
    messages.push(user("Never mind, and look at the README."));
    messages.extend((30..50).flat_map(|at| read(at, 60)));
    let sent = fold_messages(messages, &options(8_000));
    assert!(sent.contains(&user("Never mind, and look at the README.")));
}

#[test]
fn user_messages_in_the_middle_are_kept_verbatim() {
    let mut messages = session(20, 60);
    messages.push(user("Also keep the public API as it is."));
    messages.extend((20..60).flat_map(|at| read(at, 60)));
    let sent = fold_messages(messages, &options(8_000));
    assert!(
        sent.contains(&user("Make the parser faster.")) && sent.contains(&user("Also keep the public API as it is."))
    );
}

#[test]
fn token_count_decides_not_message_count() {
    let few = fold_messages([session(0, 0), read(0, 4_000).to_vec(), read(1, 10).to_vec()].concat(), &options(8_000));
    assert!(marker::handles(result_text(&few, "c0")).next().is_some());
    let many = session(200, 1);
    assert_eq!(fold_messages(many.clone(), &options(200_000)), many);
}

#[test]
fn task_may_be_at_any_position() {
    let mut messages: Vec<_> = (0..12).map(|at| Message::text(Role::System, format!("rule {at}"))).collect();
    messages.push(user("This is the task."));
    messages.extend((0..60).flat_map(|at| read(at, 60)));
    let sent = fold_messages(messages.clone(), &options(8_000));
    assert_eq!(sent[..13], messages[..13]);
}

// Results

#[test]
fn quoting_a_marker_exempts_nothing() {
    let quoted = format!("[folded: 3 lines of x; unfold 000000000000]\n{}", source_text(0, 400));
    let mut messages = session(0, 0);
    messages.extend([call("q", "bash", r#"{"command":"cat log"}"#), result("q", &quoted)]);
    messages.extend((0..40).flat_map(|at| read(at, 60)));
    let sent = fold_messages(messages, &options(8_000));
    assert!(!all_text(&sent).contains("value_0_200 "));
}

#[test]
fn kept_result_lines_are_whole_and_json_is_valid() {
    let json = serde_json::json!({ "files": (0..300).map(|at| format!("src/deep/file_{at}.rs")).collect::<Vec<_>>() });
    let mut messages = session(0, 0);
    messages.extend([call("j", "api", "{}"), result("j", &json.to_string())]);
    messages.extend((0..40).flat_map(|at| read(at, 60)));
    let originals: std::collections::HashSet<String> = all_text(&messages).lines().map(str::to_owned).collect();
    let sent = fold_messages(messages, &options(30_000));
    for text in sent.iter().flat_map(Message::results).filter_map(|result| result.only_text()) {
        if text_kind::detect_kind(text) != text_kind::TextKind::Json {
            assert!(text.lines().all(|line| marker::is_marker(line) || originals.contains(line)), "{text}");
        }
    }
    let folded = result_text(&sent, "j");
    assert!(marker::is_marker(folded) || serde_json::from_str::<serde_json::Value>(folded).is_ok(), "{folded}");
}

#[test]
fn failure_is_not_shortened_before_a_success() {
    let mut log: String = (0..200).map(|at| format!("test case_{at} ... ok\n")).collect();
    log.insert_str(log.find("test case_100 ").unwrap(), "test parser_is_fast ... FAILED\n");
    let failed = format!("Exit code 101\n{log}test result: FAILED. 200 passed; 1 failed\n");
    let mut messages = session(1, 60);
    messages.extend([call("f", "bash", r#"{"command":"cargo test"}"#), result("f", &failed)]);
    messages.extend((10..60).flat_map(|at| read(at, 60)));
    for budget in [12_000, 20_000, 40_000] {
        let sent = fold_messages(messages.clone(), &options(budget));
        let failure = sent.iter().flat_map(Message::results).find(|result| result.call_id == "f");
        let Some(text) = failure.and_then(|result| result.only_text()) else {
            assert!(all_text(&sent).contains("cargo test, failed"), "{budget}: the failure is listed");
            continue;
        };
        let shortened = |id: &str| {
            sent.iter()
                .flat_map(Message::results)
                .any(|result| result.call_id == id && result.only_text().is_some_and(|text| text.contains("[folded: ")))
        };
        assert!(text == failed || shortened("c0"), "{budget}: the failure was shortened first");
        assert!(text.contains("parser_is_fast ... FAILED"), "{budget}: {text}");
    }
}

#[test]
fn no_reference_dangles_when_the_first_copy_is_folded() {
    let mut messages = session(2, 60);
    messages.extend([call("again", "read_file", r#"{"path":"src/file_0.rs"}"#), result("again", &source_text(0, 60))]);
    messages.extend((10..80).flat_map(|at| read(at, 60)));
    let sent = fold_messages(messages, &options(16_000));
    for id in ["c0", "again"] {
        let mut results = sent.iter().flat_map(Message::results);
        if let Some(text) = results.find(|result| result.call_id == id).and_then(|result| result.only_text()) {
            let handle = crate::Handle::for_content(source_text(0, 60).as_bytes());
            assert!(text == source_text(0, 60) || marker::handles(text).eq([handle]), "{text}");
        }
    }
}

#[test]
fn repeated_result_is_not_sent_again() {
    let mut messages = session(2, 60);
    messages.extend([call("again", "read_file", r#"{"path":"src/file_1.rs"}"#), result("again", &source_text(1, 60))]);
    let sent = fold_messages(messages, &options(100_000));
    assert_eq!(result_text(&sent, "c1"), source_text(1, 60));
    assert!(marker::is_marker(result_text(&sent, "again")));
}

#[test]
fn repeated_lines_are_found_in_partial_overlaps() {
    let mut messages = session(0, 0);
    let all = source_text(7, 200);
    let lines: Vec<&str> = all.lines().collect();
    for at in 0..12 {
        let window = lines[at * 8..at * 8 + 90].join("\n");
        let arguments = format!(r#"{{"path":"a.rs","offset":{at}}}"#);
        messages.extend([call(&format!("w{at}"), "view", &arguments), result(&format!("w{at}"), &window)]);
    }
    let raw: Tokens = messages.iter().map(|message| options(0).meter.message(message)).sum();
    let lossless = FoldOptions { policy: Policy { trigger_ratio: 0.5, ..Policy::lossless() }, ..options(raw) };
    let conversation = conversation_of(messages);
    let folded = fold(&conversation, &lossless, &Ledger::default()).unwrap();
    assert!(folded.tokens * 3 < raw * 2, "{} of {raw}", folded.tokens);
    let sent = all_text(&folded.messages(&conversation));
    assert!(lines[..178].iter().all(|line| sent.contains(line)), "each line occurs somewhere");
}

// Arguments, reasoning

#[test]
fn shortened_arguments_keep_their_json_keys() {
    let mut messages = session(0, 0);
    for at in 0..30 {
        let content = source_text(at, 60);
        let arguments = serde_json::json!({ "path": format!("src/{at}.rs"), "content": content, "mode": 420 });
        messages
            .extend([call(&format!("c{at}"), "write_file", &arguments.to_string()), result(&format!("c{at}"), "ok")]);
    }
    let sent = fold_messages(messages, &options(16_000));
    let mut shortened = 0;
    for call in sent.iter().flat_map(Message::calls) {
        let CallArguments::Json(text) = &call.arguments else { panic!("not JSON") };
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["content", "mode", "path"]);
        shortened += usize::from(text.contains("[folded: "));
    }
    assert!(shortened > 0);
}

/// Some clients record a turn that was cut off as reasoning with an empty text or none. Nothing would be left of it without
/// its reasoning.
#[test]
fn reasoning_of_a_message_without_text_does_not_stop_folding() {
    for content in [r#""content":"","#, r#""content":" ","#, r#""content":null,"#, ""] {
        let thought = format!(r#""reasoning_content":"The parser is next. {}""#, "Hm. ".repeat(60));
        let mut messages = vec![
            r#"{"role":"user","content":"Make the parser faster."}"#.to_owned(),
            format!(r#"{{"role":"assistant",{content}{thought}}}"#),
            r#"{"role":"user","content":"Go on."}"#.to_owned(),
        ];
        for at in 0..12 {
            messages.push(format!(
                r#"{{"role":"assistant","content":"",{thought},"tool_calls":[{{"id":"c{at}","type":"function","function":{{"name":"read_file","arguments":"{{}}"}}}}]}}"#
            ));
            let text = serde_json::to_string(&source_text(at, 60)).unwrap();
            messages.push(format!(r#"{{"role":"tool","tool_call_id":"c{at}","content":{text}}}"#));
        }
        let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","));
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        let profile = LawProfile::for_request(&request);
        let options = options(8_000).with_rules(&profile);
        let store = MemoryStore::default();
        let folded = apply(&request, &options, &Ledger::default(), Some(&store), &|_| ());
        let folded = folded.unwrap_or_else(|error| panic!("{content}: {error}"));
        assert!(folded.tokens <= 8_000);
        let rewritten = Request::parse(Format::OpenAiChat, &folded.body).unwrap();
        assert_eq!(compare(&request, &rewritten, &RewriteContext::new(&profile)), [], "{content}");
        let kept = String::from_utf8(folded.body.to_vec()).unwrap().matches("reasoning_content").count();
        assert!((1..12).contains(&kept), "{kept}");
    }
}

#[test]
fn reasoning_is_kept_or_dropped_as_a_whole() {
    let thought = |at: usize| Part::reasoning(format!("I think that step {at} is next. {}", "Hm. ".repeat(60)));
    let mut messages = session(0, 0);
    for at in 0..40 {
        let [call, result] = read(at, 30);
        messages.push(Message::new(Role::Assistant, [vec![thought(at)], call.parts].concat()));
        messages.push(result);
    }
    let sent =
        fold_messages(messages, &FoldOptions { reasoning_retention: ReasoningRetention::DropOld, ..options(12_000) });
    let thoughts: Vec<&Part<'_>> =
        sent.iter().flat_map(|message| &message.parts).filter(|part| matches!(part, Part::Reasoning(_))).collect();
    assert!(thoughts.iter().all(|part| (0..40).any(|at| **part == thought(at))));
    assert!(thoughts.len() < 40 && thoughts.contains(&&thought(39)));
}

#[test]
fn unprofitable_savings_break_no_prefix() {
    let mut fold_session = FoldSession::new(options(500_000));
    let mut creases = 0;
    for message in session(150, 3) {
        creases += usize::from(message.is_assistant() && fold_session.plan_request().unwrap().is_some());
        fold_session.push(message);
    }
    assert!(creases < 12, "{creases} creases in 150 rounds");
}

#[test]
fn forced_crease_frees_a_quarter_of_the_budget() {
    for budget in [12_000, 30_000, 60_000] {
        let mut fold_session = FoldSession::new(FoldOptions { policy: Policy::balanced(), ..options(budget) });
        let mut forced: Vec<(usize, Tokens)> = Vec::new();
        for (at, message) in session(200, 40).into_iter().enumerate() {
            let creased: Option<Crease> =
                message.is_assistant().then(|| fold_session.plan_request().unwrap().cloned()).flatten();
            if creased.is_some_and(|crease| crease.trigger == Trigger::OverBudget) {
                forced.push((at, fold_session.tokens()));
            }
            fold_session.push(message);
        }
        assert!(forced.iter().all(|(_, tokens)| tokens * 4 <= budget * 3), "{budget}: {forced:?}");
        assert!(forced.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 6), "{budget}: {forced:?}");
    }
}

// Whole sessions

#[test]
fn three_windows_of_history_give_a_valid_request() {
    let sent = fold_messages(session(120, 60), &options(30_000));
    assert_eq!(check_conversation(&conversation_of(sent), &LawProfile::for_model(Format::OpenAiChat, None)), []);
}

#[test]
fn completed_work_stays_listed() {
    let mut messages = session(0, 0);
    for at in 0..80 {
        let arguments = format!(r#"{{"command":"git commit -m step_{at}"}}"#);
        messages.extend([call(&format!("c{at}"), "bash", &arguments), result(&format!("c{at}"), &source_text(at, 40))]);
    }
    let text = all_text(&fold_messages(messages, &options(5_000)));
    let listed = (0..80).filter(|at| text.contains(&format!("step_{at}"))).count();
    assert!(listed == 80 || text.contains("80 bash") || text.contains(" bash"), "{text}");
    assert!(!text.contains("pending"));
}

#[test]
fn instructions_are_kept_verbatim() {
    let mut messages = session(60, 60);
    messages.insert(1, Message::text(Role::System, "Never push to main.\n\n\n...\n  Rule 2"));
    let sent = fold_messages(messages.clone(), &options(6_000));
    assert_eq!(sent[..3], messages[..3]);
}

#[test]
fn images_are_counted_by_pixels() {
    let data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = |data: String| Part::Image(ImagePart { source: MediaSource::Base64(data.into()), detail: None });
    let padded = format!("{data}{}", "A".repeat(400_000));
    let meter = Meter::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
    let (small, large) = (meter.part(&image(data.to_owned())), meter.part(&image(padded)));
    assert!(small > 0 && large < 10_000, "{small} {large}");
}

#[test]
fn reused_call_ids_are_harmless() {
    let mut messages = session(0, 0);
    for at in 0..60 {
        messages.push(call("c0", "read_file", &format!(r#"{{"path":"src/file_{at}.rs"}}"#)));
        messages.push(result("c0", &source_text(at, 60)));
    }
    let before =
        check_conversation(&conversation_of(messages.clone()), &LawProfile::for_model(Format::OpenAiChat, None)).len();
    let sent = fold_messages(messages, &options(8_000));
    assert!(
        check_conversation(&conversation_of(sent), &LawProfile::for_model(Format::OpenAiChat, None)).len() <= before
    );
}

// Dropped rounds

/// A note of dropped rounds once had one handle for 22 reads and no file names.
#[test]
fn dropped_rounds_name_target_outcome_and_result_handles() {
    let mut session = FoldSession::new(options(6_000));
    let mut messages = vec![user("Make the parser faster.")];
    messages.extend((0..60).flat_map(|at| read(at, 30)));
    for message in messages {
        if message.is_assistant() {
            session.plan_request().unwrap();
        }
        session.push(message);
    }
    session.plan_request().unwrap();
    let sent: Vec<Message<'_>> = session.rendered_messages(0).collect();
    let texts: Vec<&str> = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text).collect();
    let note = texts.iter().find(|text| text.contains(" rounds")).expect("rounds were dropped");
    let lines: Vec<&str> = note.lines().skip(1).collect();
    assert!(lines.len() >= 20, "{note}");
    for line in &lines {
        assert!(line.starts_with("[folded: read_file src/file_") && line.contains(".rs, ok"), "{line}");
    }
    let with_handle: Vec<&&str> = lines.iter().filter(|line| marker::handles(line).next().is_some()).collect();
    assert!(with_handle.len() * 2 > lines.len(), "{note}");
    for line in with_handle {
        let handle = marker::handles(line).next().unwrap();
        let file: usize = line.split("file_").nth(1).and_then(|rest| rest.split('.').next()).unwrap().parse().unwrap();
        assert_eq!(session.unfold(handle), Some(source_text(file, 30).into_bytes()), "{line}");
    }
}
