//! Packs: originals that were stored together, compressed together.
//!
//! The originals of one crease repeat each other (the same files, paths and test output), so one zstd frame over
//! all of them is a quarter smaller than one frame each. The size of a pack is bounded, so that reading one
//! original decompresses little else.
//!
//! Inside a pack each original is preceded by its description. Nothing here accesses the database.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::encryption::TenantCipher;
use crate::error::{Error, ErrorKind};

/// Size limit of an original; larger ones would approach SQLite's row limit.
pub(crate) const MAX_ORIGINAL_BYTES: usize = 256 * 1024 * 1024;

/// Bytes of originals in a pack, before compression; a larger original gets its own pack.
pub(crate) const PACK_BYTES: usize = 64 * 1024;

/// The level at which a crease costs about a millisecond; see docs/decisions.
const ZSTD_LEVEL: i32 = 3;

/// Upper bound of a pack: the largest original with its description.
const MAX_PACK_BYTES: usize = MAX_ORIGINAL_BYTES + 1024 * 1024;

/// Private metadata of an original, stored with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OriginalDescription {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<String>,
}

/// Position of an original in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackSlot {
    /// Offset of its description.
    pub start: usize,
    /// Length of its description, which precedes its bytes.
    pub description_len: usize,
    /// Length of its bytes.
    pub length: usize,
}

impl PackSlot {
    pub(crate) fn end(self) -> usize {
        self.start.saturating_add(self.description_len).saturating_add(self.length)
    }
}

/// A pack under construction.
#[derive(Debug, Default)]
pub(crate) struct PackBuilder {
    buffer: Vec<u8>,
}

impl PackBuilder {
    /// Returns true if another original of this length fits.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.buffer.is_empty() || self.buffer.len() + length <= PACK_BYTES
    }

    pub(crate) fn add(&mut self, description: &OriginalDescription, bytes: &[u8]) -> Result<PackSlot, Error> {
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, description)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not write a description: {error}")))?;
        let slot = PackSlot { start, description_len: self.buffer.len() - start, length: bytes.len() };
        self.buffer.extend_from_slice(bytes);
        Ok(slot)
    }

    /// Adds the stored bytes of an original and of its description unchanged.
    pub(crate) fn copy(&mut self, description: &[u8], bytes: &[u8]) -> PackSlot {
        let slot = PackSlot { start: self.buffer.len(), description_len: description.len(), length: bytes.len() };
        self.buffer.extend_from_slice(description);
        self.buffer.extend_from_slice(bytes);
        slot
    }

    /// Returns the bytes of the pack and their length before compression.
    pub(crate) fn finish(self, cipher: &TenantCipher) -> Result<(Vec<u8>, usize), Error> {
        let packed = zstd::bulk::compress(&self.buffer, ZSTD_LEVEL)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not compress originals: {error}")))?;
        Ok((cipher.encrypt("pack", packed)?, self.buffer.len()))
    }
}

/// A pack that was read from disk.
#[derive(Debug, Default)]
pub(crate) struct OpenPack {
    bytes: Vec<u8>,
}

impl OpenPack {
    /// Opens a pack of `length` bytes. A damaged pack is opened as far as it can be read; the hash of each original
    /// decides whether it is intact.
    pub(crate) fn open(content: &[u8], length: usize, cipher: &TenantCipher) -> Result<Self, Error> {
        let packed = cipher.decrypt_slice("pack", content)?;
        let length = length.min(MAX_PACK_BYTES);
        let plain = zstd::bulk::decompress(&packed, length).unwrap_or_else(|_| {
            // A damaged frame ends early with an error; the prefix is kept.
            let mut plain = Vec::with_capacity(length.min(64 * PACK_BYTES));
            let _ = zstd::stream::read::Decoder::with_buffer(&*packed)
                .and_then(|decoder| decoder.take(length as u64).read_to_end(&mut plain));
            plain
        });
        Ok(Self { bytes: plain })
    }

    /// Returns the description and the bytes of a slot, or `None` if the pack is too short.
    pub(crate) fn get(&self, slot: PackSlot) -> Option<(&[u8], &[u8])> {
        self.bytes.get(slot.start..slot.end()).map(|both| both.split_at(slot.description_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::ArchiveCipher;
    use crate::namespace::Namespace;

    fn plaintext() -> TenantCipher {
        ArchiveCipher::Plaintext.for_namespace(&Namespace::local())
    }

    #[test]
    fn packed_originals_round_trip() {
        let mut builder = PackBuilder::default();
        let description = OriginalDescription { tool: Some("read".into()), arguments: None };
        let first = builder.add(&description, b"one").unwrap();
        let second = builder.add(&OriginalDescription::default(), &[0, 255, 7]).unwrap();
        let (content, length) = builder.finish(&plaintext()).unwrap();
        assert_eq!(length, second.end());
        let opened = OpenPack::open(&content, length, &plaintext()).unwrap();
        assert_eq!(opened.get(first), Some((br#"{"tool":"read"}"#.as_slice(), b"one".as_slice())));
        assert_eq!(opened.get(second), Some((b"{}".as_slice(), [0, 255, 7].as_slice())));
    }

    /// Half a frame still yields the originals before the cut.
    #[test]
    fn truncated_pack_yields_its_readable_prefix() {
        let mut builder = PackBuilder::default();
        let noise = |seed: u8| -> Vec<u8> {
            let mut bytes = vec![0; 300_000];
            blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
            bytes
        };
        let (first, second) = (noise(1), noise(2));
        let first_slot = builder.add(&OriginalDescription::default(), &first).unwrap();
        let second_slot = builder.add(&OriginalDescription::default(), &second).unwrap();
        let (mut content, length) = builder.finish(&plaintext()).unwrap();
        content.truncate(content.len() - 1000);
        let opened = OpenPack::open(&content, length, &plaintext()).unwrap();
        assert!(opened.get(first_slot).is_some_and(|(_, bytes)| bytes == first));
        assert!(opened.get(second_slot).is_none());
    }

    #[test]
    fn invalid_pack_yields_nothing() {
        let opened = OpenPack::open(b"not a frame", 10, &plaintext()).unwrap();
        assert_eq!(opened.get(PackSlot { start: 0, description_len: 0, length: 10 }), None);
        let far = PackSlot { start: usize::MAX, description_len: usize::MAX, length: 1 };
        assert_eq!(opened.get(far), None);
    }
}
