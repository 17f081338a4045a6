//! Regression tests of dropped messages.

use crate::conversation::Role;
use crate::strategies::tests::support::*;
use crate::strategies::tests::{assistant, round, rounds, texts, user};
use crate::strategies::*;

#[test]
fn trim_marker_lasts_for_four_messages() {
    let mut history = vec![user("go")];
    history.extend(rounds(40, 320));
    let mut sent: Vec<Message<'_>> = Vec::new();
    let mut broken = 0;
    for length in 22..history.len() {
        let (now, _) = trim_middle(history[..length].to_vec(), &TrimMiddle::default());
        broken += usize::from(!now.starts_with(&sent));
        sent = now;
    }
    assert!((10..=16).contains(&broken), "{broken} of {}", history.len() - 22);
}

#[test]
fn trimming_in_place_equals_trimming_the_whole() {
    let mut whole = vec![user("go")];
    whole.extend(rounds(30, 320));
    whole.insert(7, user("and mind this"));
    let mut in_place = Vec::new();
    for message in &whole {
        in_place.push(message.clone());
        (in_place, _) = trim_middle(in_place, &TrimMiddle::default());
    }
    assert_eq!(in_place, trim_middle(whole, &TrimMiddle::default()).0);
}

#[test]
fn parallel_results_at_the_end_stay_together() {
    let mut messages = vec![user("go")];
    messages.extend(rounds(6, 640));
    let calls = (0..20).map(|at| Part::call(format!("p{at}"), "read", "{}")).collect();
    messages.push(Message::new(Role::Assistant, calls));
    messages.extend(
        (0..20).map(|at| Message::new(Role::Tool, vec![Part::result(format!("p{at}"), "line\n".repeat(2000))])),
    );
    let newest = messages[13..].to_vec();
    let everything = StrategyOptions {
        middle: Some(TrimMiddle::default()),
        calls: Some(DedupToolCalls::default()),
        snippets: Some(SnippetToolOutputs::default()),
        ..StrategyOptions::default()
    };
    let (shorter, stats) = shortened(messages.clone(), &everything);
    assert!(shorter.ends_with(&newest) && stats.repairs.is_empty());
    let truncation = terminal_truncate(messages.clone(), 60_000, &TerminalTruncate::default());
    assert!(truncation.fits() && truncation.messages.ends_with(&newest), "{}", truncation.after);
    // Every call of the round keeps its result even in a small budget.
    let truncation = terminal_truncate(messages, 2_000, &TerminalTruncate::default());
    assert!(truncation.fits() && repair_orphans(truncation.messages).1.is_empty());
}

#[test]
fn unanswered_call_at_the_boundary_drops_no_user_message() {
    let mut messages = vec![user("go"), Message::new(Role::Assistant, vec![Part::call("lost", "sh", "{}")])];
    messages.extend([user("stop that"), user("and do this instead")]);
    messages.extend(rounds(20, 320));
    for shorter in [
        trim_middle(messages.clone(), &TrimMiddle::default()).0,
        terminal_truncate(messages, 400, &TerminalTruncate::default()).messages,
    ] {
        let user_texts = texts(&shorter, Role::User);
        assert!(
            user_texts.contains(&"stop that".to_owned()) && user_texts.contains(&"and do this instead".to_owned()),
            "{user_texts:?}"
        );
    }
}

#[test]
fn user_turns_in_the_middle_stay_in_their_order() {
    let mut messages = vec![Message::text(Role::System, "be brief")];
    for at in 0..12 {
        messages.push(user(&format!("request {at}")));
        messages.extend(round(&format!("c{at}"), "read", "a.txt", &"line\n".repeat(200)));
        messages.push(assistant(&format!("answer {at}")));
    }
    let (trimmed, tally) = trim_middle(messages.clone(), &TrimMiddle::default());
    assert!(tally.hits > 12);
    let user_texts: Vec<String> =
        texts(&trimmed, Role::User).into_iter().filter(|text| !marker::is_marker(text)).collect();
    assert_eq!(user_texts, texts(&messages, Role::User));
    assert_eq!(texts(&trimmed, Role::User).len(), user_texts.len() + 1);
}

