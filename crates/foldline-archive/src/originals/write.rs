//! Storing originals, before they leave a request.
//!
//! Hashing and compressing run on the caller's thread; the store only inserts. An original that is already
//! stored and was touched recently costs one lookup and no write, because most of what a request folds was folded
//! by the previous request.
//!
//! A handle is a part of a hash, so two texts can have the same one. Whole hashes are compared on every store call: the
//! text that came first keeps the handle, and the other one is refused, alone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use foldline::engine::StoreError;
use foldline::{Handle, Original, OriginalStore};

use crate::clock;
use crate::encryption::StoredName;
use crate::error::{Error, ErrorKind};
use crate::originals::pack::{MAX_ORIGINAL_BYTES, OriginalDescription, PackBuilder};
use crate::store::{InsertOutcome, NewPack, NewRow};
use crate::tenant::TenantArchive;

/// Bytes of a tool's arguments that are stored with its output: enough to identify the call.
const MAX_ARGUMENT_BYTES: usize = 2 * 1024;

/// Age at which the last-used time of a marker is updated. Retention never removes anything used within a day, so an
/// hour is precise enough, and a request whose markers were all used within the hour writes nothing.
pub(crate) const TOUCH_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The results of a store call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Originals that were not stored before.
    pub added: u64,
    /// Originals that were already stored.
    pub existing: u64,
    /// Originals that cannot be stored, alone of this call.
    pub refused: Vec<RefusedOriginal>,
}

/// An original that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedOriginal {
    /// Its index in the store call.
    pub index: usize,
    /// Its handle.
    pub handle: Handle,
    /// The reason.
    pub reason: String,
}

impl OriginalStore for TenantArchive {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let counts = self.store_durably(originals).map_err(|error| StoreError(error.to_string()))?;
        match counts.refused.into_iter().next() {
            None => Ok(()),
            Some(refused) => Err(StoreError(refused.reason)),
        }
    }

    fn store_accepted(&self, originals: &[Original<'_>]) -> Result<Vec<usize>, StoreError> {
        let counts = self.store_durably(originals).map_err(|error| StoreError(error.to_string()))?;
        Ok(counts.refused.into_iter().map(|refused| refused.index).collect())
    }
}

impl TenantArchive {
    /// Stores originals durably, like [`OriginalStore::store`], but returns the archive's own error and counts.
    ///
    /// # Errors
    ///
    /// If nothing could be stored. An original that cannot be stored alone is in [`StoreCounts::refused`].
    pub fn store_durably(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let counts = self.store_unsynced(originals)?;
        self.request_sync().wait()?;
        Ok(counts)
    }

    /// Stores originals without waiting for the disk: the data survives the end of this process, and survives a power
    /// loss once [`request_sync`](TenantArchive::request_sync) has been waited for.
    ///
    /// # Errors
    ///
    /// The same as for [`store_durably`](TenantArchive::store_durably).
    pub fn store_unsynced(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let now = clock::now_millis();
        let incoming: Vec<_> =
            originals.iter().map(|original| NewOriginal::new(original, self.session(), now)).collect();
        for original in &incoming {
            original.check_handle()?;
        }
        self.store_missing(&incoming)
    }

    /// Records that these markers were in a request just now; retention counts from this time. Does not wait: an
    /// update that is dropped under load is repeated by the next request.
    ///
    /// # Errors
    ///
    /// If the archive is read-only.
    pub fn touch(&self, handles: &[Handle]) -> Result<(), Error> {
        let keys = handles.iter().map(|handle| Ok(self.cipher().handle_name(*handle)?.key));
        self.store_rows().touch(self.namespace(), keys.collect::<Result<_, Error>>()?, clock::now_millis())
    }

