//! Regression tests of the projection to a budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::conversation::Role;
use crate::strategies::tests::support::*;
use crate::strategies::tests::{assistant, output, round, rounds, user};
use crate::strategies::*;
use crate::tokens::{CountExactness, TokenCounter, Tokens};

fn project(messages: &[Message<'static>], budget: Tokens) -> (Vec<Message<'static>>, CompactionStats) {
    compact_to_budget(messages, budget, &CompactToBudget::default())
}

#[test]
fn input_under_budget_is_unchanged() {
    let messages = rounds(10, 640);
    let total = total_tokens(&conversation_of(messages.clone()));
    let (projected, stats) = project(&messages, total);
    assert_eq!((projected, stats.elided, stats.before, stats.after), (messages, 0, total, total));
}

#[test]
fn current_parallel_results_are_not_elided() {
    let mut messages = vec![user("go")];
    messages.extend(rounds(2, 3_200));
    messages.push(Message::new(Role::Assistant, (0..9).map(|at| Part::call(format!("p{at}"), "read", "{}")).collect()));
    let result = |at| Message::new(Role::Tool, vec![Part::result(format!("p{at}"), "line\n".repeat(700))]);
    messages.extend((0..9).map(result));
    let (projected, stats) = project(&messages, 4_000);
    assert_eq!((&projected[5..], stats.elided, stats.fits()), (&messages[5..], 2, false));
}

#[test]
fn instructions_in_the_middle_are_kept() {
    let rule = Message::text(Role::System, "a rule that came later\n".repeat(99));
    let more = Message::text(Role::Developer, "and another\n".repeat(99));
    let mut messages = vec![user(&"the whole task\n".repeat(99))];
    messages.extend(rounds(4, 3_200));
    messages.extend([rule, more, assistant(&"prose of the model\n".repeat(99))]);
    messages.extend(rounds(4, 3_200));
    let (projected, stats) = project(&messages, 1);
    assert!(stats.elided >= 7);
    assert_eq!((&projected[0], &projected[9], &projected[10]), (&messages[0], &messages[9], &messages[10]));
    assert_eq!(projected[11], assistant("[folded: 99 lines, 1.8 kB of assistant text]"));
}

#[test]
fn shortened_write_arguments_stay_valid_json() {
    let arguments = serde_json::json!({ "path": "src/a.rs", "content": "fn a() {}\n".repeat(400) }).to_string();
    let mut messages = vec![user("go"), Message::new(Role::Assistant, vec![Part::call("w", "write", arguments)])];
    messages.push(Message::new(Role::Tool, vec![Part::result("w", "ok")]));
    messages.extend(rounds(3, 320));
    let (projected, stats) = project(&messages, 900);
    assert!(stats.fits());
    let call = projected[1].calls().next().unwrap();
    let arguments: serde_json::Value = serde_json::from_str(call.arguments.as_str()).unwrap();
    assert_eq!((&*call.id, &*call.name, &arguments["path"]), ("w", "write", &"src/a.rs".into()));
    assert!(arguments["content"].as_str().unwrap().starts_with("[folded: "), "{arguments}");
}

#[test]
fn oldest_results_are_elided_first_failures_last() {
    let mut messages = round("f", "sh", "make", &format!("{}error: it broke\n", "cc main.c\n".repeat(90))).to_vec();
    messages.extend(rounds(6, 960));
    let (projected, _) = project(&messages, 1_700);
    assert_eq!(projected[1], messages[1]);
    assert!(output(&projected[3]).starts_with("[folded: ") && !output(&projected[9]).starts_with("[folded: "));
    let (projected, _) = project(&messages, 600);
    assert!(output(&projected[1]).starts_with("[folded: "));
}

#[test]
fn payloads_below_256_characters_are_skipped() {
    let messages: Vec<_> = (0..9).flat_map(|at| round(&format!("c{at}"), "sh", "ls", &"é".repeat(255))).collect();
    assert_eq!(project(&messages, 1).1.elided, 0);
    let messages: Vec<_> = (0..9).flat_map(|at| round(&format!("c{at}"), "sh", "ls", &"é".repeat(256))).collect();
    assert_eq!(project(&messages, 1).1.elided, 7);
}

/// The projection once stopped exactly at the budget, so that every step elided a little more.
#[test]
fn projection_prefix_is_stable_for_many_steps() {
    let mut history = vec![user("go")];
    history.extend(rounds(80, 960));
    let mut sent: Vec<Message<'_>> = Vec::new();
    let mut elided = 0;
    let mut broken = 0;
    for length in (1..=history.len()).step_by(2) {
        let options = CompactToBudget::default().for_loop();
        let (now, stats) = compact_to_budget(&history[..length], 6_000, &options);
        assert!(stats.fits() && stats.elided >= elided);
        assert!(now.starts_with(&sent) || stats.elided > elided);
        broken += usize::from(!now.starts_with(&sent));
        (sent, elided) = (now, stats.elided);
    }
    assert!((5..=20).contains(&broken), "{broken}");
}

#[test]
fn tighter_budget_gives_fewer_tokens() {
    let history = rounds(40, 960);
    let (_, first) = project(&history, 8_000);
    let (_, second) = project(&history, first.after * 3 / 4);
    assert!(first.fits() && second.fits() && second.after < first.after);
}

/// A counter that records the number of bytes it counted.
struct ByteCountingCounter(Arc<AtomicUsize>);

impl TokenCounter for ByteCountingCounter {
    fn count(&self, text: &str) -> Tokens {
        self.0.fetch_add(text.len(), Ordering::Relaxed);
        text.len() as Tokens
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Estimated
    }
}

#[test]
fn totals_are_not_recounted_after_each_elision() {
    let cost = |count: usize| {
        let asked = Arc::new(AtomicUsize::new(0));
        let meter = Meter::for_byte_estimate().with_counter(Arc::new(ByteCountingCounter(asked.clone())));
        let options = CompactToBudget { meter, ..CompactToBudget::default() };
        let (_, stats) = compact_to_budget(&rounds(count, 640), 9_000, &options);
        assert!(stats.elided > count / 2);
        asked.load(Ordering::Relaxed)
    };
    let (small, large) = (cost(100), cost(1_000));
    assert!(large < small * 12, "{small} bytes were counted for 100 rounds, {large} for 1000");
}

/// One call stops as soon as the messages fit.
#[test]
fn projection_stops_just_under_the_budget() {
    let history = rounds(80, 960);
    for budget in [6_000, 12_000, 20_000] {
        let (_, stats) = project(&history, budget);
        assert!(stats.fits() && stats.after > budget - 400, "{stats:?}");
    }
}

/// Dense text has more tokens than its bytes suggest.
#[test]
fn projection_by_the_meter_of_a_model_fits_the_model() {
    let dense = |at: usize| (0..60).map(|line| format!("{at}é{line}ß§{}ø|", line * 7919)).collect::<String>();
    let history: Vec<_> = (0..30).flat_map(|at| round(&format!("c{at}"), "sh", "dump", &dense(at))).collect();
    let options = CompactToBudget::for_model("gpt-4o");
    let exact =
        |messages: &[Message<'_>]| messages.iter().map(|message| options.meter.message(message)).sum::<Tokens>();
    let budget = exact(&history) / 2;
    let (by_estimate, stats) = project(&history, budget);
    assert!(stats.fits() && exact(&by_estimate) > budget, "the estimate is too low for this text");
    let (by_model, stats) = compact_to_budget(&history, budget, &options);
    assert!(stats.fits() && exact(&by_model) <= budget && stats.after == exact(&by_model));
}
