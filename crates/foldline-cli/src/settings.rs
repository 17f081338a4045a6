//! Resolution of flags, environment and defaults: a flag overrides a variable, a variable overrides a
//! default.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use foldline::{ModelTable, Original, OriginalStore, StoreError};
use foldline_archive::{AccessMode, Archive, ArchiveKey, ArchiveOptions, Namespace, TenantArchive};
use foldline_server::proxy::ProxyMode;

use crate::environment::{self, ArchiveVariables};

const MODELS_HELP: &str = "\
Custom windows, prices and overheads of models [default: $FOLDLINE_MODELS]

A CSV file that overrides the built-in table. Its first line names the columns; each row applies to all models whose names \
start with its prefix:
    prefix,window,max_output
    qwen3-coder,32768,8192";

/// The model table, for every command that counts tokens.
#[derive(Args)]
pub(crate) struct ModelFlags {
    /// Custom windows, prices and overheads of models [default: $FOLDLINE_MODELS]
    #[arg(long, value_name = "FILE", long_help = MODELS_HELP)]
    models: Option<PathBuf>,
}

impl ModelFlags {
    pub(crate) fn resolve(&self) -> Result<Cow<'static, ModelTable>> {
        let Some(file) = self.models.clone().or_else(environment::models_path) else {
            return Ok(Cow::Borrowed(ModelTable::builtin()));
        };
        let name = file.display();
        let csv = std::fs::read_to_string(&file).with_context(|| format!("could not read the model table {name}"))?;
        let table = ModelTable::builtin().overlay(&csv).with_context(|| format!("{name} is not a model table"))?;
        Ok(Cow::Owned(table))
    }
}

/// The archive, for every command that needs one.
#[derive(Args)]
#[command(next_help_heading = "Archive")]
pub(crate) struct ArchiveFlags {
    /// The archive [default: $FOLDLINE_ARCHIVE, or archive.db in the user's data folder]
    #[arg(long, value_name = "PATH")]
    archive: Option<PathBuf>,
    /// A file with the key of an encrypted archive [default: $FOLDLINE_ARCHIVE_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    archive_key_file: Option<PathBuf>,
    /// Namespace of the originals
    #[arg(long, value_name = "NAME", default_value = "local")]
    namespace: String,
}

/// Resolved archive settings.
pub(crate) struct ArchiveSettings {
    pub(crate) path: PathBuf,
    pub(crate) namespace: Namespace,
    key: Option<ArchiveKey>,
}

impl ArchiveFlags {
    /// Opens the archive of a proxy; `None` unless the proxy folds.
    pub(crate) fn open_for_mode(&self, mode: ProxyMode) -> Result<Option<Archive>> {
        match mode {
            ProxyMode::Fold => {
                let opened = self.resolve()?.open(AccessMode::ReadWrite);
                Ok(Some(
                    opened.context(
                        "the archive could not be opened; set another path with --archive, or use --mode off",
                    )?,
                ))
            }
            ProxyMode::Observe | ProxyMode::Off => Ok(None),
        }
    }

    /// Returns the namespace of the local user's originals.
    pub(crate) fn namespace(&self) -> Result<Namespace> {
        Ok(Namespace::new(self.namespace.clone())?)
    }

    pub(crate) fn resolve(&self) -> Result<ArchiveSettings> {
        let variables = ArchiveVariables::read();
        let path = match self.archive.clone().or(variables.path) {
            Some(path) => path,
            None => directories::ProjectDirs::from("", "", "foldline")
                .context("no home folder for the archive; set its path with --archive")?
                .data_dir()
                .join("archive.db"),
        };
        let secret = match self.archive_key_file.clone().or(variables.key_file) {
            Some(file) => {
                let unread = || format!("could not read the archive key {}", file.display());
                Some(std::fs::read(&file).with_context(unread)?)
            }
            None => variables.key,
        };
        // A key file written by an editor or by `echo` ends in a line break.
        let key = secret.map(|secret| ArchiveKey::new(secret.trim_ascii())).transpose()?;
        Ok(ArchiveSettings { path, namespace: self.namespace()?, key })
    }
}

impl ArchiveSettings {
    /// Opens the archive.
    pub(crate) fn open(&self, access: AccessMode) -> Result<Archive, foldline_archive::Error> {
        Archive::open_with(&self.path, ArchiveOptions { key: self.key.clone(), access })
    }

    /// Opens an existing archive for writing.
    pub(crate) fn open_existing(&self) -> Result<Archive, foldline_archive::Error> {
        self.open(if self.path.exists() { AccessMode::ReadWrite } else { AccessMode::ReadOnly })
    }

    /// Opens the user's namespace of the archive for reading.
    pub(crate) fn open_tenant(&self) -> Result<TenantArchive> {
        Ok(self.open(AccessMode::ReadOnly)?.tenant(&self.namespace))
    }
}

/// Opens the archive only when there is something to store: a request that needs no fold
/// creates no file.
impl OriginalStore for ArchiveSettings {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let archive = self.open(AccessMode::ReadWrite).map_err(|error| StoreError(error.to_string()))?;
        archive.tenant(&self.namespace).store(originals)
    }
}

/// Store for when there is no archive: storing fails with the stored reason.
pub(crate) struct NoArchive(pub(crate) String);

impl OriginalStore for NoArchive {
    fn store(&self, _: &[Original<'_>]) -> Result<(), StoreError> {
        Err(StoreError(self.0.clone()))
    }
}
