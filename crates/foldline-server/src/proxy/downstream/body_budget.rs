//! A memory limit for the bodies of all clients (requests, decompressed requests, buffered responses, and the held parts
//! of streams), and the buffer in which a body grows within it.
//!
//! The limits per body and on concurrent requests would together still exceed any machine's memory. So bodies reserve
//! memory as their bytes arrive (an announced length reserves nothing) and release it with their last byte: the
//! reservation is part of the bytes themselves. A body that gets no memory waits briefly and is then rejected with 503.
//!
//! Bodies that arrive at the same time could each hold a part of the memory and wait for the rest. A reserve prevents
//! that: only one incomplete body at a time may draw from it, and it is as large as the largest body if the budget allows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bytes per permit.
const PERMIT_BYTES: usize = 1 << 10;
/// Most permits that are acquired at once, so that a body takes what there is.
const MAX_STEP_PERMITS: u32 = 64;

/// First capacity of a buffer.
const MIN_CAPACITY_BYTES: usize = 16 << 10;
/// Bytes of a response that are not counted, so that usual responses never depend on the memory of others.
const UNCOUNTED_RESPONSE_BYTES: usize = 256 << 10;

/// The memory budget of all bodies.
pub(crate) struct BodyBudget {
    pools: Arc<MemoryPools>,
    wait_timeout: Duration,
}

/// The memory, in permits.
#[derive(Debug)]
struct MemoryPools {
    /// For all bodies.
    shared: Arc<Semaphore>,
    /// For the body that holds the token.
    reserve: Arc<Semaphore>,
    /// One permit: the token of the only incomplete body that may draw from the reserve.
    token: Arc<Semaphore>,
    total_permits: u32,
}

/// Error: the budget has no memory for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

impl BodyBudget {
    /// Creates a budget of `bytes`. A body has at most `max_body_bytes`, and waits for memory at most `wait_timeout` in
    /// total.
    pub(crate) fn new(bytes: usize, max_body_bytes: usize, wait_timeout: Duration) -> Self {
        let total_permits = permits_for(bytes).max(1);
        let reserve = permits_for(max_body_bytes).min(total_permits / 2);
        let pools = MemoryPools {
            shared: Arc::new(Semaphore::new((total_permits - reserve) as usize)),
            reserve: Arc::new(Semaphore::new(reserve as usize)),
            token: Arc::new(Semaphore::new(1)),
            total_permits,
        };
        Self { pools: Arc::new(pools), wait_timeout }
    }

    /// Returns an empty reservation.
    fn reservation(&self) -> BodyReservation {
        BodyReservation {
            pools: self.pools.clone(),
            remaining_wait: self.wait_timeout,
            held: HeldPermits::default(),
            token: None,
        }
    }

    /// Returns the same budget for bodies that grow only if there is memory at once.
    fn without_waiting(&self) -> Self {
        Self { pools: self.pools.clone(), wait_timeout: Duration::ZERO }
    }

    /// Returns the number of reserved bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        let MemoryPools { shared, reserve, total_permits, .. } = &*self.pools;
        let available = shared.available_permits() + reserve.available_permits();
        (*total_permits as usize).saturating_sub(available) * PERMIT_BYTES
    }
}

/// The reservation of one body.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    pools: Arc<MemoryPools>,
    /// Rest of the wait timeout.
    remaining_wait: Duration,
    held: HeldPermits,
    /// The right to draw from the reserve, until the body is complete, and since when it is held.
    token: Option<(OwnedSemaphorePermit, Instant)>,
}

/// Permits of both pools.
#[derive(Debug, Default)]
struct HeldPermits {
    shared: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedSemaphorePermit>,
}

impl HeldPermits {
    fn count(&self) -> u32 {
        let count = |permit: &Option<OwnedSemaphorePermit>| permit.as_ref().map_or(0, |held| held.num_permits() as u32);
        count(&self.shared) + count(&self.reserve)
    }

    /// Releases the permits above `count`.
    fn shrink(&mut self, count: u32) {
        let mut excess = self.count().saturating_sub(count) as usize;
        for held in [&mut self.reserve, &mut self.shared].into_iter().flatten() {
            let released = excess.min(held.num_permits());
            drop(held.split(released));
            excess -= released;
        }
    }
}

