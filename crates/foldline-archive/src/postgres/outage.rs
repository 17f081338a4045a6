//! Outages of the database: after a failure calls fail at once for a moment, so that not every request waits for a
//! timeout.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

/// Time after a failure in which no connection is tried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The last failure, until a call succeeds.
#[derive(Debug, Default)]
pub(crate) struct OutageGuard(Mutex<Option<Outage>>);

#[derive(Clone, Debug)]
struct Outage {
    error: Error,
    retry_at: Instant,
}

impl OutageGuard {
    /// Fails if the database was not reachable a moment ago.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(outage) if Instant::now() < outage.retry_at => Err(outage.error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns the failure of the last call, if the database was not reachable.
    pub(crate) fn current(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|outage| outage.error.clone())
    }

    /// Records the result of a call.
    pub(crate) fn record<T>(&self, result: &Result<T, Error>) {
        let failure = result.as_ref().err().filter(|error| *error.kind() == ErrorKind::Unavailable);
        let outage = failure.map(|error| Outage { error: error.clone(), retry_at: Instant::now() + RETRY_DELAY });
        // Any other answer, an error too, is a sign of life.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = outage;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_ends_with_the_first_answer() {
        let guard = OutageGuard::default();
        assert!(guard.check().is_ok() && guard.current().is_none());
        guard.record::<()>(&Err(Error::new(ErrorKind::Unavailable, "down")));
        assert_eq!(guard.check().unwrap_err().kind(), &ErrorKind::Unavailable);
        guard.record::<()>(&Err(Error::new(ErrorKind::NotFound, "an answer")));
        assert!(guard.check().is_ok() && guard.current().is_none());
    }
}
