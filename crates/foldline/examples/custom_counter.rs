//! A token counter of one's own, for a model whose vocabulary is not built in.
//!
//! Run it with `cargo run -p foldline --example custom_counter`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::sync::Arc;

use foldline::tokens::{CountExactness, TokenCounter, Tokens};
use foldline::{FoldOptions, FoldSession, Message, Meter, ModelTable, Part, Prices, Role};

/// Counts three bytes as a token. A real counter calls the model's tokenizer.
struct ThreeBytesCounter;

impl TokenCounter for ThreeBytesCounter {
    fn count(&self, text: &str) -> Tokens {
        text.len().div_ceil(3) as Tokens
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Estimated
    }

    fn is_monotone(&self) -> bool {
        true
    }
}

fn main() -> Result<(), foldline::Error> {
    let (table, model) = (ModelTable::builtin(), Some("my-own-model"));
    let meter = Meter::for_model(table, model).with_counter(Arc::new(ThreeBytesCounter));
    let mut options = FoldOptions::new(meter.clone(), Prices::for_model(table, model), 6_000);
    options.handles = true; // the session itself restores the originals
    let mut session = FoldSession::new(options);
    session.push(Message::text(Role::User, "Summarize the reports."));
    for at in 0..30 {
        let call = Part::call(format!("c{at}"), "report", format!(r#"{{"number":{at}}}"#));
        session.push(Message::new(Role::Assistant, vec![call]));
        let report: String = (0..30).map(|line| format!("report {at}, figure {line}: {}\n", at * line)).collect();
        session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), report)]));
        session.plan_request()?;
        assert!(session.tokens() <= 6_000);
    }
    println!("counted {:?}: {} tokens instead of {}", meter.exactness(), session.tokens(), session.raw_tokens());
    Ok(())
}
