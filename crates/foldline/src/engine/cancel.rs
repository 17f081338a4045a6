//! Cancellation: stops a fold that its caller no longer needs.
//!
//! The engine never waits and never reads a clock. It checks the flag between steps and returns an error if it is set.
//! The flag decides whether there is a result; it must not change the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind};

/// A flag that stops a fold running on another thread.
///
/// Clones share one flag. It cannot be reset: every later fold with these options returns an error.
///
/// ```
/// use foldline::{Conversation, ErrorKind, FoldOptions, Ledger, Meter, ModelTable, Prices, fold};
/// use foldline::engine::CancelFlag;
///
/// let table = ModelTable::builtin();
/// let mut options = FoldOptions::new(Meter::for_model(table, None), Prices::for_model(table, None), 32_000);
/// let cancel = CancelFlag::default();
/// options.cancel = cancel.clone();
/// cancel.cancel();
/// let error = fold(&Conversation::default(), &options, &Ledger::default()).err().expect("it was cancelled");
/// assert_eq!(error.kind(), &ErrorKind::Cancelled);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Sets the flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns an error if the flag is set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] if the flag is set.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled: the caller no longer needs the result"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::tokens::{CountExactness, TokenCounter, Tokens, Vocabulary};
    use crate::{Conversation, FoldOptions, Ledger, Message, Meter, ModelTable, Prices, Role, fold};

    /// A counter that cancels the fold at a given call.
    struct CancellingCounter {
        cancel: CancelFlag,
        at_call: usize,
        calls: AtomicUsize,
    }

    impl TokenCounter for CancellingCounter {
        fn count(&self, text: &str) -> Tokens {
            if self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.at_call {
                self.cancel.cancel();
            }
            text.len() as Tokens
        }

        fn exactness(&self) -> CountExactness {
            CountExactness::Exact
        }
    }

    /// Cancels a fold at a given count. Returns the kind of its error and the number of counts made.
    fn fold_cancelled(at_call: usize) -> (Option<ErrorKind>, usize) {
        let role = |at: usize| if at.is_multiple_of(2) { Role::User } else { Role::Assistant };
        let message = |at: usize| Message::text(role(at), format!("{at}: {}", "some words of a message\n".repeat(40)));
        let conversation = Conversation { messages: (0..200).map(message).collect(), ..Conversation::default() };
        let cancel = CancelFlag::default();
        let counter = Arc::new(CancellingCounter { cancel: cancel.clone(), at_call, calls: AtomicUsize::new(0) });
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, None).with_counter(counter.clone());
        let options = FoldOptions { cancel, ..FoldOptions::new(meter, Prices::for_model(table, None), 60_000) };
        let kind = fold(&conversation, &options, &Ledger::default()).err().map(|error| error.kind().clone());
        (kind, counter.calls.load(Ordering::Relaxed))
    }

    /// Counts like a vocabulary, and cancels the fold when it has counted its first piece.
    struct CancellingVocabulary {
        cancel: CancelFlag,
        stops: AtomicUsize,
    }

    impl TokenCounter for CancellingVocabulary {
        fn count(&self, _: &str) -> Tokens {
            unreachable!("the text is counted in pieces")
        }

        fn count_until(&self, text: &str, stop: &dyn Fn() -> bool) -> Option<Tokens> {
            Vocabulary::o200k().count_until(text, &|| {
                let is_stopped = stop();
                self.stops.fetch_add(usize::from(is_stopped), Ordering::Relaxed);
                self.cancel.cancel();
                is_stopped
            })
        }

        fn exactness(&self) -> CountExactness {
            CountExactness::Exact
        }
    }

    #[test]
    fn cancelled_fold_does_not_wait_for_a_huge_text() {
        let cancel = CancelFlag::default();
        let counter = Arc::new(CancellingVocabulary { cancel: cancel.clone(), stops: AtomicUsize::new(0) });
        let message = Message::text(Role::User, "some words of a message\n".repeat(100_000));
        let conversation = Conversation { messages: vec![message], ..Conversation::default() };
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, None).with_counter(counter.clone());
        let options = FoldOptions { cancel, ..FoldOptions::new(meter, Prices::for_model(table, None), 60_000) };
        let error = fold(&conversation, &options, &Ledger::default()).unwrap_err();
        assert_eq!((error.kind(), counter.stops.load(Ordering::Relaxed)), (&ErrorKind::Cancelled, 1));
    }

    #[test]
    fn cancelled_fold_stops_soon() {
        let (kind, calls) = fold_cancelled(usize::MAX);
        assert_eq!(kind, None);
        assert!(calls > 200, "{calls}");
        for at_call in [1, 50, calls / 2, calls * 3 / 4] {
            let (kind, made) = fold_cancelled(at_call);
            assert_eq!(kind, Some(ErrorKind::Cancelled), "{at_call} of {calls}");
            assert!(made <= at_call + 20, "{made} counts, cancelled at {at_call} of {calls}");
        }
    }
}
