//! Tests of the classic strategies: known failures, one file per topic, and properties of any messages.

pub(crate) mod budget;
mod capabilities;
pub(crate) mod dedup;
mod pairing;
mod properties;
mod prose;
mod support;
mod tokens;
pub(crate) mod trimming;

use crate::conversation::{Message, Part, Role};

fn user(text: &str) -> Message<'static> {
    Message::text(Role::User, text.to_owned())
}

fn assistant(text: &str) -> Message<'static> {
    Message::text(Role::Assistant, text.to_owned())
}

/// Returns a call with one argument and its result.
fn round(id: &str, tool: &str, target: &str, output: &str) -> [Message<'static>; 2] {
    let arguments = serde_json::json!({ "path": target }).to_string();
    [
        Message::new(Role::Assistant, vec![Part::call(id.to_owned(), tool.to_owned(), arguments)]),
        Message::new(Role::Tool, vec![Part::result(id.to_owned(), output.to_owned())]),
    ]
}

/// Returns `count` rounds with different outputs of about `bytes` bytes.
fn rounds(count: usize, bytes: usize) -> Vec<Message<'static>> {
    let output =
        |at: usize| (0..bytes / 32).map(|line| format!("output {at:06} of line {line:06} is\n")).collect::<String>();
    (0..count).flat_map(|at| round(&format!("r{at}"), "read", &format!("{at}.txt"), &output(at))).collect()
}

/// Returns the text of the only result in a message.
fn output<'m>(message: &'m Message<'_>) -> &'m str {
    message.results().next().and_then(|result| result.only_text()).expect("the message has one result of one text")
}

fn texts(messages: &[Message<'_>], role: Role) -> Vec<String> {
    let of_role = messages.iter().filter(|message| message.role == role);
    of_role.flat_map(|message| &message.parts).filter_map(Part::as_text).map(str::to_owned).collect()
}
