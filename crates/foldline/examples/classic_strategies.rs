//! The classic strategies over a message buffer: all of them in one call, then a projection to a budget.
//!
//! Run it with `cargo run -p foldline --example classic_strategies`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use foldline::conversation::OwnedMessage;
use foldline::strategies::{
    CompactToBudget, SnippetToolOutputs, StrategyOptions, apply_all, apply_all_with, compact_to_budget,
};
use foldline::{Message, Part, Role};

fn main() {
    let mut history: Vec<OwnedMessage> = vec![Message::text(Role::User, "Why is the build slow?")];
    for at in 0..20 {
        let thought = Part::reasoning("I look at the log again.");
        let call = Part::call(format!("c{at}"), "read_log", format!(r#"{{"part":{}}}"#, at % 4));
        history.push(Message::new(Role::Assistant, vec![thought, call]));
        let log: String = (0..200).map(|line| format!("part {} step {line}: {} ms\n", at % 4, line * 7)).collect();
        history.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), log)]));
    }

    // In place, as before each step of a loop: repeats, old reasoning and noise go, broken pairs are repaired.
    let mut messages = history.clone();
    println!("apply_all: {}", apply_all(&mut messages));

    // Strategies that lose unique text are enabled one by one.
    let options = StrategyOptions { snippets: Some(SnippetToolOutputs::default()), ..StrategyOptions::default() };
    let mut messages = history.clone();
    println!("with snippets: {}", apply_all_with(&mut messages, &options));

    // A view for one request. The history is not changed.
    let (view, stats) = compact_to_budget(&history, 8_000, &CompactToBudget::for_model("gpt-4o"));
    println!("compact_to_budget: {} of {} tokens, {} parts elided", stats.after, stats.before, stats.elided);
    assert!(stats.fits() && view.len() == history.len());
}
