//! Folds a growing conversation to a budget, and unfolds an original.
//!
//! Run it with `cargo run -p foldline --example quickstart`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use foldline::engine::marker;
use foldline::{FoldSession, Message, Part, Role};

fn main() -> Result<(), foldline::Error> {
    let mut session = FoldSession::for_model("gpt-4o", 2_000);
    session.push(Message::text(Role::User, "Make the parser faster."));
    for at in 0..30 {
        session.plan_request()?; // before each call to the model
        let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
        session.push(Message::new(Role::Assistant, vec![call]));
        let source: String = (0..20).map(|line| format!("let value_{at}_{line} = parse({line});\n")).collect();
        session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source)]));
    }
    session.plan_request()?;
    println!("{} tokens instead of {}", session.tokens(), session.raw_tokens());

    let sent: Vec<Message> = session.rendered_messages(0).collect();
    let texts = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
    let handle = texts.flat_map(marker::handles).next().expect("old rounds were folded");
    let original = session.unfold(handle).expect("a session restores every handle that it rendered");
    println!("{handle} restores {} bytes", original.len());
    Ok(())
}
