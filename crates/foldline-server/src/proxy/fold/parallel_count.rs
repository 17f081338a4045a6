//! Counts the long texts of a new conversation on all cores.
//!
//! A known conversation costs only its new texts. A new one costs all of them, and exact counts dominate that cost
//! while the fold itself is sequential. So its texts are counted line by line into the meter's cache in advance. This is
//! only an optimization: texts that are not counted here are counted by the fold.

use foldline::engine::CancelFlag;
use foldline::{Conversation, Meter, Part};
use rayon::prelude::*;

/// Minimum size of a text that is counted in advance.
const MIN_TEXT_BYTES: usize = 1 << 10;
/// Minimum total size of long texts for which parallel counting pays.
const MIN_TOTAL_BYTES: usize = 64 << 10;

/// Counts the long texts of a conversation until it is cancelled.
pub(crate) fn count_in_parallel(conversation: &Conversation<'_>, meter: &Meter, cancel: &CancelFlag) {
    let mut texts: Vec<&str> = Vec::new();
    for part in conversation.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Text { text } => texts.push(text),
            Part::ToolCall(call) => texts.push(call.arguments.as_str()),
            Part::ToolResult(result) => texts.extend(result.texts()),
            _ => {}
        }
    }
    texts.retain(|text| text.len() >= MIN_TEXT_BYTES);
    if rayon::current_num_threads() < 2 || texts.iter().map(|text| text.len()).sum::<usize>() < MIN_TOTAL_BYTES {
        return;
    }
    // The rayon pool is reused: counters cache words per thread.
    texts.par_iter().with_max_len(1).for_each(|text| {
        let stop = || cancel.is_cancelled();
        if !stop() && meter.cache_large_text(text, &stop) {
            meter.text_by_lines(text);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use foldline::tokens::{CountExactness, TokenCounter, Tokens};
    use foldline::{Message, ModelTable, Role};

    /// A counter that records how many bytes were counted.
    struct RecordingCounter(AtomicUsize);

    impl TokenCounter for RecordingCounter {
        fn count(&self, text: &str) -> Tokens {
            self.0.fetch_add(text.len(), Ordering::Relaxed);
            text.len() as Tokens
        }

        fn exactness(&self) -> CountExactness {
            CountExactness::Exact
        }
    }

    #[test]
    fn precounted_texts_are_cached() {
        let messages: Vec<Message<'_>> = (0..40)
            .map(|at| Message::new(Role::User, vec![Part::text(format!("{at} {}", "long text ".repeat(300)))]))
            .chain([Message::text(Role::User, "short")])
            .collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        let counter = Arc::new(RecordingCounter(AtomicUsize::new(0)));
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o")).with_counter(counter.clone());
        let cancelled = CancelFlag::default();
        cancelled.cancel();
        count_in_parallel(&conversation, &meter, &cancelled);
        assert_eq!(counter.0.load(Ordering::Relaxed), 0);
        count_in_parallel(&conversation, &meter, &CancelFlag::default());
        let before = counter.0.load(Ordering::Relaxed);
        conversation.messages.iter().for_each(|message| {
            meter.message(message);
        });
        assert_eq!(counter.0.load(Ordering::Relaxed), before + "short".len());
    }
}