#[test]
fn task_outside_the_first_two_messages_is_kept() {
    let mut messages =
        vec![Message::text(Role::System, "a"), user("hello"), assistant("hello"), user("GOAL: port it to C")];
    messages.insert(1, Message::text(Role::Developer, "b"));
    messages.extend(rounds(30, 320));
    let goal = |messages: &[Message<'_>]| texts(messages, Role::User).contains(&"GOAL: port it to C".to_owned());
    assert!(goal(&trim_middle(messages.clone(), &TrimMiddle::default()).0));
    assert!(goal(&terminal_truncate(messages, 600, &TerminalTruncate::default()).messages));
}

#[test]
fn token_count_matters_not_message_count() {
    let messages = vec![user("go"), round("c1", "read", "a.txt", &"one line of it\n".repeat(20_000))[0].clone()];
    let mut messages =
        [messages, round("c1", "read", "a.txt", &"one line of it\n".repeat(20_000))[1..].to_vec()].concat();
    messages.push(user(&"and look at this\n".repeat(9_000)));
    messages.push(user("now"));
    let truncation = terminal_truncate(messages, 4_000, &TerminalTruncate::default());
    assert!(truncation.fits() && truncation.dropped.is_empty() && truncation.clipped == 2, "{}", truncation.after);
    assert_eq!(truncation.messages.len(), 5);
    assert!(texts(&truncation.messages, Role::User)[1].contains("and look at this"));
}

#[test]
fn unfittable_input_is_reported() {
    let messages = vec![Message::text(Role::System, "rule\n".repeat(4_000)), user("go")];
    let truncation = terminal_truncate(messages.clone(), 1_000, &TerminalTruncate::default());
    assert!(!truncation.fits() && truncation.messages == messages);
    let (projected, stats) = compact_to_budget(&messages, 1_000, &CompactToBudget::default());
    assert!(!stats.fits() && projected == messages);
}

#[test]
fn user_text_next_to_dropped_results_is_kept() {
    let mut messages = vec![user("go")];
    for at in 0..20 {
        let [call, result] = round(&format!("c{at}"), "read", "a.txt", &"line\n".repeat(100));
        let user_text = (at == 1).then(|| Part::text("careful with that"));
        messages.push(call);
        messages.push(Message::new(Role::User, result.parts.into_iter().chain(user_text).collect()));
    }
    let (trimmed, _) = trim_middle(messages, &TrimMiddle::default());
    assert!(trimmed.contains(&user("careful with that")));
    assert!(repair_orphans(trimmed).1.is_empty());
}

#[test]
fn user_image_next_to_dropped_results_is_kept() {
    let mut messages = vec![user("go")];
    messages.extend(rounds(12, 320));
    let image = Part::Image(crate::conversation::ImagePart::default());
    messages[2] = Message::new(Role::User, messages[2].parts.iter().cloned().chain([image.clone()]).collect());
    let (trimmed, _) = trim_middle(messages, &TrimMiddle { keep_first: 1, ..TrimMiddle::default() });
    assert!(trimmed.contains(&Message::new(Role::User, vec![image])));
}

/// Text of others may look like our marker.
#[test]
fn forged_marker_count_is_harmless() {
    let mut messages = vec![user("go"), user("[folded: 4294967295 messages, 4294967295 bytes]")];
    messages.extend(rounds(20, 320));
    let (trimmed, tally) = trim_middle(messages.clone(), &TrimMiddle::default());
    assert!(tally.hits > 0 && trimmed.ends_with(&messages[messages.len() - 16..]));
}

/// A user may quote the marker of an earlier trimming.
#[test]
fn user_message_that_equals_the_marker_is_kept() {
    let quote = "[folded: 4 messages, 1234 bytes]";
    let mut messages = vec![user("go"), user("on")];
    messages.extend(rounds(4, 320));
    messages.push(user(quote));
    messages.extend(rounds(20, 320));
    let (trimmed, _) = trim_middle(messages.clone(), &TrimMiddle::default());
    assert_eq!(texts(&trimmed, Role::User).iter().filter(|text| *text == quote).count(), 1, "{trimmed:?}");
    // Its own marker is merged, and stays the only one.
    trimmed.iter().chain(&rounds(10, 320)).cloned().collect::<Vec<_>>().clone_into(&mut messages);
    let (again, _) = trim_middle(messages, &TrimMiddle::default());
    let markers = texts(&again, Role::User).into_iter().filter(|text| marker::is_marker(text));
    assert_eq!(markers.count(), 2);
}

#[test]
fn trimming_by_tokens_waits_for_the_trigger() {
    let tokens = TrimTokens { trigger: 4_000, keep_last: 2_000 };
    let options = TrimMiddle { keep_first: 1, tokens: Some(tokens), ..TrimMiddle::default() };
    let mut history = vec![user("go")];
    history.extend(rounds(40, 960));
    let size = |messages: &[Message<'_>]| total_tokens(&conversation_of(messages.to_vec()));
    let (mut changes, mut sent) = (0, Vec::new());
    for length in (1..=history.len()).step_by(2) {
        let (now, _) = trim_middle(history[..length].to_vec(), &options);
        assert!(size(&now) <= 4_000 + 400, "{length}: {}", size(&now));
        assert!(size(&history[..length]) > 4_000 || now == history[..length]);
        changes += usize::from(!now.starts_with(&sent));
        sent = now;
    }
    assert!((3..=8).contains(&changes), "{changes}");
}

#[test]
fn task_and_newest_user_message_are_never_cut() {
    let task = user(&"the whole task\n".repeat(400));
    let newest = user(&"the newest request\n".repeat(400));
    let mut messages = vec![task.clone(), assistant("ok"), user(&"in between\n".repeat(4_000))];
    messages.extend(rounds(2, 6_400));
    messages.push(newest.clone());
    messages.extend(rounds(2, 6_400));
    let truncation = terminal_truncate(messages, 5_500, &TerminalTruncate::default());
    assert!(truncation.fits(), "{}", truncation.after);
    assert!(truncation.messages.contains(&task) && truncation.messages.contains(&newest));
    // A summary of the caller is neither.
    let summary = user(&"[summary] of it all\n".repeat(900));
    let messages = [vec![task.clone(), assistant("ok"), newest.clone(), summary], rounds(1, 640)].concat();
    let options =
        TerminalTruncate { is_generated: |text| text.starts_with("[summary]"), ..TerminalTruncate::default() };
    assert!(terminal_truncate(messages, 5_000, &options).fits());
}

/// A user text that is cut must not be lost: its message is returned as it was.
#[test]
fn cut_messages_are_returned_as_they_were() {
    let middle = user(&"in between\n".repeat(4_000));
    let mut messages = vec![user("go"), middle.clone()];
    messages.extend(rounds(3, 640));
    messages.extend([user("now"), round("big", "read", "a.txt", &"one line of it\n".repeat(2_000))[0].clone()]);
    messages.push(round("big", "read", "a.txt", &"one line of it\n".repeat(2_000))[1].clone());
    let truncation = terminal_truncate(messages.clone(), 1_000, &TerminalTruncate::default());
    assert!(truncation.fits() && !truncation.dropped.is_empty());
    assert!(!truncation.messages.contains(&middle) && truncation.originals.contains(&middle));
    let lists = [&truncation.messages, &truncation.dropped, &truncation.originals];
    assert!(messages.iter().all(|message| lists.iter().any(|list| list.contains(message))), "nothing is lost");
}