    pub(crate) fn store_missing(&self, incoming: &[NewOriginal<'_>]) -> Result<StoreCounts, Error> {
        let mut verdicts = HashMap::new();
        let missing = self.select_missing(incoming, &mut verdicts)?;
        if !missing.is_empty() {
            let outcomes = self.store_rows().insert(self.namespace(), self.pack_originals(&missing)?)?;
            for (original, outcome) in missing.iter().zip(outcomes) {
                verdicts.insert(
                    original.new.hash,
                    match outcome {
                        InsertOutcome::Added => StoreVerdict::Added,
                        InsertOutcome::Existing => StoreVerdict::Existing,
                        InsertOutcome::HandleTaken => StoreVerdict::Refused(TAKEN_REASON.to_owned()),
                    },
                );
            }
        }
        let mut counts = StoreCounts::default();
        for (index, NewOriginal { handle, hash, .. }) in incoming.iter().enumerate() {
            match verdicts.get_mut(hash) {
                Some(StoreVerdict::Refused(reason)) => {
                    let reason = format!("the original {handle} cannot be stored: {reason}");
                    counts.refused.push(RefusedOriginal { index, handle: *handle, reason });
                }
                Some(verdict @ StoreVerdict::Added) => {
                    counts.added += 1;
                    // The same text again in this call.
                    *verdict = StoreVerdict::Existing;
                }
                Some(StoreVerdict::Existing) | None => counts.existing += 1,
            }
        }
        Ok(counts)
    }

    /// Returns the originals that are not stored or not recently touched, without duplicates, and decides about the
    /// others.
    fn select_missing<'a, 'b>(
        &self,
        incoming: &'b [NewOriginal<'a>],
        verdicts: &mut HashMap<[u8; 32], StoreVerdict>,
    ) -> Result<Vec<MissingOriginal<'a, 'b>>, Error> {
        let mut owners: HashMap<Handle, [u8; 32]> = HashMap::new();
        let mut missing = Vec::new();
        for new in incoming {
            match owners.entry(new.handle) {
                Entry::Occupied(owner) if *owner.get() == new.hash => {}
                Entry::Occupied(_) => {
                    verdicts.insert(new.hash, StoreVerdict::Refused(TAKEN_REASON.to_owned()));
                }
                Entry::Vacant(_) if new.bytes.len() > MAX_ORIGINAL_BYTES => {
                    let length = new.bytes.len();
                    let reason = format!("it has {length} bytes; the limit is {MAX_ORIGINAL_BYTES}");
                    verdicts.insert(new.hash, StoreVerdict::Refused(reason));
                }
                Entry::Vacant(owner) => {
                    owner.insert(new.hash);
                    let (name, hash) = (self.cipher().handle_name(new.handle)?, self.cipher().content_hash(&new.hash));
                    missing.push(MissingOriginal { new, name, hash });
                }
            }
        }
        let keys: Vec<&str> = missing.iter().map(|original| original.name.key.as_str()).collect();
        let known = self.store_rows().find_known(self.namespace(), &keys)?;
        let known: HashMap<&str, _> = known.iter().map(|known| (known.key.as_str(), known)).collect();
        missing.retain(|original| {
            let verdict = match known.get(original.name.key.as_str()) {
                Some(known) if known.hash != original.hash => StoreVerdict::Refused(TAKEN_REASON.to_owned()),
                Some(known) if known.is_available && known.carried_at >= original.fresh_since() => {
                    StoreVerdict::Existing
                }
                _ => return true,
            };
            verdicts.insert(original.new.hash, verdict);
            false
        });
        Ok(missing)
    }

    fn pack_originals(&self, missing: &[MissingOriginal<'_, '_>]) -> Result<Vec<NewPack>, Error> {
        let mut packs = Vec::new();
        let mut builder = PackBuilder::default();
        let mut rows = Vec::new();
        let close = |builder: PackBuilder, originals: Vec<NewRow>| {
            let (content, length) = builder.finish(self.cipher())?;
            Ok::<_, Error>(NewPack { content, length, originals })
        };
        for MissingOriginal { new, name, hash, .. } in missing {
            if !builder.has_room(new.bytes.len()) {
                packs.push(close(std::mem::take(&mut builder), std::mem::take(&mut rows))?);
            }
            let slot = builder.add(&new.description, new.bytes)?;
            rows.push(NewRow {
                handle: name.clone(),
                hash: *hash,
                slot,
                tokens: new.tokens,
                message: new.message,
                tool: new.description.tool.clone().filter(|_| self.cipher().is_plaintext()),
                session: new.session.map(|name| self.cipher().session_name(name)).transpose()?,
                kept_at: new.kept_at,
                carried_at: new.carried_at,
            });
        }
        packs.push(close(builder, rows)?);
        Ok(packs)
    }
}

/// The reason to refuse an original whose handle belongs to another text.
const TAKEN_REASON: &str = "another original has the same handle";

/// The decision about one text of a store call.
#[derive(Debug)]
enum StoreVerdict {
    Added,
    Existing,
    Refused(String),
}

