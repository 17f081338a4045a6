//! The reading side of an archive: what unfolding, searching, verifying and exporting have in common.
//!
//! Whatever is read here is checked against its hash before it is given out.

use std::path::PathBuf;

use foldline::Handle;
use rusqlite::Connection;

use crate::encryption::ArchiveCipher;
use crate::originals::entry::{OriginalInfo, OriginalRow, OriginalState, UnfoldedOriginal};
use crate::originals::pack::{OpenPack, OriginalDescription};
use crate::originals::write::find_namespace;
use crate::search::index::SearchIndex;
use crate::sqlite::readers::ReaderPool;
use crate::{Error, ErrorKind, Namespace};

/// How many candidates an ambiguous beginning of a handle is answered with.
const MAX_CANDIDATES: usize = 10;

/// Fewest characters that are looked up as the beginning of a handle: 40 bits, too many to be guessed.
const MIN_PREFIX_CHARS: usize = 8;

#[derive(Debug)]
pub(crate) struct SqliteStore {
    pub(crate) path: PathBuf,
    pub(crate) cipher: ArchiveCipher,
    pub(crate) readers: ReaderPool,
    pub(crate) index: SearchIndex,
}

/// The pack that was read last: neighbours are often wanted next.
#[derive(Debug, Default)]
pub(crate) struct LastPack(Option<(i64, OpenPack)>);

impl SqliteStore {
    /// What tells this archive from another.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        let sql = "SELECT value FROM setting WHERE name = 'identity'";
        self.readers.read(|connection| Ok(connection.query_row(sql, (), |row| row.get(0))?))
    }

    /// The one entry that a prefix means.
    pub(crate) fn resolve(
        &self,
        connection: &Connection,
        namespace: &Namespace,
        prefix: &HandlePrefix,
    ) -> Result<OriginalRow, Error> {
        let unknown = || {
            Error::new(
                ErrorKind::NotFound,
                format!("no original with the handle {prefix} is on the shelf of {namespace}"),
            )
        };
        let namespace = find_namespace(connection, namespace)?.ok_or_else(unknown)?;
        // What has expired only answers where nothing else does.
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {} FROM original AS o LEFT JOIN session AS s ON s.id = o.session
             WHERE o.namespace = ?1 AND o.handle >= ?2 AND o.handle < ?3
             ORDER BY o.state = 1, o.handle LIMIT ?4",
            OriginalRow::COLUMNS
        ))?;
        let (from, to) = prefix.range();
        let mut found = statement
            .query_map((namespace, from, to, MAX_CANDIDATES as i64 + 1), OriginalRow::from_row)?
            .collect::<Result<Vec<_>, _>>()?;
        let there = found.iter().filter(|it| it.state != OriginalState::Expired).count();
        if there > 1 {
            let candidates: Vec<Handle> = found.iter().take(there.min(MAX_CANDIDATES)).map(|it| it.handle).collect();
            // The message may be read by a model, so it lists none of them.
            let message = format!("several originals have handles that begin with {prefix}; give the whole handle");
            return Err(Error::new(ErrorKind::Ambiguous { candidates }, message));
        }
        if found.is_empty() { Err(unknown()) } else { Ok(found.swap_remove(0)) }
    }

    /// Reads an original and makes sure that it is what was kept.
    pub(crate) fn fetch(
        &self,
        connection: &Connection,
        namespace: &Namespace,
        stored: OriginalRow,
        last: &mut LastPack,
    ) -> Result<UnfoldedOriginal, Error> {
        let handle = stored.handle;
        let damaged = |why: &str| {
            Error::new(
                ErrorKind::Damaged,
                format!("the original {handle} is damaged on disk ({why}); run `foldline archive verify`"),
            )
        };
        let pack = match (stored.state, stored.pack) {
            (OriginalState::Damaged, _) => return Err(damaged("as an earlier reading found")),
            (OriginalState::Available, Some(pack)) => pack,
            (OriginalState::Expired, _) | (_, None) => {
                return Err(Error::new(
                    ErrorKind::Expired { at: stored.expired_at.unwrap_or_default() },
                    format!("the original {handle} was held, and was given up by retention"),
                ));
            }
        };
        let opened = self.open_pack(connection, namespace, pack, last).map_err(|error| match error.kind() {
            ErrorKind::Damaged => damaged(&error.to_string()),
            _ => error,
        })?;
        let (about, bytes) = opened.get(stored.slot).ok_or_else(|| damaged("its pack ends too early"))?;
        if blake3::hash(bytes) != stored.hash {
            return Err(damaged("its hash is another"));
        }
        let about: OriginalDescription = serde_json::from_slice(about).unwrap_or_default();
        Ok(UnfoldedOriginal { info: OriginalInfo::new(stored, about), bytes: bytes.to_vec() })
    }

    pub(crate) fn open_pack<'last>(
        &self,
        connection: &Connection,
        namespace: &Namespace,
        pack: i64,
        last: &'last mut LastPack,
    ) -> Result<&'last OpenPack, Error> {
        if last.0.as_ref().is_none_or(|(id, _)| *id != pack) {
            let (content, length): (Vec<u8>, i64) = connection
                .prepare_cached(
                    "SELECT content, length FROM pack
                     WHERE id = ?1 AND namespace = (SELECT id FROM namespace WHERE name = ?2)",
                )?
                .query_row((pack, namespace.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))
                .map_err(|error| match error {
                    rusqlite::Error::QueryReturnedNoRows => Error::new(ErrorKind::Damaged, "its pack is missing"),
                    error => error.into(),
                })?;
            let length = usize::try_from(length).unwrap_or(0);
            last.0 = Some((pack, OpenPack::open(content, length, &self.cipher, namespace)?));
        }
        let (_, opened) = last.0.as_ref().expect("it was put there just now");
        Ok(opened)
    }
}

/// The beginning of a handle, or all of it.
#[derive(Debug)]
pub(crate) struct HandlePrefix(String);

impl HandlePrefix {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let odd = || {
            // What was typed may be long or unprintable, so only its length is repeated.
            Error::new(
                ErrorKind::InvalidHandle,
                format!(
                    "not a handle ({} characters): a handle is the {} digits and lower-case letters behind the \
                     word unfold in a marker, or at least the first {MIN_PREFIX_CHARS} of them",
                    text.chars().count(),
                    Handle::LENGTH
                ),
            )
        };
        if !(MIN_PREFIX_CHARS..=Handle::LENGTH).contains(&text.len()) {
            return Err(odd());
        }
        let text = text.to_ascii_lowercase();
        // Filled up, it must be a handle.
        format!("{text:0<width$}", width = Handle::LENGTH).parse::<Handle>().map_err(|_| odd())?;
        Ok(Self(text))
    }

    /// Handles at or above the first and below the second begin with this.
    fn range(&self) -> (&str, String) {
        // `{` stands right behind `z`.
        (&self.0, format!("{}{{", self.0))
    }
}

impl std::fmt::Display for HandlePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
