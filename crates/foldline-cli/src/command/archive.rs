//! `foldline archive`: maintenance of the archive as a whole.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use foldline::Handle;
use foldline_archive::{AccessMode, ArchiveStats, ByteProgress, RetentionPolicy};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{print_stdout, report};
use crate::render::{format_number, plain};
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ArchiveGroups, SettingFlags};
use crate::units::{AgeArg, SizeArg, format_age, format_bytes};

/// Maintain the archive: statistics, retention, deletion, legal holds, verification, export, import and migration
#[derive(Args)]
pub(crate) struct ArchiveCommand {
    #[command(subcommand)]
    task: ArchiveTask,
}

#[derive(Subcommand)]
enum ArchiveTask {
    Stats(StatsTask),
    Prune(PruneTask),
    Delete(DeleteTask),
    Verify(VerifyTask),
    Export(ExportTask),
    Import(ImportTask),
    Migrate(MigrateTask),
    Hold(HoldTask),
}

impl ArchiveCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.task {
            ArchiveTask::Stats(it) => it.run(),
            ArchiveTask::Prune(it) => it.run(),
            ArchiveTask::Delete(it) => it.run(),
            ArchiveTask::Verify(it) => it.run(),
            ArchiveTask::Export(it) => it.run(),
            ArchiveTask::Import(it) => it.run(),
            ArchiveTask::Migrate(it) => it.run(),
            ArchiveTask::Hold(it) => it.run(),
        }
    }
}

/// Show how much is stored, per tool, and since when
#[derive(Args)]
struct StatsTask {
    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl StatsTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let stats = settings.open_tenant()?.stats()?;
        print_stdout(&format_stats(&stats, &settings.location()))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn format_stats(stats: &ArchiveStats, location: &str) -> String {
    let mut text = format!("{location}\n");
    let mut row = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    row(
        "originals",
        format!(
            "{} stored, {} expired, {} damaged",
            format_number(stats.available),
            format_number(stats.expired),
            format_number(stats.damaged)
        ),
    );
    row(
        "text",
        format!(
            "{}, {} tokens, of {} sessions",
            format_bytes(stats.bytes),
            format_number(stats.tokens),
            format_number(stats.sessions)
        ),
    );
    let share = (100 * (stats.file_bytes + stats.index_bytes + stats.object_bytes))
        .checked_div(stats.bytes)
        .map_or(String::new(), |it| format!(", {it} % of the text"));
    row(
        "on disk",
        format!("{} archive, {} search index{share}", format_bytes(stats.file_bytes), format_bytes(stats.index_bytes)),
    );
    if stats.object_bytes > 0 {
        row("objects", format!("{} of this namespace", format_bytes(stats.object_bytes)));
    }
    if let (Some(oldest), Some(newest)) = (stats.oldest_at, stats.newest_at) {
        row("folded", format!("{} to {}", format_age(oldest), format_age(newest)));
    }
    for tool in &stats.tools {
        row(
            &plain(&tool.tool),
            format!(
                "{} originals, {}, {} tokens",
                format_number(tool.originals),
                format_bytes(tool.bytes),
                format_number(tool.tokens)
            ),
        );
    }
    text
}

/// Remove originals that are no longer needed, and compact the archive
///
/// Age counts from the last request that still carried the marker. Originals that were carried within --live may belong
/// to a running conversation and are never removed. Without a limit nothing is removed, and the archive is only
/// compacted. All namespaces are pruned, or the one of --namespace.
#[derive(Args)]
struct PruneTask {
    /// Remove originals that no request has carried for this long: 30d, 12h, 8w.
    #[arg(long, value_name = "AGE")]
    unused_for: Option<AgeArg>,

    /// Remove the longest unused originals until the archive has at most this size on disk: 500MB, 2GB.
    #[arg(long, value_name = "SIZE")]
    max_size: Option<SizeArg>,

