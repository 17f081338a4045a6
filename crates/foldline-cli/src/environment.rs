//! Every environment variable that foldline reads, and the only place where it does.

use std::io::{IsTerminal, stdout};

/// Set to anything: no colours, as <https://no-color.org> asks.
const NO_COLOR: &str = "NO_COLOR";
/// How many columns the terminal has, where it does not say so itself.
const COLUMNS: &str = "COLUMNS";

/// Columns when nobody tells.
const USUAL_WIDTH: usize = 80;

/// How the output is to be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns that a line may take.
    pub(crate) width: usize,
    pub(crate) ink: Ink,
}

/// Whether colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Colours,
    Plain,
}

impl Look {
    /// What suits the terminal, or the file, that the output goes to.
    pub(crate) fn of_stdout() -> Self {
        let no_color = std::env::var_os(NO_COLOR).is_some_and(|value| !value.is_empty());
        let columns = std::env::var(COLUMNS).ok().and_then(|value| value.parse().ok());
        let width = columns.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)));
        Self {
            width: width.unwrap_or(USUAL_WIDTH).clamp(40, 140),
            ink: if stdout().is_terminal() && !no_color { Ink::Colours } else { Ink::Plain },
        }
    }
}
