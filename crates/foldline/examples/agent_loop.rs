//! A loop that grows for many steps and stays inside its budget; the model unfolds what it needs again.
//!
//! The model is a function here. Run it with `cargo run -p foldline --example agent_loop`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use foldline::conversation::{OwnedMessage, ToolCall};
use foldline::engine::marker;
use foldline::{FoldSession, Message, Part, Role};

fn main() -> Result<(), foldline::Error> {
    let mut session = FoldSession::for_model("gpt-4o", 4_000);
    session.push(Message::text(Role::User, "Read the files 0 to 39, then report the value in file 3."));
    let mut sent: Vec<OwnedMessage> = Vec::new();
    loop {
        // Before each call to the model. Only the messages after the first change are rendered again.
        session.plan_request()?;
        let first_changed = session.take_first_changed();
        sent.truncate(session.rendered_position(first_changed));
        sent.extend(session.rendered_messages(first_changed));
        assert!(session.tokens() <= 4_000, "a request always fits");

        // A real agent sends `sent` and declares its tools and `FoldSession::UNFOLD_TOOL`.
        let answer = scripted_model(&sent);
        let calls: Vec<ToolCall<'static>> = answer.calls().cloned().collect();
        if calls.is_empty() {
            println!("{}", answer.parts[0].as_text().unwrap_or_default());
            break;
        }
        session.push(answer);
        for call in calls {
            let result = match &*call.name {
                "unfold" => session.answer_unfold(call.arguments.as_str()),
                _ => read_file(call.arguments.as_str()),
            };
            session.push(Message::new(Role::Tool, vec![Part::result(call.id, result)]));
        }
    }
    println!("{} tokens in the last request instead of {}", session.tokens(), session.raw_tokens());
    Ok(())
}

/// The only tool: returns a long text with one value in the middle.
fn read_file(arguments: &str) -> String {
    let number: String = arguments.chars().filter(char::is_ascii_digit).collect();
    let lines: String = (0..40).map(|line| format!("line {line} of file {number}\n")).collect();
    lines.replace("line 20 ", "the value is 4711, line 20 ")
}

/// Replaces a model: reads file after file, then unfolds the third one and answers.
fn scripted_model(sent: &[OwnedMessage]) -> OwnedMessage {
    let files = || sent.iter().flat_map(Message::calls).filter(|call| call.name == "read_file");
    // Old rounds leave the request, so the number of the newest file shows the progress.
    let newest = files().filter_map(|call| call.id.strip_prefix("file_")?.parse::<usize>().ok()).max();
    let next = newest.map_or(0, |newest| newest + 1);
    if next < 40 {
        let call = Part::call(format!("file_{next}"), "read_file", format!(r#"{{"path":"file_{next}"}}"#));
        return Message::new(Role::Assistant, vec![call]);
    }
    let unfolded = sent.iter().flat_map(Message::results).find(|result| result.call_id.starts_with("unfold_"));
    if let Some(text) = unfolded.and_then(|result| result.only_text()) {
        let value = text.split("the value is ").nth(1).and_then(|rest| rest.split(',').next());
        return Message::text(Role::Assistant, format!("The value is {}.", value.unwrap_or("unknown")));
    }
    // The marker of the oldest rounds carries a handle; the tool returns whole originals, lines or matches.
    let texts = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
    let handle = texts.flat_map(marker::handles).next().expect("old rounds were folded");
    let arguments = format!(r#"{{"handle":"{handle}","grep":"the value is .* of file 3$"}}"#);
    Message::new(Role::Assistant, vec![Part::call("unfold_0", "unfold", arguments)])
}
