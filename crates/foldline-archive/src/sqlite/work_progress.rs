//! Progress of background work.

/// Progress of a maintenance step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkProgress {
    /// Something was done; there may be more.
    Advanced,
    /// There was nothing to do.
    Idle,
}
