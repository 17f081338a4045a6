//! `foldline archive`: looking after the archive as a whole.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use foldline_archive::{Access, Progress, Retention, Stats};
use indicatif::{ProgressBar, ProgressStyle};

use super::{complain, print};
use crate::picture::number;
use crate::quantity::{Age, Size, ago, bytes};
use crate::settings::ArchiveFlags;

/// Look after the archive: statistics, retention, verification, export and import
#[derive(Args)]
pub(crate) struct ArchiveCommand {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Stats(StatsTask),
    Prune(PruneTask),
    Verify(VerifyTask),
    Export(ExportTask),
    Import(ImportTask),
}

impl ArchiveCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.task {
            Task::Stats(it) => it.run(),
            Task::Prune(it) => it.run(),
            Task::Verify(it) => it.run(),
            Task::Export(it) => it.run(),
            Task::Import(it) => it.run(),
        }
    }
}

/// Show how much is held, of which tools, since when
#[derive(Args)]
struct StatsTask {
    #[command(flatten)]
    archive: ArchiveFlags,
}

impl StatsTask {
    fn run(self) -> Result<ExitCode> {
        let settings = self.archive.resolve()?;
        let stats = settings.shelf()?.stats()?;
        print(&table(&stats, &settings.path))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn table(stats: &Stats, path: &Path) -> String {
    let mut text = format!("{}\n", path.display());
    let mut row = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    row(
        "originals",
        format!("{} held, {} expired, {} damaged", number(stats.held), number(stats.expired), number(stats.damaged)),
    );
    row(
        "text",
        format!("{}, {} tokens, of {} sessions", bytes(stats.bytes), number(stats.tokens), number(stats.sessions)),
    );
    let share = (100 * (stats.file + stats.index))
        .checked_div(stats.bytes)
        .map_or(String::new(), |it| format!(", {it} % of the text"));
    row("on disk", format!("{} archive, {} search index{share}", bytes(stats.file), bytes(stats.index)));
    if let (Some(oldest), Some(newest)) = (stats.oldest, stats.newest) {
        row("folded", format!("{} to {}", ago(oldest), ago(newest)));
    }
    for tool in &stats.tools {
        row(
            &tool.tool,
            format!("{} originals, {}, {} tokens", number(tool.held), bytes(tool.bytes), number(tool.tokens)),
        );
    }
    text
}

/// Give up what is no longer needed, and pack the rest anew
///
/// Age counts from the last request that still carried the marker. What was carried within --live may belong to a
/// conversation that goes on, and is never given up. Without a limit nothing is given up, and the archive is only
/// packed anew.
#[derive(Args)]
struct PruneTask {
    /// Give up what no request has carried for so long: 30d, 12h, 8w.
    #[arg(long, value_name = "AGE")]
    unused_for: Option<Age>,

    /// Give up the longest unused until the archive is no larger on disk: 500MB, 2GB.
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Size>,

    /// How long after its last request a conversation may still go on; at least 1d.
    #[arg(long, value_name = "AGE", default_value = "7d")]
    live: Age,

    #[command(flatten)]
    archive: ArchiveFlags,
}

impl PruneTask {
    fn run(self) -> Result<ExitCode> {
        let archive = self.archive.resolve()?.open_existing()?;
        let spinner = spinner("pruning");
        let pruned = archive.prune(&Retention {
            age: self.unused_for.map(|age| age.0),
            bytes: self.max_size.map(|size| size.0),
            live: self.live.0,
        })?;
        spinner.finish_and_clear();
        print(&format!(
            "gave up {} originals ({}); the archive has {} now, {} before\n",
            number(pruned.originals),
            bytes(pruned.bytes),
            bytes(pruned.after),
            bytes(pruned.before)
        ))?;
        if self.max_size.is_some_and(|size| pruned.after > size.0) {
            complain("foldline: the rest may still be in use and was kept above the limit (see --live)");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Read and hash every original again; exit 1 when something is damaged
#[derive(Args)]
struct VerifyTask {
    #[command(flatten)]
    archive: ArchiveFlags,
}

impl VerifyTask {
    fn run(self) -> Result<ExitCode> {
        let settings = self.archive.resolve()?;
        // Setting damage aside is writing; where that is not possible it is still reported.
        let archive = settings.open_existing().or_else(|_| settings.open(Access::Read))?;
        let bar = bar();
        let verified = archive.verify(|progress| advance(&bar, progress))?;
        bar.finish_and_clear();
        for fault in &verified.structure {
            complain(&format!("foldline: the database: {fault}"));
        }
        for damage in &verified.damaged {
            complain(&format!("foldline: {} {}: {}", damage.namespace, damage.handle, damage.why));
        }
        let healed = if verified.healed > 0 { format!(", {} healed", number(verified.healed)) } else { String::new() };
        print(&format!(
            "{} originals are sound ({}), {} damaged{healed}\n",
            number(verified.sound),
            bytes(verified.bytes),
            number(verified.damaged.len() as u64)
        ))?;
        let is_sound = verified.damaged.is_empty() && verified.structure.is_empty();
        Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Write all originals and facts of a namespace as compressed JSON lines
///
/// The export is not sealed, even when the archive is.
#[derive(Args)]
struct ExportTask {
    /// Where to; standard output when left out or `-`.
    #[arg(value_name = "FILE.jsonl.zst")]
    file: Option<PathBuf>,

    #[command(flatten)]
    archive: ArchiveFlags,
}

impl ExportTask {
    fn run(self) -> Result<ExitCode> {
        let shelf = self.archive.resolve()?.shelf()?;
        let bar = bar();
        let progress = |progress| advance(&bar, progress);
        let exported = match self.file.filter(|file| file != Path::new("-")) {
            Some(file) => {
                let out = private_file(&file).with_context(|| format!("{} could not be created", file.display()))?;
                shelf.export(BufWriter::new(out), progress)?
            }
            None => shelf.export(std::io::stdout().lock(), progress)?,
        };
        bar.finish_and_clear();
        complain(&format!("wrote {} originals and {} facts", number(exported.originals), number(exported.facts)));
        if exported.damaged > 0 {
            complain(&format!("foldline: {} damaged originals were left out", number(exported.damaged)));
        }
        Ok(if exported.damaged > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// A new file that is for its owner alone, as the archive is.
fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Take in what an export wrote
#[derive(Args)]
struct ImportTask {
    /// The export, compressed or not; standard input when left out or `-`.
    #[arg(value_name = "FILE.jsonl.zst")]
    file: Option<PathBuf>,

    #[command(flatten)]
    archive: ArchiveFlags,
}

impl ImportTask {
    fn run(self) -> Result<ExitCode> {
        let settings = self.archive.resolve()?;
        let shelf = settings.open(Access::Write)?.shelf(&settings.namespace);
        let from: Box<dyn Read> = match self.file.filter(|file| file != Path::new("-")) {
            Some(file) => {
                let opened = File::open(&file).with_context(|| format!("{} could not be read", file.display()))?;
                Box::new(BufReader::new(opened))
            }
            None => Box::new(std::io::stdin().lock()),
        };
        let spinner = spinner("importing");
        let imported =
            shelf.import(from, |taken| spinner.set_message(format!("importing: {} originals", number(taken))))?;
        spinner.finish_and_clear();
        for (line, why) in &imported.reasons {
            complain(&format!("foldline: line {line}: {why}"));
        }
        print(&format!(
            "took in {} originals and {} facts; {} were held already; {} lines were refused\n",
            number(imported.added),
            number(imported.facts),
            number(imported.held),
            number(imported.refused)
        ))?;
        Ok(if imported.refused > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// A bar on standard error, where that is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30.cyan} {percent:>3} %  {bytes}/{total_bytes}  {eta}");
    ProgressBar::new(0).with_style(style.expect("the template is fixed"))
}

fn advance(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn spinner(doing: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
