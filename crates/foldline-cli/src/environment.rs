//! Every environment variable that foldline reads, and the only place where it does.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

/// Set to anything: no colours, as <https://no-color.org> asks.
const NO_COLOR: &str = "NO_COLOR";
/// How many columns the terminal has, where it does not say so itself.
const COLUMNS: &str = "COLUMNS";
/// Where the archive of folded originals lies.
const ARCHIVE: &str = "FOLDLINE_ARCHIVE";
/// A file with the key of a sealed archive.
const ARCHIVE_KEY_FILE: &str = "FOLDLINE_ARCHIVE_KEY_FILE";
/// The key of a sealed archive itself, for places where secrets come as variables.
const ARCHIVE_KEY: &str = "FOLDLINE_ARCHIVE_KEY";

/// A table of models of the user's own.
const MODELS: &str = "FOLDLINE_MODELS";

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

/// The user's own table of models, if the environment names one.
pub(crate) fn models() -> Option<PathBuf> {
    std::env::var_os(MODELS).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What the environment says of the archive.
#[derive(Debug)]
pub(crate) struct ArchiveVariables {
    pub(crate) path: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) key: Option<Vec<u8>>,
}

impl ArchiveVariables {
    pub(crate) fn read() -> Self {
        // An empty variable is one that somebody meant to unset.
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            path: variable(ARCHIVE).map(PathBuf::from),
            key_file: variable(ARCHIVE_KEY_FILE).map(PathBuf::from),
            key: variable(ARCHIVE_KEY).map(std::ffi::OsString::into_encoded_bytes),
        }
    }
}
