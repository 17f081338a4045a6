//! A buffer for a body, which reserves memory in the body budget as it grows: an announced length alone takes none.

use bytes::Bytes;

use crate::proxy::downstream::body_budget::{BodyBudget, BodyReservation, BudgetExhausted};

/// First capacity of a buffer.
const MIN_CAPACITY_BYTES: usize = 16 << 10;
/// Bytes of a response that are not counted, so that usual responses never depend on the memory of others.
const UNCOUNTED_RESPONSE_BYTES: usize = 256 << 10;

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
        let reservation = budget.immediate_reservation();
        Self { bytes: Vec::new(), max_len, uncounted: UNCOUNTED_RESPONSE_BYTES, reservation }
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