/// An original of a store call that may have to be written.
struct MissingOriginal<'a, 'b> {
    new: &'b NewOriginal<'a>,
    name: StoredName,
    hash: [u8; 32],
}

impl MissingOriginal<'_, '_> {
    /// Returns the time after which a stored copy need not be touched.
    fn fresh_since(&self) -> i64 {
        self.new.carried_at - clock::to_millis(TOUCH_INTERVAL)
    }
}

/// An original to be stored.
pub(crate) struct NewOriginal<'a> {
    pub(crate) handle: Handle,
    pub(crate) hash: [u8; 32],
    pub(crate) bytes: &'a [u8],
    pub(crate) description: OriginalDescription,
    pub(crate) session: Option<&'a str>,
    pub(crate) message: u64,
    pub(crate) tokens: u64,
    pub(crate) kept_at: i64,
    pub(crate) carried_at: i64,
}

impl<'a> NewOriginal<'a> {
    fn new(original: &Original<'a>, session: Option<&'a str>, now: i64) -> Self {
        Self {
            handle: original.handle,
            hash: *blake3::hash(original.bytes).as_bytes(),
            bytes: original.bytes,
            description: OriginalDescription {
                tool: original.tool.map(str::to_owned),
                arguments: original
                    .arguments
                    .map(|text| text[..text.floor_char_boundary(MAX_ARGUMENT_BYTES)].to_owned()),
            },
            session,
            message: original.message as u64,
            tokens: original.tokens,
            kept_at: now,
            carried_at: now,
        }
    }

    /// Rejects a wrong handle, which would not resolve to these bytes.
    fn check_handle(&self) -> Result<(), Error> {
        let handle = self.handle;
        if Handle::from_hash(&self.hash) == handle {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidInput, format!("{handle} is not the handle of these bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;
    use crate::namespace::Namespace;

    /// Returns an original with the handle of another text, as if their hashes began with the same 60 bits.
    fn colliding<'a>(bytes: &'a [u8], handle_of: &[u8]) -> NewOriginal<'a> {
        let handle = Handle::for_content(handle_of);
        let original = Original { handle, bytes, tool: None, arguments: None, message: 0, tokens: 1 };
        NewOriginal::new(&original, None, clock::now_millis())
    }

    fn refused(counts: &StoreCounts) -> Vec<usize> {
        counts.refused.iter().map(|refused| refused.index).collect()
    }

    /// The second text of two with the same handle was lost, and `verify` found nothing.
    #[test]
    fn colliding_original_is_refused_alone() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let unfold = |bytes: &[u8]| tenant.unfold(Handle::for_content(bytes).as_str()).unwrap().bytes;

        // In one call.
        let call = [
            colliding(b"first", b"first"),
            colliding(b"second", b"first"),
            colliding(b"other", b"other"),
            colliding(b"first", b"first"),
        ];
        let counts = tenant.store_missing(&call).unwrap();
        assert_eq!((counts.added, counts.existing, refused(&counts)), (2, 1, vec![1]));
        assert_eq!((unfold(b"first"), unfold(b"other")), (b"first".to_vec(), b"other".to_vec()));

        // In a later call.
        let counts = tenant.store_missing(&[colliding(b"second", b"first"), colliding(b"third", b"third")]).unwrap();
        assert_eq!((counts.added, refused(&counts)), (1, vec![0]));
        assert_eq!((unfold(b"first"), unfold(b"third")), (b"first".to_vec(), b"third".to_vec()));
        assert_eq!(archive.verify(|_| ()).unwrap().intact, 3);
    }

    #[test]
    fn collision_with_a_concurrent_writer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let pack = |new: NewOriginal<'_>| {
            let (name, hash) = (tenant.cipher().handle_name(new.handle).unwrap(), new.hash);
            tenant.pack_originals(&[MissingOriginal { new: &new, name, hash }]).unwrap()
        };
        // Both have looked before either has written.
        let (first, second) = (pack(colliding(b"first", b"first")), pack(colliding(b"second", b"first")));
        let insert = |packs| tenant.store_rows().insert(tenant.namespace(), packs).unwrap();
        assert_eq!(insert(first.clone()), [InsertOutcome::Added]);
        assert_eq!(insert(second), [InsertOutcome::HandleTaken]);
        assert_eq!(insert(first), [InsertOutcome::Existing]);
    }
}
