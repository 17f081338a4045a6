//! Changes of clients' settings files that point them at a proxy, and their exact undo.
//!
//! An installation is recorded with a backup of the file. Undoing it restores the backup if nothing else has changed the
//! file since; otherwise only the keys that were written are given their former values.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::clients::config::{ClientFile, ClientSetting};
use crate::clients::edit::FileFormat;
use crate::clients::kind::ClientKind;
use crate::output::write_atomically;

/// Extension of backups, next to the settings file.
const BACKUP_SUFFIX: &str = ".before-foldline";

/// The changes of a settings file.
#[derive(Debug, Deserialize, Serialize)]
struct InstallRecord {
    file: PathBuf,
    /// Backup of the file; none if it did not exist.
    backup: Option<PathBuf>,
    /// Hash of the file as it was written.
    written_hash: String,
    keys: Vec<RecordedKey>,
}

#[derive(Debug, Deserialize, Serialize)]
struct RecordedKey {
    key: Vec<String>,
    written: String,
    /// The former value in the file's notation; none if the key did not exist.
    previous: Option<String>,
    /// Objects above the key that were created for it.
    created_parents: usize,
}

/// A change of a settings file, for the user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingChange {
    pub(crate) key: String,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
}

/// Result of an undo.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UninstallOutcome {
    NotInstalled,
    /// The file is byte for byte what it was before the installation.
    Restored(Vec<SettingChange>),
    /// The file has other changes, which remain; the listed keys were restored.
    KeysRestored(Vec<SettingChange>),
}

/// Returns the path of the record of an installation.
pub(crate) fn record_path(client: ClientKind) -> Result<PathBuf> {
    let folders = directories::ProjectDirs::from("", "", "foldline").context("no home folder for the record")?;
    Ok(folders.data_dir().join("clients").join(format!("{}.json", client.command())))
}

/// Returns the path of the record of a sign-in method that was selected for an installation.
pub(crate) fn sign_in_record_path(client: ClientKind) -> Result<PathBuf> {
    Ok(record_path(client)?.with_file_name(format!("{}-sign-in.json", client.command())))
}

