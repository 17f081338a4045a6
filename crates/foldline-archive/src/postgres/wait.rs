//! Waiting for a future on a thread, with a limit.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// Wakes a parked thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread until it is ready; `None` if the deadline passes first. Unlike the `block_on` of a
/// runtime it may be called from any thread, and the future may borrow.
pub(crate) fn wait_until<F: Future>(future: F, deadline: Instant) -> Option<F::Output> {
    // On a thread of a runtime, its budget would end the wait's progress: only the runtime, which waits, renews it.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waits_for_another_thread() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            sender.send(7).unwrap();
        });
        assert_eq!(wait_until(receiver, Instant::now() + Duration::from_secs(10)).unwrap(), Ok(7));
    }

    #[test]
    fn many_waits_on_a_runtime_thread_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for number in 0..1_000 {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                sender.send(number).unwrap();
                assert_eq!(wait_until(receiver, Instant::now() + Duration::from_millis(50)), Some(Ok(number)));
            }
        });
    }

    #[test]
    fn deadline_ends_the_wait() {
        let begin = Instant::now();
        assert_eq!(wait_until(std::future::pending::<()>(), begin + Duration::from_millis(20)), None);
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }
}
