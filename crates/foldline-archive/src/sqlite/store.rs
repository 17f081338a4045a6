//! The read side of the archive, shared by unfolding, searching, verifying and exporting.
//!
//! Every original is verified against its hash before it is returned.

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

/// Number of candidates reported for an ambiguous handle prefix.
const MAX_CANDIDATES: usize = 10;

/// Minimum length of a handle prefix: 40 bits, too many to be guessed.
const MIN_PREFIX_CHARS: usize = 8;

#[derive(Debug)]
pub(crate) struct SqliteStore {
    pub(crate) path: PathBuf,
    pub(crate) cipher: ArchiveCipher,
    pub(crate) readers: ReaderPool,
    pub(crate) index: SearchIndex,
}

/// The pack that was read last: its other originals are often requested next.
#[derive(Debug, Default)]
pub(crate) struct LastPack(Option<(i64, OpenPack)>);

impl SqliteStore {
    /// Returns the random identity of this archive.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        let sql = "SELECT value FROM setting WHERE name = 'identity'";
        self.readers.read(|connection| Ok(connection.query_row(sql, (), |row| row.get(0))?))
    }

    /// Returns the only entry whose handle has this prefix.
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
        // Expired originals are reported only if nothing else matches.
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
        let live = found.iter().filter(|row| row.state != OriginalState::Expired).count();
        if live > 1 {
            let candidates: Vec<Handle> = found.iter().take(live.min(MAX_CANDIDATES)).map(|row| row.handle).collect();
            // A model may read the message, so it lists no candidates.
            let message = format!("several originals have handles that begin with {prefix}; give the whole handle");
            return Err(Error::new(ErrorKind::Ambiguous { candidates }, message));
        }
        if found.is_empty() { Err(unknown()) } else { Ok(found.swap_remove(0)) }
    }

    /// Reads an original and verifies its hash.
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
        let (description, bytes) = opened.get(stored.slot).ok_or_else(|| damaged("its pack ends too early"))?;
        if blake3::hash(bytes) != stored.hash {
            return Err(damaged("its hash is another"));
        }
        let description: OriginalDescription = serde_json::from_slice(description).unwrap_or_default();
        Ok(UnfoldedOriginal { info: OriginalInfo::new(stored, description), bytes: bytes.to_vec() })
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
        let (_, opened) = last.0.as_ref().expect("the pack was opened above");
        Ok(opened)
    }
}

/// A handle or a prefix of one.
#[derive(Debug)]
pub(crate) struct HandlePrefix(String);

impl HandlePrefix {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let invalid = || {
            // The input may be long or unprintable, so the message repeats only its length.
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
            return Err(invalid());
        }
        let text = text.to_ascii_lowercase();
        // Padded to full length, the prefix must be a valid handle.
        format!("{text:0<width$}", width = Handle::LENGTH).parse::<Handle>().map_err(|_| invalid())?;
        Ok(Self(text))
    }

    /// Returns the half-open range of handles with this prefix.
    fn range(&self) -> (&str, String) {
        // `{` is the character after `z`.
        (&self.0, format!("{}{{", self.0))
    }
}

impl std::fmt::Display for HandlePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