/// Adds permits of the same pool.
fn merge(held: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match held {
        Some(permit) => permit.merge(more),
        None => *held = Some(more),
    }
}

impl BodyReservation {
    /// Grows the reservation to `bytes`. A body larger than the whole budget reserves all of it, so that every body within
    /// the size limit can be read. After an error as much is reserved as before.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let (before, wanted) = (self.held.count(), permits_for(bytes).min(self.pools.total_permits));
        while self.held.count() < wanted {
            let step = (wanted - self.held.count()).min(MAX_STEP_PERMITS);
            if let Ok(more) = self.pools.shared.clone().try_acquire_many_owned(step) {
                merge(&mut self.held.shared, more);
                continue;
            }
            let started_at = Instant::now();
            let acquired = tokio::time::timeout(self.remaining_wait, self.acquire(step)).await;
            self.remaining_wait = self.remaining_wait.saturating_sub(started_at.elapsed());
            if acquired != Ok(Ok(())) {
                self.held.shrink(before);
                self.token = None;
                return Err(BudgetExhausted);
            }
        }
        Ok(())
    }

    /// Waits for `step` permits of either pool; of the reserve only with the token.
    async fn acquire(&mut self, step: u32) -> Result<(), BudgetExhausted> {
        let pools = self.pools.clone();
        let (shared, reserve) = (pools.shared.clone(), pools.reserve.clone());
        // A body takes what there is.
        let at_most = |pool: &Semaphore| step.min(u32::try_from(pool.available_permits().max(1)).unwrap_or(step));
        let (reserve_step, step) = (at_most(&reserve), at_most(&shared));
        if self.token.is_none() {
            tokio::select! {
                biased;
                more = shared.clone().acquire_many_owned(step) => {
                    merge(&mut self.held.shared, more.map_err(|_| BudgetExhausted)?);
                    return Ok(());
                }
                token = pools.token.clone().acquire_owned() => {
                    self.token = Some((token.map_err(|_| BudgetExhausted)?, Instant::now()));
                }
            }
        }
        tokio::select! {
            biased;
            more = shared.acquire_many_owned(step) => merge(&mut self.held.shared, more.map_err(|_| BudgetExhausted)?),
            more = reserve.acquire_many_owned(reserve_step) => merge(&mut self.held.reserve, more.map_err(|_| BudgetExhausted)?),
        }
        Ok(())
    }

    /// Releases what is reserved above `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.held.shrink(permits_for(bytes));
    }

    /// Returns true if this body has kept others from the reserve for longer than `time`.
    pub(crate) fn blocks_reserve_for(&self, time: Duration) -> bool {
        self.token.as_ref().is_some_and(|(_, since)| since.elapsed() > time)
    }

    /// Returns the body as bytes that release the reservation when the last reference is dropped.
    pub(crate) fn into_bytes(self, body: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(ReservedBytes { body, _held: self.held })
    }
}

struct ReservedBytes<B> {
    body: B,
    _held: HeldPermits,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ReservedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

/// The memory of a stream that is forwarded: an event whose end has not been received, and output that is kept. It is taken
/// from what all bodies share, without waiting.
#[derive(Debug)]
pub(crate) struct StreamReservation {
    shared: Arc<Semaphore>,
    held: HeldPermits,
}

impl StreamReservation {
    /// Creates an empty reservation.
    pub(crate) fn new(budget: &BodyBudget) -> Self {
        Self { shared: budget.pools.shared.clone(), held: HeldPermits::default() }
    }

    /// Reserves as much as the stream holds. Returns false if there is no memory for it; as much is reserved as before.
    pub(crate) fn resize(&mut self, held_bytes: usize) -> bool {
        let wanted = permits_for(held_bytes.saturating_sub(UNCOUNTED_RESPONSE_BYTES));
        self.held.shrink(wanted);
        let missing = wanted.saturating_sub(self.held.count());
        let more = self.shared.clone().try_acquire_many_owned(missing);
        more.map(|more| merge(&mut self.held.shared, more)).is_ok()
    }
}

fn permits_for(bytes: usize) -> u32 {
    bytes.div_ceil(PERMIT_BYTES).try_into().unwrap_or(u32::MAX)
}

/// A body that is being received or decoded.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    bytes: Vec<u8>,
    /// Expected or maximum length.
    max_len: usize,
    /// Bytes that need no reservation.
    uncounted: usize,
    reservation: BodyReservation,
}