/// Points a client at a proxy. Returns the changes; none if they were made before.
pub(crate) fn install(record_path: &Path, file: &ClientFile, settings: &[ClientSetting]) -> Result<Vec<SettingChange>> {
    if let Some(record) = read_record(record_path)? {
        let text = fs::read_to_string(&record.file).unwrap_or_default();
        let is_current = |(key, value): &ClientSetting| {
            file.format.get(&text, key).ok().flatten().as_deref() == Some(value.as_str())
        };
        if record.file == file.path && settings.iter().all(is_current) {
            return Ok(Vec::new());
        }
        // Other values: back to the original first, so that its values are the recorded ones.
        uninstall(record_path, |path| ClientFile { path: path.to_owned(), format: file.format })?;
    }
    let original = match fs::read(&file.path) {
        Ok(bytes) => Some(String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", file.path.display()))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("could not read {}", file.path.display())),
    };
    let (text, keys) = edited(file, original.as_deref().unwrap_or_default(), settings)?;
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let backup = original.as_ref().map(|_| {
        let mut name = file.path.clone().into_os_string();
        name.push(BACKUP_SUFFIX);
        PathBuf::from(name)
    });
    for folder in [file.path.parent(), record_path.parent()].into_iter().flatten() {
        fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
    }
    if let Some(backup) = &backup {
        fs::copy(&file.path, backup).with_context(|| format!("could not write {}", backup.display()))?;
    }
    let changes = keys.iter().map(|it| change(&it.key, it.previous.clone(), Some(it.written.clone()))).collect();
    // The record comes first: an interrupted installation can be undone.
    let record = InstallRecord { file: file.path.clone(), backup, written_hash: hash(text.as_bytes()), keys };
    write_atomically(record_path, serde_json::to_string_pretty(&record)?.as_bytes())?;
    write_atomically(&file.path, text.as_bytes())?;
    Ok(changes)
}

/// Returns the file with the settings, and what was changed.
fn edited(file: &ClientFile, original: &str, settings: &[ClientSetting]) -> Result<(String, Vec<RecordedKey>)> {
    let place = file.path.display();
    let (mut text, mut keys) = (original.to_owned(), Vec::new());
    for (key, value) in settings {
        let name = key.join(".");
        let previous = file.format.get(&text, key).with_context(|| format!("could not read {place}"))?;
        if previous.as_deref() == Some(value.as_str()) {
            continue;
        }
        // A list of the user cannot be merged with ours.
        if file.format == FileFormat::Yaml && value.starts_with('[') && previous.is_some() {
            bail!("{name} is already set in {place}; add {value} to it by hand");
        }
        let edit = || format!("could not set {name} in {place}");
        let (new, created_parents) = file.format.set(&text, key, value).with_context(edit)?;
        if file.format.get(&new, key).ok().flatten().as_deref() != Some(value.as_str()) {
            bail!("could not set {name} in {place}; set it by hand to {value}");
        }
        text = new;
        keys.push(RecordedKey { key: key.clone(), written: value.clone(), previous, created_parents });
    }
    Ok((text, keys))
}

/// Undoes an installation.
pub(crate) fn uninstall(record_path: &Path, file_of: impl Fn(&Path) -> ClientFile) -> Result<UninstallOutcome> {
    let Some(record) = read_record(record_path)? else { return Ok(UninstallOutcome::NotInstalled) };
    let file = file_of(&record.file);
    let current = fs::read_to_string(&record.file).ok();
    let is_unchanged = current.as_ref().is_none_or(|text| hash(text.as_bytes()) == record.written_hash);
    let outcome = match current {
        Some(text) if !is_unchanged => {
            let (text, changes) = restored_keys(&file, text, &record.keys)?;
            write_atomically(&record.file, text.as_bytes())?;
            UninstallOutcome::KeysRestored(changes)
        }
        _ => {
            match &record.backup {
                Some(backup) => {
                    let bytes = fs::read(backup).with_context(|| format!("could not read {}", backup.display()))?;
                    write_atomically(&record.file, &bytes)?;
                }
                None => remove_if_exists(&record.file)?,
            }
            let restored = |it: &RecordedKey| change(&it.key, Some(it.written.clone()), it.previous.clone());
            UninstallOutcome::Restored(record.keys.iter().map(restored).collect())
        }
    };
    if let Some(backup) = &record.backup {
        remove_if_exists(backup)?;
    }
    remove_if_exists(record_path)?;
    Ok(outcome)
}

/// Returns the former values of keys that still have the written ones.
fn restored_keys(file: &ClientFile, mut text: String, keys: &[RecordedKey]) -> Result<(String, Vec<SettingChange>)> {
    let mut changes = Vec::new();
    for recorded in keys.iter().rev() {
        let current = file.format.get(&text, &recorded.key)?;
        if current.as_deref() != Some(recorded.written.as_str()) {
            continue;
        }
        text = match &recorded.previous {
            Some(previous) => file.format.set(&text, &recorded.key, previous)?.0,
            None => file.format.remove(&text, &recorded.key, recorded.created_parents)?,
        };
        changes.push(change(&recorded.key, current, recorded.previous.clone()));
    }
    changes.reverse();
    Ok((text, changes))
}

/// Returns true if a value in a settings file was written by an installation.
pub(crate) fn is_written_by_install(record_path: &Path, url: &str) -> bool {
    let record = read_record(record_path).ok().flatten();
    record.is_some_and(|record| record.keys.iter().any(|it| it.written.trim_matches('"') == url))
}

fn change(key: &[String], from: Option<String>, to: Option<String>) -> SettingChange {
    SettingChange { key: key.join("."), from, to }
}

fn read_record(path: &Path) -> Result<Option<InstallRecord>> {
    match fs::read(path) {
        Ok(bytes) => {
            let damaged = || format!("{} is damaged; restore the client's settings by hand", path.display());
            Ok(Some(serde_json::from_slice(&bytes).with_context(damaged)?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

fn remove_if_exists(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}