    /// Time after its last request during which a conversation may still continue; at least 1d.
    #[arg(long, value_name = "AGE", default_value = "7d")]
    live: AgeArg,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl PruneTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let archive = settings.open_existing()?;
        let policy = RetentionPolicy {
            max_age: self.unused_for.map(|age| age.0),
            max_bytes: self.max_size.map(|size| size.0),
            min_idle: self.live.0,
        };
        let spinner = new_spinner("pruning");
        let pruned = match settings.has_chosen_namespace {
            true => archive.tenant(&settings.namespace).prune(&policy)?,
            false => archive.prune(&policy)?,
        };
        spinner.finish_and_clear();
        print_stdout(&format!(
            "removed {} originals ({}); the archive has {} now, {} before\n",
            format_number(pruned.originals),
            format_bytes(pruned.bytes),
            format_bytes(pruned.bytes_after),
            format_bytes(pruned.bytes_before)
        ))?;
        if pruned.live > 0 {
            report(&format!(
                "foldline: {} originals are above the age limit and were kept: their conversations may continue (see \
                 --live); `foldline archive delete` removes originals of any age",
                format_number(pruned.live)
            ));
        }
        if self.max_size.is_some_and(|size| pruned.bytes_after > size.0) {
            report(
                "foldline: the archive is above the size limit: the remaining originals may still be in use (see --live)",
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Delete data at once, whatever its age
///
/// Markers of deleted originals no longer resolve, also in conversations that continue. With --all and without --namespace,
/// all namespaces are deleted.
#[derive(Args)]
struct DeleteTask {
    #[command(flatten)]
    target: DeleteTarget,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct DeleteTarget {
    /// The whole handle of an original.
    handle: Option<Handle>,

    /// Delete the originals that a session stored first, and its facts, requests and events.
    #[arg(long, value_name = "NAME")]
    session: Option<String>,

    /// Delete everything.
    #[arg(long)]
    all: bool,
}

impl DeleteTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let archive = settings.open_existing()?;
        let tenant = archive.tenant(&settings.namespace);
        let deleted = match self.target {
            DeleteTarget { handle: Some(handle), .. } => tenant.delete_original(handle)?,
            DeleteTarget { session: Some(session), .. } => tenant.delete_session(&session)?,
            _ if settings.has_chosen_namespace => tenant.delete_everything()?,
            _ => archive.delete_everything()?,
        };
        print_stdout(&format!(
            "deleted {} originals ({})\n",
            format_number(deleted.originals),
            format_bytes(deleted.bytes)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Read and hash every original again; exit code 1 if any is damaged
///
/// All namespaces are verified, or the one of --namespace.
#[derive(Args)]
struct VerifyTask {
    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl VerifyTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        // Quarantining damage needs write access; without it, damage is still reported.
        let archive = settings.open_existing().or_else(|_| settings.open(AccessMode::ReadOnly))?;
        let bar = progress_bar();
        let progress = |progress| update_progress(&bar, progress);
        let verified = match settings.has_chosen_namespace {
            true => archive.verify_namespace(&settings.namespace, progress)?,
            false => archive.verify(progress)?,
        };
        bar.finish_and_clear();
        for error in &verified.structure_errors {
            report(&format!("foldline: database: {error}"));
        }
        for damage in &verified.damaged {
            report(&format!("foldline: {} {}: {}", damage.namespace, damage.handle, plain(&damage.reason.to_string())));
        }
        let recovered = if verified.recovered > 0 {
            format!(", {} recovered", format_number(verified.recovered))
        } else {
            String::new()
        };
        print_stdout(&format!(
            "{} originals are intact ({}), {} damaged{recovered}\n",
            format_number(verified.intact),
            format_bytes(verified.bytes),
            format_number(verified.damaged.len() as u64)
        ))?;
        let is_intact = verified.damaged.is_empty() && verified.structure_errors.is_empty();
        Ok(if is_intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Write all originals and facts of a namespace as compressed JSON lines
///
/// The export is not encrypted, even if the archive is.
#[derive(Args)]
struct ExportTask {
    /// The output file; standard output if omitted or `-`.
    #[arg(value_name = "FILE.jsonl.zst")]
    file: Option<PathBuf>,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl ExportTask {
    fn run(self) -> Result<ExitCode> {
        let tenant = ArchiveSettings::resolve(&self.settings.load()?)?.open_tenant()?;
        let bar = progress_bar();
        let progress = |progress| update_progress(&bar, progress);
        let exported = match self.file.filter(|file| file != Path::new("-")) {
            Some(file) => {
                let out = create_private_file(&file).with_context(|| format!("could not create {}", file.display()))?;
                tenant.export(BufWriter::new(out), progress)?
            }
            None => tenant.export(std::io::stdout().lock(), progress)?,
        };
        bar.finish_and_clear();
        report(&format!(
            "wrote {} originals and {} facts",
            format_number(exported.originals),
            format_number(exported.facts)
        ));
        if exported.damaged > 0 {
            report(&format!("foldline: {} damaged originals were skipped", format_number(exported.damaged)));
        }
        Ok(if exported.damaged > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Creates a file that only its owner can read, like the archive.
fn create_private_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Import the originals and facts of an export
#[derive(Args)]
struct ImportTask {
    /// The export, compressed or not; standard input if omitted or `-`.
    #[arg(value_name = "FILE.jsonl.zst")]
    file: Option<PathBuf>,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl ImportTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let tenant = settings.open(AccessMode::ReadWrite)?.tenant(&settings.namespace);
        let input: Box<dyn Read> = match self.file.filter(|file| file != Path::new("-")) {
            Some(file) => {
                let opened = File::open(&file).with_context(|| format!("could not read {}", file.display()))?;
                Box::new(BufReader::new(opened))
            }
            None => Box::new(std::io::stdin().lock()),
        };
        let spinner = new_spinner("importing");
        let imported = tenant
            .import(input, |count| spinner.set_message(format!("importing: {} originals", format_number(count))))?;
        spinner.finish_and_clear();
        for (line, reason) in &imported.rejections {
            report(&format!("foldline: line {line}: {}", plain(&reason.to_string())));
        }
        print_stdout(&format!(
            "imported {} originals and {} facts; {} were already stored; {} lines were rejected\n",
            format_number(imported.added),
            format_number(imported.facts),
            format_number(imported.existing),
            format_number(imported.rejected)
        ))?;
        Ok(if imported.rejected > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Copy all namespaces of an archive into an archive in PostgreSQL
///
/// The target must be empty, or the copy of an earlier run: what it has already is not written again, so an interrupted
/// migration is continued by running it again. Legal holds are copied first, and every original is read back from the
/// target. Requests and events, which only inform people, are not copied. Both archives have the same key. Exit code 1 if an original could not be copied.
#[derive(Args)]
struct MigrateTask {
    /// The archive to copy: the path of a file, or a URL.
    #[arg(long, value_name = "ARCHIVE")]
    from: PathBuf,

    /// The URL of the target. If it has a password, set the variable FOLDLINE_ARCHIVE instead, which is the default.
    #[arg(long, value_name = "URL")]
    to: Option<PathBuf>,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl MigrateTask {
    fn run(self) -> Result<ExitCode> {
        let target = ArchiveSettings::resolve(&self.settings.load()?)?;
        let target = match self.to {
            Some(to) => target.at(to),
            None => target,
        };
        let source = target.at(self.from).open(AccessMode::ReadOnly)?;
        let bar = progress_bar();
        let migrated = source.migrate_to(&target.open(AccessMode::ReadWrite)?, |at| update_progress(&bar, at))?;
        bar.finish_and_clear();
        for handle in &migrated.failed {
            report(&format!("foldline: {handle} was not copied: the target has another text with this handle"));
        }
        if migrated.damaged > 0 {
            report(&format!("foldline: {} damaged originals were skipped", format_number(migrated.damaged)));
        }
        print_stdout(&format!(
            "copied {} originals and {} facts to {}; {} originals were already there\n",
            format_number(migrated.added),
            format_number(migrated.facts),
            target.location(),
            format_number(migrated.existing)
        ))?;
        if migrated.holds > 0 {
            print_stdout(&format!("copied {} legal holds\n", format_number(migrated.holds)))?;
        }
        let is_complete = migrated.failed.is_empty() && migrated.damaged == 0;
        Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Show, set or release legal holds: held data is neither expired nor deleted
///
/// Applies to the namespace of --namespace, or to one of its sessions. Needs an archive in PostgreSQL.
#[derive(Args)]
struct HoldTask {
    /// Hold the data, for this reason.
    #[arg(long, value_name = "REASON", conflicts_with = "release")]
    set: Option<String>,

    /// Release the hold.
    #[arg(long)]
    release: bool,

    /// The session; without it the whole namespace.
    #[arg(long, value_name = "NAME")]
    session: Option<String>,

    #[command(flatten)]
    settings: SettingFlags<ArchiveGroups>,
}

impl HoldTask {
    fn run(self) -> Result<ExitCode> {
        let settings = ArchiveSettings::resolve(&self.settings.load()?)?;
        let session = self.session.as_deref();
        match self.set {
            Some(reason) => settings.open_existing()?.tenant(&settings.namespace).set_hold(session, &reason)?,
            None if self.release => {
                let tenant = settings.open_existing()?.tenant(&settings.namespace);
                if !tenant.release_hold(session)? {
                    report("foldline: there is no such hold; `foldline archive hold` shows all holds");
                    return Ok(ExitCode::FAILURE);
                }
            }
            None => {
                for hold in settings.open_tenant()?.holds()? {
                    let session = hold.session.as_deref().map_or("all sessions".into(), plain);
                    print_stdout(&format!("{session}  {}  {}\n", format_age(hold.at), plain(&hold.reason)))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Creates a progress bar on standard error; hidden if that is not a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30.cyan} {percent:>3} %  {bytes}/{total_bytes}  {eta}");
    ProgressBar::new(0).with_style(style.expect("the template is fixed"))
}

fn update_progress(bar: &ProgressBar, progress: ByteProgress) {
    bar.set_length(progress.total_bytes);
    bar.set_position(progress.done_bytes);
}

fn new_spinner(message: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
