//! What went wrong elsewhere, one test each: the fold falls into none of these.
//!
//! Those of single rooms stand there: pairs and item kinds in `laws`, counting in `measure`, prose in `pass::prose`,
//! plain functions over messages in `classic`. Here stand those of the fold as a whole.

use crate::conversation::{Arguments, Conversation, Image, Message, Part, Role, Source};
use crate::laws::{Profile, check_conversation};
use crate::wire::Format;
use crate::{
    Crease, Folder, Ledger, Meter, ModelTable, Policy, Prices, Reason, Setup, Thoughts, Tokens, content, fold, marker,
};

fn setup(budget: Tokens) -> Setup {
    let table = ModelTable::builtin();
    let prices = Prices::for_model(table, Some("claude-opus-4-6"));
    Setup { handles: true, ..Setup::new(Meter::by_bytes(), prices, budget) }
}

fn source(seed: usize, lines: usize) -> String {
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
    [call(&id, "read_file", &format!(r#"{{"path":"src/file_{at}.rs"}}"#)), result(&id, &source(at, lines))]
}

/// A task, and rounds of reading.
fn session(rounds: usize, lines: usize) -> Vec<Message<'static>> {
    let mut messages = vec![Message::text(Role::System, "You are careful."), user("Make the parser faster.")];
    messages.extend((0..rounds).flat_map(|at| read(at, lines)));
    messages
}

fn of(messages: Vec<Message<'static>>) -> Conversation<'static> {
    Conversation { messages, ..Conversation::default() }
}

fn sent(messages: Vec<Message<'static>>, setup: &Setup) -> Vec<Message<'static>> {
    let conversation = of(messages);
    let folded = fold(&conversation, setup, &Ledger::default()).unwrap();
    assert!(folded.tokens <= setup.budget);
    folded.messages(&conversation)
}

fn result_text<'m>(messages: &'m [Message<'_>], id: &str) -> &'m str {
    let mut results = messages.iter().flat_map(Message::results);
    results.find(|it| it.call_id == id).and_then(|it| it.only_text()).unwrap_or_else(|| panic!("no result {id}"))
}

fn all_text(messages: &[Message<'_>]) -> String {
    let mut all = String::new();
    for message in messages {
        crate::lexicon::each_text(message, 0, |_, text| {
            all.push_str(text);
            all.push('\n');
        });
    }
    all
}

// Cutting

#[test]
fn a_marker_never_changes_from_step_to_step() {
    let mut folder = Folder::new(setup(6_000));
    let mut markers: Vec<String> = Vec::new();
    for message in session(60, 30) {
        let creased = message.is_assistant() && folder.request().unwrap().is_some();
        let now: Vec<String> = all_text(&folder.rendered(0).collect::<Vec<_>>())
            .lines()
            .filter(|line| marker::is_marker(line))
            .map(str::to_owned)
            .collect();
        assert!(creased || now.starts_with(&markers));
        markers = now;
        folder.push(message);
    }
    assert!(!markers.is_empty());
}

#[test]
fn twenty_parallel_results_at_the_end_stay() {
    let mut messages = session(30, 60);
    let calls = (0..20).map(|at| Part::call(format!("p{at}"), "read_file", format!(r#"{{"path":"p{at}.rs"}}"#)));
    messages.push(Message::new(Role::Assistant, calls.collect()));
    messages.extend((0..20).map(|at| result(&format!("p{at}"), &source(100 + at, 20))));
    let sent = sent(messages, &setup(24_000));
    for at in 0..20 {
        assert_eq!(result_text(&sent, &format!("p{at}")), source(100 + at, 20));
    }
}

#[test]
fn an_unanswered_call_at_the_boundary_swallows_no_word_of_the_user() {
    let mut messages = session(20, 60);
    messages.push(call("lost", "bash", r#"{"command":"sleep 100"}"#));
    messages.push(user("Never mind, and look at the README."));
    messages.extend((30..50).flat_map(|at| read(at, 60)));
    let sent = sent(messages, &setup(8_000));
    assert!(sent.contains(&user("Never mind, and look at the README.")));
}

#[test]
fn words_of_users_in_the_middle_stay_verbatim() {
    let mut messages = session(20, 60);
    messages.push(user("Also keep the public API as it is."));
    messages.extend((20..60).flat_map(|at| read(at, 60)));
    let sent = sent(messages, &setup(8_000));
    assert!(
        sent.contains(&user("Make the parser faster.")) && sent.contains(&user("Also keep the public API as it is."))
    );
}

#[test]
fn tokens_decide_and_not_counts_of_messages() {
    let few = sent([session(0, 0), read(0, 4_000).to_vec(), read(1, 10).to_vec()].concat(), &setup(8_000));
    assert!(marker::handles(result_text(&few, "c0")).next().is_some());
    let many = session(200, 1);
    assert_eq!(sent(many.clone(), &setup(200_000)), many);
}

#[test]
fn the_task_may_stand_anywhere() {
    let mut messages: Vec<_> = (0..12).map(|at| Message::text(Role::System, format!("rule {at}"))).collect();
    messages.push(user("The goal stands here."));
    messages.extend((0..60).flat_map(|at| read(at, 60)));
    let sent = sent(messages.clone(), &setup(8_000));
    assert_eq!(sent[..13], messages[..13]);
}

// Results

#[test]
fn quoting_a_marker_exempts_nothing() {
    let quoted = format!("[folded: 3 lines of x; unfold 000000000000]\n{}", source(0, 400));
    let mut messages = session(0, 0);
    messages.extend([call("q", "bash", r#"{"command":"cat log"}"#), result("q", &quoted)]);
    messages.extend((0..40).flat_map(|at| read(at, 60)));
    let sent = sent(messages, &setup(8_000));
    assert!(!all_text(&sent).contains("value_0_200 "));
}

#[test]
fn what_is_kept_of_a_result_are_whole_lines_and_json_stays_json() {
    let json = serde_json::json!({ "files": (0..300).map(|at| format!("src/deep/file_{at}.rs")).collect::<Vec<_>>() });
    let mut messages = session(0, 0);
    messages.extend([call("j", "api", "{}"), result("j", &json.to_string())]);
    messages.extend((0..40).flat_map(|at| read(at, 60)));
    let originals: std::collections::HashSet<String> = all_text(&messages).lines().map(str::to_owned).collect();
    let sent = sent(messages, &setup(30_000));
    for text in sent.iter().flat_map(Message::results).filter_map(|it| it.only_text()) {
        if content::kind(text) != content::Kind::Json {
            assert!(text.lines().all(|line| marker::is_marker(line) || originals.contains(line)), "{text}");
        }
    }
    let folded = result_text(&sent, "j");
    assert!(marker::is_marker(folded) || serde_json::from_str::<serde_json::Value>(folded).is_ok(), "{folded}");
}

#[test]
fn a_failure_is_never_shortened_before_a_success() {
    let mut log: String = (0..200).map(|at| format!("test case_{at} ... ok\n")).collect();
    log.insert_str(log.find("test case_100 ").unwrap(), "test parser_is_fast ... FAILED\n");
    let failed = format!("Exit code 101\n{log}test result: FAILED. 200 passed; 1 failed\n");
    let mut messages = session(1, 60);
    messages.extend([call("f", "bash", r#"{"command":"cargo test"}"#), result("f", &failed)]);
    messages.extend((10..60).flat_map(|at| read(at, 60)));
    for budget in [12_000, 20_000, 40_000] {
        let sent = sent(messages.clone(), &setup(budget));
        let Some(text) =
            sent.iter().flat_map(Message::results).find(|it| it.call_id == "f").and_then(|it| it.only_text())
        else {
            assert!(all_text(&sent).contains("cargo test, failed]"), "{budget}: the failure is told");
            continue;
        };
        let shortened = |id: &str| {
            sent.iter()
                .flat_map(Message::results)
                .any(|it| it.call_id == id && it.only_text().is_some_and(|text| text.contains("[folded: ")))
        };
        assert!(text == failed || shortened("c0"), "{budget}: the failure went first");
        assert!(text.contains("parser_is_fast ... FAILED"), "{budget}: {text}");
    }
}

#[test]
fn no_reference_dangles_when_the_first_copy_is_folded() {
    let mut messages = session(2, 60);
    messages.extend([call("again", "read_file", r#"{"path":"src/file_0.rs"}"#), result("again", &source(0, 60))]);
    messages.extend((10..80).flat_map(|at| read(at, 60)));
    let sent = sent(messages, &setup(16_000));
    for id in ["c0", "again"] {
        let mut results = sent.iter().flat_map(Message::results);
        if let Some(text) = results.find(|it| it.call_id == id).and_then(|it| it.only_text()) {
            let handle = crate::Handle::of(source(0, 60).as_bytes());
            assert!(text == source(0, 60) || marker::handles(text).eq([handle]), "{text}");
        }
    }
}

#[test]
fn what_stands_above_is_told_and_not_sent_again() {
    let mut messages = session(2, 60);
    messages.extend([call("again", "read_file", r#"{"path":"src/file_1.rs"}"#), result("again", &source(1, 60))]);
    let sent = sent(messages, &setup(100_000));
    assert_eq!(result_text(&sent, "c1"), source(1, 60));
    assert!(marker::is_marker(result_text(&sent, "again")));
}

#[test]
fn repeated_lines_are_found_where_no_text_repeats_whole() {
    let mut messages = session(0, 0);
    let all = source(7, 200);
    let lines: Vec<&str> = all.lines().collect();
    for at in 0..12 {
        let window = lines[at * 8..at * 8 + 90].join("\n");
        let arguments = format!(r#"{{"path":"a.rs","offset":{at}}}"#);
        messages.extend([call(&format!("w{at}"), "view", &arguments), result(&format!("w{at}"), &window)]);
    }
    let raw: Tokens = messages.iter().map(|message| setup(0).meter.message(message)).sum();
    let lossless = Setup { policy: Policy { high: 0.5, ..Policy::lossless() }, ..setup(raw) };
    let conversation = of(messages);
    let folded = fold(&conversation, &lossless, &Ledger::default()).unwrap();
    assert!(folded.tokens * 3 < raw * 2, "{} of {raw}", folded.tokens);
    let sent = all_text(&folded.messages(&conversation));
    assert!(lines[..178].iter().all(|line| sent.contains(line)), "each line stands somewhere");
}

// Arguments, reasoning

#[test]
fn shortened_arguments_are_json_with_the_keys_they_had() {
    let mut messages = session(0, 0);
    for at in 0..30 {
        let content = source(at, 60);
        let arguments = serde_json::json!({ "path": format!("src/{at}.rs"), "content": content, "mode": 420 });
        messages
            .extend([call(&format!("c{at}"), "write_file", &arguments.to_string()), result(&format!("c{at}"), "ok")]);
    }
    let sent = sent(messages, &setup(16_000));
    let mut shortened = 0;
    for call in sent.iter().flat_map(Message::calls) {
        let Arguments::Json(text) = &call.arguments else { panic!("no JSON") };
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["content", "mode", "path"]);
        shortened += usize::from(text.contains("[folded: "));
    }
    assert!(shortened > 0);
}

#[test]
fn reasoning_is_kept_whole_or_dropped_whole_and_never_from_a_call_in_flight() {
    let thought = |at: usize| Part::reasoning(format!("I think that step {at} is next. {}", "Hm. ".repeat(60)));
    let mut messages = session(0, 0);
    for at in 0..40 {
        let [call, result] = read(at, 30);
        messages.push(Message::new(Role::Assistant, [vec![thought(at)], call.parts].concat()));
        messages.push(result);
    }
    let sent = sent(messages, &Setup { thoughts: Thoughts::AnyOld, ..setup(12_000) });
    let thoughts: Vec<&Part<'_>> =
        sent.iter().flat_map(|message| &message.parts).filter(|part| matches!(part, Part::Reasoning(_))).collect();
    assert!(thoughts.iter().all(|part| (0..40).any(|at| **part == thought(at))));
    assert!(thoughts.len() < 40 && thoughts.contains(&&thought(39)));
}

#[test]
fn savings_too_small_for_their_price_break_no_prefix() {
    let mut folder = Folder::new(setup(500_000));
    let mut creases = 0;
    for message in session(150, 3) {
        creases += usize::from(message.is_assistant() && folder.request().unwrap().is_some());
        folder.push(message);
    }
    assert!(creases < 12, "{creases} creases in 150 rounds");
}

#[test]
fn a_forced_crease_frees_a_quarter_so_that_the_next_is_far() {
    for budget in [12_000, 30_000, 60_000] {
        let mut folder = Folder::new(Setup { policy: Policy::balanced(), ..setup(budget) });
        let mut forced: Vec<(usize, Tokens)> = Vec::new();
        for (at, message) in session(200, 40).into_iter().enumerate() {
            let creased: Option<Crease> = message.is_assistant().then(|| folder.request().unwrap().cloned()).flatten();
            if creased.is_some_and(|crease| crease.reason == Reason::Must) {
                forced.push((at, folder.tokens()));
            }
            folder.push(message);
        }
        assert!(forced.iter().all(|(_, tokens)| tokens * 4 <= budget * 3), "{budget}: {forced:?}");
        assert!(forced.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 6), "{budget}: {forced:?}");
    }
}

// In the wild

#[test]
fn three_windows_of_history_make_a_valid_request_without_any_model() {
    let sent = sent(session(120, 60), &setup(30_000));
    assert_eq!(check_conversation(&of(sent), &Profile::of(Format::OpenAiChat, None)), []);
}

#[test]
fn finished_work_stays_finished() {
    let mut messages = session(0, 0);
    for at in 0..80 {
        let arguments = format!(r#"{{"command":"git commit -m step_{at}"}}"#);
        messages.extend([call(&format!("c{at}"), "bash", &arguments), result(&format!("c{at}"), &source(at, 40))]);
    }
    let text = all_text(&sent(messages, &setup(5_000)));
    let told = (0..80).filter(|at| text.contains(&format!("step_{at}"))).count();
    assert!(told == 80 || text.contains("80 bash") || text.contains(" bash"), "{text}");
    assert!(!text.contains("pending"));
}

#[test]
fn instructions_and_rules_stay_to_the_letter() {
    let mut messages = session(60, 60);
    messages.insert(1, Message::text(Role::System, "Never push to main.\n\n\n...\n  Rule 2"));
    let sent = sent(messages.clone(), &setup(6_000));
    assert_eq!(sent[..3], messages[..3]);
}

#[test]
fn images_are_counted_by_their_pixels_and_not_as_text() {
    let data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = |data: String| Part::Image(Image { source: Source::Base64(data.into()), detail: None });
    let padded = format!("{data}{}", "A".repeat(400_000));
    let meter = Meter::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
    let (small, large) = (meter.part(&image(data.to_owned())), meter.part(&image(padded)));
    assert!(small > 0 && large < 10_000, "{small} {large}");
}

#[test]
fn an_id_that_every_turn_uses_again_is_no_trouble() {
    let mut messages = session(0, 0);
    for at in 0..60 {
        messages.push(call("c0", "read_file", &format!(r#"{{"path":"src/file_{at}.rs"}}"#)));
        messages.push(result("c0", &source(at, 60)));
    }
    let before = check_conversation(&of(messages.clone()), &Profile::of(Format::OpenAiChat, None)).len();
    let sent = sent(messages, &setup(8_000));
    assert!(check_conversation(&of(sent), &Profile::of(Format::OpenAiChat, None)).len() <= before);
}
