//! `foldline unfold`: prints an original from the archive, or a part of it.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_archive::{Error, ErrorKind, ExcerptQuery, excerpt};

use crate::output::{report, write_output};
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};

/// Print an original that was folded
///
/// A marker in a folded conversation ends in a handle. This command prints the original that the marker replaced, or
/// a part of it. A text is printed byte for byte. Whole rounds are printed with role, tool, target and real line
/// breaks; --raw prints their exact bytes.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct UnfoldCommand {
    /// The handle in the marker, or at least its first 8 characters.
    handle: String,

    /// Only these lines, counted from 1, both ends included: 10..20, 10.., ..20 or 10.
    #[arg(long, value_name = "A..B")]
    lines: Option<String>,

    /// Only lines that match this regular expression, each with its number.
    #[arg(long, value_name = "RE")]
    grep: Option<String>,

    /// With --grep, this many lines before and after each match.
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0, requires = "grep")]
    context: usize,

    /// Only this page of the output, counted from 1; a page has at most 16 KB.
    #[arg(long, value_name = "N")]
    page: Option<usize>,

    /// The exact bytes that were folded: rounds, images and signed reasoning as JSON.
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

const HELP: &str = "\
Examples:
  foldline unfold 7k3q9p2m4x1z                        the whole original
  foldline unfold 7k3q9p2m --lines 120..160           a few lines; 8 characters of the handle are enough
  foldline unfold 7k3q9p2m4x1z --grep 'error|warn' -C 2   what went wrong, with two lines around
  foldline unfold 7k3q9p2m4x1z --raw                  the exact bytes";

impl UnfoldCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let lines = self.lines.as_deref().map(str::parse).transpose()?;
        let query = ExcerptQuery { lines, grep: self.grep, context: self.context, page: self.page };
        let unfolded = ArchiveSettings::resolve(&self.settings.load()?)?
            .open_tenant()?
            .unfold(&self.handle)
            .map_err(listing_candidates)?;
        let excerpt = if self.raw { excerpt(&unfolded.bytes, &query)? } else { excerpt(&unfolded.readable(), &query)? };
        write_output(None, &excerpt.bytes)?;
        if !excerpt.is_complete {
            report("foldline: the pattern search was stopped at its time limit; there may be more matches");
        }
        if excerpt.page < excerpt.pages {
            report(&format!("foldline: page {} of {}", excerpt.page, excerpt.pages));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds the matching handles to the error for an ambiguous prefix, so that the user can choose.
fn listing_candidates(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Ambiguous { candidates } => {
            let list: Vec<String> = candidates.iter().map(ToString::to_string).collect();
            anyhow!("{error}: {}", list.join(", "))
        }
        _ => error.into(),
    }
}
