//! Packs: originals that were kept together, compressed together.
//!
//! What a conversation folds at one crease repeats itself (the same files, the same paths, the same
//! test output), so one zstd frame over all of it is a quarter smaller than a frame each. A pack
//! is bounded, so that one original can be had without reading much else.
//!
//! Inside a pack each original is preceded by its description. Nothing here touches the database.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::encryption::ArchiveCipher;
use crate::originals::write::MAX_ORIGINAL_BYTES;
use crate::{Error, ErrorKind, Namespace};

/// Bytes of originals in a pack, before compression; a larger original has a pack of its own.
pub(crate) const PACK_BYTES: usize = 64 * 1024;

/// The level at which a crease costs about a millisecond; see docs/decisions.
const ZSTD_LEVEL: i32 = 3;

/// No pack is longer: it holds the largest original with its description.
const MAX_PACK_BYTES: usize = MAX_ORIGINAL_BYTES + 1024 * 1024;

/// What an original was, as far as it may not be read by others: stored with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OriginalDescription {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<String>,
}

/// Where an original lies in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackSlot {
    pub(crate) start: usize,
    pub(crate) description_len: usize,
    pub(crate) length: usize,
}

impl PackSlot {
    pub(crate) fn end(self) -> usize {
        self.start.saturating_add(self.description_len).saturating_add(self.length)
    }
}

/// A pack while it is filled.
#[derive(Debug, Default)]
pub(crate) struct PackBuilder {
    buffer: Vec<u8>,
}

impl PackBuilder {
    /// Whether another original of this length still goes in.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.buffer.is_empty() || self.buffer.len() + length <= PACK_BYTES
    }

    pub(crate) fn add(&mut self, about: &OriginalDescription, bytes: &[u8]) -> Result<PackSlot, Error> {
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, about)
            .map_err(|error| Error::new(ErrorKind::Io, format!("a description could not be written: {error}")))?;
        let place = PackSlot { start, description_len: self.buffer.len() - start, length: bytes.len() };
        self.buffer.extend_from_slice(bytes);
        Ok(place)
    }

    /// The bytes of the pack and their length before compression.
    pub(crate) fn finish(self, seal: &ArchiveCipher, namespace: &Namespace) -> Result<(Vec<u8>, usize), Error> {
        let packed = zstd::bulk::compress(&self.buffer, ZSTD_LEVEL)
            .map_err(|error| Error::new(ErrorKind::Io, format!("originals could not be compressed: {error}")))?;
        Ok((seal.encrypt(namespace, "pack", packed)?, self.buffer.len()))
    }
}

/// A pack that was read from disk.
#[derive(Debug, Default)]
pub(crate) struct OpenPack {
    bytes: Vec<u8>,
}

impl OpenPack {
    /// Opens a pack of `length` bytes. A damaged one is opened as far as it can be read: the hash of
    /// each original decides whether it is good.
    pub(crate) fn open(
        closed: Vec<u8>,
        length: usize,
        seal: &ArchiveCipher,
        namespace: &Namespace,
    ) -> Result<Self, Error> {
        let packed = seal.decrypt(namespace, "pack", closed)?;
        let length = length.min(MAX_PACK_BYTES);
        let plain = zstd::bulk::decompress(&packed, length).unwrap_or_else(|_| {
            // A damaged frame ends early with an error; what came before it is kept.
            let mut plain = Vec::with_capacity(length.min(64 * PACK_BYTES));
            let _ = zstd::stream::read::Decoder::with_buffer(packed.as_slice())
                .and_then(|decoder| decoder.take(length as u64).read_to_end(&mut plain));
            plain
        });
        Ok(Self { bytes: plain })
    }

    /// The description and the bytes at a place; nothing when the pack does not reach there.
    pub(crate) fn get(&self, place: PackSlot) -> Option<(&[u8], &[u8])> {
        self.bytes.get(place.start..place.end()).map(|both| both.split_at(place.description_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_originals_round_trip() {
        let namespace = Namespace::local();
        let mut filling = PackBuilder::default();
        let about = OriginalDescription { tool: Some("read".into()), arguments: None };
        let first = filling.add(&about, b"one").unwrap();
        let second = filling.add(&OriginalDescription::default(), &[0, 255, 7]).unwrap();
        let (closed, length) = filling.finish(&ArchiveCipher::Plaintext, &namespace).unwrap();
        assert_eq!(length, second.end());
        let opened = OpenPack::open(closed, length, &ArchiveCipher::Plaintext, &namespace).unwrap();
        assert_eq!(opened.get(first), Some((br#"{"tool":"read"}"#.as_slice(), b"one".as_slice())));
        assert_eq!(opened.get(second), Some((b"{}".as_slice(), [0, 255, 7].as_slice())));
    }

    /// Half a frame still gives what stands in front.
    #[test]
    fn truncated_pack_yields_its_readable_prefix() {
        let namespace = Namespace::local();
        let mut filling = PackBuilder::default();
        let noise = |seed: u8| -> Vec<u8> {
            let mut bytes = vec![0; 300_000];
            blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
            bytes
        };
        let (first, second) = (noise(1), noise(2));
        let first_place = filling.add(&OriginalDescription::default(), &first).unwrap();
        let second_place = filling.add(&OriginalDescription::default(), &second).unwrap();
        let (mut closed, length) = filling.finish(&ArchiveCipher::Plaintext, &namespace).unwrap();
        closed.truncate(closed.len() - 1000);
        let opened = OpenPack::open(closed, length, &ArchiveCipher::Plaintext, &namespace).unwrap();
        assert!(opened.get(first_place).is_some_and(|(_, bytes)| bytes == first));
        assert!(opened.get(second_place).is_none());
    }

    #[test]
    fn invalid_pack_yields_nothing() {
        let opened =
            OpenPack::open(b"not a frame".to_vec(), 10, &ArchiveCipher::Plaintext, &Namespace::local()).unwrap();
        assert_eq!(opened.get(PackSlot { start: 0, description_len: 0, length: 10 }), None);
        let far = PackSlot { start: usize::MAX, description_len: usize::MAX, length: 1 };
        assert_eq!(opened.get(far), None);
    }
}
