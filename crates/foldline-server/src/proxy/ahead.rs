//! Counting ahead: the long texts of a conversation that is seen for the first time, on all processors at once.
//!
//! A conversation that goes on costs its new texts. One that is new costs all of them, and exact counts are most of that
//! cost, while the fold itself goes from message to message. So its texts are counted beforehand, into the cache that
//! the fold asks. Nothing depends on it: a text that was not counted here is counted there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use foldline::{Conversation, Meter, Part};

/// A text that is shorter is counted where it is needed.
const LONG: usize = 1 << 10;
/// Bytes of long texts for which it pays to start threads.
const WORTH_IT: usize = 64 << 10;
/// Threads at most, whoever else has requests.
const AT_ONCE: usize = 4;

/// Counts the long texts of a conversation.
pub(crate) fn count_ahead(conversation: &Conversation<'_>, meter: &Meter) {
    let mut texts: Vec<&str> = Vec::new();
    for part in conversation.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Text { text } => texts.push(text),
            Part::ToolCall(call) => texts.push(call.arguments.as_str()),
            Part::ToolResult(result) => texts.extend(result.texts()),
            _ => {}
        }
    }
    texts.retain(|text| text.len() >= LONG);
    let threads = thread::available_parallelism().map_or(1, |it| it.get()).min(AT_ONCE).min(texts.len());
    if threads < 2 || texts.iter().map(|text| text.len()).sum::<usize>() < WORTH_IT {
        return;
    }
    let next = AtomicUsize::new(0);
    let count = || {
        while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            meter.text(text);
        }
    };
    thread::scope(|scope| {
        // Where no thread can be had, this one counts alone.
        (1..threads)
            .for_each(|_| drop(thread::Builder::new().name("foldline-count".into()).spawn_scoped(scope, count)));
        count();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use foldline::{Counter, Exactness, Message, ModelTable, Role, Tokens};

    /// Counts how many bytes it was asked for.
    struct Busy(AtomicUsize);

    impl Counter for Busy {
        fn count(&self, text: &str) -> Tokens {
            self.0.fetch_add(text.len(), Ordering::Relaxed);
            text.len() as Tokens
        }

        fn exactness(&self) -> Exactness {
            Exactness::Exact
        }
    }

    #[test]
    fn what_was_counted_ahead_is_not_counted_again() {
        let messages: Vec<Message<'_>> = (0..40)
            .map(|at| Message::new(Role::User, vec![Part::text(format!("{at} {}", "long text ".repeat(300)))]))
            .chain([Message::text(Role::User, "short")])
            .collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        let busy = Arc::new(Busy(AtomicUsize::new(0)));
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o")).with_counter(busy.clone());
        count_ahead(&conversation, &meter);
        let before = busy.0.load(Ordering::Relaxed);
        conversation.messages.iter().for_each(|message| {
            meter.message(message);
        });
        assert_eq!(busy.0.load(Ordering::Relaxed), before + "short".len());
    }
}