impl BodyBuffer {
    /// Creates an empty buffer for a body of this expected or maximum length.
    pub(crate) fn new(max_len: usize, budget: &BodyBudget) -> Self {
        Self { bytes: Vec::new(), max_len, uncounted: 0, reservation: budget.reservation() }
    }

    /// Creates an empty buffer for a response. It never waits for memory: its own request holds some until the response
    /// has ended.
    pub(crate) fn for_response(max_len: usize, budget: &BodyBudget) -> Self {
        Self { uncounted: UNCOUNTED_RESPONSE_BYTES, ..Self::new(max_len, &budget.without_waiting()) }
    }

    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the memory that the buffer has reserved.
    pub(crate) fn reservation(&self) -> &BodyReservation {
        &self.reservation
    }

    /// Returns the buffer itself. Only as much may be appended as [`BodyBuffer::make_room`] made room for.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends data as soon as there is memory for it.
    pub(crate) async fn push(&mut self, data: &[u8]) -> Result<(), BudgetExhausted> {
        self.make_room(data.len(), 0).await?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Makes room for `more` bytes, and reserves memory for up to `working_bytes` that their decoder needs.
    pub(crate) async fn make_room(&mut self, more: usize, working_bytes: usize) -> Result<(), BudgetExhausted> {
        let (len, capacity) = (self.bytes.len() + more, self.bytes.capacity());
        let needed = match len <= capacity {
            true => capacity,
            false => (2 * capacity).max(MIN_CAPACITY_BYTES).min(self.max_len).max(len),
        };
        let counted = (needed + working_bytes.min(needed)).saturating_sub(self.uncounted);
        self.reservation.grow(counted).await?;
        self.bytes.reserve_exact(needed - self.bytes.len());
        Ok(())
    }

    /// Returns the body as bytes that release their memory when the last reference is dropped.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        self.bytes.shrink_to_fit();
        self.reservation.shrink(self.bytes.len().saturating_sub(self.uncounted));
        self.reservation.into_bytes(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reservation_is_released_with_the_last_slice() {
        let budget = BodyBudget::new(10 << 10, 10 << 10, Duration::from_millis(20));
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
        let budget = BodyBudget::new(10 << 10, 10 << 10, Duration::from_millis(20));
        let (mut large, mut small) = (budget.reservation(), budget.reservation());
        small.grow(1).await.unwrap();
        assert_eq!(large.grow(1 << 20).await, Err(BudgetExhausted));
        drop(small);
        let mut large = budget.reservation();
        assert_eq!((large.grow(1 << 20).await, budget.reservation().grow(1).await), (Ok(()), Err(BudgetExhausted)));
    }

    #[tokio::test]
    async fn growing_body_shares_one_wait_timeout() {
        let budget = BodyBudget::new(2 << 10, 2 << 10, Duration::from_secs(2));
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

    /// Two bodies that hold all memory between them, and both need more: one of them gets it.
    #[tokio::test]
    async fn one_of_several_incomplete_bodies_always_completes() {
        let budget = BodyBudget::new(100 << 10, 40 << 10, Duration::from_millis(100));
        let mut bodies: Vec<_> = (0..6).map(|_| budget.reservation()).collect();
        for body in &mut bodies {
            body.grow(10 << 10).await.unwrap();
        }
        let grown = bodies.iter_mut().map(|body| body.grow(40 << 10));
        let grown = futures_util::future::join_all(grown).await;
        assert!(grown.contains(&Ok(())), "{grown:?}");
        assert!(grown.contains(&Err(BudgetExhausted)), "{grown:?}");
        drop(bodies);
        assert_eq!(budget.reserved_bytes(), 0);
    }
}
