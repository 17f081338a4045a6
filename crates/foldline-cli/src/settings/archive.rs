//! The archive that a command uses.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use foldline::engine::StoreError;
use foldline::{Original, OriginalStore};
use foldline_archive::{
    AccessMode, Archive, ArchiveKey, ArchiveOptions, AuditLog, Namespace, ObjectStorage, TenantArchive,
};
use foldline_server::proxy::ProxySettings;

use crate::environment;
use crate::settings::layers::SettingLayers;
use crate::settings::table::{
    ARCHIVE, ARCHIVE_KEY, ARCHIVE_KEY_FILE, ARCHIVE_OBJECTS, ARCHIVE_OBJECTS_ABOVE, AUDIT_LOG, NAMESPACE,
};
use crate::units::MegabytesArg;

/// Resolved archive settings.
pub(crate) struct ArchiveSettings {
    /// The path of a file, or the URL of a database. The URL may have a password: see `location`.
    pub(crate) path: PathBuf,
    pub(crate) namespace: Namespace,
    /// True if the namespace was chosen, false if it is the default.
    pub(crate) has_chosen_namespace: bool,
    key: Option<ArchiveKey>,
    objects: Option<ObjectStorage>,
    audit: Option<AuditLog>,
}

/// Returns the namespace of the local user's originals.
pub(crate) fn namespace(layers: &SettingLayers) -> Result<Namespace> {
    match layers.get(&NAMESPACE) {
        // The kind of the error selects the exit code.
        Some(value) => Ok(Namespace::new(value.text.to_owned())?),
        None => Ok(Namespace::local()),
    }
}

/// Returns the object store of large originals.
fn objects(layers: &SettingLayers) -> Result<Option<ObjectStorage>> {
    let Some(url) = layers.get(&ARCHIVE_OBJECTS) else { return Ok(None) };
    let mut storage = ObjectStorage::new(url.text);
    if let Some(size) = layers.parse(&ARCHIVE_OBJECTS_ABOVE, MegabytesArg::from_str)? {
        storage.min_bytes = size.0;
    }
    storage.variables = environment::object_store_variables();
    Ok(Some(storage))
}

/// Opens the archive of a proxy; `None` unless the proxy folds.
pub(crate) fn open_for_proxy(layers: &SettingLayers, settings: &ProxySettings) -> Result<Option<Archive>> {
    match settings.may_fold() {
        true => {
            let opened = ArchiveSettings::resolve(layers)?.open(AccessMode::ReadWrite);
            let advice = "the archive could not be opened; set another one with --archive, or use --mode off";
            Ok(Some(opened.context(advice)?))
        }
        false => Ok(None),
    }
}

impl ArchiveSettings {
    /// Resolves the settings of the archive.
    pub(crate) fn resolve(layers: &SettingLayers) -> Result<Self> {
        let path = match layers.path(&ARCHIVE) {
            Some(path) => path,
            None => directories::ProjectDirs::from("", "", "foldline")
                .context("no home folder for the archive; set its path with --archive")?
                .data_dir()
                .join("archive.db"),
        };
        let key = match layers.path(&ARCHIVE_KEY_FILE) {
            Some(file) => Some(ArchiveKey::from_file(&file)?),
            None => {
                layers.get(&ARCHIVE_KEY).map(|value| ArchiveKey::new(value.text.as_bytes().trim_ascii())).transpose()?
            }
        };
        let has_chosen_namespace = layers.get(&NAMESPACE).is_some();
        let audit =
            layers.path(&AUDIT_LOG).map(|path| AuditLog::open(path, environment::command_name())).transpose()?;
        Ok(Self { path, namespace: namespace(layers)?, has_chosen_namespace, key, objects: objects(layers)?, audit })
    }

    /// Returns the settings of another archive with the same key and namespace. A file has no object store.
    pub(crate) fn at(&self, path: PathBuf) -> Self {
        let (namespace, key, audit) = (self.namespace.clone(), self.key.clone(), self.audit.clone());
        let objects = self.objects.clone().filter(|_| Archive::is_url(&path));
        Self { path, namespace, key, objects, audit, ..*self }
    }

    /// Opens the archive.
    pub(crate) fn open(&self, access: AccessMode) -> Result<Archive, foldline_archive::Error> {
        let (key, objects, audit) = (self.key.clone(), self.objects.clone(), self.audit.clone());
        Archive::open_with(&self.path, ArchiveOptions { key, access, objects, audit })
    }

    /// Opens an existing archive for writing.
    pub(crate) fn open_existing(&self) -> Result<Archive, foldline_archive::Error> {
        self.open(if self.may_exist() { AccessMode::ReadWrite } else { AccessMode::ReadOnly })
    }

    /// Returns false if the archive is a file that does not exist.
    pub(crate) fn may_exist(&self) -> bool {
        Archive::is_url(&self.path) || self.path.exists()
    }

    /// Returns the name of the archive for messages.
    pub(crate) fn location(&self) -> String {
        Archive::describe(&self.path)
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

    fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
        let archive = self.open(AccessMode::ReadWrite).map_err(|error| StoreError(error.to_string()))?;
        archive.tenant(&self.namespace).store_accepted(originals)
    }
}

/// Store for when there is no archive: storing fails with the stored reason.
pub(crate) struct NoArchive(pub(crate) String);

impl OriginalStore for NoArchive {
    fn store(&self, _: &[Original<'_>]) -> Result<(), StoreError> {
        Err(StoreError(self.0.clone()))
    }
}
