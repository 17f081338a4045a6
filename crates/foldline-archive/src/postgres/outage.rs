//! Outages of the database or the object store: after a failure calls fail at once for a moment, so that not every
//! request waits for a timeout.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

/// Time after a failure in which no connection is tried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Shortest wait without an answer that counts as an outage. A call whose caller has less time left proves nothing.
pub(crate) const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// The last failure, until a call succeeds.
#[derive(Debug, Default)]
pub(crate) struct OutageGuard(Mutex<OutageState>);

#[derive(Debug, Default)]
struct OutageState {
    outage: Option<Outage>,
    /// Time of the last answer.
    answered_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Outage {
    error: Error,
    retry_at: Instant,
}

/// The time that a call has for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    began: Instant,
    deadline: Instant,
    /// Time that an answer may take.
    patience: Duration,
}

impl CallTime {
    /// Returns the time of a call that begins now.
    pub(crate) fn until(deadline: Instant) -> Self {
        Self { began: Instant::now(), deadline, patience: MIN_PATIENCE }
    }

    /// Returns the time of a call whose answer may take this long.
    #[cfg(feature = "objects")]
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the call ended because its caller had little time.
    fn was_cut_short(&self) -> bool {
        Instant::now() >= self.deadline && self.deadline < self.began + self.patience
    }
}

impl OutageGuard {
    /// Fails if there was no answer a moment ago.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.state().outage {
            Some(outage) if Instant::now() < outage.retry_at => Err(outage.error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns the failure of the last call, if there was no answer.
    pub(crate) fn current(&self) -> Option<Error> {
        self.state().outage.as_ref().map(|outage| outage.error.clone())
    }

    /// Records an answer. Any is a sign of life, an error too.
    pub(crate) fn record_answer(&self) {
        *self.state() = OutageState { outage: None, answered_at: Some(Instant::now()) };
    }

    /// Records the result of a call. One that got no answer in its time, while others did or because its time was short,
    /// does not count.
    pub(crate) fn record<T>(&self, result: &Result<T, Error>, time: CallTime) {
        let Some(error) = result.as_ref().err().filter(|error| *error.kind() == ErrorKind::Unavailable) else {
            return self.record_answer();
        };
        let mut state = self.state();
        let timed_out = Instant::now() >= time.deadline;
        let others_had_answers = state.answered_at.is_some_and(|at| at > time.began);
        let is_explained = time.was_cut_short() || (timed_out && others_had_answers);
        if !is_explained {
            state.outage = Some(Outage { error: error.clone(), retry_at: Instant::now() + RETRY_DELAY });
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, OutageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unavailable, "down"))
    }

    #[test]
    fn outage_ends_with_the_first_answer() {
        let guard = OutageGuard::default();
        let time = || CallTime::until(Instant::now() + Duration::from_secs(3));
        assert!(guard.check().is_ok() && guard.current().is_none());
        guard.record(&failure(), time());
        assert_eq!(guard.check().unwrap_err().kind(), &ErrorKind::Unavailable);
        guard.record::<()>(&Err(Error::new(ErrorKind::NotFound, "an answer")), time());
        assert!(guard.check().is_ok() && guard.current().is_none());
    }

    /// A caller that had a moment left made the calls of all others fail.
    #[test]
    fn call_with_little_time_does_not_count() {
        let guard = OutageGuard::default();
        let time = CallTime::until(Instant::now());
        guard.record(&failure(), time);
        assert!(guard.current().is_none());
        guard.record(&failure(), CallTime { began: time.began.checked_sub(2 * MIN_PATIENCE).unwrap(), ..time });
        assert!(guard.current().is_some());
    }

    /// A slow call of one caller made the calls of all others fail.
    #[test]
    fn slow_call_does_not_count_while_others_are_answered() {
        let guard = OutageGuard::default();
        let now = Instant::now();
        let time =
            CallTime { began: now.checked_sub(2 * MIN_PATIENCE).unwrap(), deadline: now, patience: MIN_PATIENCE };
        guard.record_answer();
        guard.record(&failure(), time);
        assert!(guard.current().is_none());
        // A refused connection is an outage at once.
        guard.record(&failure(), CallTime { deadline: now + MIN_PATIENCE, ..time });
        assert!(guard.current().is_some());
    }
}
