//! A memory limit for the request bodies of all clients.
//!
//! The limits per body and on concurrent requests would together still exceed any machine's memory. So bodies reserve
//! memory as they arrive and release it with their last byte: the reservation is part of the bytes themselves. A request
//! that gets no memory waits briefly and is then rejected with 503.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bytes per permit.
const PERMIT_BYTES: usize = 1 << 10;

/// The memory budget of all bodies.
pub(crate) struct BodyBudget {
    permits: Arc<Semaphore>,
    total_permits: u32,
    wait_timeout: Duration,
}

/// Error: the budget has no memory for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

impl BodyBudget {
    /// Creates a budget of `bytes`. A body waits for memory at most `wait_timeout` in total.
    pub(crate) fn new(bytes: usize, wait_timeout: Duration) -> Self {
        let total_permits = permits_for(bytes).max(1);
        Self { permits: Arc::new(Semaphore::new(total_permits as usize)), total_permits, wait_timeout }
    }

    /// Returns an empty reservation.
    pub(crate) fn reservation(&self) -> BodyReservation {
        BodyReservation {
            permits: self.permits.clone(),
            total_permits: self.total_permits,
            remaining_wait: self.wait_timeout,
            permit: None,
        }
    }

    /// Returns the number of reserved bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        (self.total_permits as usize).saturating_sub(self.permits.available_permits()) * PERMIT_BYTES
    }
}

/// The reservation of one body.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    permits: Arc<Semaphore>,
    total_permits: u32,
    /// Rest of the wait timeout.
    remaining_wait: Duration,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyReservation {
    /// Grows the reservation to `bytes`. A body larger than the whole budget reserves all of it, so that every body within
    /// the size limit can be read.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let held = self.permit.as_ref().map_or(0, |permit| permit.num_permits() as u32);
        let missing = permits_for(bytes).min(self.total_permits).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let started_at = Instant::now();
        let acquired =
            tokio::time::timeout(self.remaining_wait, self.permits.clone().acquire_many_owned(missing)).await;
        self.remaining_wait = self.remaining_wait.saturating_sub(started_at.elapsed());
        let more = acquired.map_err(|_| BudgetExhausted)?.map_err(|_| BudgetExhausted)?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }

    /// Returns the body as bytes that release the reservation when the last reference is dropped.
    pub(crate) fn into_bytes(self, body: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(ReservedBytes { body, _reservation: self })
    }
}

struct ReservedBytes<B> {
    body: B,
    _reservation: BodyReservation,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ReservedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

fn permits_for(bytes: usize) -> u32 {
    bytes.div_ceil(PERMIT_BYTES).try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reservation_is_released_with_the_last_slice() {
        let budget = BodyBudget::new(10 << 10, Duration::from_millis(20));
        let mut reservation = budget.reservation();
        reservation.grow(6 << 10).await.unwrap();
        reservation.grow(4 << 10).await.unwrap();
        assert_eq!(budget.reserved_bytes(), 6 << 10, "it does not shrink");
        let body = reservation.into_bytes(vec![7; 6 << 10]);
        let end = body.slice(6000..);
        drop(body);
        assert_eq!(
            (budget.reserved_bytes(), budget.reservation().grow(5 << 10).await),
            (6 << 10, Err(BudgetExhausted))
        );
        drop(end);
        assert_eq!((budget.reserved_bytes(), budget.reservation().grow(5 << 10).await), (0, Ok(())));
    }

    #[tokio::test]
    async fn oversized_body_waits_for_the_whole_budget() {
        let budget = BodyBudget::new(10 << 10, Duration::from_millis(20));
        let (mut large, mut small) = (budget.reservation(), budget.reservation());
        small.grow(1).await.unwrap();
        assert_eq!(large.grow(1 << 20).await, Err(BudgetExhausted));
        drop(small);
        let mut large = budget.reservation();
        assert_eq!((large.grow(1 << 20).await, budget.reservation().grow(1).await), (Ok(()), Err(BudgetExhausted)));
    }

    #[tokio::test]
    async fn growing_body_shares_one_wait_timeout() {
        let budget = BodyBudget::new(2 << 10, Duration::from_secs(2));
        let (mut first, mut second) = (budget.reservation(), budget.reservation());
        first.grow(2 << 10).await.unwrap();
        let (grown, ()) = tokio::join!(second.grow(1), async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            drop(first);
        });
        let mut third = budget.reservation();
        third.grow(1).await.unwrap();
        let started_at = Instant::now();
        assert_eq!((grown, second.grow(2 << 10).await), (Ok(()), Err(BudgetExhausted)));
        assert!(started_at.elapsed() < Duration::from_secs(1), "only the rest of the timeout was left");
    }
}
