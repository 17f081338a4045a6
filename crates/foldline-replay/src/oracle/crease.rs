//! One fold of an oracle's schedule.

/// An entry of a schedule: at this call, the messages `from..to` are folded. Those before `from` stay
/// as an earlier crease left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OracleCrease {
    pub(crate) call: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}
