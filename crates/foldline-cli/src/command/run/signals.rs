//! Signals that a running command gets.

use anyhow::Result;
#[cfg(unix)]
use std::io::{IsTerminal, stderr, stdin, stdout};

/// Signals that are forwarded to the command.
#[cfg(unix)]
pub(super) struct ForwardedSignals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    /// A terminal sends the signals of its keys to the whole foreground process group, the command included;
    /// forwarded, they would arrive twice, which some programs treat differently.
    at_terminal: bool,
}

#[cfg(unix)]
impl ForwardedSignals {
    pub(super) fn register() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            at_terminal: stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal(),
        })
    }

    pub(super) async fn next(&mut self) -> rustix::process::Signal {
        use rustix::process::Signal;
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }

    pub(super) fn forward(&self, signal: rustix::process::Signal, child: &tokio::process::Child) {
        use rustix::process::{Pid, Signal, kill_process};
        if self.at_terminal && [Signal::INT, Signal::QUIT].contains(&signal) {
            return;
        }
        // The process id is not reused before the child is waited for.
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // Fails only if the command is just ending.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

/// Without Unix signals, Ctrl-C reaches the command directly; it must not end this process first.
#[cfg(not(unix))]
pub(super) struct ForwardedSignals;

#[cfg(not(unix))]
impl ForwardedSignals {
    pub(super) fn register() -> Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }

    pub(super) fn forward(&self, (): (), _: &tokio::process::Child) {}
}
