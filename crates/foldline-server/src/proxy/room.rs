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
const UNIT: usize = 1 << 10;

/// The room of all bodies.
pub(crate) struct Room {
    free: Arc<Semaphore>,
    all: u32,
    patience: Duration,
}

/// There is no room for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Room {
    /// So many bytes, and so long a wait for some of them.
    pub(crate) fn new(bytes: usize, patience: Duration) -> Self {
        let all = units(bytes).max(1);
        Self { free: Arc::new(Semaphore::new(all as usize)), all, patience }
    }

    /// A body that has taken nothing yet.
    pub(crate) fn enter(&self) -> Taken {
        Taken { free: self.free.clone(), all: self.all, patience: self.patience, permit: None }
    }

    /// Bytes that are taken.
    pub(crate) fn taken(&self) -> usize {
        (self.all as usize).saturating_sub(self.free.available_permits()) * UNIT
    }
}

/// What one body has taken.
#[derive(Debug)]
pub(crate) struct Taken {
    free: Arc<Semaphore>,
    all: u32,
    /// What is left of it.
    patience: Duration,
    permit: Option<OwnedSemaphorePermit>,
}

impl Taken {
    /// Takes room for so many bytes in all. One that needs more than there is has it to itself: every body that is
    /// allowed gets through.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let has = self.permit.as_ref().map_or(0, |permit| permit.num_permits() as u32);
        let lacks = units(bytes).min(self.all).saturating_sub(has);
        if lacks == 0 {
            return Ok(());
        }
        let began = Instant::now();
        let waited = tokio::time::timeout(self.patience, self.free.clone().acquire_many_owned(lacks)).await;
        self.patience = self.patience.saturating_sub(began.elapsed());
        let more = waited.map_err(|_| Full)?.map_err(|_| Full)?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }

    /// The body, which gives its room back when nobody has it any more.
    pub(crate) fn hold(self, body: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Held { body, _taken: self })
    }
}

struct Held<B> {
    body: B,
    _taken: Taken,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT).try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_is_given_back_with_the_last_piece_of_a_body() {
        let room = Room::new(10 << 10, Duration::from_millis(20));
        let mut taken = room.enter();
        taken.grow(6 << 10).await.unwrap();
        taken.grow(4 << 10).await.unwrap();
        assert_eq!(room.taken(), 6 << 10, "it does not shrink");
        let body = taken.hold(vec![7; 6 << 10]);
        let end = body.slice(6000..);
        drop(body);
        assert_eq!((room.taken(), room.enter().grow(5 << 10).await), (6 << 10, Err(Full)));
        drop(end);
        assert_eq!((room.taken(), room.enter().grow(5 << 10).await), (0, Ok(())));
    }

    #[tokio::test]
    async fn one_that_is_larger_than_the_room_waits_until_it_is_alone() {
        let room = Room::new(10 << 10, Duration::from_millis(20));
        let (mut large, mut small) = (room.enter(), room.enter());
        small.grow(1).await.unwrap();
        assert_eq!(large.grow(1 << 20).await, Err(Full));
        drop(small);
        let mut large = room.enter();
        assert_eq!((large.grow(1 << 20).await, room.enter().grow(1).await), (Ok(()), Err(Full)));
    }

    #[tokio::test]
    async fn a_body_that_grows_step_by_step_does_not_wait_anew_at_every_step() {
        let room = Room::new(2 << 10, Duration::from_secs(2));
        let (mut first, mut second) = (room.enter(), room.enter());
        first.grow(2 << 10).await.unwrap();
        let (told, ()) = tokio::join!(second.grow(1), async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            drop(first);
        });
        let mut third = room.enter();
        third.grow(1).await.unwrap();
        let again = Instant::now();
        assert_eq!((told, second.grow(2 << 10).await), (Ok(()), Err(Full)));
        assert!(again.elapsed() < Duration::from_secs(1), "a quarter of the patience was left");
    }
}
