//! Room for the bodies of all requests at once.
//!
//! A body has a limit of its own, and requests at once have one; both together would still be more than any
//! machine has. So bodies take room as they come, and give it back with their last byte: the room that a body
//! takes is part of the bytes themselves, whoever holds them. A client that finds none waits a moment and is then told
//! to come again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bytes that are counted as one.
const PERMIT_BYTES: usize = 1 << 10;

/// The room of all bodies.
pub(crate) struct BodyBudget {
    permits: Arc<Semaphore>,
    total_permits: u32,
    wait_timeout: Duration,
}

/// There is no room for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

impl BodyBudget {
    /// So many bytes, and so long a wait for some of them.
    pub(crate) fn new(bytes: usize, patience: Duration) -> Self {
        let all = permits_for(bytes).max(1);
        Self { permits: Arc::new(Semaphore::new(all as usize)), total_permits: all, wait_timeout: patience }
    }

    /// A body that has taken nothing yet.
    pub(crate) fn reservation(&self) -> BodyReservation {
        BodyReservation {
            permits: self.permits.clone(),
            total_permits: self.total_permits,
            remaining_wait: self.wait_timeout,
            permit: None,
        }
    }

    /// Bytes that are taken.
    pub(crate) fn reserved_bytes(&self) -> usize {
        (self.total_permits as usize).saturating_sub(self.permits.available_permits()) * PERMIT_BYTES
    }
}

/// What one body has taken.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    permits: Arc<Semaphore>,
    total_permits: u32,
    /// What is left of it.
    remaining_wait: Duration,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyReservation {
    /// Takes room for so many bytes in all. One that needs more than there is has it to itself: every body that is
    /// allowed gets through.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let has = self.permit.as_ref().map_or(0, |permit| permit.num_permits() as u32);
        let lacks = permits_for(bytes).min(self.total_permits).saturating_sub(has);
        if lacks == 0 {
            return Ok(());
        }
        let began = Instant::now();
        let waited = tokio::time::timeout(self.remaining_wait, self.permits.clone().acquire_many_owned(lacks)).await;
        self.remaining_wait = self.remaining_wait.saturating_sub(began.elapsed());
        let more = waited.map_err(|_| BudgetExhausted)?.map_err(|_| BudgetExhausted)?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }

    /// The body, which gives its room back when nobody has it any more.
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
        let room = BodyBudget::new(10 << 10, Duration::from_millis(20));
        let mut taken = room.reservation();
        taken.grow(6 << 10).await.unwrap();
        taken.grow(4 << 10).await.unwrap();
        assert_eq!(room.reserved_bytes(), 6 << 10, "it does not shrink");
        let body = taken.into_bytes(vec![7; 6 << 10]);
        let end = body.slice(6000..);
        drop(body);
        assert_eq!((room.reserved_bytes(), room.reservation().grow(5 << 10).await), (6 << 10, Err(BudgetExhausted)));
        drop(end);
        assert_eq!((room.reserved_bytes(), room.reservation().grow(5 << 10).await), (0, Ok(())));
    }

    #[tokio::test]
    async fn oversized_body_waits_for_the_whole_budget() {
        let room = BodyBudget::new(10 << 10, Duration::from_millis(20));
        let (mut large, mut small) = (room.reservation(), room.reservation());
        small.grow(1).await.unwrap();
        assert_eq!(large.grow(1 << 20).await, Err(BudgetExhausted));
        drop(small);
        let mut large = room.reservation();
        assert_eq!((large.grow(1 << 20).await, room.reservation().grow(1).await), (Ok(()), Err(BudgetExhausted)));
    }

    #[tokio::test]
    async fn growing_body_shares_one_wait_timeout() {
        let room = BodyBudget::new(2 << 10, Duration::from_secs(2));
        let (mut first, mut second) = (room.reservation(), room.reservation());
        first.grow(2 << 10).await.unwrap();
        let (told, ()) = tokio::join!(second.grow(1), async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            drop(first);
        });
        let mut third = room.reservation();
        third.grow(1).await.unwrap();
        let again = Instant::now();
        assert_eq!((told, second.grow(2 << 10).await), (Ok(()), Err(BudgetExhausted)));
        assert!(again.elapsed() < Duration::from_secs(1), "a quarter of the patience was left");
    }
}
